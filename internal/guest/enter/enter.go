// Package enter is the way into a sandbox of Linux namespaces: it runs as the
// first process of fresh namespaces, builds the private root, gives up every
// privilege that the exec server does not need, and then becomes that server.
//
// It trusts its plan, which comes from the process that made the namespaces. It
// does not trust what stands in the root that it builds: nothing of that is
// looked at before the host's tree is out of reach.
//
// The steps are those of namespaces(7), pivot_root(2), mount_setattr(2),
// seccomp(2) and the kernel's Documentation/filesystems/overlayfs.rst.
package enter

import (
	"encoding/binary"

	"assay/internal/guest/wire"
)

// Arg, as the first argument, makes a program that calls Run enter a sandbox.
// With WaitArg after it, it first waits for one byte, by which time its user
// namespace has got its identities, and starts anew to take them on. The names
// show in process lists for a moment and so say nothing of their purpose.
const (
	Arg     = "--init-root"
	WaitArg = "--init-wait"
)

// The descriptors that Run expects: a connected stream socket as standard input
// and output, and the running program itself.
const selfFD = 3

// The sandbox's fixed places.
const (
	// ProxyPort is the loopback port at which Plan.Proxy listens.
	ProxyPort = 3128
)

// Plan is what to build. All host paths are absolute and free of symlinks in
// their last component.
type Plan struct {
	// Base is an existing directory of the host; it is covered while the root
	// is built and never written to.
	Base string
	// Size and Inodes bound everything that the sandbox writes outside of
	// Mounts: bytes and files of one file system in memory.
	Size, Inodes int64
	// Scratch, when set, is a host directory that holds what the sandbox writes
	// instead: an empty one, or that of an earlier sandbox of the same plan. Size
	// and Inodes do not apply then.
	Scratch string

	// Lower are the layers of an image, topmost first. Without any, Trees and
	// Links make the root.
	Lower []string
	// Trees are top-level directories of the host that appear in the sandbox,
	// changed only in its own overlay. Links are top-level symlinks, name and
	// target in turn.
	Trees []string
	Links []string
	// Hide are absolute paths below Trees that do not exist inside.
	Hide []string
	// Dirs and Files are made in the root, in order; what is there as another
	// kind is left alone.
	Dirs  []Dir
	Files []File
	// Mounts are host directories and files that appear inside.
	Mounts []Mount

	// Many says that the user namespace has more than one identity, so that
	// owners can be set and the server keeps the privileges to switch users.
	Many bool
	// Proxy asks for a listening socket at ProxyPort of the loopback device,
	// which is sent back with the reply.
	Proxy bool
	// Cgroups are the hierarchies to show read-only, "" being version 2 and
	// others a controller of version 1.
	Cgroups []string
	Rlimits []Rlimit
	// CPUs is how many processors may be used at once, 0 being all of them.
	CPUs     int
	Hostname string
}

// Dir is a directory to make with its parents.
type Dir struct {
	Path     string
	Mode     uint32
	UID, GID uint32
}

// File is a file to write. A symlink that stands in its place is replaced.
type File struct {
	Path     string
	Mode     uint32
	UID, GID uint32
	Data     string
}

// Mount is a host path that appears in the sandbox.
type Mount struct {
	Host, Path string
	Writable   bool
}

// Rlimit is a limit of setrlimit(2), soft and hard.
type Rlimit struct {
	Resource int
	Value    int64
}

// Fields implements wire.Message.
func (p *Plan) Fields(c *wire.Codec) {
	c.Str(&p.Base)
	c.Int(&p.Size)
	c.Int(&p.Inodes)
	c.Str(&p.Scratch)
	c.Strs(&p.Lower)
	c.Strs(&p.Trees)
	c.Strs(&p.Links)
	c.Strs(&p.Hide)
	wire.List(c, &p.Dirs, func(c *wire.Codec, d *Dir) {
		c.Str(&d.Path)
		c.ID(&d.Mode)
		c.ID(&d.UID)
		c.ID(&d.GID)
	})
	wire.List(c, &p.Files, func(c *wire.Codec, f *File) {
		c.Str(&f.Path)
		c.ID(&f.Mode)
		c.ID(&f.UID)
		c.ID(&f.GID)
		c.Str(&f.Data)
	})
	wire.List(c, &p.Mounts, func(c *wire.Codec, m *Mount) {
		c.Str(&m.Host)
		c.Str(&m.Path)
		c.Bool(&m.Writable)
	})
	c.Bool(&p.Many)
	c.Bool(&p.Proxy)
	c.Strs(&p.Cgroups)
	wire.List(c, &p.Rlimits, func(c *wire.Codec, r *Rlimit) {
		c.Num(&r.Resource)
		c.Int(&r.Value)
	})
	c.Num(&p.CPUs)
	c.Str(&p.Hostname)
}

// maxPlan bounds an encoded plan, in bytes.
const maxPlan = 16 << 20

// Encode returns what has to be written to the socket: a big-endian uint32
// length and the plan.
func (p *Plan) Encode() []byte {
	body := wire.Marshal(p)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// Reply is the answer to a plan: one byte Ready (with the listening socket as
// SCM_RIGHTS where one was asked for), after which the exec server speaks, or
// one byte Failed and a Failure with a big-endian uint32 length before it.
const (
	Ready  = 1
	Failed = 2
)

// MaxFailure bounds an encoded Failure, in bytes.
const MaxFailure = 64 << 10

// Failure says which step could not be done.
type Failure struct {
	Step  string // the step, for people
	Path  string // what it was about, or empty
	Errno int64  // of the system call, or 0
	Text  string // the error
}

// Fields implements wire.Message.
func (f *Failure) Fields(c *wire.Codec) {
	c.Str(&f.Step)
	c.Str(&f.Path)
	c.Int(&f.Errno)
	c.Str(&f.Text)
}
