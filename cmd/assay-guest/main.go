//go:build linux

// Command assay-guest is the exec server that runs inside a sandbox: --init
// serves package internal/guest/wire on standard input and output,
// --init-session is one supervised command, and --init-ledger (or ledger)
// answers one request of the change ledger.
package main

import (
	"os"

	"assay/internal/guest/server"
	"assay/internal/snapshot"
)

func main() {
	args := os.Args
	if len(args) == 2 && args[1] == "ledger" {
		args = []string{args[0], server.LedgerArg}
	}
	ran, code := server.Maybe(args, server.Options{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Ledger: snapshot.Serve})
	if !ran {
		_, _ = os.Stderr.WriteString("usage: " + args[0] + " " + server.ServeArg + " | ledger\n")
		code = 2
	}
	os.Exit(code)
}
