package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"assay/fault"
)

func TestRawIsLossless(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := Raw(rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(rt, "raw"))
		data, err := json.Marshal(in)
		if err != nil {
			rt.Fatal(err)
		}
		var out Raw
		if err := json.Unmarshal(data, &out); err != nil || in != out {
			rt.Fatalf("%q became %q by %s, %v", in, out, data, err)
		}
	})
}

const (
	someID   = "0123456789abcdef0123456789abcdef01234567"
	openLine = `{"window":{"label":"w","to":"` + someID + `"}}` + "\n"
	addLine  = `{"change":{"path":"a","status":"added","after":{"mode":33188,"size":1,"blob":"` + someID + `"}}}` + "\n"
	endLine  = `{"end":{"label":"w","to":"` + someID + `","added":1,"modified":0,"deleted":0}}` + "\n"
	okLine   = `{"ok":{}}` + "\n"
)

func TestDecodeRefusesNonsense(t *testing.T) {
	if _, err := DecodeResponse(strings.NewReader(openLine + addLine + endLine + okLine)); err != nil {
		t.Fatalf("a good answer: %v", err)
	}
	for name, answer := range map[string]string{
		"nothing":          "",
		"no end":           openLine + addLine + endLine,
		"cut":              openLine + addLine + endLine + `{"ok":`,
		"not JSON":         "hello\n",
		"empty line":       "{}\n",
		"after the end":    okLine + okLine,
		"end in a window":  openLine + okLine,
		"window in window": openLine + openLine,
		"stray change":     addLine + okLine,
		"stray end":        endLine + okLine,
		"other end":        openLine + addLine + strings.Replace(endLine, `"w"`, `"v"`, 1) + okLine,
		"order":            openLine + addLine + addLine + endLine + okLine,
		"sides":            openLine + strings.Replace(addLine, "after", "before", 1) + endLine + okLine,
		"count":            openLine + addLine + strings.Replace(endLine, `"added":1`, `"added":2`, 1) + okLine,
		"long line":        `{"ok":{"partial":"` + strings.Repeat("x", maxLine) + `"}}` + "\n",
		"bad id":           strings.Replace(openLine, "0123", "0", 1) + okLine,
	} {
		if _, err := DecodeResponse(strings.NewReader(answer)); fault.CodeOf(err) != "ledger-protocol" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	sent := pathFault(fault.Config, "ledger-unreadable", "fix it", "a\n\xff", "cannot be read", fs.ErrPermission)
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(line{Error: wire(sent)}); err != nil {
		t.Fatal(err)
	}
	_, err := DecodeResponse(&b)
	path, _ := PathOf(err)
	if fault.CodeOf(err) != "ledger-unreadable" || fault.ClassOf(err) != fault.Config || fault.FixOf(err) != "fix it" || path != "a\n\xff" {
		t.Errorf("received %#v, path %q", err, path)
	}
	if !strings.HasPrefix(err.Error(), sent.Error()) {
		t.Errorf("text %q, want %q", err, sent)
	}
	plain := wire(errors.New("x")).fault()
	if _, ok := PathOf(plain); ok || fault.CodeOf(plain) != "ledger-failed" || fault.ClassOf(plain) != fault.Unknown {
		t.Errorf("an error without a code became %#v", plain)
	}
}

func TestRequestsCrossTheWire(t *testing.T) {
	in := Request{
		Op: OpDiff, Root: "/w", Store: "/s", Content: true, Author: Agent, Label: "l", AllowEmpty: true,
		Rules: Rules{Ignore: []string{"a"}, Include: []string{"b"}}, Commit: ID{1}, Windows: []Window{{Label: "w", To: ID{2}}}, Limits: Limits{Changes: 3},
	}
	data, err := in.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var out Request
	if err := json.Unmarshal(data, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%+v became %+v, %v", in, out, err)
	}
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add([]byte(openLine + addLine + endLine + okLine))
	f.Add([]byte(`{"error":{"code":"x","message":"y","path":{"base64":"/w=="}}}`))
	f.Add([]byte(okLine))
	f.Fuzz(func(t *testing.T, data []byte) {
		res, err := DecodeResponse(bytes.NewReader(data))
		if err != nil {
			if fault.CodeOf(err) == "" {
				t.Errorf("an error without a code: %v", err)
			}
			return
		}
		for _, w := range res.Windows {
			if n := w.Added + w.Modified + w.Deleted; n < len(w.Changes) {
				t.Errorf("%d changes, counted %d", len(w.Changes), n)
			}
		}
	})
}

func FuzzObjects(f *testing.F) {
	f.Add(encodeTree([]treeEntry{{modeFile, "a", ID{1}}, {modeTree, "b", ID{2}}}))
	f.Add(commitData{tree: ID{1}, parent: ID{2}, author: Agent, label: "l", facts: ID{3}}.encode())
	f.Add(encodeCache(map[string]cached{"a": {id: ID{1}}}))
	f.Add([]byte(factsMagic + "\x00aaaabbbbcccc"))
	f.Add(packIndex([]*packEntry{{id: ID{1}, offset: 12}, {id: ID{2}, offset: 1 << 40}}, ID{9}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if entries, err := decodeTree(data); err == nil && len(data) > 0 && len(entries) == 0 {
			t.Error("a tree was read as empty")
		}
		_, _ = decodeCommit(data)
		_ = decodeCache(data)
		if facts, err := decodeFacts(data); err == nil {
			for p := range facts {
				if !validPath(p) || strings.HasPrefix(p, "/") {
					t.Errorf("facts of %q", p)
				}
			}
		}
		if p, err := newPackReader("x", data); err == nil {
			for i := range p.count {
				p.find(ID(p.index[8+1024+20*i : 8+1024+20*i+20]))
			}
		}
	})
}
