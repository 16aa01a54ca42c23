package fake_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/fake"
)

// open starts a sandbox of a script that ends with the test.
func open(t *testing.T, s fake.Script) (*fake.Provider, *sandbox.Sandbox) {
	t.Helper()
	p := fake.New(s)
	return p, openFrom(t, p)
}

func openFrom(t *testing.T, p *fake.Provider) *sandbox.Sandbox {
	t.Helper()
	d, err := p.Create(t.Context(), sandbox.CreateRequest{Template: p.Template(), Notes: sandbox.Quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop(context.Background()) })
	return sandbox.New(d, sandbox.Options{Provider: p})
}

func TestShell(t *testing.T) {
	_, s := open(t, fake.Script{Files: map[string]string{"a.txt": "one\ntwo\nthree\n", "d/b.txt": "two\n"}})
	for _, c := range []struct {
		script, out string
		code        int
	}{
		{`echo $((1+2)) "$(echo sub)" ${X:-def} ${#PWD}`, "3 sub def 20\n", 0},
		{`for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done`, "1\n3\n", 0},
		{`i=0; while [ $i -lt 3 ]; do i=$((i+1)); [ $i -eq 2 ] && break; done; echo $i`, "2\n", 0},
		{`f() { local x=1; echo $x $1; return 4; }; x=9; f arg; echo $? $x`, "1 arg\n4 9\n", 0},
		{`case abc in a*) echo yes;; *) echo no;; esac`, "yes\n", 0},
		{`set -e; false; echo not reached`, "", 1},
		{`set -e; false || echo guarded; if false; then :; fi; ! true; echo on`, "guarded\non\n", 0},
		{`set -o pipefail; false | true; echo $?`, "1\n", 0},
		{`set -u; echo $NOPE; echo not reached`, "", 1},
		{`cat a.txt | grep t | sort -r | head -n 1`, "two\n", 0},
		{`cat <<EOF
$((2*3)) \$x
EOF`, "6 $x\n", 0},
		{`echo err >&2; echo out 2>/dev/null >f; cat f`, "out\n", 0},
		{`cat missing 2>/dev/null || echo "gone $?"`, "gone 1\n", 0},
		{`(cd d && pwd; exit 3); echo $?; pwd`, "/home/user/workspace/d\n3\n/home/user/workspace\n", 0},
		{`trap 'echo bye' EXIT; echo hi; exit 5`, "hi\nbye\n", 5},
		{`trap 'echo caught' TERM; kill -TERM $$; echo after`, "caught\nafter\n", 0},
		{`(exit 7) & wait $!; echo $?`, "7\n", 0},
		{`a=(x y z); echo ${a[1]} ${#a[@]}; [[ abc == a* && ! -f nope ]] && echo ok`, "y 3\nok\n", 0},
		{`ls; ls -d d; ls *.txt`, "a.txt\nd\nf\nd\na.txt\n", 0},
		{`mkdir -p x/y && touch x/y/z && cp -r x c && mv c/y/z c/z && find c -type f && rm -r x c && ls -d x 2>/dev/null; echo $?`, "c/z\n1\n", 0},
		{`sed -n '2p' a.txt; sed 's/t\(.\)/<\1>/' a.txt | tail -1; sed -i '1d' d/b.txt; cat d/b.txt`, "two\n<h>ree\n", 0},
		{`grep -c t a.txt; grep -rn two . ; grep -q nothing a.txt; echo $?`, "2\n./a.txt:2:two\n1\n", 0},
		{`printf 'b 2\na 10\n' | sort -k2 -n | cut -d' ' -f1 | tr a-z A-Z | uniq -c | wc -l`, "2\n", 0},
		{`seq 3 | xargs -n1 echo n; echo a b | tee t1 | wc -w; cat t1`, "n 1\nn 2\nn 3\n2\na b\n", 0},
		{`ln -s a.txt l; readlink l; [ -L l ] && cat l | head -1; rm l`, "a.txt\none\n", 0},
		{`printf '#!/bin/sh\necho run $1\n' >tool; ./tool; chmod +x tool; ./tool x`, "run x\n", 0},
		{`env -i A=1 env; id -un; whoami; basename /a/b.c .c; dirname /a/b`, "A=1\nuser\nuser\nb\n/a\n", 0},
		{`echo abc | sha256sum; echo x >/etc/passwd; echo $?`, "edeaaff3f1774ad2888673770c6d64097e391bc362d7d6fb34982ddf0efd18cb  -\n1\n", 0},
		{`yes | head -2; timeout 0.01 sleep 5; echo $?`, "y\ny\n124\n", 0},
		{`while read -r a b; do echo "$b-$a"; done <<X
1 2 3
X`, "2 3-1\n", 0},
		{`if then`, "", 2},
		{`diff a b`, "", 127},
		{`select x in a; do :; done`, "", 2},
	} {
		r, err := s.RunShell(t.Context(), c.script)
		if err != nil || r.Code != c.code || r.Stdout != c.out {
			t.Errorf("%s\n gave exit %d, %q, stderr %q, %v\n want exit %d, %q", c.script, r.Code, r.Stdout, r.Stderr, err, c.code, c.out)
		}
	}
}

