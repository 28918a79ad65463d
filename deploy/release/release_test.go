package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"helm.sh/helm/v3/pkg/chart/loader"
	helm "helm.sh/helm/v3/pkg/registry"
)

const version = "9.8.7-snapshot.gabc"

// makeRelease writes programs for two platforms of Linux and one of another system, and makes a
// release of them.
func makeRelease(t *testing.T) (out string) {
	t.Helper()
	t.Chdir("..") // the directory of the module, where scripts/release.sh starts the program
	out = t.TempDir()
	for _, platform := range []string{"linux_amd64", "linux_arm64", "darwin_arm64"} {
		for _, program := range []string{"sidecar", "ratelimit"} {
			file := filepath.Join(out, "programs", platform, program)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(program+" of "+platform), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	certificates := filepath.Join(out, "ca.crt")
	if err := os.WriteFile(certificates, []byte("authorities"), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-version", version, "-revision", "f00d", "-time", "1000000000", "-out", out, "-certificates", certificates}
	if err := run(t.Context(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAPushedReleaseHasAnImageForEachPlatformAndAChartThatNamesIt(t *testing.T) {
	out := makeRelease(t)
	t.Setenv("DOCKER_CONFIG", t.TempDir())    // nobody is logged in
	t.Setenv("HELM_CONFIG_HOME", t.TempDir()) // the same
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0))))
	defer server.Close()
	below := strings.TrimPrefix(server.URL, "http://") + "/weirproxy"
	var printed strings.Builder
	if err := run(t.Context(), []string{"-version", version, "-out", out, "-push", below}, &printed); err != nil {
		t.Fatal(err)
	}

	var want strings.Builder
	for _, image := range []string{"weir-sidecar", "weir-ratelimit", "weir", "charts/weir"} {
		tag, err := name.NewTag(below + "/" + image + ":" + version)
		if err != nil {
			t.Fatal(err)
		}
		head, err := remote.Head(tag)
		if err != nil {
			t.Fatal(err)
		}
		want.WriteString(tag.Context().Name() + "@" + head.Digest.String() + "\n")
		if image != "charts/weir" {
			checkIndex(t, tag, "/bin/"+strings.TrimPrefix(strings.Replace(image, "weir", "sidecar", 1), "sidecar-"))
		}
	}
	sorted := func(lines string) []string { return slices.Sorted(strings.Lines(lines)) }
	if got := sorted(printed.String()); !slices.Equal(got, sorted(want.String())) {
		t.Errorf("output: got %q, want the names and digests %q", got, sorted(want.String()))
	}

	client, err := helm.NewClient(helm.ClientOptPlainHTTP())
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := client.Pull(below + "/charts/weir:" + version)
	if err != nil {
		t.Fatal(err)
	}
	chart, err := loader.LoadArchive(strings.NewReader(string(pulled.Chart.Data)))
	if err != nil {
		t.Fatal(err)
	}
	if m := chart.Metadata; m.Version != version || m.AppVersion != version {
		t.Errorf("the chart: got version %s, appVersion %s, want %s", m.Version, m.AppVersion, version)
	}
}

// checkIndex pulls the images of a tag, and compares their settings with the Dockerfile's.
func checkIndex(t *testing.T, tag name.Tag, entry string) {
	t.Helper()
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("%s: %v", tag, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
		one, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, tag, *m.Platform, one, entry)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("%s: got the platforms %v, want %v", tag, platforms, want)
	}
	if got := manifest.Annotations["org.opencontainers.image.source"]; got != "https://github.com/weirproxy/weir" {
		t.Errorf("%s: got the source %q", tag, got)
	}
}

func checkImage(t *testing.T, tag name.Tag, platform v1.Platform, one v1.Image, entry string) {
	t.Helper()
	config, err := one.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	if config.Platform().String() != platform.String() || c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{entry}) ||
		c.Labels["org.opencontainers.image.version"] != version || c.Labels["org.opencontainers.image.revision"] != "f00d" || config.Created.Unix() != 1e9 {
		t.Errorf("%s for %s: got the settings %+v", tag, platform, config)
	}
}

// Helm gives the files of a chart the present time.
func TestFilesOfTheChartHaveTheTimeOfTheCommit(t *testing.T) {
	packed, err := os.Open(options{version: version, out: makeRelease(t)}.chartFile())
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unzipped, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(unzipped)
	for n := 0; ; n++ {
		header, err := files.Next()
		if errors.Is(err, io.EOF) && n > 0 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.ModTime.Unix() != 1e9 {
			t.Errorf("%s has the time %s", header.Name, header.ModTime)
		}
	}
}

func TestARefusedReleaseSaysWhy(t *testing.T) {
	out := makeRelease(t)
	complete := []string{"-revision", "f00d", "-time", "1", "-out", out, "-version"}
	empty := t.TempDir()
	for want, args := range map[string][]string{
		"-version and -out must be set":           {"-out", out},
		"-revision and -time, or -push":           {"-out", out, "-version", "1.2.3"},
		`arguments ["more"], want none`:           append(complete, version, "more"),
		"Chart.yaml: version 0.1.0":               append(complete, "9.8.7"),
		"has no directory linux_*":                {"-out", empty, "-version", version, "-revision", "f00d", "-time", "1"},
		"images has version " + version:           {"-out", out, "-version", "9.8.7", "-push", "127.0.0.1:1/x"},
		"No Registry/weir":                        {"-out", out, "-version", version, "-push", "No Registry"},
		filepath.Join(empty, "images/index.json"): {"-out", empty, "-version", version, "-push", "127.0.0.1:1/x"},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %s", args, err, want)
		}
	}
}
