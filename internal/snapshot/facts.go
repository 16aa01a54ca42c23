package snapshot

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// A mark keeps the modes and owners that git's trees have no place for, and
// the directories, empty ones too, in a blob that the mark's commit names.

const factsMagic = "facts001"

// attrs are the mode (type and permissions) and owner of a path at a mark.
type attrs struct{ mode, uid, gid uint32 }

func putFacts(b Batch, root *node) (ID, error) {
	data := []byte(factsMagic)
	le := binary.LittleEndian
	var visit func(n *node)
	visit = func(n *node) {
		if n.gone {
			return
		}
		data = binary.AppendUvarint(data, uint64(len(n.path)))
		data = append(data, n.path...)
		data = le.AppendUint32(data, n.facts.Mode)
		data = le.AppendUint32(data, n.facts.UID)
		data = le.AppendUint32(data, n.facts.GID)
		for _, k := range n.kids {
			visit(k)
		}
	}
	visit(root)
	id := hashObject(KindBlob, data)
	return id, b.Put(id, KindBlob, int64(len(data)), bytes.NewReader(data))
}

// decodeFacts maps each path of a mark, "" being the root, to its attributes.
func decodeFacts(data []byte) (map[string]attrs, error) {
	if !bytes.HasPrefix(data, []byte(factsMagic)) {
		return nil, corrupt("the facts of a mark are malformed", nil)
	}
	facts := map[string]attrs{}
	le := binary.LittleEndian
	for data = data[len(factsMagic):]; len(data) > 0; {
		size, w := binary.Uvarint(data)
		if w <= 0 || size > uint64(len(data)) || len(data) < w+int(size)+12 {
			return nil, corrupt("the facts of a mark are malformed", nil)
		}
		path := string(data[w : w+int(size)])
		data = data[w+int(size):]
		if !validPath(path) {
			return nil, corrupt("the facts of a mark hold a forbidden path", nil)
		}
		facts[path] = attrs{le.Uint32(data), le.Uint32(data[4:]), le.Uint32(data[8:])}
		data = data[12:]
	}
	return facts, nil
}

func validPath(p string) bool {
	if p == "" {
		return true
	}
	for e := range strings.SplitSeq(p, "/") {
		if !validName(e) {
			return false
		}
	}
	return true
}
