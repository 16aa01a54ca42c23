// Package snapshot records the states of a working tree in a private
// repository, tells what changed between two states, and restores one.
//
// It is the engine under the change ledger. A snapshot is a real git commit:
// blobs, trees and commits in git's object format, so that git --git-dir can
// read the result. No git program runs here, though: everything that could
// make git execute the tree's code (filters, hooks, fsmonitor, PATH) has
// nothing to hold on to, and the tree needs no git installed.
//
// The package links into a small static binary that serves requests inside a
// sandbox (Serve), works in process on a directory of the host, and works over
// any Tree, such as one in memory. A working tree is hostile input: links are
// never followed, special files are never opened, names are raw bytes.
//
// Formats: gitformat-pack, gitformat-index (for the racy-entry rule) and the
// object formats in the "Git Internals" chapter of Pro Git.
package snapshot
