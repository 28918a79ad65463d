package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// replayFlags is the flags of replay.
type replayFlags struct {
	algorithm     string
	limit, burst  uint32
	period, unit  time.Duration
	countRejected bool
	header        bool
	output        string
}

// newReplay returns the command that runs an algorithm over requests of a file.
func newReplay() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --algorithm NAME --limit N --period DURATION [FILE]",
		Short: "Run an algorithm over requests in a file and print its decisions",
		Long: `Run an algorithm over requests and print a line for each: allow or deny.

Requests come from FILE, or standard input, as lines

  request <client> <timestamp> [hits]

Timestamps are whole numbers of --time-unit; one earlier than the client's last counts as that one. hits is 0 to 4294967295,
1 when it is left out; 0 asks and takes nothing. Blank lines and lines that begin with # are skipped. Each client has its own
count. A denied request counts nothing, unless --count-rejected is given.

With --header the first three lines hold one number each: the limit, the period in time units, and how many requests follow;
they win over --limit and --period.`,
		Example: `  printf 'request alice 0\nrequest alice 1\n' | sidecar replay --algorithm token_bucket --limit 1 --period 10s`,
		Args:    arguments(0, 1, "at most one FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := f.replay(cmd)
			if err != nil {
				return err
			}
			in := cmd.InOrStdin()
			if len(args) == 1 && args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }() // nothing was written
				in = file
			}
			return r.run(in, cmd.OutOrStdout(), f.header)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.algorithm, "algorithm", "", "`name`: "+algorithms.Names())
	flags.Uint32Var(&f.limit, "limit", 0, "hits per period; 0 denies every hit")
	flags.DurationVar(&f.period, "period", 0, "`duration`, such as 10s or 1h30m")
	flags.Uint32Var(&f.burst, "burst", 0, "token_bucket: total capacity (default the limit)")
	flags.DurationVar(&f.unit, "time-unit", time.Second, "`duration` that timestamps count")
	flags.BoolVar(&f.countRejected, "count-rejected", false, "denied hits count too")
	flags.BoolVar(&f.header, "header", false, "the first three lines give limit, period and number of requests")
	flags.StringVar(&f.output, "output", outputText, "text|json")
	return cmd
}

// replay checks the flags and returns what they ask for, or everything that is wrong with them.
func (f *replayFlags) replay(cmd *cobra.Command) (*replay, error) {
	given := cmd.Flags().Changed
	var errs []error
	a, err := algorithms.ParseAlgorithm(f.algorithm)
	if err != nil {
		errs = append(errs, fmt.Errorf("--algorithm: %w", err))
	}
	if f.unit <= 0 {
		errs = append(errs, fmt.Errorf("--time-unit: %v: must be more than 0", f.unit))
	}
	for _, name := range []string{"limit", "period"} {
		if !f.header && !given(name) {
			errs = append(errs, fmt.Errorf("--%s: is missing, must be given unless --header is", name))
		}
	}
	errs = append(errs, outputFormat(f.output))
	r := &replay{
		limit:         algorithms.Limit{Algorithm: a, Requests: f.limit, Period: f.period, Burst: f.burst},
		unit:          f.unit,
		countRejected: f.countRejected,
		json:          f.output == outputJSON,
		clients:       make(map[string]*client),
	}
	if errors.Join(errs...) == nil && !f.header {
		errs = append(errs, r.limit.Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usage("%w", err)
	}
	return r, nil
}

// replay is a run of one algorithm over requests.
type replay struct {
	limit         algorithms.Limit
	unit          time.Duration // of timestamps
	countRejected bool
	json          bool
	clients       map[string]*client
	log           bool   // the limit is a sliding_window_log
	buf           []byte // of one line of output
}

// client is what is remembered of one client.
type client struct {
	state algorithms.State
	log   algorithms.Log
	last  algorithms.Instant // latest seen
}

// run reads requests and writes decisions. What was decided before a line that is wrong is written.
func (r *replay) run(in io.Reader, stdout io.Writer, header bool) (err error) {
	out := bufio.NewWriterSize(stdout, 1<<16)
	defer func() {
		if flushed := out.Flush(); err == nil && flushed != nil {
			err = fmt.Errorf("write decisions: %w", flushed)
		}
	}()
	lines := newLines(in)
	most := -1
	if header {
		if most, err = r.readHeader(lines); err != nil {
			return err
		}
	}
	r.log = r.limit.Algorithm == algorithms.SlidingWindowLog
	n := 0
	for ; ; n++ {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if n == most {
			return lines.wrong("there are more requests than the %d of the header", most)
		}
		q, err := parseRequest(line, r.unit)
		if err != nil {
			return lines.wrong("%w", err)
		}
		if _, err := out.Write(r.decide(q)); err != nil {
			return fmt.Errorf("write decisions: %w", err)
		}
	}
	if n < most {
		return lines.wrong("the input ends after %d requests, the header says %d", n, most)
	}
	return nil
}

// readHeader reads limit, period and the number of requests, and returns the latter.
func (r *replay) readHeader(lines *lines) (int, error) {
	var numbers [3]uint64
	for i, what := range []string{"the limit", "the period", "the number of requests"} {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			return 0, lines.wrong("the input ends before %s", what)
		}
		if err != nil {
			return 0, err
		}
		if numbers[i], err = parseCount(line); err != nil {
			return 0, lines.wrong("%s: %w", what, err)
		}
		switch i {
		case 0:
			if numbers[0] > algorithms.MaxHits {
				return 0, lines.wrong("the limit: %d: must be at most %d", numbers[0], uint64(algorithms.MaxHits))
			}
			r.limit.Requests = uint32(numbers[0])
		case 1:
			if numbers[1] > uint64(algorithms.MaxPeriod/r.unit) {
				return 0, lines.wrong("the period: %d times %v: must be at most 10 years", numbers[1], r.unit)
			}
			r.limit.Period = time.Duration(numbers[1]) * r.unit
			if err := r.limit.Validate(); err != nil {
				return 0, lines.wrong("%w", err)
			}
		}
	}
	return int(min(numbers[2], 1<<62)), nil
}

// decide takes the hits of a request and returns the line that says what became of them, good until the next call.
func (r *replay) decide(q request) []byte {
	c := r.clients[string(q.client)]
	if c == nil {
		c = &client{last: q.at}
		r.clients[string(q.client)] = c
	}
	c.last = max(c.last, q.at)
	var d algorithms.Decision
	if r.log {
		d = c.log.Take(r.limit, c.last, q.hits, r.countRejected)
	} else {
		c.state, d = algorithms.Take(r.limit, c.state, c.last, q.hits, r.countRejected)
	}
	r.buf = r.buf[:0]
	switch {
	case r.json:
		r.buf = appendJSON(r.buf, q, d)
	case d.Allowed:
		r.buf = append(r.buf, "allow"...)
	default:
		r.buf = append(r.buf, "deny"...)
	}
	r.buf = append(r.buf, '\n')
	return r.buf
}
