package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/weirproxy/weir/deploy/image"
)

// refName is the annotation of a layout that names an image.
const refName = "org.opencontainers.image.ref.name"

// layoutDir is the OCI layout of the images.
func (o options) layoutDir() string { return filepath.Join(o.out, "images") }

// images writes an OCI layout with an index for each image of the Dockerfile: weir, weir-sidecar
// and weir-ratelimit. Each index has an image for each platform of Linux.
func images(o options) error {
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		return err
	}
	stages, err := image.Stages(string(text), map[string]string{"VERSION": o.version, "REVISION": o.revision})
	if err != nil {
		return fmt.Errorf("Dockerfile: %w", err)
	}
	linux, err := filepath.Glob(filepath.Join(o.out, "programs", "linux_*"))
	if err != nil {
		return err
	}
	if len(linux) == 0 {
		return fmt.Errorf("%s has no directory linux_*, so there is no image", filepath.Join(o.out, "programs"))
	}
	path, err := layout.Write(o.layoutDir(), empty.Index)
	if err != nil {
		return err
	}
	for _, stage := range stages {
		if len(stage.Entrypoint) == 0 {
			continue
		}
		index, err := indexOf(o, stage, linux)
		if err != nil {
			return err
		}
		tag := strings.TrimSuffix("weir-"+stage.Name, "-") + ":" + o.version
		if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: tag})); err != nil {
			return err
		}
	}
	return nil
}

// indexOf builds the images of a stage, with the programs of each directory linux_ARCH.
func indexOf(o options, stage image.Stage, linux []string) (v1.ImageIndex, error) {
	var built []v1.Image
	for _, directory := range linux {
		files := map[string]string{
			"/etc/ssl/certs/ca-certificates.crt": o.certificates,
			"/out/sidecar":                       filepath.Join(directory, "sidecar"),
			"/out/ratelimit":                     filepath.Join(directory, "ratelimit"),
		}
		platform := v1.Platform{OS: "linux", Architecture: strings.TrimPrefix(filepath.Base(directory), "linux_")}
		one, err := stage.Build(platform, files, o.created)
		if err != nil {
			return nil, err
		}
		built = append(built, one)
	}
	return stage.Index(built)
}

// pushImages sends the images of the layout to a registry, as the user of `docker login`. The
// output names each image with its digest, for a signature.
func pushImages(ctx context.Context, o options, stdout io.Writer) error {
	all, err := layout.ImageIndexFromPath(o.layoutDir())
	if err != nil {
		return err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return err
	}
	for _, descriptor := range manifest.Manifests {
		to, err := name.NewTag(o.push + "/" + descriptor.Annotations[refName])
		if err != nil {
			return err
		}
		if to.TagStr() != o.version {
			return fmt.Errorf("%s has version %s, want %s", o.layoutDir(), to.TagStr(), o.version)
		}
		index, err := all.ImageIndex(descriptor.Digest)
		if err != nil {
			return err
		}
		if err := remote.WriteIndex(to, index, remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("pushing %s: %w", to, err)
		}
		if _, err := fmt.Fprintf(stdout, "%s@%s\n", to.Context(), descriptor.Digest); err != nil {
			return err
		}
	}
	return nil
}
