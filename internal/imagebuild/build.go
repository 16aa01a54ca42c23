package imagebuild

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/sandbox"
)

// The limits of a build: as a whole, and without any news from the engine.
const (
	buildLimit  = 2 * time.Hour
	buildSilent = 30 * time.Minute
)

// Options say how to build.
type Options struct {
	// Tags name the image; Labels are put on it.
	Tags   []string
	Labels map[string]string
	// Classic takes the classic builder.
	Classic bool
	// Memory limits each step, in bytes; 0 does not. Only the classic builder
	// knows it.
	Memory int64
	// NoCache runs every step, whatever ran before.
	NoCache bool
	// Proxies are build arguments by which steps reach the network. They are no
	// part of the content; see DockerProxies.
	Proxies map[string]*string
	// Credentials finds how to log in to a registry; nil logs in nowhere.
	Credentials Credentials
	// Show hears how far the build is and Log every line that it prints; nil
	// does not.
	Show func(sandbox.Progress)
	Log  func(line string)
	// OOMKills counts the processes that the engine's machine killed for want of
	// memory; nil where it cannot be known. See HostOOMKills.
	OOMKills func() (int64, bool)
}

// HasBuildKit reports whether an engine can build with BuildKit. api is the
// version of its API. Every Docker Engine from API 1.40 has it; Podman builds
// with its own builder, through the classic call.
func HasBuildKit(api string, podman bool) bool {
	var major, minor int
	_, err := fmt.Sscanf(api, "%d.%d", &major, &minor)
	return err == nil && !podman && (major > 1 || major == 1 && minor >= 40)
}

// Build builds an image and returns its id. A tag stands for it only when the
// whole build succeeded. Errors carry a class and a code; the error of a step
// that failed is a *StepError underneath, with its log.
func Build(ctx context.Context, cli *client.Client, in *Input, o Options) (string, error) {
	if o.Show == nil {
		o.Show = func(sandbox.Progress) {}
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	bounded, cancel := fault.WithTimeout(ctx, "build-limit", buildLimit, "built-in")
	defer cancel()
	bounded, hangUp := context.WithCancelCause(bounded)
	defer hangUp(nil)
	silent := time.AfterFunc(buildSilent, func() { hangUp(fmt.Errorf("no news from the build for %s", buildSilent)) })
	defer silent.Stop()
	kills := int64(-1)
	if o.OOMKills != nil {
		if n, ok := o.OOMKills(); ok {
			kills = n
		}
	}
	w := newWatch(o.Show, o.Log, func() { silent.Reset(buildSilent) })
	err := in.build(bounded, cli, o, w)
	if err == nil {
		return w.image, nil
	}
	if ctx.Err() != nil {
		return "", errors.Join(fault.Cause(ctx), err)
	}
	if cause := context.Cause(bounded); cause != nil {
		err = errors.Join(cause, err)
	}
	starved := false
	if kills >= 0 {
		n, ok := o.OOMKills()
		starved = ok && n > kills
	}
	return "", judge(in.src.Named(), err, w, starved)
}

// build sends the context and follows what the builder says.
func (in *Input) build(ctx context.Context, cli *client.Client, o Options, w *watch) error {
	opts := client.ImageBuildOptions{
		Tags: o.Tags, Labels: o.Labels, Dockerfile: in.name, Target: in.src.Target, NoCache: o.NoCache,
		Remove: true, ForceRemove: true, Memory: o.Memory, MemorySwap: o.Memory, BuildArgs: map[string]*string{},
	}
	maps.Copy(opts.BuildArgs, o.Proxies)
	for k, v := range in.src.Args {
		opts.BuildArgs[k] = &v
	}
	if o.Classic {
		opts.Version = build.BuilderV1
		opts.AuthConfigs = map[string]registry.AuthConfig{}
		if p, err := in.Plan(); err == nil {
			for _, base := range p.Bases {
				if host, a, ok := o.Credentials.of(base); ok {
					opts.AuthConfigs[host] = a
				}
			}
		}
	} else {
		opts.Version = build.BuilderBuildKit
		s, err := openSession(ctx, cli, o.Credentials)
		if err != nil {
			return &fault.Error{Class: fault.Transient, Code: "sandbox.engine-lost", What: "open a build session", Err: err}
		}
		defer s.close()
		opts.SessionID, opts.BuildID = s.id, randomID()
	}
	r, tw := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := in.write(tw)
		tw.CloseWithError(err)
		sent <- err
	}()
	err := func() error {
		resp, err := cli.ImageBuild(ctx, r, opts)
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = resp.Body.Close() })
		defer stop()
		defer func() { _ = resp.Body.Close() }()
		return w.follow(resp.Body)
	}()
	_ = r.Close()
	if werr := <-sent; werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		if errors.Is(werr, errChanged) {
			return &fault.Error{Class: fault.Transient, Code: "sandbox.build-context", Fix: "Leave the build context alone while it is sent, or list what changes in .dockerignore.", Err: werr}
		}
		return errors.Join(err, werr)
	}
	return err
}

func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
