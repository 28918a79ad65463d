package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/registry"
)

// saveChart packs the chart with the version of the release, which is the version of its image too.
func saveChart(o options) error {
	chart, err := loader.LoadDir("helm/weir")
	if err != nil {
		return err
	}
	if !o.snapshot() && (chart.Metadata.Version != o.version || chart.Metadata.AppVersion != o.version) {
		return fmt.Errorf("helm/weir/Chart.yaml: version %s and appVersion %s, must be %s", chart.Metadata.Version, chart.Metadata.AppVersion, o.version)
	}
	chart.Metadata.Version, chart.Metadata.AppVersion = o.version, o.version
	file, err := chartutil.Save(chart, o.out) // validates the chart too
	if err != nil {
		return err
	}
	return setTimes(file, o.created)
}

// setTimes gives all files of a packed chart one time. Helm gives them the time of the packing, so
// no two packings would have the same bytes.
func setTimes(file string, to time.Time) error {
	packed, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	var result bytes.Buffer
	zipped := gzip.NewWriter(&result)
	zipped.Header = unzipped.Header // Helm marks its packages there
	from, into := tar.NewReader(unzipped), tar.NewWriter(zipped)
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		header.ModTime = to
		if err := into.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(into, from); err != nil {
			return err
		}
	}
	if err := errors.Join(into.Close(), zipped.Close()); err != nil {
		return err
	}
	return os.WriteFile(file, result.Bytes(), 0o644)
}

// pushChart sends the packed chart to PUSH/charts/weir, as the user of `docker login` or `helm
// registry login`. The output names the chart with its digest.
func pushChart(o options, stdout io.Writer) error {
	content, err := os.ReadFile(o.chartFile())
	if err != nil {
		return err
	}
	to, err := name.NewTag(o.push + "/charts/weir:" + o.version)
	if err != nil {
		return err
	}
	settings := []registry.ClientOption{registry.ClientOptEnableCache(true)}
	if to.Scheme() == "http" { // a registry of this machine
		settings = append(settings, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(settings...)
	if err != nil {
		return err
	}
	pushed, err := client.Push(content, to.Name())
	if err != nil {
		return fmt.Errorf("pushing %s: %w", to, err)
	}
	_, err = fmt.Fprintf(stdout, "%s@%s\n", to.Context(), pushed.Manifest.Digest)
	return err
}
