package wire

// Op is what a stream asks for.
type Op uint8

// The operations. Channel 0 carries bytes towards the server (standard input,
// archive records, a ledger request) and back (standard output, archive records,
// a ledger response); channel 1 carries standard error.
const (
	OpExec     Op = iota + 1 // ExecRequest → ExecReply
	OpPut                    // PutRequest, then records on channel 0 → TransferReply
	OpGet                    // GetRequest → records on channel 0, TransferReply
	OpStat                   // PathRequest → StatReply
	OpLookup                 // PathRequest (Path is the user) → User
	OpList                   // Empty → ProcessList
	OpEnd                    // PIDs to keep → EndReply
	OpPorts                  // Empty → PortList
	OpLedger                 // Empty, then the request on channel 0 → response on channel 0, Result
	OpDigest                 // Names → DigestReply
	OpKeep                   // Empty → Result
	OpShutdown               // Empty → Result
	OpLive                   // LiveRequest → LiveReply
	OpRemove                 // PathRequest → Result
)

// Error codes that a Result carries.
const (
	CodeNotFound      = "not-found"
	CodePermission    = "permission"
	CodeIsDirectory   = "is-a-directory"
	CodeNotDirectory  = "not-a-directory"
	CodeTooLarge      = "too-large"
	CodeArchive       = "bad-archive"
	CodeArgsTooLong   = "argument-list-too-long"
	CodeNoDir         = "no-such-working-directory"
	CodeNoUser        = "no-such-user"
	CodeNoSwitch      = "cannot-switch-user"
	CodeUnproven      = "supervisor-lost" // the command may have started and may run on
	CodeFork          = "cannot-start-process"
	CodeNoSpace       = "enospc"
	CodeChanged       = "file-changed"
	CodeCanceled      = "canceled"
	CodeUnimplemented = "not-served"
	CodeOther         = "guest-error"
)

// Result says how an operation ended. An empty Code is success.
type Result struct {
	Code string
	What string
}

// Fields implements Message.
func (m *Result) Fields(c *Codec) { c.Str(&m.Code); c.Str(&m.What) }

// Empty is a message without fields.
type Empty struct{}

// Fields implements Message.
func (*Empty) Fields(*Codec) {}

// Hello is the first frame of each side.
type Hello struct {
	Magic   string // always HelloMagic
	Version int
	PID     int
	UID     uint32
	GID     uint32
	First   bool // the server is process 1 of its sandbox
	OS      string
	Arch    string
}

// HelloMagic starts every hello, so that a shell banner is not taken for one.
const HelloMagic = "\x00gx\x00"

// Fields implements Message.
func (m *Hello) Fields(c *Codec) {
	c.Str(&m.Magic)
	c.Num(&m.Version)
	c.Num(&m.PID)
	c.ID(&m.UID)
	c.ID(&m.GID)
	c.Bool(&m.First)
	c.Str(&m.OS)
	c.Str(&m.Arch)
}

// ExecRequest starts a command.
type ExecRequest struct {
	Argv       []string
	Dir        string
	Env        []string
	UID        uint32
	GID        uint32
	Groups     []uint32
	Stdin      bool // channel 0 carries standard input; else it is empty
	NoNewPrivs bool
}

// Fields implements Message.
func (m *ExecRequest) Fields(c *Codec) {
	c.Strs(&m.Argv)
	c.Str(&m.Dir)
	c.Strs(&m.Env)
	c.ID(&m.UID)
	c.ID(&m.GID)
	c.IDs(&m.Groups)
	c.Bool(&m.Stdin)
	c.Bool(&m.NoNewPrivs)
}

// ExecReply says how a command ended. It is sent as soon as that is known; the
// rest of the output may follow it.
type ExecReply struct {
	Result      // of starting and watching it
	Exited bool // the leader's status is known: Status and Signal hold
	Status int  // exit code, when Signal is 0
	Signal int  // the signal that ended the leader, or 0
	OOM    bool // the sandbox's count of out-of-memory kills rose meanwhile
	Killed bool // a kill was asked for before the leader had ended
	Proven bool // Killed: no process of the tree is left
}

// Fields implements Message.
func (m *ExecReply) Fields(c *Codec) {
	m.Result.Fields(c)
	c.Bool(&m.Exited)
	c.Num(&m.Status)
	c.Num(&m.Signal)
	c.Bool(&m.OOM)
	c.Bool(&m.Killed)
	c.Bool(&m.Proven)
}

// PutRequest unpacks the records of channel 0 beneath Dir.
type PutRequest struct {
	Dir        string
	UID        uint32
	GID        uint32
	MaxBytes   int64 // 0: no limit
	MaxEntries int64 // 0: no limit
}

// Fields implements Message.
func (m *PutRequest) Fields(c *Codec) {
	c.Str(&m.Dir)
	c.ID(&m.UID)
	c.ID(&m.GID)
	c.Int(&m.MaxBytes)
	c.Int(&m.MaxEntries)
}

// GetRequest packs Path as records on channel 0.
type GetRequest struct {
	Path     string
	Follow   bool // follow Path itself when it is a symbolic link
	File     bool // Path must not be a directory
	Ignore   []string
	MaxBytes int64 // 0: no limit
}

