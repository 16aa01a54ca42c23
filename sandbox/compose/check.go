package compose

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"assay/fault"
	"assay/sandbox/docker"
)

// findings collects what is wrong with a project, so that all of it is told at
// once.
type findings struct {
	pr   *project
	list []string
	fix  string
}

// add notes what is wrong with a service. The first fix is the one that is
// shown.
func (f *findings) add(service string, fields []string, fix, format string, a ...any) {
	f.note(f.pr.src.at(service, fields...), fix, "service "+service+": "+fmt.Sprintf(format, a...))
}

func (f *findings) note(at, fix, what string) {
	f.list = append(f.list, at+": "+what)
	if f.fix == "" {
		f.fix = fix
	}
}

func (f *findings) err() error {
	if len(f.list) == 0 {
		return nil
	}
	return &fault.Error{Class: fault.Config, Code: "sandbox.compose-refused", What: strings.Join(f.list, "; "), Fix: f.fix}
}

// check refuses a project that cannot be run many times at once on one engine,
// that reaches the host, or that asks for something this provider would drop.
func (pr *project) check() error {
	f := &findings{pr: pr}
	if _, ok := pr.p.Services[pr.spec.WorkspaceService]; !ok {
		return pr.noWorkspace()
	}
	switch pr.spec.Guest {
	case "", "auto", "off":
	default:
		return fault.Configf("sandbox.docker-guest", "Write `guest: auto` or `guest: off`.", "guest %q is not known", pr.spec.Guest)
	}
	switch pr.spec.Engine {
	case "", docker.Docker, docker.Podman:
	default:
		return fault.Configf("sandbox.compose-engine", "Write `engine: docker` or `engine: podman`.", "engine %q is not known", pr.spec.Engine)
	}
	for _, p := range pr.spec.Profiles {
		if p != "*" && !slices.Contains(pr.profiles(), p) {
			f.note(pr.src.name(pr.src.files[0].path), "Correct `profiles:`.", fmt.Sprintf("no service has the profile %q", p))
		}
	}
	for _, name := range pr.names() {
		f.service(name, pr.p.Services[name])
	}
	f.globals()
	return f.err()
}

func (pr *project) noWorkspace() error {
	name := pr.spec.WorkspaceService
	fix := "Name one of: " + strings.Join(pr.names(), ", ") + "."
	if _, off := pr.p.DisabledServices[name]; off {
		fix = "Turn on its profile with `profiles:`."
		return fault.Configf("sandbox.compose-service", fix, "%s: service %s belongs to a profile that is not on", pr.src.at(name, "profiles"), name)
	}
	return fault.Configf("sandbox.compose-service", fix, "%s has no service %q", pr.src.name(pr.src.files[0].path), name)
}

func (pr *project) profiles() []string {
	var out []string
	for _, all := range []types.Services{pr.p.Services, pr.p.DisabledServices} {
		for _, s := range all {
			out = append(out, s.Profiles...)
		}
	}
	return out
}

