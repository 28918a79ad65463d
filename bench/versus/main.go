// Versus measures rate limit services one against the other: envoyproxy/ratelimit, limitador,
// gubernator and Weir, beside a bare grpc-go server that answers a constant. All get the same
// requests in turns, and an oracle judges their answers in the same run.
//
//	go -C bench run ./versus -limitador ../limitador -page docs/versus.md
//	go -C bench run ./versus -against docs/versus.md
//
// Paths are relative to the repository.
//
// Versus builds envoyproxy/ratelimit and gubernator from the module proxy, at the versions in
// builds.go, and limitador with cargo from a tree of its source. A folder keeps the programs. A
// program that cannot be built is missing from the tables, and the report says why.
//
// The report has these figures:
//
//	CPU         of the service's process for a request, and of Redis beside it: at a steady load far
//	            below the capacity, and in a closed loop
//	capacity    requests per second of that closed loop, which has 128 requests open. The client
//	            shares the cores of this machine
//	latency     of an open loop at 30, 60 and 80 % of each one's capacity
//	memory      for each of a million keys, of a fresh process and its Redis
//	over        hits admitted beyond a limit, a lower bound
//	under       hits denied although the limit had room, a lower bound
//
// With -against versus compares the ratios with a page, and fails where one differs by more than
// 15 %. Versus needs Linux, and redis-server or valkey-server as scripts/redis.sh finds it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

func main() { os.Exit(program.Main("versus", run)) }

// options are the settings of a run.
type options struct {
	rounds        int
	quick         bool
	services      *regexp.Regexp
	cache         string
	limitador     string // a tree of its source
	sidecar       string
	page, against string
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	var services string
	more, err := program.Parse("versus", args, stderr, func(flags *flag.FlagSet) {
		flags.IntVar(&o.rounds, "rounds", 5, "rounds, in each of which every service has a turn")
		flags.BoolVar(&o.quick, "quick", false, "short turns and a tenth of the keys: only a first look")
		flags.StringVar(&services, "services", ".", "regular expression of the services to measure beside the bare server")
		flags.StringVar(&o.cache, "cache", os.Getenv("VERSUS_CACHE"), "folder of built programs, by default $VERSUS_CACHE, or .cache/versus")
		flags.StringVar(&o.limitador, "limitador", "", "a tree of limitador's source, to build limitador-server with cargo")
		flags.StringVar(&o.sidecar, "sidecar", "", "a binary to measure instead of building ./cmd/sidecar")
		flags.StringVar(&o.page, "page", "", "a page: the part between the marks is written anew")
		flags.StringVar(&o.against, "against", "", "a page to compare the ratios with")
	})
	switch {
	case err != nil:
		return o, err
	case len(more) > 0:
		return o, fmt.Errorf("unexpected argument %q", more[0])
	case o.rounds < 1:
		return o, errors.New("rounds must be at least 1")
	}
	o.services, err = regexp.Compile(services)
	return o, err
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	var before ratios
	if err := o.rooted(); err != nil {
		return err
	}
	if o.against != "" {
		text, err := os.ReadFile(o.against)
		if err != nil {
			return err
		}
		if before, err = readRatios(string(text)); err != nil {
			return fmt.Errorf("%s: %w", o.against, err)
		}
	}
	p, err := o.programs(ctx, stderr)
	if err != nil {
		return err
	}
	s := spans{part: 1200 * time.Millisecond, flood: 2500 * time.Millisecond, keys: 1_000_000}
	if o.quick {
		s, o.rounds = spans{part: 400 * time.Millisecond, flood: 2200 * time.Millisecond, keys: 100_000}, min(o.rounds, 2)
	}
	all, err := o.measure(ctx, p, s, stderr)
	if err != nil {
		return err
	}
	report := report(all, o.rounds, s)
	fmt.Fprintln(stdout, report)
	if o.page != "" && !o.quick { // only a first look
		if err := writePage(o.page, report); err != nil {
			return err
		}
	}
	if o.against == "" {
		return nil
	}
	return before.compare(stdout, ratiosOf(all))
}

// rooted makes all paths absolute.
func (o *options) rooted() error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	o.cache = cmp.Or(o.cache, filepath.Join(".cache", "versus"))
	for _, path := range []*string{&o.cache, &o.limitador, &o.page, &o.against} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(root, *path)
		}
	}
	return nil
}

// programs builds or finds all programs.
func (o *options) programs(ctx context.Context, stderr io.Writer) (p *programs, err error) {
	p = &programs{}
	log := func(text string) { fmt.Fprintln(stderr, "versus:", text) }
	if p.binaries, err = builds(ctx, o.cache, o.limitador, log); err != nil {
		return nil, err
	}
	if p.redis, err = program.Redis(ctx); err != nil {
		return nil, err
	}
	p.sidecar, err = program.Sidecar(ctx, o.sidecar)
	return p, err
}

// measure starts all services and gives each its turns. One that is missing has no turns.
func (o *options) measure(ctx context.Context, p *programs, s spans, stderr io.Writer) (all []*runs, err error) {
	defer func() {
		for _, r := range all {
			if r.site != nil {
				err = errors.Join(err, r.site.close())
			}
		}
	}()
	for _, c := range contenders(&p.binaries) {
		if c.name != bareName && !o.services.MatchString(c.name) {
			continue
		}
		r := &runs{contender: &c}
		all = append(all, r)
		if c.missing != "" {
			continue
		}
		for i := range population {
			r.keys = append(r.keys, r.request(free, fmt.Sprintf("client-%05d", i)))
		}
		if r.site, err = c.open(ctx, p); err != nil {
			return all, err
		}
	}
	for number := range o.rounds {
		for _, r := range all {
			if r.site == nil {
				continue
			}
			fmt.Fprintf(stderr, "versus: round %d of %d, %s\n", number+1, o.rounds, r.name)
			if err := r.take(ctx, all[0], s, number); err != nil {
				return all, fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	for _, r := range all {
		if r.site == nil {
			continue
		}
		fmt.Fprintf(stderr, "versus: memory, %s\n", r.name)
		if err := r.fill(ctx, p, s); err != nil {
			return all, err
		}
	}
	return all, nil
}
