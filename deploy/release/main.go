// Release makes the images and the chart of a release of programs that are built, and pushes them:
//
//	release -version 0.1.0 -revision COMMIT -time SECONDS -out DIR
//	release -version 0.1.0 -out DIR -push ghcr.io/weirproxy
//
// DIR/programs has a directory OS_ARCH for each platform, with the programs. DIR gets the chart and
// an OCI layout of the images. The directory of this module is the working directory.
// scripts/release.sh makes the other files of a release.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	version, revision string
	created           time.Time
	out               string // the directory of the release
	certificates      string // the public authorities, for the images
	push              string // where the images and the chart go
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	var o options
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&o.version, "version", "", "version of the release, such as 0.1.0")
	flags.StringVar(&o.revision, "revision", "", "commit of the release")
	seconds := flags.Int64("time", 0, "time of the commit, in seconds since 1970, which all files get")
	flags.StringVar(&o.out, "out", "", "directory of the release")
	flags.StringVar(&o.certificates, "certificates", "/etc/ssl/certs/ca-certificates.crt", "file with the public authorities, for the images")
	flags.StringVar(&o.push, "push", "", "push the images and the chart of -out below this name, such as ghcr.io/weirproxy, and do nothing else")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 0 {
		return fmt.Errorf("got the arguments %q, want none", flags.Args())
	}
	if o.version == "" || o.out == "" {
		return errors.New("-version and -out must be set")
	}
	if o.push != "" {
		if err := pushImages(ctx, o, stdout); err != nil {
			return err
		}
		return pushChart(o, stdout)
	}
	if o.revision == "" || *seconds <= 0 {
		return errors.New("-revision and -time, or -push, must be set")
	}
	o.created = time.Unix(*seconds, 0).UTC()
	if err := saveChart(o); err != nil { // first: the check of its version
		return err
	}
	return images(o)
}

// snapshot reports whether the version is of no release.
func (o options) snapshot() bool { return strings.Contains(o.version, "-snapshot.") }

// chartFile is the packed chart, as `helm package` names it.
func (o options) chartFile() string { return filepath.Join(o.out, "weir-"+o.version+".tgz") }