// service checks one service.
func (f *findings) service(name string, s types.ServiceConfig) {
	if s.ContainerName != "" {
		f.add(name, []string{"container_name"}, "Remove `container_name`: every sandbox gets containers of its own, and services find each other by service name.", "the fixed container_name %q would collide with the next sandbox", s.ContainerName)
	}
	for _, p := range s.Ports {
		if p.Published != "" && p.Published != "0" {
			f.add(name, []string{"ports"}, "Write the container's port only, such as \"80\", or use `expose`: services reach each other without published ports.", "the fixed host port %s would collide with the next sandbox", p.Published)
		}
	}
	if s.Privileged {
		f.add(name, []string{"privileged"}, "Remove it; `cap_add` gives single powers.", "privileged would give the sandbox the host")
	}
	if s.UseAPISocket {
		f.add(name, []string{"use_api_socket"}, "Remove it.", "use_api_socket would give the sandbox the engine")
	}
	for field, mode := range map[string]string{"network_mode": s.NetworkMode, "pid": s.Pid, "ipc": s.Ipc, "uts": s.Uts, "userns_mode": s.UserNSMode, "cgroup": s.Cgroup} {
		switch {
		case mode == "", mode == "private", mode == "none" && (field == "network_mode" || field == "ipc"), mode == "shareable" && field == "ipc":
		case mode == "host", strings.HasPrefix(mode, "container:"):
			f.add(name, []string{field}, "Remove it.", "%s %s reaches out of the sandbox", field, mode)
		default:
			f.add(name, []string{field}, "Remove it.", "%s %s is not supported", field, mode)
		}
	}
	if s.GetScale() != 1 {
		f.add(name, []string{"scale", "deploy"}, "Write the service as often as it is needed.", "%d containers of one service are not supported", s.GetScale())
	}
	if s.Image == "" && s.Build == nil {
		f.add(name, nil, "Give it `image` or `build`.", "it has neither image nor build")
	}
	switch policy, _, err := s.GetPullPolicy(); {
	case err != nil:
		f.add(name, []string{"pull_policy"}, "Use missing, never or build.", "%v", err)
	case policy == types.PullPolicyAlways, policy == types.PullPolicyRefresh:
		f.add(name, []string{"pull_policy"}, "Use a tag that does not move, or a digest.", "pull_policy %s is not supported: images are pulled when they are missing, once per run", s.PullPolicy)
	}
	f.buildOf(name, s.Build)
	f.networksOf(name, s)
	f.volumesOf(name, s)
	f.filesOf(name, s)
	f.healthOf(name, s)
	if d := s.Deploy; d != nil && d.Resources.Reservations != nil && len(d.Resources.Reservations.Devices) > 0 {
		f.add(name, []string{"deploy"}, "Remove it.", "reserved devices are not supported")
	}
	f.rest(name, s)
}

func (f *findings) healthOf(name string, s types.ServiceConfig) {
	for dep, d := range s.DependsOn {
		on, ok := f.pr.p.Services[dep]
		if !ok {
			continue // a service that is off and not required; the library refuses the others
		}
		if d.Condition == types.ServiceConditionHealthy && on.HealthCheck != nil && on.HealthCheck.Disable {
			f.add(name, []string{"depends_on"}, "Give that service a healthcheck, or wait for service_started.", "it waits until %s is healthy, whose healthcheck is disabled", dep)
		}
		if d.Condition == types.ServiceConditionCompletedSuccessfully && dep == f.pr.spec.WorkspaceService {
			f.add(name, []string{"depends_on"}, "Wait for service_started.", "it waits for the end of %s, which is the sandbox itself", dep)
		}
	}
	if h := s.HealthCheck; h != nil && name == f.pr.spec.WorkspaceService && !h.Disable && len(h.Test) == 0 {
		f.add(name, []string{"healthcheck"}, "Give it a `test`.", "the healthcheck of the sandbox's own service has no test")
	}
}

func (f *findings) networksOf(name string, s types.ServiceConfig) {
	for n, c := range s.Networks {
		if c == nil {
			continue
		}
		if c.Ipv4Address != "" || c.Ipv6Address != "" || len(c.LinkLocalIPs) > 0 || c.MacAddress != "" {
			f.add(name, []string{"networks"}, "Remove it: services find each other by name.", "a fixed address on network %s would collide with the next sandbox", n)
		}
		if len(c.DriverOpts) > 0 || c.InterfaceName != "" || c.GatewayPriority != 0 {
			f.add(name, []string{"networks"}, "Remove it.", "driver_opts, interface_name and gw_priority of network %s are not supported", n)
		}
	}
}

// sockets of engines, by the end of their paths.
var engineSockets = []string{"docker.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock"}

func (f *findings) volumesOf(name string, s types.ServiceConfig) {
	for _, v := range s.Volumes {
		at := []string{"volumes"}
		switch v.Type {
		case types.VolumeTypeTmpfs:
		case types.VolumeTypeVolume:
			if v.Volume != nil && (v.Volume.Subpath != "") {
				f.add(name, at, "Mount the whole volume.", "subpath of volume %s is not supported", v.Source)
			}
		case types.VolumeTypeBind:
			f.bind(name, v)
		default:
			f.add(name, at, "Use a named volume or files of the project.", "mounts of type %s are not supported", v.Type)
		}
	}
}

