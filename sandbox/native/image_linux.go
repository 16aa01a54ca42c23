package native

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"assay/fault"
	"assay/internal/guest/enter"
	"assay/internal/guestbox"
	"assay/internal/ocistore"
	"assay/sandbox"
)

// unpacked is an image that is ready to be a root.
type unpacked struct {
	*ocistore.Image
	lower         []string
	passwd, group []byte
}

// images returns the image store, opened once.
func (p *Provider) images() (*ocistore.Store, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.store != nil {
		return p.store, nil
	}
	dir := p.o.Cache
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, fault.Configf("image-store", "Set HOME or XDG_CACHE_HOME.", "there is no cache folder for images: %v", err)
		}
		dir = filepath.Join(cache, "assay", "images")
	}
	s, err := ocistore.Open(dir)
	if err == nil {
		p.store = s
	}
	return s, err
}

func (p *Provider) prepareImage(ctx context.Context, spec Spec, dir string, s sandbox.Steps) (sandbox.Prepared, error) {
	ref, err := parseImage(spec.Image, dir)
	if err != nil {
		return sandbox.Prepared{}, err
	}
	store, err := p.images()
	if err != nil {
		return sandbox.Prepared{}, err
	}
	var show ocistore.Progress
	if pr, ok := s.(sandbox.Progresser); ok {
		show = func(done, all int) {
			pr.Progress(sandbox.Progress{Message: "unpacking " + spec.Image, Current: int64(done), Total: int64(all)})
		}
	}
	u := &unpacked{}
	err = s.Do(ctx, "image", func(ctx context.Context) error {
		if u.Image, err = store.Get(ctx, ref.Ref, show); err != nil {
			return err
		}
		if a := u.Arch; a != "" && a != runtime.GOARCH {
			return fault.Configf("sandbox.image-platform", "Use an image that exists for this machine's architecture.", "image %s is for %s", spec.Image, a)
		}
		return nil
	})
	if err != nil {
		return sandbox.Prepared{}, err
	}
	u.lower = store.Lower(u.Image)
	for _, f := range []struct {
		name string
		into *[]byte
	}{{"etc/passwd", &u.passwd}, {"etc/group", &u.group}} {
		*f.into = readLayers(u.lower, f.name)
	}
	details := map[string]string{"image": spec.Image, "id": u.ID, "platform": "linux/" + u.Arch}
	if u.Digest != "" {
		details["digest"] = u.Digest
	}
	return sandbox.Prepared{Ref: u.ID, Details: details, Data: &startPoint{image: u}}, nil
}

// maxAccounts bounds what is read of an image's passwd and group, in bytes.
const maxAccounts = 4 << 20

// readLayers returns a file of the topmost layer that has it, nil when there is
// none or it is no regular file.
func readLayers(lower []string, name string) []byte {
	for _, l := range lower {
		root, err := os.OpenRoot(l)
		if err != nil {
			return nil
		}
		st, err := root.Lstat(name)
		if err != nil {
			_ = root.Close()
			continue
		}
		var b []byte
		if st.Mode().IsRegular() && st.Size() <= maxAccounts {
			b, _ = root.ReadFile(name) // what cannot be read names no users
		}
		_ = root.Close()
		return b
	}
	return nil
}

// imageBlueprint fills in what an image decides.
func (p *Provider) imageBlueprint(b *blueprint, img *unpacked) error {
	b.plan = &enter.Plan{Lower: img.lower}
	b.env = map[string]string{}
	for _, kv := range img.Env {
		k, v, _ := strings.Cut(kv, "=")
		b.env[k] = v
	}
	if b.user == "" {
		b.user = img.User
	}
	if b.user == "" {
		b.user = "0"
	}
	if b.workdir == "" {
		if w := path.Clean("/" + img.Workdir); w != "/" {
			b.workdir = w
		}
	}
	b.plan.Dirs = []enter.Dir{{Path: "/tmp", Mode: 0o1777}, {Path: "/etc", Mode: 0o755}, {Path: "/root", Mode: 0o700}, {Path: "/var/tmp", Mode: 0o1777}, {Path: "/run", Mode: 0o755}}
	if b.ids.many {
		return nil
	}
	u, err := guestbox.FindAccount(img.passwd, img.group, b.user)
	if err != nil {
		return err
	}
	b.uid, b.gid = int(u.UID), int(u.GID)
	// One identity has one group: the rest of the name would be refused.
	b.user = fmt.Sprintf("%d:%d", u.UID, u.GID)
	if u.Name != "" {
		b.user = u.Name
	}
	return nil
}
