package e2b_test

import "time"

// patience ends what hangs; no test depends on how long anything takes.
const patience = 2 * time.Minute