func (f *findings) bind(name string, v types.ServiceVolumeConfig) {
	at := []string{"volumes"}
	if slices.ContainsFunc(engineSockets, func(sock string) bool { return strings.HasSuffix(v.Source, "/"+sock) }) {
		f.add(name, at, "Remove the mount.", "the mount of %s would give the sandbox the engine, and with it the host", v.Source)
		return
	}
	if !inside(f.pr.src.root, v.Source) {
		f.add(name, at, "Mount files below the Compose file's folder, or a named volume.", "%s is outside of the project's folder", v.Source)
		return
	}
	st, err := os.Stat(v.Source)
	switch {
	case missing(err):
		f.add(name, at, "Make the file, or use a named volume.", "%s does not exist", f.pr.src.name(v.Source))
	case err != nil:
		f.add(name, at, "Check the file.", "%v", err)
	case !st.IsDir() && !st.Mode().IsRegular():
		f.add(name, at, "Remove the mount.", "%s is neither a file nor a folder", f.pr.src.name(v.Source))
	}
	if b := v.Bind; b != nil && b.Propagation != "" && !strings.HasSuffix(b.Propagation, "private") {
		f.add(name, at, "Remove it.", "mount propagation %s is not supported", b.Propagation)
	}
}

func (f *findings) filesOf(name string, s types.ServiceConfig) {
	object := func(kind, ref string, o types.FileObjectConfig, ok bool) {
		switch {
		case !ok:
			f.add(name, []string{kind}, "Define it.", "%s %s is not defined", kind, ref)
		case bool(o.External):
			f.add(name, []string{kind}, "Use `file`, `environment` or `content`.", "external %s cannot be had: %s", kind, ref)
		case o.File != "" && !inside(f.pr.src.root, o.File):
			f.add(name, []string{kind}, "Copy the file into the project.", "%s of %s is outside of the project's folder", o.File, ref)
		case o.File != "" && !regular(o.File):
			f.add(name, []string{kind}, "Make the file.", "%s of %s is no file", f.pr.src.name(o.File), ref)
		case o.Environment != "" && o.Content == "":
			f.add(name, []string{kind}, "Give it in `env:` or `credentialEnv:`.", "variable %s of %s is not set", o.Environment, ref)
		}
	}
	for _, r := range s.Secrets {
		o, ok := f.pr.p.Secrets[r.Source]
		object("secrets", r.Source, types.FileObjectConfig(o), ok)
	}
	for _, r := range s.Configs {
		o, ok := f.pr.p.Configs[r.Source]
		object("configs", r.Source, types.FileObjectConfig(o), ok)
	}
	hasFiles := len(s.Secrets)+len(s.Configs) > 0 || slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Type == types.VolumeTypeBind })
	if s.ReadOnly && hasFiles {
		f.add(name, []string{"read_only"}, "Put the files into the image, or leave out `read_only`.", "files cannot be copied into a read-only container")
	}
}

// rest refuses every field that nothing else here reads: to drop it would be to
// run something else than the file says.
func (f *findings) rest(name string, s types.ServiceConfig) {
	known := map[string]bool{}
	for _, n := range strings.Fields(`
		Name Profiles Deploy Develop Restart Scale Attach ContainerName Extends Extensions
		Annotations CapAdd CapDrop CPUS CPUPeriod CPUQuota CPUSet CPUShares Cgroup Command Configs Devices DeviceCgroupRules DNS DNSOpts
		DNSSearch DomainName Entrypoint Environment EnvFiles ExtraHosts GroupAdd Hostname Image Init Ipc Labels LabelFiles CustomLabels
		Logging LogDriver LogOpt MemLimit MemReservation MemSwapLimit Networks NetworkMode OomScoreAdj Pid PidsLimit
		Platform Privileged PullPolicy ReadOnly Secrets SecurityOpt ShmSize StopGracePeriod StopSignal Sysctls Tmpfs Ulimits
		UseAPISocket User UserNSMode Uts Volumes WorkingDir
		Build DependsOn Expose HealthCheck Ports StdinOpen Tty`) {
		known[n] = true
	}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		for i := range v.NumField() {
			field, value := v.Type().Field(i), v.Field(i)
			if field.Anonymous {
				walk(value)
				continue
			}
			if known[field.Name] || value.IsZero() || (value.Kind() == reflect.Slice || value.Kind() == reflect.Map) && value.Len() == 0 {
				continue
			}
			key, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			f.add(name, []string{key}, "Remove it.", "%s is not supported", key)
		}
	}
	walk(reflect.ValueOf(s))
}

