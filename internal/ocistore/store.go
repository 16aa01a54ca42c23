package ocistore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"assay/fault"
	"assay/internal/atomicfile"
)

// Image is an unpacked image.
type Image struct {
	// ID is the digest of the image's configuration.
	ID string `json:"id"`
	// Digest is the digest of its manifest, where the place knows it.
	Digest string `json:"digest,omitempty"`
	// Ref is the name under which it was found first.
	Ref string `json:"ref"`
	// Layers are the digests of the unpacked layers, bottom first.
	Layers []string `json:"layers"`
	// Env, User and Workdir are what the image declares.
	Env     []string `json:"env,omitempty"`
	User    string   `json:"user,omitempty"`
	Workdir string   `json:"workdir,omitempty"`
	Arch    string   `json:"arch"`
	// Size is the number of bytes of all files.
	Size int64 `json:"size"`
	// Unpacked is when it was.
	Unpacked time.Time `json:"unpacked"`
	// Used is when a process took it last; zero where nobody knows.
	Used time.Time `json:"-"`
}

// Store is a folder of unpacked images. It is safe for concurrent use, by other
// processes too.
type Store struct {
	dir  string
	root bool // files keep their owners
	disk atomicfile.Disk

	mu   sync.Mutex
	uses map[string]*flock.Flock // images that this process uses
}

// Open returns the store in a folder, which is made, readable by its owner only.
// What root unpacked and what others unpacked are apart.
func Open(dir string) (*Store, error) {
	s := &Store{root: os.Geteuid() == 0, uses: map[string]*flock.Flock{}}
	kind := "own"
	if s.root {
		kind = "root"
	}
	s.dir = filepath.Join(dir, kind)
	for _, d := range []string{"layers", "images", "names", "new", "locks"} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o700); err != nil {
			return nil, fault.Wrap(err, fault.Resource, "image-store", "make the image store")
		}
	}
	return s, nil
}

// Close gives up the use of all images. No sandbox of them may live.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for id, l := range s.uses {
		errs = append(errs, l.Unlock())
		delete(s.uses, id)
	}
	return errors.Join(errs...)
}