func TestNothingReachesTheHost(t *testing.T) {
	_, s := open(t, fake.Script{})
	host := filepath.Join(t.TempDir(), "host")
	if err := os.WriteFile(host, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := s.RunShell(t.Context(), `cat "$1"`+host+`; . `+host+`; [ -e `+host+` ] && echo seen; echo x >`+host+`; ls `+filepath.Dir(host)+`/*; echo ~root`)
	if err != nil || strings.Contains(r.Stdout+r.Stderr, "secret") || strings.Contains(r.Stdout, "seen") {
		t.Errorf("a script saw the host: %q, %q, %v", r.Stdout, r.Stderr, err)
	}
	if b, err := os.ReadFile(host); err != nil || string(b) != "secret" {
		t.Errorf("a script changed the host: %q, %v", b, err)
	}
}

func TestScriptedCommands(t *testing.T) {
	_, s := open(t, fake.Script{
		Files: map[string]string{"old": "1"},
		Commands: []fake.Response{
			{Match: `^agent --flaky`, Exit: 9, Times: 1},
			{Match: `^agent `, Stdout: "done\n", Stderr: "note\n", Exit: 3, Writes: map[string]string{"sub/new.txt": "made"}, Deletes: []string{"old"}},
			{Argv: []string{"grow"}, OOM: true},
		},
	})
	r, err := s.RunCommand(t.Context(), []string{"agent", "--go"})
	if err != nil || r.Code != 3 || r.Stdout != "done\n" || r.Stderr != "note\n" {
		t.Errorf("a canned answer gave %+v, %v", r, err)
	}
	if got, err := s.ReadText(t.Context(), "sub/new.txt"); err != nil || got != "made" {
		t.Errorf("it wrote %q, %v", got, err)
	}
	if there, err := s.PathExists(t.Context(), "old"); err != nil || there {
		t.Errorf("it left the file to delete: %v, %v", there, err)
	}
	r, err = s.RunShell(t.Context(), `agent --flaky; echo $?; agent --flaky 2>/dev/null; echo $?; grow; echo $?`)
	if err != nil || r.Stdout != "9\ndone\n3\n137\n" {
		t.Errorf("answers inside of a script gave %q, %q, %v", r.Stdout, r.Stderr, err)
	}
	if r, err := s.RunCommand(t.Context(), []string{"grow"}); err != nil || !r.OOM || r.Signal != "SIGKILL" || r.Code != 137 {
		t.Errorf("out of memory gave %+v, %v", r, err)
	}
}

func TestScriptFile(t *testing.T) {
	for _, c := range []struct{ name, body, code string }{
		{"whole", "user: root\nworkdir: /w\nusers: [{name: a, uid: 5}]\nfiles: {a: b}\ncommands:\n  - {match: ^x, delay: 2s, hang: true}\n  - {argv: [y, z], exit: 1}\nfaults: {create: {transient: 2}, stop: {fail: 1}, vanishAfter: 3, prepare: {stage: pull, class: transient, times: 1}}\n", ""},
		{"empty", "", ""},
		{"unknown field", "comands: []\n", "sandbox.fake-script"},
		{"unknown fault", "faults: {creat: {}}\n", "sandbox.fake-script"},
		{"match and argv", "commands: [{match: a, argv: [b]}]\n", "sandbox.fake-script"},
		{"neither", "commands: [{exit: 1}]\n", "sandbox.fake-script"},
		{"bad expression", "commands: [{match: '('}]\n", "sandbox.fake-script"},
		{"bad class", "faults: {put: {class: odd}}\n", "sandbox.fake-script"},
		{"relative workdir", "workdir: w\n", "sandbox.fake-script"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "fake.yaml"), []byte(c.body), 0o644); err != nil {
				t.Fatal(err)
			}
			def := fake.Definition()
			spec, ok := def.Spec().(*fake.Spec)
			if !ok {
				t.Fatal("the definition has no spec")
			}
			spec.Script = "fake.yaml"
			tmpl, err := def.Template(spec, dir)
			if fault.CodeOf(err) != c.code {
				t.Fatalf("got %v, want code %q", err, c.code)
			}
			if err != nil {
				if fault.ClassOf(err) != fault.Config || fault.FixOf(err) == "" {
					t.Errorf("class %v, fix %q", fault.ClassOf(err), fault.FixOf(err))
				}
				return
			}
			if err := tmpl.Provider.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := fake.ReadScript(filepath.Join(t.TempDir(), "missing")); fault.CodeOf(err) != "sandbox.fake-script" {
		t.Errorf("a missing script: %v", err)
	}
}

func TestFaultsAreCounted(t *testing.T) {
	p := fake.New(fake.Script{Faults: fake.Faults{
		Create: fake.Fault{Transient: 2}, Put: fake.Fault{Class: "resource", Times: 1}, Stop: fake.Fault{Fail: 1}, VanishAfter: 2,
	}})
	for range 2 {
		if _, err := p.Create(t.Context(), sandbox.CreateRequest{}); p.Classify(err) != fault.Transient {
			t.Errorf("Create gave %v", err)
		}
	}
	d, err := p.Create(t.Context(), sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s := sandbox.New(d, sandbox.Options{Provider: p})
	if err := s.WriteText(t.Context(), "f", "1"); fault.ClassOf(err) != fault.Resource {
		t.Errorf("the first Put gave %v", err)
	}
	if err := s.WriteText(t.Context(), "f", "1"); err != nil {
		t.Errorf("the second Put gave %v", err)
	}
	if err := d.Stop(t.Context()); err == nil {
		t.Error("the first Stop worked")
	}
	for i := range 3 {
		_, err := s.RunCommand(t.Context(), []string{"true"})
		if (err != nil) != (i == 2) || i == 2 && !errors.Is(err, sandbox.ErrUnusable) {
			t.Errorf("command %d gave %v", i+1, err)
		}
	}
	want := fake.Stats{Creates: 3, Execs: 2, Puts: 2, Stops: 1, Made: 3}
	if got := p.Stats(); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func TestRetriedTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := open(t, fake.Script{Faults: fake.Faults{Put: fake.Fault{Transient: 2}}})
		start := time.Now()
		if err := s.WriteText(t.Context(), "f", "1"); err != nil {
			t.Errorf("a transfer that fails twice: %v", err)
		}
		if got := p.Stats().Puts; got != 3 {
			t.Errorf("it was tried %d times", got)
		}
		if d := time.Since(start); d < 375*time.Millisecond || d > 1125*time.Millisecond {
			t.Errorf("it waited %v, want 0.5 to 1.5 times 250 ms and 500 ms", d)
		}
	})
}

