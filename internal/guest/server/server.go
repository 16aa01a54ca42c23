// Package server is the exec server that runs inside a sandbox, as its first
// process or as a child of the image's own. It speaks package wire on its
// standard input and output; the end of its input ends it and every process that
// it can see.
//
// It depends on nothing that the sandbox contains, trusts nothing that the
// sandboxed commands can write, and keeps to packages that start fast.
package server

import (
	"context"
	"io"
	"os"

	"assay/internal/guest/enter"
	"assay/internal/guest/relay"
	"assay/internal/guest/supervise"
)

// The first argument that chooses what a program with Maybe does. The names show
// in process lists inside the sandbox and so say nothing of their purpose.
const (
	ServeArg  = "--init"
	LedgerArg = "--init-ledger"
	// ApartArg after ServeArg is Options.Apart.
	ApartArg = "--init-apart"
)

// Ledger answers one request of the change ledger by writing to w.
type Ledger func(ctx context.Context, req []byte, w io.Writer) error

// Options are what a main program gives its guest mode.
type Options struct {
	In, Out, Err *os.File // standard input, output and error of the process
	// Ledger serves ledger requests; nil refuses them.
	Ledger Ledger
	// Apart gives commands to supervisors with memory of their own also where
	// they could share that of the server.
	Apart bool
}

// Maybe runs guest mode when args, the whole command line, ask for it: server,
// supervisor, or one ledger request from In answered on Out. When ran is true
// the process must exit with code.
func Maybe(args []string, o Options) (ran bool, code int) {
	if len(args) < 2 {
		return false, 0
	}
	switch args[1] {
	case ServeArg:
		o.Apart = o.Apart || len(args) > 2 && args[2] == ApartArg
		return true, serve(o)
	case enter.Arg:
		if !enter.Run(args, []string{supervise.ProcessName, ServeArg}) {
			return true, 1
		}
		o.In, o.Out = enter.In(), enter.Out()
		return true, serve(o)
	case supervise.SessionArg:
		return true, session()
	case supervise.EndArg:
		return true, sweep()
	case LedgerArg:
		return true, ledgerOnce(o)
	case relay.AttachArg:
		return true, attach(o, args[2:])
	case relay.HoldArg:
		return true, hold(args[2:])
	}
	return false, 0
}

// maxLedgerRequest bounds what is held of a ledger request, in bytes.
const maxLedgerRequest = 64 << 20

func ledgerOnce(o Options) int {
	if o.Ledger == nil {
		return 2
	}
	req, err := io.ReadAll(io.LimitReader(o.In, maxLedgerRequest))
	if err == nil {
		err = o.Ledger(context.Background(), req, o.Out)
	}
	if err != nil {
		_, _ = o.Err.WriteString(err.Error() + "\n") // the exit code says it too
		return 1
	}
	return 0
}
