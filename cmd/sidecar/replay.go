package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

func newReplay() *cobra.Command {
	r := &replay{clients: make(map[string]*client)}
	var algorithm, output string
	var header bool
	cmd := &cobra.Command{
		Use:   "replay --algorithm NAME --limit N --period DURATION [--at-most DURATION] [FILE]",
		Short: "Run an algorithm over requests in a file and print its decisions",
		Long: `Run an algorithm over requests and print a line for each: allow or deny.

Requests come from FILE, or standard input, as lines

  request <client> <timestamp> [hits]

Timestamps are whole numbers of --time-unit; a timestamp before the client's last one counts as the last one. hits is 0 to
4294967295 and 1 by default; 0 asks and takes nothing. The command skips blank lines and lines that begin with #. Each client
has its own count. A denied request counts nothing, unless --count-rejected is given.

A request may hold its hits from a begin to an end, as under a limit with hold, with the lines

  begin <client> <timestamp> <holder> [hits]
  end <client> <timestamp> <holder> [hits]

The end names the true hits, and is always allowed. A holder is forgotten --at-most after its begin. concurrency has no other lines, and no
--period: --limit is max_in_flight there.

token_bucket_integer counts in whole time units here: the period must be a whole number of time units, and all waits are. The
service counts in nanoseconds, as this command does with --time-unit 1ns.

A request for more hits than the limit ever has never passes. In JSON its line has "retry_after_ns":null and "never":true; in text a
note on standard error counts such requests.

--align gives windows of a calendar, with timestamps since 1 January 1970. The value is as in a rule file, such as
'{to: calendar, zone: Europe/Berlin, day: 15}'. The period is then as many years of the calendar (8760h) as it has, else months (720h),
weeks (168h) or days (24h).

With --header the first three lines hold one number each: the limit, the period in time units, and the number of requests. The
header wins over --limit and --period.`,
		Example: `  printf 'request alice 0\nrequest alice 1\n' | sidecar replay --algorithm token_bucket --limit 1 --period 10s`,
		Args:    arguments(0, 1, "at most one FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.complete(cmd.Flags().Changed, algorithm, output, header); err != nil {
				return err
			}
			return r.replay(cmd, args, header)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&algorithm, "algorithm", "", "`name`: "+algorithms.Names())
	flags.Uint32Var(&r.limit.Requests, "limit", 0, "hits per period; 0 denies every hit")
	addDuration(flags, &r.limit.Period, "period", 0, "`duration`, such as 10s or 1h30m")
	flags.Uint32Var(&r.limit.Burst, "burst", 0, "token_bucket: total capacity (default the limit)")
	flags.StringVar(&r.align, "align", "", "`alignment` of the windows, as in a rule file")
	addDuration(flags, &r.atMost, "at-most", 0, "`duration` after which a holder is forgotten; needed for begin and end")
	addDuration(flags, &r.unit, "time-unit", time.Second, "`duration` that timestamps count")
	flags.BoolVar(&r.countRejected, "count-rejected", false, "denied hits count too")
	flags.BoolVar(&header, "header", false, "the first three lines give limit, period and number of requests")
	flags.StringVar(&output, "output", outputText, "text|json")
	return cmd
}

// replay runs over the requests of the file, or of standard input, and writes notes about them.
func (r *replay) replay(cmd *cobra.Command, args []string, header bool) error {
	in := cmd.InOrStdin()
	if len(args) == 1 && args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // nothing was written
		in = file
	}
	err := r.run(in, cmd.OutOrStdout(), header)
	if r.never > 0 && !r.json {
		cmd.PrintErrf("%s never: more hits than the limit ever has\n", count(r.never, "request"))
	}
	if err == nil && r.coarse() {
		cmd.PrintErrf("note: %d hits in %d time units are more than one per unit, and not a whole number per unit: "+
			"the formula then finds tokens again and again at one instant; timestamps in a smaller --time-unit avoid that\n",
			r.limit.Requests, r.limit.Period/r.tick)
	}
	return err
}

