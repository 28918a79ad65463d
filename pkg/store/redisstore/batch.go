package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strconv"
	"time"
	"unsafe"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// batch is transactions that one run of the script applies, one after another. Equal transactions
// of one charge form a group, sent once with their number. So they are applied right after each
// other, which is a valid order for requests that wait at the same time.
type batch struct {
	until   time.Time     // when the first of the callers stops to wait; zero if nobody waits
	last    time.Time     // when the last of the callers stops to wait
	life    time.Duration // for which the batch may lie on its way to Redis, if callers wait
	server  *server
	keys    []string       // names in Redis
	places  map[string]int // of keys in keys and states
	key     []byte         // scratch
	texts   texts          // memory of keys
	states  []keyState
	all     []group
	pairs   []pair // of limits that replaced others
	windows []*algorithms.Calendar
	charges int    // of all transactions
	count   uint64 // of transactions
}

// keyState is a key of a batch. raw, kept and parsed are set from the script's answer.
type keyState struct {
	single int // the last group of single transactions on the key, counted from 1
	raw    string
	kept   kept
	parsed bool
}

type group struct {
	first, last *call
	times       int
}

// texts makes texts that share memory. The memory is not used again: a command may hold a text for
// longer than the batch.
type texts struct{ free []byte }

// namesSize is the memory that is taken at once, in bytes: names of some fifty keys.
const namesSize = 4 << 10

func (n *texts) add(name []byte) string {
	if len(name) > cap(n.free)-len(n.free) {
		n.free = make([]byte, 0, max(namesSize, len(name)))
	}
	from := len(n.free)
	n.free = append(n.free, name...)
	return unsafe.String(unsafe.SliceData(n.free[from:]), len(name))
}

func newBatch(s *server) *batch {
	return &batch{server: s, places: make(map[string]int)}
}

func (b *batch) reset() {
	clear(b.places)
	clear(b.keys)
	clear(b.all)
	clear(b.pairs)
	b.pairs = b.pairs[:0]
	clear(b.windows)
	b.windows = b.windows[:0]
	b.until, b.last, b.life = time.Time{}, time.Time{}, 0
	b.keys, b.states, b.all, b.charges, b.count = b.keys[:0], b.states[:0], b.all[:0], 0, 0
}

func (b *batch) add(c *call) {
	c.places, c.counters = c.places[:0], c.counters[:0]
	for i := range c.charges {
		place, counter := b.place(&c.charges[i], c.at)
		c.places, c.counters = append(c.places, place), append(c.counters, counter)
	}
	if len(c.holds) > 0 {
		b.placeHolds(c)
	}
	for i := range c.charges {
		if c.charges[i].Before != nil {
			b.addPairs(&c.charges[i])
		}
	}
	if !c.until.IsZero() && (b.until.IsZero() || c.until.Before(b.until)) {
		b.until = c.until
	}
	if c.until.After(b.last) {
		b.last = c.until
	}
	c.next = nil
	b.charges += len(c.charges)
	b.count++
	if len(c.charges) == 1 && c.action != correct && len(c.holds) == 0 && c.charges[0].Limit.Algorithm.HasState() {
		p := &b.states[c.places[0]]
		if p.single > 0 {
			g := &b.all[p.single-1]
			if g.first.action == c.action && alike(&g.first.charges[0], &c.charges[0]) {
				g.last.next, g.last = c, c
				g.times++
				return
			}
		}
		p.single = len(b.all) + 1
	}
	b.all = append(b.all, group{first: c, last: c, times: 1})
}

// takes reports whether a call fits into the batch. Corrections have batches of their own, as this
// process cannot play them again on the states before. So have calls that need a run of the script
// of their own.
func (b *batch) takes(c *call) bool {
	if len(b.all) == 0 {
		return true
	}
	first := b.all[0].first
	return (first.action == correct) == (c.action == correct) && b.charges+len(c.charges) <= maxCharges && !first.alone() && !c.alone()
}

// maxCharges bounds one run of the script, during which Redis serves nobody else.
const maxCharges = 256

func alike(x, y *store.Charge) bool {
	return x.Hits == y.Hits && x.Limit == y.Limit && x.CountRejected == y.CountRejected && x.Mode == y.Mode
}