// Fields implements Message.
func (m *GetRequest) Fields(c *Codec) {
	c.Str(&m.Path)
	c.Bool(&m.Follow)
	c.Bool(&m.File)
	c.Strs(&m.Ignore)
	c.Int(&m.MaxBytes)
}

// TransferReply ends a put or a get.
type TransferReply struct {
	Result
	Entries  int64
	Bytes    int64
	Warnings []string
}

// Fields implements Message.
func (m *TransferReply) Fields(c *Codec) {
	m.Result.Fields(c)
	c.Int(&m.Entries)
	c.Int(&m.Bytes)
	c.Strs(&m.Warnings)
}

// PathRequest names one path (or user).
type PathRequest struct{ Path string }

// Fields implements Message.
func (m *PathRequest) Fields(c *Codec) { c.Str(&m.Path) }

// Names is a list of paths.
type Names struct{ Paths []string }

// Fields implements Message.
func (m *Names) Fields(c *Codec) { c.Strs(&m.Paths) }

// StatReply describes a path without following it.
type StatReply struct {
	Result
	Type   string // "file", "dir", "symlink", "other"
	Mode   uint32 // permission and set-id bits as in stat(2)
	Size   int64
	UID    uint32
	GID    uint32
	Target string
}

// Fields implements Message.
func (m *StatReply) Fields(c *Codec) {
	m.Result.Fields(c)
	c.Str(&m.Type)
	c.ID(&m.Mode)
	c.Int(&m.Size)
	c.ID(&m.UID)
	c.ID(&m.GID)
	c.Str(&m.Target)
}

// User is a resolved identity.
type User struct {
	Result
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string
	Shell  string
}

// Fields implements Message.
func (m *User) Fields(c *Codec) {
	m.Result.Fields(c)
	c.Str(&m.Name)
	c.ID(&m.UID)
	c.ID(&m.GID)
	c.IDs(&m.Groups)
	c.Str(&m.Home)
	c.Str(&m.Shell)
}

// Process is one live process.
type Process struct {
	PID     int
	PPID    int
	UID     uint32
	Start   int64 // clock ticks since boot
	Command string
}

// Fields implements Message.
func (m *Process) Fields(c *Codec) {
	c.Num(&m.PID)
	c.Num(&m.PPID)
	c.ID(&m.UID)
	c.Int(&m.Start)
	c.Str(&m.Command)
}

// ProcessList answers OpList.
type ProcessList struct {
	Result
	Processes []Process
}

// Fields implements Message.
func (m *ProcessList) Fields(c *Codec) {
	m.Result.Fields(c)
	List(c, &m.Processes, func(c *Codec, p *Process) { p.Fields(c) })
}

// PIDs asks OpEnd to end everything but these processes.
type PIDs struct{ Keep []int }

// Fields implements Message.
func (m *PIDs) Fields(c *Codec) { List(c, &m.Keep, (*Codec).Num) }

// EndReply answers OpEnd.
type EndReply struct {
	Result
	Ended int // processes that got the signal
	// Processes are those that lived when the request came.
	Processes []Process
}

// Fields implements Message.
func (m *EndReply) Fields(c *Codec) {
	m.Result.Fields(c)
	c.Num(&m.Ended)
	List(c, &m.Processes, func(c *Codec, p *Process) { p.Fields(c) })
}

// PortList answers OpPorts.
type PortList struct {
	Result
	Ports []Port
}

// Port is one listening TCP socket.
type Port struct {
	Address string // 4 or 16 bytes
	Port    int
	UID     uint32
}

// Fields implements Message.
func (m *PortList) Fields(c *Codec) {
	m.Result.Fields(c)
	List(c, &m.Ports, func(c *Codec, p *Port) { c.Str(&p.Address); c.Num(&p.Port); c.ID(&p.UID) })
}

// DigestReply answers OpDigest with one item per asked path, in order.
type DigestReply struct {
	Result
	Digests []Digest
}

// Digest is the content hash of one file, 32 bytes, or the reason why there is
// none.
type Digest struct {
	SHA256 string
	Result
}

// Fields implements Message.
func (m *DigestReply) Fields(c *Codec) {
	m.Result.Fields(c)
	List(c, &m.Digests, func(c *Codec, d *Digest) { c.Str(&d.SHA256); d.Result.Fields(c) })
}

// LiveRequest sets when the server ends by itself, with everything that it runs.
type LiveRequest struct {
	// Limit ends it so many nanoseconds from now; 0 leaves its end as it is.
	Limit int64
	// Least then moves the end to so many nanoseconds from now, if it would come
	// before.
	Least int64
}

// Fields implements Message.
func (m *LiveRequest) Fields(c *Codec) { c.Int(&m.Limit); c.Int(&m.Least) }

// LiveReply answers OpLive.
type LiveReply struct {
	Result
	Limited bool  // it ends by itself, in Left nanoseconds
	Left    int64 // by its own clock
}

// Fields implements Message.
func (m *LiveReply) Fields(c *Codec) { m.Result.Fields(c); c.Bool(&m.Limited); c.Int(&m.Left) }

// ExitExpired is the exit code of a server whose time was over, as timeout(1)
// has it.
const ExitExpired = 124
