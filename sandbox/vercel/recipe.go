package vercel

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/vercel/vercelapi"
)

// Recipe is a snapshot as a file describes it: what a NewSnapshot does, in YAML.
type Recipe struct {
	From     Source         `yaml:"from" json:"from" doc:"Where to start; omitted is the runtime node24."`
	Copy     []Upload       `yaml:"copy" json:"copy,omitempty" doc:"Files to write before the commands."`
	Run      []SnapshotStep `yaml:"run" json:"run,omitempty" doc:"Scripts, run by bash in order; each must exit 0."`
	Expires  time.Duration  `yaml:"expires" json:"expires,omitempty" doc:"How long the snapshot is kept; omitted is for ever."`
	Lifetime time.Duration  `yaml:"lifetime" json:"lifetime,omitempty" doc:"Limit of the whole build; omitted is 30 minutes."`
}

// Source is where a snapshot starts: at most one of its first three fields.
type Source struct {
	SnapshotID string `yaml:"snapshotId" json:"snapshotId,omitempty" format:"nonblank" doc:"Another snapshot of the team and project."`
	Runtime    string `yaml:"runtime" json:"runtime,omitempty" format:"nonblank" doc:"One of Vercel's runtimes, such as node24."`
	Image      string `yaml:"image" json:"image,omitempty" format:"nonblank" doc:"One of Vercel's images, such as vercel/sandbox/node:24."`
	VCPUs      int    `yaml:"vcpus" json:"vcpus,omitempty" min:"1" max:"64" doc:"CPUs of the build, each with 2048 MB of memory."`
}

// Upload is a file or folder of this machine. Its copy belongs to the sandbox's
// own user.
type Upload struct {
	From string `yaml:"from" json:"from" required:"true" format:"hostpath" doc:"File or folder, relative to this file."`
	To   string `yaml:"to" json:"to" required:"true" min:"1" doc:"Where it goes; relative is below /vercel/sandbox."`
}

// SnapshotStep is a script, or a map that says more.
type SnapshotStep struct {
	Shell  string    `yaml:",either" json:"shell,omitempty" format:"nonblank" doc:"A script, run by bash as the sandbox's own user."`
	Fields *SudoStep `yaml:",either" json:"fields,omitempty"`
}

// SudoStep is a script and who runs it.
type SudoStep struct {
	Run  string `yaml:"run" json:"run" required:"true" format:"nonblank" doc:"A script, run by bash."`
	Sudo bool   `yaml:"sudo" json:"sudo,omitempty" doc:"Run it as root, as global installs need."`
}

// maxUploads bounds what the files of a recipe take: they go in one request.
const maxUploads = 256 << 20

// New returns the recipe as a NewSnapshot without an owner; dir is the folder of
// its file.
func (r *Recipe) New(dir string) (NewSnapshot, error) {
	n := NewSnapshot{From: Spec(r.From), Expiration: r.Expires, Lifetime: r.Lifetime}
	if n.From.SnapshotID == "" && n.From.Runtime == "" && n.From.Image == "" {
		n.From.Runtime = DefaultRuntime
	}
	if err := n.From.check(); err != nil {
		return n, err
	}
	for _, s := range r.Run {
		if s.Fields != nil {
			n.Commands = append(n.Commands, SnapshotCommand{Run: s.Fields.Run, Sudo: s.Fields.Sudo})
		} else {
			n.Commands = append(n.Commands, SnapshotCommand{Run: s.Shell})
		}
	}
	total := 0
	for _, u := range r.Copy {
		files, err := u.files(dir)
		if err != nil {
			return n, fault.Wrap(err, fault.Config, "snapshot-files", "read "+u.From)
		}
		for _, f := range files {
			total += len(f.Body)
		}
		if total > maxUploads {
			return n, fault.Configf("snapshot-files", "Let a command download what is large.", "the files to copy have more than %d MB", maxUploads>>20)
		}
		n.Files = append(n.Files, files...)
	}
	return n, nil
}