// calls yields the calls of the batch, which may end meanwhile.
func (b *batch) calls(yield func(*call) bool) {
	for i := range b.all {
		for c := b.all[i].first; c != nil; {
			next := c.next // after the end of a call its fields belong to the caller
			if !yield(c) {
				return
			}
			c = next
		}
	}
}

// end ends all calls. An error is the error of each call; refused says that Redis has certainly not
// applied them.
func (b *batch) end(err error, refused bool) {
	for c := range b.calls {
		c.next = nil
		if err != nil {
			c.err, c.refused = err, refused
		}
		c.end()
	}
}

// slot returns the slot of the batch's keys; 0 without a cluster.
func (b *batch) slot() uint16 { return b.all[0].first.slot }

// place returns the place of the key of a charge at an instant, and reports whether the key is a
// counter's.
func (b *batch) place(c *store.Charge, at algorithms.Instant) (n int, counter bool) {
	b.key, counter = b.server.appendName(b.key[:0], c, at)
	return b.placeOfKey(), counter
}

func (b *batch) placeOfKey() int {
	n, known := b.places[string(b.key)]
	if !known {
		n = len(b.keys)
		name := b.texts.add(b.key)
		b.keys = append(b.keys, name)
		b.places[name] = n
		b.states = append(b.states, keyState{})
	}
	return n
}

func (b *batch) request(now, deadline int64) []byte {
	r := make([]byte, 0, headerSize+len(b.all)*(9+29))
	r = b.appendPairs(appendHeader(r, now, deadline))
	for i := range b.all {
		g := &b.all[i]
		c := g.first
		r = appendTransaction(r, c.action, g.times, len(c.charges), len(c.holds) > 0, c.lone())
		last := -1 // the last charge that counts for the verdict
		for n := range c.charges {
			var f *fix
			if c.action == correct {
				f = c.fixes[n]
			}
			charge := &c.charges[n]
			algorithm, capacity := byte(charge.Limit.Algorithm), uint32(min(charge.Limit.Capacity(), math.MaxUint32))
			switch {
			case c.counters[n]:
				algorithm, capacity = counterNumber, b.server.jitter()
				if charge.Limit.Calendar != nil {
					in := *charge
					in.Limit.Period = c.span(n)
					charge = &in
				}
			case charge.Limit.Algorithm.HasCalendar():
				capacity = b.calendar(charge.Limit.Calendar)
			}
			r = appendCharge(r, c.places[n], charge, algorithm, capacity, last >= 0 && c.charges[last].Rule == charge.Rule, f)
			if len(c.holds) > 0 {
				r = c.appendHold(r, n)
			}
			if !c.ends(n) {
				last = n
			}
		}
	}
	return r
}

// span returns the period that the script gets for charge i of a counter in a window of a calendar.
// The counter lives so long, and a jitter: from the second of the request to the end of the window.
// With a holder the period is the length of the window, in which the script looks for the begin.
func (c *call) span(i int) time.Duration {
	start, end := c.charges[i].Limit.WindowOf(c.at)
	if !c.held(i) {
		start = c.at - c.at%algorithms.Instant(time.Second)
	}
	return end.Sub(start)
}

func (b *batch) placeHolds(c *call) {
	for i := range c.charges {
		charge, h := &c.charges[i], &c.holds[i]
		if !c.held(i) {
			continue
		}
		b.key = b.server.appendBook(b.key[:0], charge)
		h.book = b.placeOfKey()
		h.record = h.book
		if book := len(b.key); c.gives(i) { // the script names the set itself
			b.key = append(b.key, returning)
			b.placeOfKey()
			b.key = b.key[:book]
		}
		if charge.Limit.Algorithm != algorithms.Concurrency {
			b.key = appendHolder(b.key, h.Holder)
			h.record = b.placeOfKey()
		}
	}
}

func (c *call) appendHold(b []byte, i int) []byte {
	if !c.held(i) {
		return b
	}
	h, name := &c.holds[i], c.holds[i].Holder
	if c.charges[i].Limit.Algorithm != algorithms.Concurrency {
		binary.LittleEndian.PutUint32(name[:], rand.Uint32()) // of a new book
	}
	from := int64(0)
	if c.counters[i] {
		start, _ := c.charges[i].Limit.WindowOf(c.at)
		from = int64(start) / int64(Granularity)
	}
	if c.ends(i) || h.Phase == algorithms.HoldPair {
		b[16] |= isEnding
	}
	if !c.ends(i) {
		b[16] |= isBegun
	}
	phase := byte(h.Phase)
	if c.gives(i) { // the script needs all functions
		phase += givesBack
		b[16] |= isEnding | isBegun
	}
	b = append(b, phase)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.record)+1)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.book)+1)
	atMost := min(max(h.AtMost, 0), algorithms.MaxPeriod)
	b = appendInt(b, int64((atMost+Granularity-1)/Granularity), 8)
	b = appendInt(b, h.since, 8)
	b = appendInt(b, from, 8)
	b = binary.LittleEndian.AppendUint32(b, h.Estimate)
	return append(b, name[:]...)
}

