package docker

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"assay/fault"
)

// address is where an engine may listen.
type address struct {
	// host is a URL such as "unix:///var/run/docker.sock" or "tcp://build:2376".
	host string
	// from says where the address was found, for messages.
	from string
	// tls is set where the engine is spoken to over TLS.
	tls *tls.Config
}

// remote reports whether the engine may see other files than this process does.
func (a address) remote() bool {
	return !strings.HasPrefix(a.host, "unix://") && !strings.HasPrefix(a.host, "npipe://")
}

func (a address) String() string { return a.host + " (" + a.from + ")" }

// surroundings is the part of the host that addresses are found in.
type surroundings struct {
	getenv func(string) string
	home   string
	read   func(path string) ([]byte, error)
	exists func(path string) bool
}

// thisHost is the surroundings of this process.
func thisHost() surroundings {
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	return surroundings{
		getenv: os.Getenv, home: home, read: os.ReadFile,
		exists: func(p string) bool { _, err := os.Stat(p); return err == nil },
	}
}

// find lists the addresses to try in order, and what was looked at and not
// found. An address that somebody named is the only candidate: falling back to
// another engine would run the work in the wrong place.
func (s surroundings) find(engine, host string) (found []address, missed []string, err error) {
	switch {
	case host != "":
		a, err := s.named(host, "given address")
		return a, nil, err
	case engine == Podman:
		found, missed, err := s.findPodman()
		return found, missed, err
	case s.getenv("DOCKER_HOST") != "":
		a, err := s.named(s.getenv("DOCKER_HOST"), "DOCKER_HOST")
		return a, nil, err
	}
	name, from, err := s.contextName()
	if err != nil {
		return nil, nil, err
	}
	if name != "" && name != "default" {
		a, err := s.context(name, from)
		if err != nil {
			return nil, nil, err
		}
		return []address{a}, nil, nil
	}
	found, missed = s.sockets(s.dockerSockets())
	return found, missed, nil
}

func (s surroundings) findPodman() ([]address, []string, error) {
	for _, name := range []string{"CONTAINER_HOST", "DOCKER_HOST"} {
		if h := s.getenv(name); h != "" {
			a, err := s.named(h, name)
			return a, nil, err
		}
	}
	var paths []string
	if d := s.getenv("XDG_RUNTIME_DIR"); d != "" {
		paths = append(paths, filepath.Join(d, "podman", "podman.sock"))
	}
	paths = append(paths, "/run/podman/podman.sock")
	if s.home != "" {
		paths = append(paths, filepath.Join(s.home, ".local", "share", "containers", "podman", "machine", "podman.sock"))
	}
	found, missed := s.sockets(paths)
	return found, missed, nil
}

// dockerSockets are the places where Docker Engine, its rootless mode and the
// desktop products put their sockets.
func (s surroundings) dockerSockets() []string {
	paths := []string{"/var/run/docker.sock"}
	if d := s.getenv("XDG_RUNTIME_DIR"); d != "" {
		paths = append(paths, filepath.Join(d, "docker.sock"))
	}
	if s.home != "" {
		for _, p := range []string{".docker/run/docker.sock", ".colima/default/docker.sock", ".orbstack/run/docker.sock", ".rd/docker.sock"} {
			paths = append(paths, filepath.Join(s.home, filepath.FromSlash(p)))
		}
	}
	return paths
}

func (s surroundings) sockets(paths []string) (found []address, missed []string) {
	for _, p := range paths {
		if s.exists(p) {
			found = append(found, address{host: "unix://" + p, from: "usual socket"})
		} else {
			missed = append(missed, p+" does not exist")
		}
	}
	return found, missed
}

// named checks an address that somebody wrote down and adds the TLS settings of
// the environment.
func (s surroundings) named(host, from string) ([]address, error) {
	scheme, rest, ok := strings.Cut(host, "://")
	if !ok || rest == "" {
		return nil, fault.Configf("sandbox.engine-address", "Write it as unix:///path, tcp://host:port or npipe:////./pipe/name.", "%s holds %q, which is no engine address", from, host)
	}
	switch scheme {
	case "unix", "npipe":
		return []address{{host: host, from: from}}, nil
	case "ssh":
		return nil, sshUnsupported(host, from)
	case "tcp", "http", "https":
		// "http" and "https" are how some tools spell it; the engine knows tcp.
		a := address{host: "tcp://" + rest, from: from}
		dir := s.getenv("DOCKER_CERT_PATH")
		verify := s.getenv("DOCKER_TLS_VERIFY") != ""
		if dir == "" && (verify || scheme == "https") {
			dir = s.configDir()
		}
		if dir == "" {
			return []address{a}, nil
		}
		var err error
		if a.tls, err = s.tlsConfig(dir, !verify && scheme != "https"); err != nil {
			return nil, err
		}
		return []address{a}, nil
	default:
		return nil, fault.Configf("sandbox.engine-address", "Write it as unix:///path, tcp://host:port or npipe:////./pipe/name.", "%s holds %q, whose scheme %q is not known", from, host, scheme)
	}
}

