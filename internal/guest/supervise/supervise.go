// Package supervise runs one command under a supervisor: a small process that
// adopts every descendant of the command, so that the whole tree can be killed
// and the kill be proven, whatever the tree did to hide (new sessions, double
// forks, ignored signals, forks during the kill).
//
// Where it can, a supervisor is a keeper, which shares the memory of its parent
// (see keeper). Elsewhere a supervisor is this program itself, started again with SessionArg. When the
// command's first process ends by itself and has left descendants, it leaves at
// once, so that they run on and belong to the next reaper; when nothing is left
// it takes the next command.
package supervise

// SessionArg, as the first argument, makes a program that calls Session a
// supervisor. It shows in process lists and so says nothing of its purpose.
const SessionArg = "--init-session"

// EndArg, as the first argument, makes a program that calls End kill what is below
// it.
const EndArg = "--init-end"

// ProcessName is the name that servers and supervisors show in process lists.
const ProcessName = "init"
