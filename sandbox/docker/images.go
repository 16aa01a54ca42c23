package docker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"

	"assay/images"
	"assay/internal/imagebuild"
	"assay/sandbox"
)

// prebuilt returns the full name of a prebuilt environment that is named without
// its tag, and every other name as it is.
func prebuilt(name string) string {
	if r, ok := images.Lookup(strings.TrimPrefix(name, images.Repo)); ok && name == images.Repo+r.Agent {
		return r.Image()
	}
	return name
}

// howToGet is what the user can do about an image that is nowhere.
func howToGet(ref string) string {
	for _, r := range images.All() {
		if ref == r.Image() {
			return "Build it with `assay image build " + r.Agent + "`."
		}
	}
	return ""
}

// Images lists the images that were built here, by any process, oldest first.
func (p *Provider) Images(ctx context.Context) ([]sandbox.StoredImage, error) {
	e, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	seen := map[string]bool{}
	err = e.do(ctx, "image list", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ImageList(ctx, client.ImageListOptions{Filters: client.Filters{}.Add("label", imageLabel)})
		for _, i := range r.Items {
			if !seen[i.ID] {
				seen[i.ID] = true
				ids = append(ids, i.ID)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	used, err := e.usedImages(ctx)
	if err != nil {
		return nil, err
	}
	var out []sandbox.StoredImage
	for _, id := range ids {
		i, err := e.storedImage(ctx, id)
		if statusOf(err) == http.StatusNotFound {
			continue // somebody removed it meanwhile
		}
		if err != nil {
			return nil, err
		}
		i.InUse = used[id]
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b sandbox.StoredImage) int { return a.Created.Compare(b.Created) })
	return out, nil
}

// usedImages are the ids of the images that containers exist of.
func (e *engine) usedImages(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	err := e.do(ctx, "list", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true})
		for _, c := range r.Items {
			used[c.ImageID] = true
		}
		return err
	})
	return used, err
}

func (e *engine) storedImage(ctx context.Context, id string) (sandbox.StoredImage, error) {
	var out sandbox.StoredImage
	err := e.do(ctx, "image inspect", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ImageInspect(ctx, id)
		if err != nil {
			return err
		}
		out = sandbox.StoredImage{ID: r.ID, Name: first(r.RepoTags), Size: r.Size, Used: r.Metadata.LastTagTime}
		if r.Config != nil {
			out.Of = r.Config.Labels[madeOfLabel]
			if tools := r.Config.Labels[harnessLabel]; tools != "" && !strings.Contains(out.Of, tools) {
				out.Of += " with " + tools
			}
		}
		out.Created, _ = time.Parse(time.RFC3339Nano, r.Created) // zero where it is missing
		return nil
	})
	return out, err
}

func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// RemoveImages removes images that were built here. One that another image or a
// container needs stays.
func (p *Provider) RemoveImages(ctx context.Context, drop func(sandbox.StoredImage) bool) ([]sandbox.StoredImage, error) {
	all, err := p.Images(ctx)
	if err != nil {
		return nil, err
	}
	e, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	var gone []sandbox.StoredImage
	var errs []error
	for _, i := range slices.Backward(all) { // what stands on another was made later
		if i.InUse || !drop(i) {
			continue
		}
		err := e.removeImage(ctx, i.ID)
		if errors.Is(err, errForeign) {
			continue
		}
		switch statusOf(err) {
		case http.StatusConflict: // it is needed
		case http.StatusNotFound:
		default:
			if err != nil {
				errs = append(errs, err)
				continue
			}
			gone = append(gone, i)
		}
	}
	return gone, errors.Join(errs...)
}

// removeImage takes the names that were given here away from an image, and with
// the last the image.
func (e *engine) removeImage(ctx context.Context, id string) error {
	remove := func(name string) error {
		return e.do(ctx, "image remove", removeLimit, func(ctx context.Context) error {
			_, err := e.cli.ImageRemove(ctx, name, client.ImageRemoveOptions{PruneChildren: true})
			return err
		})
	}
	var tags []string
	err := e.do(ctx, "image inspect", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ImageInspect(ctx, id)
		tags = r.RepoTags
		return err
	})
	if err != nil {
		return err
	}
	if len(tags) == 0 {
		return remove(id)
	}
	others := 0
	for _, t := range tags {
		if !ours(t) {
			others++
			continue
		}
		if err := remove(t); err != nil {
			return err
		}
	}
	if others == len(tags) {
		return errForeign
	}
	return nil
}

// errForeign says that an image has no name that was given here.
var errForeign = errors.New("the image has other names only")

// ours reports whether a name was given here. Podman writes names out.
func ours(tag string) bool {
	name := strings.TrimPrefix(tag, "localhost/")
	if n, err := reference.ParseNormalizedNamed(name); err == nil {
		name = reference.FamiliarString(n)
	}
	return strings.HasPrefix(name, builtRepo+":") || strings.HasPrefix(name, baseRepo+":") || strings.HasPrefix(name, images.Repo)
}

// BuildImage builds a named image, unless it is there with the same content.
func (p *Provider) BuildImage(ctx context.Context, r sandbox.ImageRecipe, s sandbox.Steps) (sandbox.StoredImage, error) {
	in, err := imagebuild.Read(ctx, imagebuild.Source{Inline: r.Dockerfile, Args: r.Args})
	if err != nil {
		return sandbox.StoredImage{}, err
	}
	plan, err := in.Plan()
	if err != nil {
		return sandbox.StoredImage{}, staged(stageDockerfile, err)
	}
	w := &making{p: p, s: s, details: map[string]string{}}
	words := []string{"recipe", in.Digest()}
	for _, ref := range plan.Bases {
		base, err := w.named(ctx, stageFrom, ref)
		if err != nil {
			return sandbox.StoredImage{}, err
		}
		words = append(words, ref, base.ID)
	}
	img, err := w.built(ctx, stageDockerfile, order{
		key: contentKey(words...), name: r.Name, of: r.Name, tools: r.Tools, modern: plan.BuildKit,
		input: func(context.Context, *engine) (*imagebuild.Input, func(), error) { return in, func() {}, nil },
	})
	if err != nil {
		return sandbox.StoredImage{}, err
	}
	e, err := p.connect(ctx)
	if err != nil {
		return sandbox.StoredImage{}, err
	}
	return e.storedImage(ctx, img.ID)
}

var (
	_ sandbox.ImageKeeper  = (*Provider)(nil)
	_ sandbox.ImageBuilder = (*Provider)(nil)
)
