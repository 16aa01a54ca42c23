package e2b

import (
	"encoding/json"
	"os"
	"strings"
	"time"
)

// FromDockerfile adds the steps of a Dockerfile, given as its text or as its
// path. One stage is supported; EXPOSE, VOLUME and LABEL mean nothing here. As in
// E2B's SDKs a missing USER or WORKDIR becomes E2B's own, and CMD or ENTRYPOINT
// becomes the start command.
func (b *Builder) FromDockerfile(textOrPath string) *Builder {
	text := textOrPath
	if !strings.Contains(text, "\n") {
		if body, err := os.ReadFile(textOrPath); err == nil {
			text = string(body)
		}
	}
	var image string
	var user, workdir, begun bool
	for _, line := range dockerLines(text) {
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		kind := strings.ToUpper(word)
		if kind == "FROM" {
			if image != "" {
				return b.fail("multi-stage Dockerfiles are not supported")
			}
			image = fromImage(rest)
			if image == "" {
				return b.fail("FROM names no image")
			}
			b.FromImage(image)
			b.SetUser("root").SetWorkdir("/")
			begun = true
			continue
		}
		if !begun {
			if kind == "ARG" {
				continue // only FROM could use it
			}
			return b.fail("the Dockerfile does not begin with FROM")
		}
		switch kind {
		case "RUN":
			b.RunCmd(rest)
		case "COPY", "ADD":
			b.dockerCopy(rest)
		case "WORKDIR":
			b.SetWorkdir(rest)
			workdir = true
		case "USER":
			b.SetUser(rest)
			user = true
		case "ENV", "ARG":
			b.Env(dockerEnv(kind, rest)...)
		case "CMD", "ENTRYPOINT":
			b.SetStartCmd(strings.Join(execForm(rest), " "), WaitForTimeout(20*time.Second))
		case "EXPOSE", "VOLUME", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK":
		default:
			return b.fail("the Dockerfile's instruction %s is not supported", word)
		}
	}
	if image == "" {
		return b.fail("the Dockerfile has no FROM")
	}
	if !user {
		b.SetUser("user")
	}
	if !workdir {
		b.SetWorkdir("/home/user")
	}
	return b
}

func fromImage(rest string) string {
	for _, f := range strings.Fields(rest) {
		if !strings.HasPrefix(f, "--") {
			return f
		}
	}
	return ""
}

// dockerLines joins continued lines and leaves out comments and empty ones.
// White space outside of quotes is folded, as E2B's SDKs have it.
func dockerLines(text string) []string {
	var out []string
	var open strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimRight(line, "\r \t")
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "#") || trimmed == "" && open.Len() == 0 {
			continue
		}
		more := strings.HasSuffix(line, `\`)
		open.WriteString(strings.TrimSuffix(line, `\`))
		if more {
			open.WriteByte(' ')
			continue
		}
		out = append(out, fold(open.String()))
		open.Reset()
	}
	if open.Len() > 0 {
		out = append(out, fold(open.String()))
	}
	return out
}

// fold makes one space of white space outside of quotes.
func fold(s string) string {
	var b strings.Builder
	var quoted rune
	space := false
	for _, r := range strings.TrimSpace(s) {
		if quoted == 0 && (r == ' ' || r == '\t') {
			space = true
			continue
		}
		if space {
			b.WriteByte(' ')
			space = false
		}
		switch {
		case quoted == r:
			quoted = 0
		case quoted == 0 && (r == '"' || r == '\''):
			quoted = r
		}
		b.WriteRune(r)
	}
	return b.String()
}

func execForm(rest string) []string {
	var list []string
	if strings.HasPrefix(rest, "[") && json.Unmarshal([]byte(rest), &list) == nil {
		return list
	}
	return strings.Fields(rest)
}

func (b *Builder) dockerCopy(rest string) {
	var o CopyOptions
	for strings.HasPrefix(rest, "--") {
		flag, after, _ := strings.Cut(rest, " ")
		rest = strings.TrimSpace(after)
		name, value, _ := strings.Cut(flag, "=")
		switch name {
		case "--chown":
			o.User = value
		case "--from":
			b.fail("COPY --from needs a second stage, and those are not supported")
			return
		}
	}
	names := execForm(rest)
	if len(names) < 2 {
		b.fail("COPY %s names no source or no target", rest)
		return
	}
	for _, src := range names[:len(names)-1] {
		b.Copy(src, names[len(names)-1], o)
	}
}

// dockerEnv reads "A=1 B=2", "A 1" and, of an ARG, "A".
func dockerEnv(kind, rest string) []string {
	words := quotedFields(rest)
	if len(words) == 0 {
		return nil
	}
	if !strings.Contains(words[0], "=") {
		if len(words) > 1 {
			_, value, _ := strings.Cut(rest, " ")
			return []string{words[0], unquote(value)}
		}
		if kind == "ARG" {
			return []string{words[0], ""}
		}
		return nil
	}
	var pairs []string
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok && k != "" {
			pairs = append(pairs, k, unquote(v))
		}
	}
	return pairs
}

func quotedFields(s string) []string {
	var out []string
	var cur strings.Builder
	var quoted rune
	for _, r := range s {
		switch {
		case quoted == 0 && r == ' ':
			if cur.Len() > 0 {
				out = append(out, cur.String())
				cur.Reset()
			}
			continue
		case quoted == r:
			quoted = 0
		case quoted == 0 && (r == '"' || r == '\''):
			quoted = r
		}
		cur.WriteRune(r)
	}
	if cur.Len() > 0 {
		out = append(out, cur.String())
	}
	return out
}

func unquote(s string) string {
	if len(s) > 1 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}
