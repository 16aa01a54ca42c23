package board

import "assay/record"

// Reason is the primary cause of a red attempt in one line, and what the user can
// do about it, "" where nobody knows.
func Reason(a *record.Attempt) (why, fix string) {
	why, more, fix := reason(a)
	return why + more, fix
}