// finish gives each call its decisions from the script's answer. finish returns the instant of the
// answer, and the first byte: done, or why the script did nothing. Then no call has decisions.
func (b *batch) finish(answer string) (us int64, status byte, err error) {
	r := reader{rest: answer}
	status = byte(r.uint(1))
	us = int64(r.uint(8))
	if status != done {
		return us, status, r.check()
	}
	for i := range b.states {
		b.states[i].raw = r.bytes(int(r.uint(1)))
	}
	now := instant(uint64(us))
	for i := range b.all {
		passed := int(r.uint(4))
		for c, n := b.all[i].first, 0; c != nil; c, n = c.next, n+1 {
			c.now = now
			if c.action == correct {
				c.read(&r)
				b.learnCorrection(c)
			} else {
				c.err = b.play(c, &r, n < passed) // of equal transactions the first pass
			}
		}
	}
	for place := range b.states {
		if p := &b.states[place]; p.parsed {
			b.server.seeds.learn(b.keys[place], &p.kept, now)
		}
	}
	return us, done, r.check()
}

// learnCorrection has the seeds follow hits that the script has charged or given back: its answer
// has the states before.
func (b *batch) learnCorrection(c *call) {
	for i, f := range c.fixes {
		if f != nil && !c.held(i) && c.charges[i].Limit.Algorithm.HasState() {
			b.server.seeds.correct(b.keys[c.places[i]], &c.charges[i], c.counters[i], instant(uint64(f.at)), c.now)
		}
	}
}

// read reads the decisions of a correction, which are all about lists.
func (c *call) read(r *reader) {
	c.admitted = true
	for i := range c.charges {
		told := c.ends(i) || c.held(i) && c.holds[i].Phase == algorithms.HoldPair // later, and has no decision
		if c.fixes[i] == nil && !c.charges[i].Limit.Algorithm.HasState() && !told {
			c.decisions[i], _ = r.decision()
		}
	}
}

// play plays a transaction again on the states that the script found, and so makes the decisions.
// Decisions about lists are the script's, and so is the verdict.
func (b *batch) play(c *call, r *reader, admitted bool) error {
	lists := false
	c.admitted = admitted
	if len(c.holds) > 0 {
		if err := b.playHolds(c, r); err != nil {
			return err
		}
	}
	c.before, c.after, c.added = c.before[:0], c.after[:0], c.added[:0]
	for i := range c.charges {
		var was kept
		var in added
		if c.charges[i].Limit.Algorithm.HasState() {
			k, err := b.state(c, i)
			if err != nil {
				return err
			}
			was = *k
			if !c.ends(i) {
				c.decisions[i] = c.take(i, k, c.charges[i].Hits)
			}
			c.free(i)
		} else {
			lists = true
			in = c.readList(i, r)
		}
		c.before, c.added = append(c.before, was), append(c.added, in)
	}
	several := len(c.charges) > 1
	agreed := lists && several && c.action == take || store.Admitted(c.charges, c.decisions) == admitted
	for i, place := range c.places {
		if c.action == peek || c.action == reserve && c.applied(i) < 0 {
			b.states[place].kept = c.before[c.first(i)]
		}
	}
	if several && c.action == take && !admitted {
		c.again(c.counts, c.keep)
		for i, place := range c.places {
			b.states[place].kept = c.after[i]
		}
	}
	c.after = c.after[:0]
	for _, place := range c.places {
		c.after = append(c.after, b.states[place].kept)
	}
	if !agreed {
		b.server.disagreed(c)
	}
	return nil
}

