package compose

import (
	"path/filepath"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"assay/sandbox/docker"
)

// buildSpec turns a service's build into what the provider of containers
// builds.
func buildSpec(root string, b *types.BuildConfig) docker.Spec {
	dockerfile := b.Dockerfile
	if dockerfile == "" {
		dockerfile = "Dockerfile"
	}
	if !filepath.IsAbs(dockerfile) {
		dockerfile = filepath.Join(b.Context, dockerfile)
	}
	s := docker.Spec{Dockerfile: relative(root, dockerfile), Context: relative(root, b.Context), Target: b.Target}
	for name, v := range b.Args {
		if v == nil {
			continue // an argument that is set nowhere keeps the Dockerfile's default
		}
		if s.Args == nil {
			s.Args = map[string]string{}
		}
		s.Args[name] = *v
	}
	return s
}

func relative(root, path string) string {
	if rel, err := filepath.Rel(root, path); err == nil {
		return rel
	}
	return path
}

// buildOf checks a service's build.
func (f *findings) buildOf(name string, b *types.BuildConfig) {
	if b == nil {
		return
	}
	at := []string{"build"}
	if strings.Contains(b.Context, "://") || strings.HasPrefix(b.Context, "git@") {
		f.add(name, at, "Copy the context into the project.", "the build context %s is no local folder", b.Context)
	}
	for arg, v := range b.Args {
		if v != nil && strings.ContainsAny(*v, "\x02\x03") {
			f.add(name, at, "Read the secret at run time.", "build argument %s would keep a credential in the image", arg)
		}
	}
	for field, used := range map[string]bool{
		"dockerfile_inline": b.DockerfileInline != "", "additional_contexts": len(b.AdditionalContexts) > 0, "secrets": len(b.Secrets) > 0,
		"ssh": len(b.SSH) > 0, "network": b.Network != "" && b.Network != "default", "extra_hosts": len(b.ExtraHosts) > 0, "entitlements": len(b.Entitlements) > 0,
		"isolation": b.Isolation != "", "privileged": b.Privileged, "platforms": len(b.Platforms) > 0, "ulimits": len(b.Ulimits) > 0, "shm_size": b.ShmSize != 0,
	} {
		if used {
			f.add(name, at, "Remove it.", "%s of a build is not supported", field)
		}
	}
}
