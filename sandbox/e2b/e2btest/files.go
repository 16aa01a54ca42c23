package e2btest

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"assay/internal/hostbox"
)

// entry is a file as the filesystem service tells it.
func entry(root *os.Root, p string) (map[string]any, error) {
	name := hostbox.Rel(p)
	lst, err := root.Lstat(name)
	if err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: p, Err: fs.ErrNotExist}
	}
	e := map[string]any{"name": path.Base(p), "path": p}
	st := lst
	if lst.Mode()&fs.ModeSymlink != 0 {
		target, err := root.Readlink(name)
		if err == nil {
			e["symlinkTarget"] = target
		}
		if followed, err := root.Stat(name); err == nil {
			st = followed
		}
	}
	switch {
	case st.IsDir():
		e["type"] = "FILE_TYPE_DIRECTORY"
	case st.Mode()&fs.ModeSymlink != 0:
		e["type"] = "FILE_TYPE_SYMLINK"
	default:
		e["type"] = "FILE_TYPE_FILE"
	}
	if st.Size() != 0 {
		e["size"] = strconv.FormatInt(st.Size(), 10)
	}
	if st.Mode().Perm() != 0 {
		e["mode"] = uint32(st.Mode().Perm())
	}
	e["permissions"], e["modifiedTime"] = st.Mode().String(), st.ModTime().UTC().Format(time.RFC3339Nano)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		e["owner"], e["group"] = owner(root, "etc/passwd", sys.Uid), owner(root, "etc/group", sys.Gid)
	}
	return e, nil
}

func owner(root *os.Root, file string, id uint32) string {
	body, err := root.ReadFile(file)
	if err == nil {
		for line := range strings.SplitSeq(string(body), "\n") {
			if f := strings.Split(line, ":"); len(f) > 2 && f[2] == fmt.Sprint(id) {
				return f[0]
			}
		}
	}
	return fmt.Sprint(id)
}

// path decodes a request that names one path.
func (c *call) path(in any, p *string) bool {
	if !c.decode(in) {
		return false
	}
	full, err := c.b.resolve(*p, c.acct)
	if err != nil {
		c.refuse(err)
		return false
	}
	*p = full
	return true
}

func (c *call) entry(p string) {
	e, err := entry(c.root, p)
	if err != nil {
		c.refuse(err)
		return
	}
	c.ok(map[string]any{"entry": e})
}

func (c *call) stat() {
	var in struct {
		Path string `json:"path"`
	}
	if c.path(&in, &in.Path) {
		c.entry(in.Path)
	}
}

func (c *call) listDir() {
	var in struct {
		Path  string `json:"path"`
		Depth int    `json:"depth"`
	}
	if !c.path(&in, &in.Path) {
		return
	}
	st, err := c.root.Stat(hostbox.Rel(in.Path))
	switch {
	case err != nil:
		c.refuse(rpcf("not_found", "path not found: stat %s: no such file or directory", in.Path))
		return
	case !st.IsDir():
		c.refuse(rpcf("invalid_argument", "path is not a directory: %s", in.Path))
		return
	}
	list := c.walk(in.Path, max(in.Depth, 1))
	if list == nil {
		c.ok(map[string]any{})
		return
	}
	c.ok(map[string]any{"entries": list})
}

func (c *call) walk(dir string, depth int) []any {
	var out []any
	f, err := c.root.Open(hostbox.Rel(dir))
	if err != nil {
		return nil
	}
	names, _ := f.ReadDir(-1)
	_ = f.Close()
	for _, n := range names {
		p := path.Join(dir, n.Name())
		if e, err := entry(c.root, p); err == nil {
			out = append(out, e)
		}
		if n.IsDir() && depth > 1 {
			out = append(out, c.walk(p, depth-1)...)
		}
	}
	return out
}

func (c *call) makeDir() {
	var in struct {
		Path string `json:"path"`
	}
	if !c.path(&in, &in.Path) {
		return
	}
	if st, err := c.root.Stat(hostbox.Rel(in.Path)); err == nil {
		if st.IsDir() {
			c.refuse(rpcf("already_exists", "directory already exists: %s", in.Path))
			return
		}
		c.refuse(rpcf("invalid_argument", "path already exists but it is not a directory: %s", in.Path))
		return
	}
	if err := hostbox.MkdirAll(c.root, in.Path, c.acct.UID, c.acct.GID); err != nil {
		c.refuse(err)
		return
	}
	c.entry(in.Path)
}

func (c *call) move() {
	var in struct {
		Source      string `json:"source"`
		Destination string `json:"destination"`
	}
	if !c.path(&in, &in.Source) {
		return
	}
	dst, err := c.b.resolve(in.Destination, c.acct)
	if err == nil {
		err = hostbox.MkdirAll(c.root, path.Dir(dst), c.acct.UID, c.acct.GID)
	}
	if err == nil {
		err = c.root.Rename(hostbox.Rel(in.Source), hostbox.Rel(dst))
	}
	if err != nil {
		c.refuse(err)
		return
	}
	c.entry(dst)
}

func (c *call) remove() {
	var in struct {
		Path string `json:"path"`
	}
	if !c.path(&in, &in.Path) {
		return
	}
	if err := c.root.RemoveAll(hostbox.Rel(in.Path)); err != nil {
		c.refuse(err)
		return
	}
	c.ok(map[string]any{})
}