func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s := open(t, fake.Script{Commands: []fake.Response{{Match: "^think", Delay: 20 * time.Minute}, {Match: "^hang", Hang: true}}})
		start := time.Now()
		r, err := s.RunShell(t.Context(), "sleep 3600 | cat; think; (sleep 60; echo late >f) & date +%s >/dev/null")
		if err != nil || r.Code != 0 || time.Since(start) != 80*time.Minute {
			t.Errorf("took %v, %+v, %v", time.Since(start), r, err)
		}
		time.Sleep(61 * time.Second)
		if got, err := s.ReadText(t.Context(), "f"); err != nil || got != "late\n" {
			t.Errorf("the service wrote %q, %v", got, err)
		}
		_, err = s.RunCommand(t.Context(), []string{"hang"}, sandbox.CommandOptions{Timeout: time.Hour})
		if fault.CodeOf(err) != "command-timeout" {
			t.Errorf("a command that hangs gave %v", err)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		d, err := p.Create(t.Context(), sandbox.CreateRequest{Lifetime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		l, _ := sandbox.AsDriver[sandbox.Lifetimer](d)
		if _, err := l.EnsureLifetime(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if got := p.Stats().Alive; got != 1 {
			t.Errorf("%d sandboxes live within the longer life", got)
		}
		time.Sleep(time.Minute)
		if _, err := d.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}, Dir: "/"}); !errors.Is(err, sandbox.ErrUnusable) {
			t.Errorf("a command after the end: %v", err)
		}
	})
}

func TestScriptedLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{Faults: fake.Faults{MaxLifetime: time.Hour, Lifetime: fake.Fault{Transient: 1}}})
		if _, err := p.Create(t.Context(), sandbox.CreateRequest{Lifetime: 2 * time.Hour}); fault.CodeOf(err) != "sandbox.lifetime-too-long" {
			t.Errorf("more than the bound: %v", err)
		}
		start := time.Now()
		d, err := p.Create(t.Context(), sandbox.CreateRequest{Lifetime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		l, _ := sandbox.AsDriver[sandbox.Lifetimer](d)
		if _, err := l.EnsureLifetime(t.Context(), time.Minute); p.Classify(err) != fault.Transient {
			t.Errorf("the first answer is %v", err)
		}
		if at, err := l.EnsureLifetime(t.Context(), 30*time.Minute); err != nil || at.Sub(start) < 30*time.Minute {
			t.Errorf("half an hour ends after %s, %v", at.Sub(start), err)
		}
		if at, err := l.EnsureLifetime(t.Context(), 90*time.Minute); err != nil || at.Sub(start) != time.Hour {
			t.Errorf("more than the bound ends after %s, %v", at.Sub(start), err)
		}
		if err := d.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestHundredSandboxesAreCheap(t *testing.T) {
	p := fake.New(fake.Script{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	boxes := make([]*sandbox.Sandbox, 100)
	for i := range boxes {
		boxes[i] = openFrom(t, p)
		wg.Go(func() {
			if r, err := boxes[i].RunShell(t.Context(), fmt.Sprintf("echo %d >f; sleep 600 & cat f", i)); err != nil || r.Stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf("sandbox %d gave %q, %v", i, r.Stdout, err)
			}
		})
	}
	wg.Wait()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 20<<20 {
		t.Errorf("100 live sandboxes hold %d KiB", grown>>10)
	}
	runtime.KeepAlive(boxes)
}