// complete takes the flags that r does not hold itself. The error has every mistake in the flags.
func (r *replay) complete(given func(name string) bool, algorithm, output string, header bool) error {
	var errs []error
	var err error
	if r.limit.Algorithm, err = algorithms.ParseAlgorithm(algorithm); err != nil {
		errs = append(errs, fmt.Errorf("--algorithm: %w", err))
	}
	if r.unit <= 0 {
		errs = append(errs, fmt.Errorf("--time-unit: %v: must be more than 0", r.unit))
	}
	slots := r.limit.Algorithm == algorithms.Concurrency
	for _, name := range []string{"limit", "period"} {
		if !header && !given(name) && !(slots && name == "period") {
			errs = append(errs, fmt.Errorf("--%s: is missing, must be given unless --header is", name))
		}
	}
	for _, name := range []string{"period", "header", "count-rejected", "align"} {
		if slots && given(name) {
			errs = append(errs, fmt.Errorf("--%s: has no meaning for concurrency, must be left out", name))
		}
	}
	if needs := slots || given("at-most"); needs && (r.atMost < algorithms.MinPeriod || r.atMost > algorithms.MaxPeriod) {
		errs = append(errs, fmt.Errorf("--at-most: %v: must be between %v and 10 years", r.atMost, algorithms.MinPeriod))
	}
	errs = append(errs, outputFormat(output))
	r.json = output == outputJSON
	if errors.Join(errs...) == nil && !header {
		errs = append(errs, r.check())
	}
	if err := errors.Join(errs...); err != nil {
		return usage("%w", err)
	}
	return nil
}

// check returns all mistakes of the limit, and chooses the tick of its algorithm.
func (r *replay) check() error {
	r.tick = time.Nanosecond
	if err := r.limit.Validate(); err != nil {
		return err
	}
	if r.align != "" {
		return r.followCalendar()
	}
	if r.limit.Algorithm != algorithms.TokenBucketInteger {
		return nil
	}
	if r.tick = r.unit; r.limit.Period%r.tick != 0 {
		return fmt.Errorf("period: %v: token_bucket_integer counts in whole time units, must be a whole number of --time-unit %v",
			r.limit.Period, r.unit)
	}
	return nil
}

// followCalendar gives the limit the windows of --align, by loading both as a rule. The error has
// all mistakes of the alignment.
func (r *replay) followCalendar() error {
	units := []descriptors.Unit{descriptors.Year, descriptors.Month, descriptors.Week, descriptors.Day}
	n := slices.IndexFunc(units, func(u descriptors.Unit) bool { return r.limit.Period%u.Duration() == 0 })
	if n < 0 {
		return fmt.Errorf("period: %v: must be a whole number of days (24h) with --align", r.limit.Period)
	}
	const at = "default.align"
	rule := fmt.Sprintf("domain: replay\ndefault: {algorithm: %s, requests_per_unit: %d, unit: %s, unit_multiplier: %d, align: %s}",
		r.limit.Algorithm, r.limit.Requests, units[n], r.limit.Period/units[n].Duration(), r.align)
	rules, _, err := descriptors.Load([]descriptors.Source{{Name: "replay", Data: []byte(rule)}}, descriptors.Options{})
	if mistakes, is := errors.AsType[descriptors.Errors](err); is {
		all := make([]error, len(mistakes))
		for i, m := range mistakes {
			path, inside := strings.CutPrefix(m.Path, at)
			if !inside && path != "" { // of a text that goes on behind the alignment
				path = ": " + path
			}
			all[i] = fmt.Errorf("--align%s: %s", path, m.Text)
		}
		return errors.Join(all...)
	}
	if err != nil {
		return fmt.Errorf("--align: %w", err)
	}
	r.limit = rules.Domain("replay").Default.Limits[0].Limit
	return nil
}

// coarse reports whether the tick is too coarse for the limit. The mark then moves by less than the
// time of the tokens, and the bucket gains tokens again at the same instant.
func (r *replay) coarse() bool {
	if r.limit.Algorithm != algorithms.TokenBucketInteger {
		return false
	}
	requests, ticks := int64(r.limit.Requests), int64(r.limit.Period/r.tick)
	return requests > ticks && requests%ticks != 0
}