// files reads a file or folder. Links are followed inside of the folder only.
func (u Upload) files(dir string) ([]vercelapi.File, error) {
	from, to := u.From, u.To
	if !filepath.IsAbs(from) {
		from = filepath.Join(dir, from)
	}
	if !path.IsAbs(to) {
		to = path.Join(DefaultWorkdir, to)
	}
	info, err := os.Stat(from)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if u.To[len(u.To)-1] == '/' {
			to = path.Join(to, filepath.Base(from))
		}
		body, err := os.ReadFile(from)
		return []vercelapi.File{{Path: to, Mode: int64(info.Mode().Perm()), Body: body}}, err
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // read only
	var out []vercelapi.File
	size := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := root.Stat(name)
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		if size += int(info.Size()); size > maxUploads {
			return fmt.Errorf("it has more than %d MB", maxUploads>>20)
		}
		body, err := root.ReadFile(name)
		out = append(out, vercelapi.File{Path: path.Join(to, name), Mode: int64(info.Mode().Perm()), Body: body})
		return err
	})
	return out, err
}

// StartPointRecipe says that Vercel builds snapshots, from a Recipe.
func (p *Provider) StartPointRecipe() (noun string, recipe any) { return "snapshot", &Recipe{} }

// BuildStartPoint takes a snapshot from a *Recipe.
func (p *Provider) BuildStartPoint(ctx context.Context, s sandbox.StartPointBuild) (sandbox.StartPoint, error) {
	r, ok := s.Recipe.(*Recipe)
	if !ok {
		return sandbox.StartPoint{}, fmt.Errorf("vercel: a snapshot needs a *Recipe, got %T", s.Recipe)
	}
	n, err := r.New(s.Dir)
	if err != nil {
		return sandbox.StartPoint{}, err
	}
	n.Owner = s.Owner
	if s.Log != nil {
		w := &lines{line: s.Log}
		defer w.rest()
		n.Output = w
		n.Started = func(c SnapshotCommand) { w.rest(); s.Log("$ " + c.Run) }
	}
	id, err := p.CreateSnapshot(ctx, n)
	if err != nil {
		return sandbox.StartPoint{}, err
	}
	return startPoint(id), nil
}

func startPoint(id string) sandbox.StartPoint {
	return sandbox.StartPoint{ID: id, Layer: Kind + ": {snapshotId: " + id + "}"}
}

// StartPoints lists the snapshots of the project, those of suspended sandboxes
// too.
func (p *Provider) StartPoints(ctx context.Context) ([]sandbox.StartPoint, error) {
	all, err := p.API().ListSnapshots(ctx)
	if err != nil {
		return nil, explain("list the snapshots", err)
	}
	var out []sandbox.StartPoint
	for _, s := range all {
		if s.Status != "created" && s.Status != "" {
			continue // failed, or deleted
		}
		one := startPoint(s.ID)
		one.Size, one.Created = s.Size, time.UnixMilli(s.CreatedAt)
		if s.ExpiresAt > 0 {
			one.Expires = time.UnixMilli(s.ExpiresAt)
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b sandbox.StartPoint) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// RemoveStartPoint deletes a snapshot.
func (p *Provider) RemoveStartPoint(ctx context.Context, id string) error {
	there, err := p.hasSnapshot(ctx, id)
	if err != nil {
		return explain("look for snapshot "+id, err)
	}
	if !there {
		return fault.Configf("snapshot-missing", "See `assay snapshot list`.", "there is no snapshot %s", id)
	}
	if err := p.API().DeleteSnapshot(ctx, id); err != nil {
		return explain("delete snapshot "+id, err)
	}
	return nil
}

// hasSnapshot reports whether a snapshot can be started from. The service
// remembers those that were deleted.
func (p *Provider) hasSnapshot(ctx context.Context, id string) (bool, error) {
	s, err := p.API().GetSnapshot(ctx, id)
	if status := vercelapi.StatusOf(err); status == http.StatusNotFound || status == http.StatusGone {
		return false, nil
	}
	return err == nil && (s.Status == "created" || s.Status == ""), err
}

// lines hands on what is written, line by line.
type lines struct {
	line func(string)
	part []byte
}

// longest is the longest line that is held back.
const longest = 16 << 10

func (l *lines) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	for {
		i := bytes.IndexByte(l.part, '\n')
		if i < 0 {
			if len(l.part) > longest {
				l.rest()
			}
			return len(p), nil
		}
		l.line(string(l.part[:i]))
		l.part = l.part[i+1:]
	}
}

func (l *lines) rest() {
	if len(l.part) > 0 {
		l.line(string(l.part))
		l.part = nil
	}
}

var (
	_ sandbox.StartPointBuilder = (*Provider)(nil)
	_ sandbox.StartPointKeeper  = (*Provider)(nil)
	_ io.Writer                 = (*lines)(nil)
)
