package snapshot

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"time"
)

// The scan cache maps the facts of a file to the blob its content had, so that
// an unchanged file is not read again. It is always safe to lose.

// cacheFile is its name in the store.
const cacheFile = "scan"

const cacheMagic = "scan0001"

// stamp is everything that must be equal for a file to count as unchanged.
type stamp struct {
	mode         uint32
	size         int64
	mtime, ctime int64
	inode        uint64
}

func stampOf(f Facts) stamp {
	return stamp{mode: f.Mode, size: f.Size, mtime: f.ModTime, ctime: f.ChangeTime, inode: f.Inode}
}

type cached struct {
	stamp
	id ID
}

// settled tells whether facts taken at now can vouch for content read after
// them. A file changed within one tick of the file system's clock after it was
// read keeps its times (the "racy" rule of gitformat-index), so young times
// vouch for nothing. Kernel clocks tick at least every 10 ms; a time without
// a fraction hints at a file system that counts whole seconds.
func settled(f Facts, now time.Time) bool {
	slack := 50 * time.Millisecond
	if f.ChangeTime%int64(time.Millisecond) == 0 {
		slack = 2100 * time.Millisecond
	}
	return now.UnixNano()-f.ChangeTime > int64(slack)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const cacheFixed = 4 + 4*8 + 20

func encodeCache(entries map[string]cached) []byte {
	size := len(cacheMagic) + 4
	for p := range entries {
		size += binary.MaxVarintLen32 + len(p) + cacheFixed
	}
	b := append(make([]byte, 0, size), cacheMagic...)
	le := binary.LittleEndian
	for p, e := range entries {
		b = binary.AppendUvarint(b, uint64(len(p)))
		b = append(b, p...)
		b = le.AppendUint32(b, e.mode)
		b = le.AppendUint64(b, uint64(e.size))
		b = le.AppendUint64(b, uint64(e.mtime))
		b = le.AppendUint64(b, uint64(e.ctime))
		b = le.AppendUint64(b, e.inode)
		b = append(b, e.id[:]...)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeCache returns an empty cache for anything that is not whole.
func decodeCache(data []byte) map[string]cached {
	n := len(data) - 4
	le := binary.LittleEndian
	if n < len(cacheMagic) || !bytes.HasPrefix(data, []byte(cacheMagic)) ||
		le.Uint32(data[n:]) != crc32.Checksum(data[:n], castagnoli) {
		return map[string]cached{}
	}
	entries := make(map[string]cached, n/(cacheFixed+40))
	// One string holds all paths: cheaper than one for each.
	text := string(data[:n])
	for at := len(cacheMagic); at < n; {
		size, w := binary.Uvarint(data[at:n])
		at += w
		if w <= 0 || size > uint64(n) || at+int(size)+cacheFixed > n {
			return map[string]cached{}
		}
		path := text[at : at+int(size)]
		at += int(size)
		b := data[at : at+cacheFixed]
		entries[path] = cached{
			stamp: stamp{
				mode: le.Uint32(b), size: int64(le.Uint64(b[4:])), mtime: int64(le.Uint64(b[12:])),
				ctime: int64(le.Uint64(b[20:])), inode: le.Uint64(b[28:]),
			},
			id: ID(b[36:56]),
		}
		at += cacheFixed
	}
	return entries
}