// replay is a run of one algorithm over requests.
type replay struct {
	limit         algorithms.Limit
	unit          time.Duration // of timestamps
	tick          time.Duration // in which the algorithm counts: the nanosecond, or unit
	align         string        // of windows, as in a rule file; "" without a calendar
	atMost        time.Duration // of holders; 0: not given
	countRejected bool
	json          bool
	clients       map[string]*client
	never         int    // requests that never pass
	buf           []byte // one line of output
}

type client struct {
	state algorithms.State
	log   algorithms.Log
	last  algorithms.Instant // latest seen
	holds holds
}

// run reads requests and writes decisions. Before an error about a line, run writes the decisions
// on the lines above.
func (r *replay) run(in io.Reader, stdout io.Writer, header bool) (err error) {
	out := bufio.NewWriterSize(stdout, 1<<16)
	defer func() {
		if flushed := out.Flush(); err == nil && flushed != nil {
			err = fmt.Errorf("write decisions: %w", flushed)
		}
	}()
	lines := newLines(in)
	announced := -1
	if header {
		if announced, err = r.readHeader(lines); err != nil {
			return err
		}
	}
	n := 0
	for ; ; n++ {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if n == announced {
			return lines.wrong("there are more requests than the %d of the header", announced)
		}
		q, err := parseRequest(line, r.unit)
		if err == nil {
			err = r.fits(q)
		}
		if err != nil {
			return lines.wrong("%w", err)
		}
		if _, err := out.Write(r.decide(q)); err != nil {
			return fmt.Errorf("write decisions: %w", err)
		}
	}
	if n < announced {
		return lines.wrong("the input ends after %d requests, the header says %d", n, announced)
	}
	return nil
}

// readHeader reads the limit and the period, and returns the number of requests.
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
			if err := r.check(); err != nil {
				return 0, lines.wrong("%w", err)
			}
		}
	}
	return int(min(numbers[2], 1<<62)), nil
}

// decide takes the hits of a request and returns the line about the decision, valid until the next
// call.
func (r *replay) decide(q request) []byte {
	c := r.clients[string(q.client)]
	if c == nil {
		c = &client{last: q.at}
		r.clients[string(q.client)] = c
	}
	c.last = max(c.last, q.at)
	var d algorithms.Decision
	if q.phase != 0 {
		d = r.hold(c, q)
	} else {
		d = r.charge(c, q.hits, algorithms.Counting(r.countRejected))
	}
	never := q.hits > int64(r.limit.Capacity()) && !d.Allowed
	if never {
		r.never++
	}
	r.buf = r.buf[:0]
	switch {
	case r.json:
		r.buf = appendJSON(r.buf, q, d, never)
	case d.Allowed:
		r.buf = append(r.buf, "allow"...)
	default:
		r.buf = append(r.buf, "deny"...)
	}
	r.buf = append(r.buf, '\n')
	return r.buf
}

func (r *replay) charge(c *client, hits int64, excess algorithms.Excess) (d algorithms.Decision) {
	if r.limit.Algorithm.HasState() {
		c.state, d = r.take(c.state, c.last, hits, excess)
		return d
	}
	return c.log.Take(r.limit, c.last, hits, excess != algorithms.Refuse)
}

// take takes hits from a state. Package algorithms computes with whole numbers, and here each of
// its nanoseconds is one tick.
func (r *replay) take(s algorithms.State, at algorithms.Instant, hits int64, excess algorithms.Excess) (algorithms.State, algorithms.Decision) {
	l := r.limit
	l.Period /= r.tick
	s, d := algorithms.Charge(l, s, at/algorithms.Instant(r.tick), hits, excess)
	d.RetryAfter, d.ResetAfter = times(d.RetryAfter, r.tick), times(d.ResetAfter, r.tick)
	return s, d
}

// times returns n ticks as a duration, held at the largest.
func times(n, tick time.Duration) time.Duration {
	if n > math.MaxInt64/tick {
		return math.MaxInt64
	}
	return n * tick
}

// holds is the holders of one client. The zero value has none.
type holds struct {
	known map[string]algorithms.Hold
	line  []holdEnd // of known, and of some that are known no more; the next to run out first
	used  uint64    // hits of all that hold
}

