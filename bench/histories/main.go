// Histories records the answers of a fleet while Redis or a sidecar fails, and judges them. The
// fleet is four sidecars over one Redis, with exact limits and with leases side by side.
//
//	go -C bench run ./histories -operations 10000000 -file histories.gz
//	go -C bench run ./histories check histories.gz
//
// A file has each request with its key, its hits, its answer, and both instants by the clock of the
// client. Anybody can judge a file again, and needs no more than the file:
//
//	count_exact    hits of a year. Porcupine finds an order of all requests for a key in which each
//	               answer is right. Near a fault on_store_error may deny, and nothing else
//	count_leased   never more hits than the limit, and no denial before half of it is used
//	second, bucket the limit in each window or interval (see test/promise), and no denial without a
//	               reason. Near a fault, sidecars without Redis may add their part of the limit
//	               (see docs/redis.md)
//
// A failover may lose the hits that the next primary did not have yet, and no others. A marker
// shows up to which instant the next primary has all hits. Each scene is judged again with limits
// that are one too low or too high: a judge that finds nothing then is itself a failure. Histories
// exits 1 when it cannot measure, or when it has found a violation.
package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
)

func main() { os.Exit(program.Main("histories", run)) }

// programs are the paths of binaries, and further arguments of each sidecar.
type programs struct {
	sidecar, redis string
	more           []string
}

// options are the settings of a run.
type options struct {
	programs

	operations int // of all scenes
	rate       int // per second of all sidecars
	scenes     []kind
	file       string
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	var scenes string
	o.more, err = program.Parse("histories", args, stderr, func(flags *flag.FlagSet) {
		flags.IntVar(&o.operations, "operations", 1_000_000, "requests of all scenes together")
		flags.IntVar(&o.rate, "rate", 8000, "requests per second")
		flags.StringVar(&scenes, "scenes", ".*", "a regular expression: the scenes to run, by name")
		flags.StringVar(&o.file, "file", "", "where to write the histories; without it they are only judged")
		flags.StringVar(&o.sidecar, "sidecar", "", "a binary to run instead of building ./cmd/sidecar")
	})
	if err != nil {
		return o, err
	}
	pattern, err := regexp.Compile("^(?:" + scenes + ")$")
	if err != nil {
		return o, err
	}
	var names []string
	for _, k := range kinds() {
		if names = append(names, k.name); pattern.MatchString(k.name) {
			o.scenes = append(o.scenes, k)
		}
	}
	if len(o.scenes) == 0 {
		return o, fmt.Errorf("scenes %q: must match one of %s", scenes, strings.Join(names, ", "))
	}
	if o.operations < len(o.scenes)*o.rate || o.rate < 1000 {
		return o, fmt.Errorf("rate must be at least 1000, and operations at least a second for each scene: %d", len(o.scenes)*o.rate)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "check" {
		return checkFiles(args[1:], stdout)
	}
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.redis, err = program.Redis(ctx); err != nil {
		return err
	}
	if o.programs.sidecar, err = program.Sidecar(ctx, o.programs.sidecar); err != nil {
		return err
	}
	keep, closed, err := create(o.file)
	if err != nil {
		return err
	}
	r := newReport(stdout)
	for _, k := range o.scenes {
		s, err := o.record(ctx, &k)
		if err == nil {
			err = s.write(keep)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", k.name, err), closed())
		}
		r.add(s, s.check())
	}
	return errors.Join(closed(), r.end())
}

// create creates a compressed file; without a name nothing is kept.
func create(path string) (keep io.Writer, closed func() error, err error) {
	if path == "" {
		return io.Discard, func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	z := gzip.NewWriter(f)
	_, err = io.WriteString(z, magic)
	return z, func() error { return errors.Join(z.Close(), f.Close()) }, err
}

// checkFiles judges the scenes of files.
func checkFiles(paths []string, stdout io.Writer) error {
	if len(paths) == 0 {
		return errors.New("check: name at least one file")
	}
	r := newReport(stdout)
	for _, path := range paths {
		if err := r.file(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return r.end()
}

// file judges the scenes of a file.
func (r *report) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	in := bufio.NewReader(z)
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(in, begin); err != nil || string(begin) != magic {
		return fmt.Errorf("begins with %q; want %q: %w", begin, magic, err)
	}
	for {
		s, err := readScene(in)
		if errors.Is(err, io.EOF) && s == nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.add(s, s.check())
	}
}

// calm is the time between two faults. Faults settle in it, and then limits are exact again.
const calm = settles + 6*time.Second

// lasting is how long a fault lasts. A window of a second is inside it.
const lasting = 3 * time.Second

// record runs a scene: traffic, and a fault again and again.
func (o *options) record(ctx context.Context, k *kind) (s *scene, err error) {
	dir, err := os.MkdirTemp("", "histories")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	length := time.Duration(float64(o.operations) / float64(len(o.scenes)) / float64(o.rate) * float64(time.Second))
	t := &traffic{rate: o.rate / sidecars, length: length, life: min(10*time.Second, length/2), seed: uint64(time.Now().UnixNano())}
	s = &scene{Name: k.name, Sidecars: sidecars, Limits: t.limits(sidecars), Slow: redisTimeout * 7 / 10}
	f, err := k.start(ctx, &o.programs, s, filepath.Clean(dir))
	defer f.close()
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	failed := make(chan error, 1)
	go func() { failed <- k.repeat(ctx, f, s, begun.Add(length)) }()
	s.ops, err = t.run(ctx, f.addresses)
	return s, errors.Join(err, <-failed)
}

// repeat makes faults until an instant: the first after a fourth of a short time. The last one has
// time to settle.
func (k *kind) repeat(ctx context.Context, f *fleet, s *scene, until time.Time) error {
	for wait := min(calm, time.Until(until)/4); k.happen != nil && drive.Pause(ctx, wait) && time.Until(until) > lasting+settles; wait = calm {
		from := time.Now().UnixNano()
		back, err := k.happen(ctx, f)
		if err != nil {
			return err
		}
		s.Faults = append(s.Faults, fault{from, back.UnixNano(), time.Now().UnixNano(), k.sidecar, f.kept})
		if f.after != nil {
			from, err := f.after(ctx)
			if err != nil {
				return err
			}
			s.Faults = append(s.Faults, fault{from.UnixNano(), from.UnixNano(), time.Now().UnixNano(), k.sidecar, 0})
		}
	}
	if k.sentinel && ctx.Err() == nil {
		_, err := f.planned(ctx)
		return err
	}
	return nil
}
