// Package supervise runs one command under a supervisor: a small process that
// adopts every descendant of the command, so that the whole tree can be killed
// and the kill be proven, whatever the tree did to hide (new sessions, double
// forks, ignored signals, forks during the kill).
//
// A supervisor is this program itself, started again with SessionArg. It leaves
// as soon as the command's first process ends by itself; descendants that run on
// then belong to the next reaper.
package supervise

// SessionArg, as the first argument, makes a program that calls Session a
// supervisor. It shows in process lists and so says nothing of its purpose.
const SessionArg = "--init-session"

// ProcessName is the name that servers and supervisors show in process lists.
const ProcessName = "init"