// holdEnd is the instant at which a holder runs out.
type holdEnd struct {
	holder string
	until  algorithms.Instant
}

// fits returns why a request cannot be decided under the limit.
func (r *replay) fits(q request) error {
	switch {
	case q.phase != 0 && r.atMost == 0:
		return errors.New("a begin, an end or a pair needs --at-most")
	case q.phase == 0 && r.limit.Algorithm == algorithms.Concurrency:
		return errors.New("concurrency has no requests without a holder: must be begin, end or pair")
	}
	return nil
}

// hold decides the begin or the end of a holder of a client, as a store does for a request with one
// limit.
func (r *replay) hold(c *client, q request) algorithms.Decision {
	c.holds.expire(c.last)
	was := c.holds.known[string(q.holder)]
	if q.phase == algorithms.HoldPair && was.Status == algorithms.HoldHeld {
		q.phase = algorithms.HoldEnd
	}
	e := was.Effect(q.phase, r.limit, q.hits)
	var d algorithms.Decision
	switch slots := r.limit.Algorithm == algorithms.Concurrency; {
	case slots:
		hits := uint32(max(e.Hits, 0))
		if e.Hits < 0 {
			c.holds.used -= uint64(-e.Hits)
			delete(c.holds.known, string(q.holder))
		}
		d = c.holds.slots().Decide(r.limit, c.last, hits, r.atMost)
		if d.Allowed {
			c.holds.used += uint64(hits)
		}
	case e.Hits < 0:
		r.giveBack(c, e)
		d = r.charge(c, 0, algorithms.Refuse)
	case q.phase == algorithms.HoldEnd:
		d = r.charge(c, e.Hits, algorithms.Owe)
	default:
		d = r.charge(c, e.Hits, algorithms.Counting(r.countRejected))
	}
	if e.Forced {
		d.Allowed, d.RetryAfter = true, 0
	}
	c.holds.set(string(q.holder), was, was.After(q.phase, r.limit, c.last, q.hits, r.atMost, d.Allowed))
	return d
}

func (r *replay) giveBack(c *client, e algorithms.Effect) {
	hits := uint32(-e.Hits)
	if !r.limit.Algorithm.HasState() {
		c.log.GiveBack(r.limit, c.last, e.Charged, hits)
		return
	}
	l, tick := r.limit, algorithms.Instant(r.tick)
	l.Period /= r.tick
	c.state, _ = algorithms.GiveBack(l, l, c.state, e.Charged/tick, c.last/tick, hits)
}

func (h *holds) expire(now algorithms.Instant) {
	for len(h.line) > 0 && (h.line[0].until <= now || !h.stands(h.line[0])) {
		if first := h.line[0]; h.stands(first) {
			if hold := h.known[first.holder]; hold.Status == algorithms.HoldHeld {
				h.used -= uint64(hold.Hits)
			}
			delete(h.known, first.holder)
		}
		h.line = h.line[1:]
	}
}

// stands reports whether a holder is still the one in the line.
func (h *holds) stands(e holdEnd) bool {
	hold, known := h.known[e.holder]
	return known && hold.Until == e.until
}

// slots returns the state of concurrency. Only holders that hold are known under it.
func (h *holds) slots() algorithms.Slots {
	for len(h.line) > 0 && !h.stands(h.line[len(h.line)-1]) {
		h.line = h.line[:len(h.line)-1]
	}
	for len(h.line) > 0 && !h.stands(h.line[0]) {
		h.line = h.line[1:]
	}
	s := algorithms.Slots{Used: h.used}
	if len(h.line) > 0 {
		s.First, s.Last = h.line[0].until, h.line[len(h.line)-1].until
	}
	return s
}

// set remembers the hold of a holder. All holders run out in the order in which they came, as a
// client's time does not go back.
func (h *holds) set(holder string, was, next algorithms.Hold) {
	switch {
	case next == algorithms.Hold{}:
		delete(h.known, holder)
		return
	case h.known == nil:
		h.known = make(map[string]algorithms.Hold)
	}
	h.known[holder] = next
	if next.Until != was.Until {
		h.line = append(h.line, holdEnd{holder, next.Until})
	}
}
