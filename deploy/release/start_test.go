package main

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// Each image of a release starts its entry point as its user, where the root is its file system.
// `make release` runs the test on the files that it wrote.
func TestImagesOfAReleaseStartAsContainers(t *testing.T) {
	out := os.Getenv("WEIR_RELEASE")
	if out == "" {
		t.Skip("starts the images of a release; set WEIR_RELEASE to its directory")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may make the file system of an image the whole one")
	}
	all, err := layout.ImageIndexFromPath(options{out: out}.layoutDir())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) == 0 {
		t.Error("the release has no image")
	}
	for _, descriptor := range manifest.Manifests {
		tag := descriptor.Annotations[refName]
		t.Run(tag, func(t *testing.T) {
			index, err := all.ImageIndex(descriptor.Digest)
			if err != nil {
				t.Fatal(err)
			}
			started := startImage(t, imageOfThisMachine(t, index))
			if _, version, _ := strings.Cut(tag, ":"); !strings.HasPrefix(started, "weir v"+version+",") {
				t.Errorf("got %q, want weir v%s", started, version)
			}
		})
	}
}

// imageOfThisMachine returns the image of an index for the system that runs the test.
func imageOfThisMachine(t *testing.T, index v1.ImageIndex) v1.Image {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifest.Manifests {
		if m.Platform.OS != runtime.GOOS || m.Platform.Architecture != runtime.GOARCH {
			continue
		}
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		return image
	}
	t.Skipf("no image is for %s/%s", runtime.GOOS, runtime.GOARCH)
	return nil
}

// startImage unpacks an image, runs its entry point with the argument version, and returns the
// output.
func startImage(t *testing.T, image v1.Image) string {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	files := mutate.Extract(image)
	defer files.Close()
	unpackInto(t, root, files)
	user, group, _ := strings.Cut(config.Config.User, ":")
	uid, err := strconv.ParseUint(user, 10, 32)
	if err != nil || uid == 0 {
		t.Fatalf("user %q: must be a number, and not root", user)
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil || gid == 0 {
		t.Fatalf("group %q: must be a number, and not root's", group)
	}
	entry := config.Config.Entrypoint
	run := exec.CommandContext(t.Context(), entry[0], append(entry[1:], "version")...)
	run.Dir, run.Env = "/", config.Config.Env
	run.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := run.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		t.Skip(err) // root, but not of everything
	}
	if err != nil {
		t.Errorf("%v: %v\n%s", entry, err, out)
	}
	return string(out)
}

// unpackInto writes the files and directories of an archive below a directory.
func unpackInto(t *testing.T, root string, archive io.Reader) {
	t.Helper()
	for reader := tar.NewReader(archive); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, filepath.FromSlash(header.Name))
		if !filepath.IsLocal(header.Name) {
			t.Fatalf("%s: is not below the root", header.Name)
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, header.FileInfo().Mode().Perm())
		case tar.TypeReg:
			if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
				err = writeFrom(path, reader, header.FileInfo().Mode().Perm())
			}
		default:
			t.Fatalf("%s: is neither a file nor a directory", header.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func writeFrom(path string, content io.Reader, mode fs.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, content); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}
