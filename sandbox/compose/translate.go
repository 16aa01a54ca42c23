package compose

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/docker"
)

// names are what one sandbox's project calls its parts in the engine.
type names struct{ project string }

func (n names) container(service string) string { return n.project + "-" + safe(service) + "-1" }
func (n names) part(key string) string          { return n.project + "_" + safe(key) }

// safe turns a key of a file into a part of a name that engines accept.
func safe(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, s)
}

// companion returns the container of a service that stands beside the sandbox.
func (pr *project) companion(name, imageID string, labels map[string]string, fill *strings.Replacer) (*container.Config, *container.HostConfig, error) {
	s := pr.p.Services[name]
	c := &container.Config{
		Image: imageID, User: s.User, WorkingDir: s.WorkingDir, Env: environment(s, fill), OpenStdin: s.StdinOpen, Tty: s.Tty,
		StopSignal: s.StopSignal, Labels: map[string]string{}, Healthcheck: health(s.HealthCheck),
	}
	c.Entrypoint, c.Cmd = command(s.Entrypoint, fill), command(s.Command, fill)
	pids := int64(docker.DefaultPIDs)
	h := &container.HostConfig{
		// The end of the log is kept with a failed attempt; it must not fill
		// the engine's disk until then.
		LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "1m"}},
		Init:      s.Init, Resources: container.Resources{PidsLimit: &pids},
	}
	var err error
	h.RestartPolicy, err = restart(s)
	if err == nil {
		err = pr.common(s, c, h, labels)
	}
	return c, h, err
}

// common sets what a service says of its container, the sandbox's own included.
func (pr *project) common(s types.ServiceConfig, c *container.Config, h *container.HostConfig, labels map[string]string) error {
	c.Hostname, c.Domainname = s.Hostname, s.DomainName
	for k, v := range s.Labels {
		if !strings.HasPrefix(k, sandbox.LabelPrefix) {
			c.Labels[k] = v
		}
	}
	maps.Copy(c.Labels, labels)
	h.CapAdd, h.CapDrop, h.GroupAdd, h.SecurityOpt = s.CapAdd, s.CapDrop, s.GroupAdd, s.SecurityOpt
	h.DNSOptions, h.DNSSearch, h.ExtraHosts = s.DNSOpts, s.DNSSearch, s.ExtraHosts.AsList(":")
	h.Sysctls, h.ReadonlyRootfs, h.ShmSize, h.OomScoreAdj = s.Sysctls, s.ReadOnly, int64(s.ShmSize), int(s.OomScoreAdj)
	h.IpcMode = container.IpcMode(s.Ipc)
	for _, d := range s.DNS {
		a, err := netip.ParseAddr(d)
		if err != nil {
			return fault.Configf("sandbox.compose-refused", "Write an address.", "%s: service %s: dns %q is no address", pr.src.at(s.Name, "dns"), s.Name, d)
		}
		h.DNS = append(h.DNS, a)
	}
	for _, d := range s.Devices {
		h.Devices = append(h.Devices, container.DeviceMapping{PathOnHost: d.Source, PathInContainer: d.Target, CgroupPermissions: firstOf(d.Permissions, "rwm")})
	}
	h.DeviceCgroupRules = s.DeviceCgroupRules
	limits(s, &h.Resources)
	for _, t := range s.Tmpfs {
		if h.Tmpfs == nil {
			h.Tmpfs = map[string]string{}
		}
		target, options, _ := strings.Cut(t, ":")
		h.Tmpfs[target] = options
	}
	return nil
}

// mounts are a service's volumes. Folders of the project become volumes of the
// sandbox, into which their content is copied.
func (pr *project) mounts(name string, n names) []mount.Mount {
	var out []mount.Mount
	for _, v := range pr.p.Services[name].Volumes {
		m := mount.Mount{Target: v.Target, ReadOnly: v.ReadOnly}
		switch v.Type {
		case types.VolumeTypeTmpfs:
			m.Type = mount.TypeTmpfs
			if v.Tmpfs != nil {
				m.TmpfsOptions = &mount.TmpfsOptions{SizeBytes: int64(v.Tmpfs.Size), Mode: fileMode(v.Tmpfs.Mode)}
			}
		case types.VolumeTypeVolume:
			m.Type = mount.TypeVolume
			if v.Source != "" {
				m.Source = n.part(v.Source)
				if external := pr.p.Volumes[v.Source]; external.External {
					m.Source = external.Name
				}
			}
			if v.Volume != nil && v.Volume.NoCopy {
				m.VolumeOptions = &mount.VolumeOptions{NoCopy: true}
			}
		case types.VolumeTypeBind:
			if regular(v.Source) {
				continue // a file is copied to its place
			}
			m.Type, m.ReadOnly, m.VolumeOptions = mount.TypeVolume, false, &mount.VolumeOptions{NoCopy: true}
		}
		out = append(out, m)
	}
	return out
}

// join returns how a service is connected: to one network at birth, to the
// others after that. With no network at all the mode is "none".
func (pr *project) join(name string, ids map[string]string) (mode container.NetworkMode, first *network.NetworkingConfig, others map[string]*network.EndpointSettings) {
	s := pr.p.Services[name]
	if s.NetworkMode == "none" || len(s.Networks) == 0 {
		return "none", nil, nil
	}
	for _, key := range s.NetworksByPriority() {
		c := s.Networks[key]
		e := &network.EndpointSettings{}
		if c.ServiceNameAliasEnabled() {
			e.Aliases = append(e.Aliases, name)
		}
		if c != nil {
			e.Aliases = append(e.Aliases, c.Aliases...)
		}
		if first == nil {
			mode = container.NetworkMode(ids[key])
			first = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{ids[key]: e}}
			continue
		}
		if others == nil {
			others = map[string]*network.EndpointSettings{}
		}
		others[ids[key]] = e
	}
	return mode, first, others
}

