package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Build makes the image of a stage for one platform, with a layer for each file, as `docker build`
// does. Files has the path on this machine of each Copy.From; an error names the missing ones. The
// same files and the same time give the same bytes.
func (s Stage) Build(platform v1.Platform, files map[string]string, created time.Time) (v1.Image, error) {
	config := &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Created: v1.Time{Time: created},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: s.User, Entrypoint: s.Entrypoint, Labels: s.Labels, ExposedPorts: make(map[string]struct{})},
	}
	for _, port := range s.Ports {
		config.Config.ExposedPorts[port+"/tcp"] = struct{}{}
	}
	image, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), config)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, c := range s.Copies {
		layer, err := layerOf(c, files[c.From], created)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s of the image: %w", c.To, err))
			continue
		}
		added := mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "COPY " + c.From + " " + c.To}}
		if image, err = mutate.Append(image, added); err != nil {
			return nil, err
		}
	}
	return image, errors.Join(errs...)
}

// layerOf returns a layer with one file, and the directories above it, of root.
func layerOf(c Copy, file string, created time.Time) (v1.Layer, error) {
	if file == "" {
		return nil, fmt.Errorf("no file is given for %s", c.From)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var mode int64 = 0o644
	if info, err := os.Stat(file); err == nil && info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	name := strings.TrimPrefix(path.Clean(c.To), "/")
	for i, r := range name {
		if r == '/' {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name[:i+1], Mode: 0o755, ModTime: created}); err != nil {
				return nil, err
			}
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), ModTime: created}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer))
}

// Index joins the images of several platforms under one name. The labels of the stage are
// annotations of the index too, where registries look for them.
func (s Stage) Index(images []v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, one := range images {
		config, err := one.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	annotated, ok := mutate.Annotations(index, s.Labels).(v1.ImageIndex)
	if !ok {
		return nil, errors.New("an index with annotations must be an index")
	}
	return annotated, nil
}
