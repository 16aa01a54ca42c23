package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"assay/fault"
	"assay/ref"
	"assay/sandbox"
)

// Check makes a sandbox and ends it. Its error says what this machine lacks or
// forbids, and its fix the command that allows it.
func (p *Provider) Check(ctx context.Context) error {
	t := sandbox.Template{Provider: p, Spec: Spec{}}
	from, err := p.Prepare(ctx, t, sandbox.Harness{}, onceSteps{})
	if err != nil {
		return err
	}
	d, err := p.Create(ctx, sandbox.CreateRequest{From: from, Template: t, Owner: sandbox.Owner{Token: ref.New()}, Network: sandbox.Network{Mode: "none"}})
	if err != nil {
		return err
	}
	x, err := d.Exec(ctx, sandbox.Cmd{Argv: []string{"/bin/sh", "-c", ":"}, Dir: "/"})
	if err == nil && x.Code != 0 {
		err = fault.Configf("sandbox.native-unavailable", "Install a POSIX shell as /bin/sh.", "a shell in a sandbox of the host's tools ends with %d", x.Code)
	}
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", endLimit, "built-in")
	defer cancel()
	return errors.Join(err, d.Stop(clean))
}

// onceSteps runs each step once.
type onceSteps struct{}

func (onceSteps) Do(ctx context.Context, _ string, step func(context.Context) error) error {
	return step(ctx)
}

// explain gives an error of making a sandbox the cause that people can act on.
func (p *Provider) explain(err error) error {
	var se *startError
	if !errors.As(err, &se) || fault.CodeOf(err) != "" {
		return err
	}
	code, fix := diagnose(se, kernel{read: os.ReadFile, root: os.Geteuid() == 0})
	return &fault.Error{Class: p.Classify(err), Code: code, Fix: fix, What: "make a native sandbox", Err: err}
}

// kernel is what a diagnosis looks at.
type kernel struct {
	read func(string) ([]byte, error)
	root bool
}

func (k kernel) value(name string) string {
	b, _ := k.read(name) // a setting that is not there has no value
	return strings.TrimSpace(string(b))
}

// diagnose names the usual causes of a failed step.
func diagnose(se *startError, k kernel) (code, fix string) {
	const unavailable = "sandbox.native-unavailable"
	denied := errors.Is(se.err, syscall.EPERM) || errors.Is(se.err, syscall.EACCES)
	switch {
	case errors.Is(se.err, syscall.ENOSPC) && se.step == "make namespaces", k.value("/proc/sys/user/max_user_namespaces") == "0":
		return unavailable, "Allow user namespaces: sudo sysctl -w user.max_user_namespaces=65536."
	case errors.Is(se.err, syscall.ENOSPC):
		return "enospc", "Free memory, or ask for less `disk`."
	case errors.Is(se.err, syscall.ENOMEM):
		return "oom", "Free memory, or run fewer sandboxes at once."
	case errors.Is(se.err, syscall.EAGAIN), errors.Is(se.err, syscall.EMFILE), errors.Is(se.err, syscall.ENFILE):
		return "sandbox.native-exhausted", "Run fewer sandboxes at once, or raise the limits on processes and open files (ulimit -u, ulimit -n)."
	case denied && !k.root && k.value("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return unavailable, "Allow user namespaces for ordinary users: sudo sysctl -w kernel.unprivileged_userns_clone=1."
	case denied && !k.root && k.value("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		return unavailable, "Allow user namespaces under AppArmor: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or add a profile for this program with the rule `userns,`."
	case k.value("/proc/sys/vm/memfd_noexec") == "2":
		return unavailable, "Allow programs in memory: sudo sysctl -w vm.memfd_noexec=1."
	case errors.Is(se.err, syscall.EINVAL) && se.step == "overlay":
		return unavailable, "Unmount what is mounted below " + se.path + " (container engines do that), or start from an image: native: {image: …}."
	case errors.Is(se.err, syscall.ENOSYS), errors.Is(se.err, syscall.ENODEV), errors.Is(se.err, syscall.EINVAL) && se.step != "open":
		return unavailable, fmt.Sprintf("Use Linux 5.12 or newer with user namespaces and overlayfs (this is %s), or use `docker`.", k.value("/proc/sys/kernel/osrelease"))
	case denied && k.root:
		return unavailable, "Run outside of this container, or start it with the right to make namespaces and mounts (docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --cap-add SYS_ADMIN)."
	case denied:
		return unavailable, "This machine's policy forbids it to ordinary users: run as root, or use `docker`."
	default:
		return "sandbox.native-failed", ""
	}
}
