package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"assay/fault"
)

// host is a surroundings made of maps.
func host(env, files map[string]string) surroundings {
	return surroundings{
		getenv: func(k string) string { return env[k] }, home: "/home/u",
		read: func(p string) ([]byte, error) {
			if s, ok := files[p]; ok {
				return []byte(s), nil
			}
			return nil, fs.ErrNotExist
		},
		exists: func(p string) bool {
			for f := range files {
				if f == p || strings.HasPrefix(f, p+"/") {
					return true
				}
			}
			return false
		},
	}
}

func contextFile(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "/home/u/.docker/contexts/meta/" + hex.EncodeToString(sum[:]) + "/meta.json"
}

func TestFind(t *testing.T) {
	meta := func(host string) string {
		return `{"Name":"x","Endpoints":{"docker":{"Host":"` + host + `"}}}`
	}
	socket := map[string]string{"/var/run/docker.sock": ""}
	with := func(m map[string]string, kv ...string) map[string]string {
		out := map[string]string{}
		for k, v := range m {
			out[k] = v
		}
		for i := 0; i < len(kv); i += 2 {
			out[kv[i]] = kv[i+1]
		}
		return out
	}
	for _, tc := range []struct {
		name, engine, given string
		env, files          map[string]string
		want                []string
		code                string
	}{
		{name: "given wins", given: "tcp://a:1", env: map[string]string{"DOCKER_HOST": "unix:///b"}, files: socket, want: []string{"tcp://a:1"}},
		{name: "DOCKER_HOST alone", env: map[string]string{"DOCKER_HOST": "unix:///b", "DOCKER_CONTEXT": "x"}, files: socket, want: []string{"unix:///b"}},
		{name: "ssh is refused", env: map[string]string{"DOCKER_HOST": "ssh://u@h"}, files: socket, code: "sandbox.engine-ssh"},
		{name: "nonsense is refused", env: map[string]string{"DOCKER_HOST": "/var/run/docker.sock"}, files: socket, code: "sandbox.engine-address"},
		{name: "unknown scheme is refused", env: map[string]string{"DOCKER_HOST": "fd://3"}, files: socket, code: "sandbox.engine-address"},
		{name: "http means tcp", env: map[string]string{"DOCKER_HOST": "http://h:2375"}, want: []string{"tcp://h:2375"}},
		{name: "context of the environment", env: map[string]string{"DOCKER_CONTEXT": "colima"}, files: with(socket, contextFile("colima"), meta("unix:///c.sock")), want: []string{"unix:///c.sock"}},
		{name: "current context", files: with(socket, "/home/u/.docker/config.json", `{"currentContext":"colima"}`, contextFile("colima"), meta("unix:///c.sock")), want: []string{"unix:///c.sock"}},
		{name: "default context is the sockets", files: with(socket, "/home/u/.docker/config.json", `{"currentContext":"default"}`), want: []string{"unix:///var/run/docker.sock"}},
		{name: "context that is not there", env: map[string]string{"DOCKER_CONTEXT": "gone"}, files: socket, code: "sandbox.engine-context"},
		{name: "context over ssh", env: map[string]string{"DOCKER_CONTEXT": "far"}, files: with(socket, contextFile("far"), meta("ssh://u@h")), code: "sandbox.engine-ssh"},
		{name: "broken config", files: with(socket, "/home/u/.docker/config.json", `{`), code: "sandbox.engine-config"},
		{name: "rootless after rootful", env: map[string]string{"XDG_RUNTIME_DIR": "/run/user/1"}, files: with(socket, "/run/user/1/docker.sock", "", "/home/u/.colima/default/docker.sock", ""), want: []string{"unix:///var/run/docker.sock", "unix:///run/user/1/docker.sock", "unix:///home/u/.colima/default/docker.sock"}},
		{name: "nothing", want: nil},
		{name: "podman", engine: Podman, env: map[string]string{"XDG_RUNTIME_DIR": "/run/user/1"}, files: with(socket, "/run/user/1/podman/podman.sock", "", "/run/podman/podman.sock", ""), want: []string{"unix:///run/user/1/podman/podman.sock", "unix:///run/podman/podman.sock"}},
		{name: "podman by CONTAINER_HOST", engine: Podman, env: map[string]string{"CONTAINER_HOST": "unix:///p"}, want: []string{"unix:///p"}},
		{name: "bad TLS", env: map[string]string{"DOCKER_HOST": "tcp://h:1", "DOCKER_CERT_PATH": "/certs"}, files: map[string]string{"/certs/ca.pem": "no"}, code: "sandbox.engine-tls"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, missed, err := host(tc.env, tc.files).find(tc.engine, tc.given)
			if fault.CodeOf(err) != tc.code {
				t.Fatalf("error %v, want code %q", err, tc.code)
			}
			if err != nil && fault.FixOf(err) == "" {
				t.Errorf("the error has no fix: %v", err)
			}
			var got []string
			for _, a := range found {
				got = append(got, a.host)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("found %q, want %q", got, tc.want)
			}
			if tc.name == "nothing" && len(missed) == 0 {
				t.Error("nothing was found and nothing is said to have been tried")
			}
		})
	}
}

func TestTLSFromEnvironment(t *testing.T) {
	s := host(map[string]string{"DOCKER_HOST": "tcp://h:2376", "DOCKER_TLS_VERIFY": "1"}, nil)
	found, _, err := s.find(Docker, "")
	if err != nil || len(found) != 1 || found[0].tls == nil || found[0].tls.InsecureSkipVerify {
		t.Errorf("DOCKER_TLS_VERIFY gave %+v, %v", found, err)
	}
	s = host(map[string]string{"DOCKER_HOST": "tcp://h:2375"}, nil)
	if found, _, err = s.find(Docker, ""); err != nil || found[0].tls != nil {
		t.Errorf("a plain address gave %+v, %v", found, err)
	}
	if !found[0].remote() || (address{host: "unix:///x"}).remote() {
		t.Error("a tcp address is remote, a socket is not")
	}
}