// environment is a service's own variables, in order.
func environment(s types.ServiceConfig, fill *strings.Replacer) []string {
	var out []string
	for k, v := range variablesOf(s, fill) {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

func variablesOf(s types.ServiceConfig, fill *strings.Replacer) map[string]string {
	out := map[string]string{}
	for k, v := range s.Environment {
		if v != nil { // a name without a value that is set nowhere is left out
			out[k] = fill.Replace(*v)
		}
	}
	return out
}

// command keeps the difference between nothing said and nothing wanted.
func command(c types.ShellCommand, fill *strings.Replacer) []string {
	if c == nil {
		return nil
	}
	out := make([]string, 0, len(c))
	for _, arg := range c {
		out = append(out, fill.Replace(arg))
	}
	if len(out) == 0 {
		return []string{""} // so the engine's interface spells an emptied one
	}
	return out
}

// health translates a healthcheck; nil leaves the image's own.
func health(h *types.HealthCheckConfig) *container.HealthConfig {
	if h == nil {
		return nil
	}
	if h.Disable {
		return &container.HealthConfig{Test: []string{"NONE"}}
	}
	d := func(d *types.Duration) time.Duration {
		if d == nil {
			return 0
		}
		return time.Duration(*d)
	}
	out := &container.HealthConfig{Test: h.Test, Interval: d(h.Interval), Timeout: d(h.Timeout), StartPeriod: d(h.StartPeriod), StartInterval: d(h.StartInterval)}
	if h.Retries != nil {
		out.Retries = int(*h.Retries)
	}
	return out
}

// restart translates when the engine starts a container again.
func restart(s types.ServiceConfig) (container.RestartPolicy, error) {
	if s.Deploy != nil && s.Deploy.RestartPolicy != nil {
		p := s.Deploy.RestartPolicy
		out := container.RestartPolicy{Name: container.RestartPolicyAlways}
		switch p.Condition {
		case "none":
			out.Name = container.RestartPolicyDisabled
		case "on-failure":
			out.Name = container.RestartPolicyOnFailure
			if p.MaxAttempts != nil {
				out.MaximumRetryCount = int(*p.MaxAttempts)
			}
		}
		return out, nil
	}
	name, count, _ := strings.Cut(s.Restart, ":")
	out := container.RestartPolicy{Name: container.RestartPolicyMode(firstOf(name, "no"))}
	if count != "" {
		n, err := strconv.Atoi(count)
		if err != nil {
			return out, fault.Configf("sandbox.compose-refused", "Write on-failure:3.", "service %s: restart %q", s.Name, s.Restart)
		}
		out.MaximumRetryCount = n
	}
	return out, nil
}

// limits sets the limits that a service has, in either of their spellings.
func limits(s types.ServiceConfig, r *container.Resources) {
	if s.CPUS > 0 {
		r.NanoCPUs = int64(float64(s.CPUS) * 1e9)
	}
	r.CPUShares, r.CPUQuota, r.CPUPeriod, r.CpusetCpus = s.CPUShares, s.CPUQuota, s.CPUPeriod, s.CPUSet
	memory := int64(s.MemLimit)
	pids := s.PidsLimit
	r.MemoryReservation = int64(s.MemReservation)
	if s.Deploy != nil {
		if l := s.Deploy.Resources.Limits; l != nil {
			if l.NanoCPUs > 0 {
				r.NanoCPUs = int64(float64(l.NanoCPUs) * 1e9)
			}
			if l.MemoryBytes > 0 {
				memory = int64(l.MemoryBytes)
			}
			if l.Pids > 0 {
				pids = l.Pids
			}
		}
		if l := s.Deploy.Resources.Reservations; l != nil && l.MemoryBytes > 0 {
			r.MemoryReservation = int64(l.MemoryBytes)
		}
	}
	if memory > 0 {
		r.Memory, r.MemorySwap = memory, memory // swap is not added, as everywhere
		if s.MemSwapLimit > 0 {
			r.MemorySwap = int64(s.MemSwapLimit)
		}
	}
	if pids != 0 {
		r.PidsLimit = &pids
	}
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		u := s.Ulimits[name]
		soft, hard := int64(u.Soft), int64(u.Hard)
		if u.Single != 0 {
			soft, hard = int64(u.Single), int64(u.Single)
		}
		r.Ulimits = append(r.Ulimits, &container.Ulimit{Name: name, Soft: soft, Hard: hard})
	}
}

// fileMode turns permission bits of a file into Go's.
func fileMode(bits uint32) fs.FileMode { return fs.FileMode(bits) & fs.ModePerm }

// idle are commands that only keep a container alive; the exec server does that.
var idle = []string{"sleep", "tail", "cat", "sh", "bash", "true", "/bin/sh", "/bin/bash", "tini", "dumb-init"}

// replaced says that the sandbox's own service has a command that does not run,
// or "".
func (pr *project) replaced() string {
	s := pr.p.Services[pr.spec.WorkspaceService]
	argv := append(slices.Clone([]string(s.Entrypoint)), s.Command...)
	if len(argv) == 0 || slices.Contains(idle, argv[0]) {
		return ""
	}
	return fmt.Sprintf("%s: the command of service %s (%s) does not run: the service is the sandbox; start what is needed with `setup:`, or make it a service of its own", pr.src.at(s.Name, "command", "entrypoint"), s.Name, sandbox.Summary(argv))
}