// bridgeOptions are options of networks that name nothing outside of them.
var bridgeOptions = []string{"com.docker.network.driver.mtu", "com.docker.network.bridge.enable_icc", "com.docker.network.bridge.enable_ip_masquerade"}

// globals checks networks and volumes.
func (f *findings) globals() {
	place := func(kind, key string, fields ...string) string {
		for _, field := range fields {
			if at := f.pr.src.path(kind, key, field); at != "" {
				return at
			}
		}
		return firstOf(f.pr.src.path(kind, key), f.pr.src.name(f.pr.src.files[0].path))
	}
	for _, key := range f.pr.networks() {
		n := f.pr.p.Networks[key]
		if n.External {
			continue
		}
		note := func(field, fix, format string, a ...any) {
			f.note(place("networks", key, field), fix, "network "+key+": "+fmt.Sprintf(format, a...))
		}
		if n.Name != loadedName+"_"+key {
			note("name", "Remove `name`, or say `external: true`.", "the global name %q would join all sandboxes", n.Name)
		}
		if n.Driver != "" && n.Driver != "bridge" && n.Driver != "default" {
			note("driver", "Remove it.", "driver %s is not supported", n.Driver)
		}
		if len(n.Ipam.Config) > 0 || n.Ipam.Driver != "" && n.Ipam.Driver != "default" {
			note("ipam", "Remove it: services find each other by name.", "a fixed subnet would collide with the next sandbox")
		}
		for o := range n.DriverOpts {
			if !slices.Contains(bridgeOptions, o) {
				note("driver_opts", "Remove it.", "option %s is not supported", o)
			}
		}
		if n.EnableIPv4 != nil && !*n.EnableIPv4 {
			note("enable_ipv4", "Remove it.", "a network without IPv4 is not supported")
		}
	}
	for _, key := range f.pr.volumes() {
		v, ok := f.pr.p.Volumes[key]
		if !ok || bool(v.External) {
			continue
		}
		note := func(field, fix, format string, a ...any) {
			f.note(place("volumes", key, field), fix, "volume "+key+": "+fmt.Sprintf(format, a...))
		}
		if v.Name != loadedName+"_"+key {
			note("name", "Remove `name`, or say `external: true`.", "the global name %q would be shared by all sandboxes", v.Name)
		}
		if v.Driver != "" && v.Driver != "local" {
			note("driver", "Remove it.", "driver %s is not supported", v.Driver)
		}
		if len(v.DriverOpts) > 0 && v.DriverOpts["type"] != "tmpfs" {
			note("driver_opts", "Remove them, or use `type: tmpfs`.", "driver_opts that mount something of the host or the network are not supported")
		}
	}
}

// networks are the networks that services use, in order.
func (pr *project) networks() []string {
	used := map[string]bool{}
	for _, s := range pr.p.Services {
		for n := range s.Networks {
			used[n] = true
		}
	}
	return slices.Sorted(maps.Keys(used))
}

// volumes are the named volumes that services use, in order.
func (pr *project) volumes() []string {
	used := map[string]bool{}
	for _, s := range pr.p.Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeVolume && v.Source != "" {
				used[v.Source] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(used))
}

func firstOf(names ...string) string {
	for _, n := range names {
		if n != "" {
			return n
		}
	}
	return ""
}