// disagreed counts and logs a verdict of the script that is not the verdict of package algorithms,
// which only a bug can cause. The log gets one line a second. The request gets decisions that fit
// the script's verdict.
func (b *base) disagreed(c *call) {
	n := b.metrics.disagreements.Add(1)
	if _, due := b.metrics.disagreementLogged.Due(time.Second); due {
		charge := &c.charges[0]
		b.logger.LogAttrs(context.Background(), slog.LevelWarn,
			"the script in Redis and this program decided differently, the script's verdict counts",
			slog.Bool("admitted", c.admitted), slog.String("algorithm", charge.Limit.Algorithm.String()),
			slog.String("key", strconv.QuoteToASCII(string(charge.Key))), slog.Uint64("disagreements", n))
	}
	for i := range c.charges {
		d := &c.decisions[i]
		switch {
		case c.charges[i].Mode.Shadows() || d.Allowed == c.admitted:
		case c.admitted:
			d.Allowed, d.RetryAfter = true, 0
		default:
			d.Allowed, d.Remaining, d.RetryAfter = false, 0, max(d.ResetAfter, Granularity)
		}
	}
}

func (b *batch) state(c *call, i int) (*kept, error) {
	p := &b.states[c.places[i]]
	if !p.parsed && p.raw != "" {
		var err error
		if c.counters[i] {
			p.kept, err = parseCounter(p.raw, c.charges[i].Limit)
		} else {
			p.kept, err = parse(p.raw, c.charges[i].Limit)
			p.kept.state = algorithms.Rewind(p.kept.limit, p.kept.state, c.now, farthestBack) // as the script does
		}
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", b.keys[c.places[i]], err)
		}
	}
	p.parsed = true
	return &p.kept, nil
}

// readList reads the decision about the list of charge i, and the hits that a reservation has
// added.
func (c *call) readList(i int, r *reader) (in added) {
	if len(c.holds) > 0 {
		return c.holds[i].decided // which playHolds has read
	}
	c.decisions[i], in = r.decision()
	return in
}

// playHolds reads the holders of a transaction, and applies all charges of holders but the begins.
// Afterwards each of these charges is a probe.
func (b *batch) playHolds(c *call, r *reader) error {
	for i := range c.charges {
		h := &c.holds[i]
		if !c.charges[i].Limit.Algorithm.HasState() {
			c.decisions[i], h.decided = r.decision()
		}
		if c.held(i) && h.read(r) {
			c.charges[i].Pair(true)
			c.charges[i].CountRejected = false
		} else {
			c.charges[i].Pair(false)
		}
	}
	for i := range c.charges {
		charge, h := &c.charges[i], &c.holds[i]
		if !c.held(i) {
			continue
		}
		e := h.Was.Effect(h.Phase, charge.Limit, charge.Hits)
		charge.Hits = e.Hits
		if !c.ends(i) {
			charge.CountRejected = charge.CountRejected && !e.Forced
			continue
		}
		charge.Hits = 0
		if !charge.Limit.Algorithm.HasState() {
			continue
		}
		k, err := b.state(c, i)
		if err != nil {
			return err
		}
		was := *k
		c.decisions[i] = c.force(i, k, e)
		if c.action == peek {
			*k = was
		}
	}
	return nil
}

// read reads the holder of a charge, and reports whether the charge is of HoldPair and an end.
func (h *hold) read(r *reader) (paired bool) {
	status := r.uint(1)
	h.Was = algorithms.Hold{
		Status: algorithms.HoldStatus(status % pairedEnd), Hits: uint32(r.uint(4)), At: instant(r.uint(8)), Until: instant(r.uint(8)),
	}
	h.at = int64(r.uint(8))
	return status >= pairedEnd
}

// force applies an effect to the state of the key of charge i, and returns the decision, which
// allows the charge.
func (c *call) force(i int, k *kept, e algorithms.Effect) algorithms.Decision {
	l, now := c.charges[i].Limit, c.now
	if c.counters[i] {
		now = k.enter(l, c.at, now)
	}
	if e.Hits < 0 {
		k.state, k.limit = algorithms.GiveBack(k.limit, l, k.state, e.Charged, now, uint32(-e.Hits))
	}
	d := k.take(l, now, max(e.Hits, 0), algorithms.Owe)
	d.Allowed, d.RetryAfter = true, 0
	return d
}

// free allows the begin of a holder that holds already.
func (c *call) free(i int) {
	if c.held(i) && c.holds[i].Was.Status == algorithms.HoldHeld {
		c.decisions[i].Allowed, c.decisions[i].RetryAfter = true, 0
	}
}