func sshUnsupported(host, from string) error {
	return fault.Configf("sandbox.engine-ssh",
		"Forward the socket (ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock user@host) and set DOCKER_HOST=unix:///tmp/engine.sock.",
		"%s names the engine %s, and engines over ssh are not supported", from, host)
}

// configDir is the folder of the docker configuration, or "".
func (s surroundings) configDir() string {
	if d := s.getenv("DOCKER_CONFIG"); d != "" {
		return d
	}
	if s.home == "" {
		return ""
	}
	return filepath.Join(s.home, ".docker")
}

// configFile is the part of docker's config.json that is used here.
// Source: https://docs.docker.com/reference/cli/docker/#docker-cli-configuration-file-configjson-properties
type configFile struct {
	CurrentContext string `json:"currentContext"`
}

func (s surroundings) config() (configFile, error) {
	var c configFile
	dir := s.configDir()
	if dir == "" {
		return c, nil
	}
	p := filepath.Join(dir, "config.json")
	b, err := s.read(p)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return c, &fault.Error{Class: fault.Config, Code: "sandbox.engine-config", What: "read " + p, Fix: "Repair the file, or set DOCKER_HOST.", Err: err}
	}
	return c, nil
}

func (s surroundings) contextName() (name, from string, err error) {
	if n := s.getenv("DOCKER_CONTEXT"); n != "" {
		return n, "DOCKER_CONTEXT", nil
	}
	c, err := s.config()
	return c.CurrentContext, "current docker context", err
}

// context reads a context of the docker CLI. Its files are named by the SHA-256
// of the context's name.
func (s surroundings) context(name, from string) (address, error) {
	dir := s.configDir()
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	b, err := s.read(filepath.Join(dir, "contexts", "meta", id, "meta.json"))
	if err != nil {
		return address{}, &fault.Error{Class: fault.Config, Code: "sandbox.engine-context", What: fmt.Sprintf("%s is %q, which cannot be read", from, name), Fix: "List the contexts with `docker context ls`, choose one with `docker context use`, or set DOCKER_HOST.", Err: err}
	}
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	if err := json.Unmarshal(b, &meta); err != nil {
		return address{}, &fault.Error{Class: fault.Config, Code: "sandbox.engine-context", What: fmt.Sprintf("docker context %q", name), Fix: "Create the context again, or set DOCKER_HOST.", Err: err}
	}
	ep, ok := meta.Endpoints["docker"]
	if !ok || ep.Host == "" {
		return address{}, fault.Configf("sandbox.engine-context", "Choose another context, or set DOCKER_HOST.", "docker context %q names no docker endpoint", name)
	}
	as, err := s.named(ep.Host, fmt.Sprintf("docker context %q", name))
	if err != nil {
		return address{}, err
	}
	a := as[0]
	tlsDir := filepath.Join(dir, "contexts", "tls", id, "docker")
	if a.remote() && s.exists(tlsDir) {
		a.tls, err = s.tlsConfig(tlsDir, ep.SkipTLSVerify)
	}
	return a, err
}

// tlsConfig loads ca.pem, cert.pem and key.pem of a folder; each may be missing.
func (s surroundings) tlsConfig(dir string, skipVerify bool) (*tls.Config, error) {
	bad := func(what string, err error) error {
		return &fault.Error{Class: fault.Config, Code: "sandbox.engine-tls", What: what, Fix: "Check the certificate files in " + dir + ".", Err: err}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: skipVerify}
	ca, err := s.read(filepath.Join(dir, "ca.pem"))
	switch {
	case err == nil:
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, bad("ca.pem holds no certificate", nil)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, bad("read ca.pem", err)
	}
	cert, err := s.read(filepath.Join(dir, "cert.pem"))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, bad("read cert.pem", err)
	}
	key, err := s.read(filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, bad("read key.pem", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, bad("the client certificate", err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}