func filesFail(w http.ResponseWriter, status int, format string, args ...any) {
	reply(w, status, map[string]any{"code": status, "message": fmt.Sprintf(format, args...)})
}

// fileUser checks the signature and finds the user of a request for /files.
func (s *Server) fileUser(w http.ResponseWriter, r *http.Request, root *os.Root, op string) (hostbox.Account, bool) {
	b, q := boxOf(r), r.URL.Query()
	name := q.Get("username")
	if b.token != "" && r.Header.Get("X-Access-Token") == "" {
		raw := q.Get("path") + ":" + op + ":" + name + ":" + b.token
		if exp := q.Get("signature_expiration"); exp != "" {
			raw += ":" + exp
			at, err := strconv.ParseInt(exp, 10, 64)
			if err != nil || time.Now().Unix() > at {
				filesFail(w, http.StatusUnauthorized, "signature is already expired")
				return hostbox.Account{}, false
			}
		}
		sum := sha256.Sum256([]byte(raw))
		switch q.Get("signature") {
		case "":
			filesFail(w, http.StatusUnauthorized, "missing signature query parameter")
			return hostbox.Account{}, false
		case "v1_" + base64.RawStdEncoding.EncodeToString(sum[:]):
		default:
			filesFail(w, http.StatusUnauthorized, "invalid signature")
			return hostbox.Account{}, false
		}
	}
	if name == "" {
		name = b.template.user
	}
	a, err := hostbox.Lookup(root, name)
	if err != nil {
		filesFail(w, http.StatusUnauthorized, "error looking up user '%s': %v", name, err)
		return a, false
	}
	return a, true
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	root, err := boxOf(r).machine.Files()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = root.Close() }()
	a, ok := s.fileUser(w, r, root, "read")
	if !ok {
		return
	}
	p, err := boxOf(r).resolve(r.URL.Query().Get("path"), a)
	if err != nil {
		filesFail(w, http.StatusBadRequest, "%v", err)
		return
	}
	f, err := root.Open(hostbox.Rel(p))
	if errors.Is(err, fs.ErrNotExist) {
		filesFail(w, http.StatusNotFound, "path '%s' does not exist", p)
		return
	}
	if err != nil {
		filesFail(w, http.StatusInternalServerError, "%v", err)
		return
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil || st.IsDir() {
		filesFail(w, http.StatusBadRequest, "path '%s' is a directory", p)
		return
	}
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p)}))
	http.ServeContent(w, r, path.Base(p), st.ModTime(), f)
}

func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	root, err := boxOf(r).machine.Files()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = root.Close() }()
	a, ok := s.fileUser(w, r, root, "write")
	if !ok {
		return
	}
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	dest := r.URL.Query().Get("path")
	var done []any
	switch kind {
	case "application/octet-stream":
		if dest == "" {
			filesFail(w, http.StatusBadRequest, "path is required")
			return
		}
		v, err := s.store(root, boxOf(r), dest, a, r.Body)
		if err != nil {
			uploadFailed(w, err)
			return
		}
		done = append(done, v)
	case "multipart/form-data":
		mr := multipart.NewReader(r.Body, params["boundary"])
		for {
			part, err := mr.NextRawPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				filesFail(w, http.StatusBadRequest, "%v", err)
				return
			}
			_, disposition, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			to := dest
			if to == "" {
				to = disposition["filename"]
			}
			if part.FormName() != "file" {
				continue
			}
			v, err := s.store(root, boxOf(r), to, a, part)
			if err != nil {
				uploadFailed(w, err)
				return
			}
			done = append(done, v)
		}
	default:
		filesFail(w, http.StatusBadRequest, "unsupported content type %q", kind)
		return
	}
	reply(&plain{w}, http.StatusOK, done)
}

// plain gives the answer the type that envd gives it.
type plain struct{ http.ResponseWriter }

func (p *plain) WriteHeader(status int) {
	p.Header().Set("Content-Type", "text/plain; charset=utf-8")
	p.ResponseWriter.WriteHeader(status)
}

func uploadFailed(w http.ResponseWriter, err error) {
	if e := (*rpcError)(nil); errors.As(err, &e) {
		filesFail(w, http.StatusBadRequest, "%s", e.message)
		return
	}
	filesFail(w, http.StatusInternalServerError, "%v", err)
}

func (s *Server) store(root *os.Root, b *box, dest string, a hostbox.Account, body io.Reader) (map[string]any, error) {
	p, err := b.resolve(dest, a)
	if err != nil {
		return nil, err
	}
	if st, err := root.Stat(hostbox.Rel(p)); err == nil && st.IsDir() {
		return nil, rpcf("invalid_argument", "path is a directory: %s", p)
	}
	if err := hostbox.MkdirAll(root, path.Dir(p), a.UID, a.GID); err != nil {
		return nil, err
	}
	f, err := root.OpenFile(hostbox.Rel(p), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(f, body)
	err = errors.Join(err, f.Chown(a.UID, a.GID), f.Close())
	return map[string]any{"name": path.Base(p), "path": p, "type": "file"}, err
}