func plain(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func (s *Store) layerDir(digest string) string { return filepath.Join(s.dir, "layers", plain(digest)) }

func (s *Store) imageFile(id string) string {
	return filepath.Join(s.dir, "images", plain(id)+".json")
}

func (s *Store) nameFile(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(s.dir, "names", hex.EncodeToString(sum[:]))
}

func (s *Store) lock(name string) *flock.Flock {
	return flock.New(filepath.Join(s.dir, "locks", name), flock.SetPermissions(0o600))
}

// Lower returns the directories of an image's layers, topmost first, as overlay
// wants them.
func (s *Store) Lower(img *Image) []string {
	out := make([]string, 0, len(img.Layers))
	for _, l := range slices.Backward(img.Layers) {
		out = append(out, s.layerDir(l))
	}
	return out
}

// Find returns an image that was unpacked before under a key, or nil.
func (s *Store) Find(key string) (*Image, error) {
	id, err := os.ReadFile(s.nameFile(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.byID(string(id))
}

// byID returns an image whose layers are all there, or nil.
func (s *Store) byID(id string) (*Image, error) {
	b, err := os.ReadFile(s.imageFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var img Image
	if err == nil {
		err = json.Unmarshal(b, &img)
	}
	if err != nil {
		return nil, fmt.Errorf("image record %s: %w", id, err)
	}
	for _, l := range img.Layers {
		if _, err := os.Stat(s.layerDir(l)); err != nil {
			return nil, nil // unpacked again
		}
	}
	if err := s.use(img.ID); err != nil {
		return nil, err
	}
	return &img, nil
}

// use keeps Collect, of other processes too, from removing an image.
func (s *Store) use(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses[id] != nil {
		return nil
	}
	l := s.lock("image-" + plain(id))
	if err := l.RLock(); err != nil {
		return fmt.Errorf("lock image %s: %w", id, err)
	}
	now := time.Now()
	_ = os.Chtimes(l.Path(), now, now) // only told to people, and to who prunes
	s.uses[id] = l
	return nil
}

// Progress tells how much of an image is unpacked, in layers.
type Progress func(done, all int)

// Add unpacks an image that is not yet there, and remembers it under key.
func (s *Store) Add(ctx context.Context, key string, r Ref, img v1.Image, show Progress) (*Image, error) {
	id, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	// Collect takes this lock alone; those who add share it.
	adding := s.lock("store")
	if ok, err := adding.TryRLockContext(ctx, 50*time.Millisecond); err != nil || !ok {
		return nil, fmt.Errorf("lock the image store: %w", errors.Join(err, context.Cause(ctx)))
	}
	defer func() { _ = adding.Unlock() }()
	old, err := s.byID(id.String())
	if err != nil {
		return nil, err
	}
	if old == nil {
		if old, err = s.unpackAll(ctx, id.String(), r, img, show); err != nil {
			return nil, err
		}
	}
	return old, s.disk.Replace(s.nameFile(key), []byte(old.ID))
}

func (s *Store) unpackAll(ctx context.Context, id string, r Ref, img v1.Image, show Progress) (*Image, error) {
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if cf.OS != "" && cf.OS != "linux" {
		return nil, fault.Configf("sandbox.image-platform", "Use a Linux image.", "image %s is for %s", r, cf.OS)
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	out := &Image{ID: id, Ref: r.String(), Env: cf.Config.Env, User: cf.Config.User, Workdir: cf.Config.WorkingDir, Arch: cf.Architecture, Unpacked: time.Now().UTC()}
	if d, err := img.Digest(); err == nil {
		out.Digest = d.String()
	}
	for i, l := range layers {
		if show != nil {
			show(i, len(layers))
		}
		d, err := l.DiffID()
		if err != nil {
			return nil, err
		}
		n, err := s.addLayer(ctx, d.String(), l)
		if err != nil {
			return nil, fmt.Errorf("layer %d of %s: %w", i+1, r, err)
		}
		out.Size += n
		if !slices.Contains(out.Layers, d.String()) { // an empty layer, most likely
			out.Layers = append(out.Layers, d.String())
		}
	}
	if len(out.Layers) == 0 {
		empty := "sha256:" + strings.Repeat("0", 64)
		if err := os.MkdirAll(s.layerDir(empty), 0o755); err != nil {
			return nil, err
		}
		out.Layers = []string{empty}
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err == nil {
		err = s.disk.Replace(s.imageFile(id), b)
	}
	if err == nil {
		err = s.use(id)
	}
	return out, err
}

// addLayer unpacks a layer unless it is there, and returns its size. Of several
// processes one does the work.
func (s *Store) addLayer(ctx context.Context, digest string, l v1.Layer) (int64, error) {
	dir := s.layerDir(digest)
	lock := s.lock("layer-" + plain(digest))
	if ok, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil || !ok {
		return 0, fmt.Errorf("lock a layer: %w", errors.Join(err, context.Cause(ctx)))
	}
	defer func() { _ = lock.Unlock() }()
	sizeFile := filepath.Join(s.dir, "layers", plain(digest)+".size")
	if _, err := os.Stat(dir); err == nil {
		var n int64
		b, _ := os.ReadFile(sizeFile) // only told to people
		_ = json.Unmarshal(b, &n)
		return n, nil
	}
	tmp, err := os.MkdirTemp(filepath.Join(s.dir, "new"), "layer-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = removeTree(tmp) }() // gone if all went well
	target := filepath.Join(tmp, "tree")
	if err := os.Mkdir(target, 0o755); err != nil {
		return 0, err
	}
	tree, err := l.Uncompressed()
	if err != nil {
		return 0, err
	}
	n, err := unpack(ctx, target, tree, s.root)
	err = errors.Join(err, tree.Close())
	if err != nil {
		return 0, err
	}
	if err := s.disk.Replace(sizeFile, fmt.Append(nil, n)); err != nil {
		return 0, err
	}
	return n, os.Rename(target, dir)
}

// Images lists what is unpacked, oldest first.
func (s *Store) Images() ([]Image, error) {
	files, err := filepath.Glob(filepath.Join(s.dir, "images", "*.json"))
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, f := range files {
		b, err := os.ReadFile(f)
		var img Image
		if err == nil {
			err = json.Unmarshal(b, &img)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("image record %s: %w", f, err)
		}
		if fi, err := os.Stat(s.lock("image-" + plain(img.ID)).Path()); err == nil {
			img.Used = fi.ModTime()
		}
		out = append(out, img)
	}
	slices.SortFunc(out, func(a, b Image) int { return a.Unpacked.Compare(b.Unpacked) })
	return out, nil
}

// Collect removes the images that drop names, except those in use by any
// process, then every layer that no image has, and what unfinished work left. It
// returns the images that it removed.
func (s *Store) Collect(ctx context.Context, drop func(Image) bool) ([]Image, error) {
	lock := s.lock("store")
	if ok, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil || !ok {
		return nil, fmt.Errorf("lock the image store: %w", errors.Join(err, context.Cause(ctx)))
	}
	defer func() { _ = lock.Unlock() }()
	images, err := s.Images()
	if err != nil {
		return nil, err
	}
	var gone []Image
	wanted := map[string]bool{}
	for _, img := range images {
		removed := false
		if drop(img) {
			if removed, err = s.forget(img); err != nil {
				return gone, err
			}
		}
		if removed {
			gone = append(gone, img)
			continue
		}
		for _, l := range img.Layers {
			wanted[plain(l)] = true
		}
	}
	var errs []error
	for _, sub := range []string{"layers", "new"} {
		entries, err := os.ReadDir(filepath.Join(s.dir, sub))
		errs = append(errs, err)
		for _, e := range entries {
			if !wanted[strings.TrimSuffix(e.Name(), ".size")] {
				errs = append(errs, removeTree(filepath.Join(s.dir, sub, e.Name())))
			}
		}
	}
	return gone, errors.Join(errs...)
}

// forget removes the record of an image that nobody uses.
func (s *Store) forget(img Image) (bool, error) {
	s.mu.Lock()
	_, mine := s.uses[img.ID]
	s.mu.Unlock()
	if mine {
		return false, nil
	}
	l := s.lock("image-" + plain(img.ID))
	ok, err := l.TryLock()
	if err != nil || !ok {
		return false, err
	}
	defer func() { _ = l.Unlock() }()
	return true, os.Remove(s.imageFile(img.ID))
}

// removeTree removes a tree of which the modes of directories may forbid it.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || os.Geteuid() == 0 {
		return err
	}
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700) // the removal tells
		}
		return nil
	})
	return os.RemoveAll(dir)
}
