package quota

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// mistake is a deliberate error in the rules of a division, which the oracle must find.
type mistake int

const (
	none             mistake = iota
	noWaitForTheAck          // an order counts as arrived when it is sent
	growAtHalf               // a change of a bucket is debited at half of its size
	forgetFull               // a bucket after no bucket is not debited
	reuseDead                // the bucket of a stream that has ended is given at once
	liveFromTheSend          // an order expires a time to live after it was sent
	tokensOverTheEnd         // a window is divided as a bucket of all its hits
	ownNotDebited            // the bucket of the own client is full, and not debited
	ownGrowsEarly            // the old bucket of the own client is free at once
	oldForgotten             // requests from before the division do not count
	lostAtTheEnd             // hits of Envoys are not in the count that goes on without a division
)

var mistakes = map[string]mistake{
	"no wait for the acknowledgement": noWaitForTheAck, "growth debited at half": growAtHalf,
	"full after a blanket rule forgotten": forgetFull, "assignment of a dead stream reused": reuseDead,
	"time to live from the send": liveFromTheSend, "tokens over the end of a window": tokensOverTheEnd,
}

const tick = 5 * time.Millisecond

// bucketOfEnvoy is a token bucket as in Envoy 1.40, by the clock of the Envoy.
type bucketOfEnvoy struct {
	Bucket

	tokens float64
	at     float64 // seconds
}

func (b *bucketOfEnvoy) fill(now float64) {
	b.tokens = min(float64(b.Max), b.tokens+(now-b.at)*float64(b.Fill)/float64(b.Interval))
	b.at = now
}

// worker is a thread of an Envoy. A worker uses the assignment of the
// main thread a little later.
type worker struct {
	rule     *bucketOfEnvoy // nil: every request is denied
	switches []change
}

type change struct {
	at   time.Duration
	rule *bucketOfEnvoy
}

// envoyModel is an Envoy with the filter rate_limit_quota, one bucket id, and DENY_ALL without an
// assignment and after one has expired.
type envoyModel struct {
	clock    float64 // seconds in a second of true time
	workers  []worker
	rule     *bucketOfEnvoy
	expires  time.Duration
	assigned bool
	known    bool // the bucket id
	attempts float64
	rate     float64 // requests in a second

	allowed, denied uint64
	reportAt        time.Duration
	weir            *weirModel    // of the stream, or of the last one
	client          *Client       // of the stream that is open; nil: none
	asked, passed   time.Duration // the first request, and the first one that was admitted
	cut             bool          // the stream, and there is no other one yet
	away            time.Duration // until then it reaches nobody
	inbox, outbox   []message
}

// message is on its way in one direction of a stream.
type message struct {
	at              time.Duration
	weir            *weirModel
	client          *Client
	order           Order
	allowed, denied uint64
	ack             uint64 // 0: a report
	leave           bool
}

// weirModel is a process with a division.
type weirModel struct {
	d   *Division
	due time.Duration

	*sharer // with Redis
}

// schedule is one run: divisions, Envoys and a network that loses, delays and dies.
type schedule struct {
	*weirModel // the first one

	weirs            []*weirModel
	redis            *redisModel // nil: the first one has the whole limit
	copies           []*redisModel
	calls            []*callModel
	redisBack, quiet time.Duration // until then Redis is away; from then on nothing fails
	names, runs      int
	harms            int // ticks between two of a kind
	whole            Limit
	random           *rand.Rand
	mistake          mistake
	now              time.Duration
	envoys           []*envoyModel
	orders           []Order
	calm             bool // nothing fails
	rates            []float64
	restless, deaths int // ticks between two of an Envoy
	slow             int // messages of which one takes seconds

	oracle             *bucketOfEnvoy // one bucket in true time
	window             time.Duration  // 0: no window
	windowAt           time.Duration
	inWindow, perWin   int64
	admitted, attempts int64
	one                *bucketOfEnvoy   // one process that decides all requests; nil: not looked at
	ideal              int64            // requests that one admits
	rules              []*bucketOfEnvoy // memory
	over               bool

	own    *envoyModel // the requests that this process counts; nil: none
	count  *countModel // of these requests
	limit  Limit
	first  time.Duration // until then the division has another limit
	spent  []int64       // in the window until then
	back   time.Duration // when the count gets spent back
	leaves int           // ticks from one leave of all Envoys to the next; 0: no leaves
	asks   int           // ticks from one end of the part of RLS in a process to the next; 0: no RLS with Redis
}

// delay returns how long a message takes: one for an Envoy at most Delivery.
func (s *schedule) delay(m *message) time.Duration {
	if !s.calm && s.random.IntN(s.slow) == 0 {
		longest := Delivery * 98 / 100
		if m.order.Client == nil {
			longest *= 2
		}
		return time.Duration(s.random.Int64N(int64(longest)))
	}
	return time.Duration(s.random.Int64N(int64(8 * time.Millisecond)))
}

// post adds a message to a queue that keeps the order.
func (s *schedule) post(queue *[]message, m message) {
	m.at = s.now + s.delay(&m)
	for i := range *queue {
		if (*queue)[i].client == m.client {
			m.at = max(m.at, (*queue)[i].at)
		}
	}
	*queue = append(*queue, m)
}

func (s *schedule) run(duration time.Duration) {
	for ; s.now < duration && !s.over; s.now += tick {
		for _, e := range s.envoys {
			s.deliver(e)
			s.serve(e)
			s.report(e)
			if !s.calm && s.random.IntN(s.deaths) == 0 {
				s.die(e)
			}
		}
		if s.own != nil {
			s.serve(s.own)
			s.divideBeside()
		}
		for _, w := range s.weirs {
			s.serveRLS(w)
			s.share(w)
			s.divide(w)
		}
		if s.now%(10*tick) == 0 {
			s.cover()
		}
	}
}

// cover is the oracle for requests that could come at this instant. The tokens of all Envoys and of
// the ledger are at most the tokens of one bucket.
func (s *schedule) cover() {
	if s.own != nil && (s.count.window > 0 || s.d == nil) {
		return
	}
	could := s.unspent()
	if s.own != nil {
		could += s.couldOwn()
	}
	for _, e := range s.envoys {
		could += s.tokensOf(e)
	}
	for _, w := range s.weirs {
		if w.sharer != nil && w.rls != nil && s.holds(w) && !w.stopped(s.now) {
			could += s.tokensOf(w.rls)
		}
	}
	s.oracle.fill(s.now.Seconds())
	s.over = s.over || could > s.oracle.tokens+1e-3
}

// tokensOf returns the tokens of all buckets that an Envoy may still use.
func (s *schedule) tokensOf(e *envoyModel) (sum float64) {
	s.rules = append(s.rules[:0], e.rule)
	for i := range e.workers {
		s.rules = append(s.rules, e.workers[i].rule)
		for _, c := range e.workers[i].switches {
			s.rules = append(s.rules, c.rule)
		}
	}
	for i, b := range s.rules {
		if b != nil && !slices.Contains(s.rules[:i], b) {
			b.fill(s.now.Seconds() * e.clock)
			sum += b.tokens
		}
	}
	return sum
}

// forget removes clients from the ledger.
func (w *weirModel) forget(gone func(c *Client) bool) {
	w.d.clients = slices.DeleteFunc(w.d.clients, func(c *Client) bool {
		if gone(c) {
			w.d.put(c, given{}, given{})
		}
		return gone(c)
	})
}

// divide steps the division, and posts its orders.
func (s *schedule) divide(w *weirModel) {
	if s.mistake == liveFromTheSend {
		w.forget(func(c *Client) bool { return c.gone && s.now >= c.sent+TTL })
	}
	if w.d == nil || s.now < w.due || !w.works(s.now) {
		return
	}
	s.orders, w.due = w.d.Step(s.now, s.orders[:0])
	for _, o := range s.orders {
		c := o.Client
		switch {
		case c.own:
			s.takeOwn(o)
			continue
		case c.here:
			s.takeHere(w, o)
			continue
		}
		switch {
		case s.mistake == growAtHalf && c.change && o.Bucket.Max > 0:
			w.d.level += o.Bucket.tokens() / 2
		case s.mistake == forgetFull && c.change && c.before.Max == 0:
			w.d.level += o.Bucket.tokens()
		case s.mistake == noWaitForTheAck:
			w.d.Acknowledge(c, o.Seq, s.now)
		}
		e := c.Tag.(*envoyModel) //nolint:errcheck // a model joins with itself alone
		if e.client == c {
			s.post(&e.inbox, message{weir: w, client: c, order: o})
		}
	}
}

// deliver takes messages that have arrived, both ways.
func (s *schedule) deliver(e *envoyModel) {
	e.inbox = slices.DeleteFunc(e.inbox, func(m message) bool {
		if m.at > s.now {
			return false
		}
		if e.client == m.client { // else nobody is there to acknowledge
			s.post(&e.outbox, message{weir: m.weir, client: m.client, ack: m.order.Seq})
		}
		e.assign(s, m.order)
		return true
	})
	e.outbox = slices.DeleteFunc(e.outbox, func(m message) bool {
		switch {
		case m.at > s.now || m.weir.stopped(s.now):
			return false
		case m.client.Over():
			return true
		case m.leave:
			m.weir.d.Leave(m.client)
			if s.mistake == reuseDead {
				m.weir.forget(func(c *Client) bool { return c == m.client })
			}
		case m.ack > 0:
			m.weir.due = min(m.weir.due, m.weir.d.Acknowledge(m.client, m.ack, s.now))
			return true
		default:
			m.weir.d.Report(m.client, m.allowed, m.denied, s.now)
		}
		m.weir.due = 0
		return true
	})
	if e.assigned && s.now >= e.expires {
		e.assigned = false
		e.put(s, nil)
	}
}

// assign acts as the main thread of Envoy at an assignment.
func (e *envoyModel) assign(s *schedule, o Order) {
	if o.Abandon {
		e.known, e.assigned = false, false
		e.put(s, nil)
		return
	}
	e.expires = s.now + time.Duration(float64(TTL)/e.clock)
	switch {
	case o.Bucket.Max == 0:
		e.put(s, nil)
	case e.assigned && e.rule != nil && e.rule.Max == o.Bucket.Max && e.rule.Fill == o.Bucket.Fill: // the same
	default:
		local := s.now.Seconds() * e.clock
		b := &bucketOfEnvoy{Bucket: o.Bucket, tokens: float64(o.Bucket.Max), at: local}
		if e.assigned && e.rule != nil {
			e.rule.fill(local)
			b.tokens = e.rule.tokens / float64(e.rule.Max) * float64(b.Max)
		}
		e.put(s, b)
	}
	e.assigned = true
}

func (e *envoyModel) put(s *schedule, rule *bucketOfEnvoy) {
	e.rule = rule
	for i := range e.workers {
		lag := time.Duration(s.random.Int64N(int64(20 * time.Millisecond)))
		if !s.calm && s.random.IntN(4) == 0 {
			lag = time.Duration(s.random.Int64N(int64(Settle - tick)))
		}
		w := &e.workers[i]
		if e == s.own && w.rule != nil && w.rule.Max == math.MaxUint32 {
			lag = min(lag, Handover-2*tick)
		}
		if n := len(w.switches); n > 0 {
			lag = max(lag, w.switches[n-1].at-s.now)
		}
		w.switches = append(w.switches, change{s.now + lag, rule})
	}
}

// serve lets each worker ask for the requests of one tick.
func (s *schedule) serve(e *envoyModel) {
	if !s.calm && s.random.IntN(s.restless) == 0 {
		e.rate = s.rates[s.random.IntN(len(s.rates))]
	}
	for i := range e.workers {
		w := &e.workers[i]
		for len(w.switches) > 0 && w.switches[0].at <= s.now {
			w.rule = w.switches[0].rule
			w.switches = w.switches[1:]
		}
	}
	e.attempts += s.arrivals(e.rate * tick.Seconds())
	for at := s.random.IntN(len(e.workers)); e.attempts >= 1; at = (at + 1) % len(e.workers) {
		w := &e.workers[at]
		e.attempts--
		s.attempts++
		s.decideAlone()
		if e.asked == 0 {
			e.asked = s.now
		}
		admitted := false
		if b := w.rule; b != nil {
			b.fill(s.now.Seconds() * e.clock)
			if admitted = b.tokens >= 1 && (e != s.own || s.count.take(s.now)); admitted {
				b.tokens--
				s.admit()
			}
		}
		if admitted {
			e.allowed++
			if e.passed == 0 {
				e.passed = s.now
			}
		} else {
			e.denied++
		}
		if !e.known && e != s.own { // the first request is reported at once, if there is a stream
			if e.known = true; !e.cut {
				e.join(s)
				e.send(s)
			}
		}
	}
}

// decideAlone lets the one process decide a request.
func (s *schedule) decideAlone() {
	if s.one == nil {
		return
	}
	if s.one.fill(s.now.Seconds()); s.one.tokens >= 1 {
		s.one.tokens--
		s.ideal++
	}
}

// arrivals returns the requests of a tick, at random instants where nothing fails.
func (s *schedule) arrivals(average float64) (n float64) {
	if !s.calm {
		return average
	}
	for left := average; ; n++ {
		if left -= s.random.ExpFloat64(); left < 0 {
			return n
		}
	}
}

func (e *envoyModel) send(s *schedule) {
	if e.client == nil { // nobody answers
		return
	}
	s.post(&e.outbox, message{weir: e.weir, client: e.client, allowed: e.allowed, denied: e.denied})
	e.allowed, e.denied = 0, 0
}

// admit is the oracle: each interval has at most the requests that one bucket would admit in it.
func (s *schedule) admit() {
	s.admitted++
	if s.window > 0 {
		if s.now >= s.windowAt+s.window {
			s.windowAt, s.inWindow = s.now/s.window*s.window, 0
		}
		s.inWindow++
		s.over = s.over || s.inWindow > s.perWin
		if s.own != nil {
			return // without a division a window may be used at once
		}
	}
	s.oracle.fill(s.now.Seconds())
	if s.oracle.tokens--; s.oracle.tokens < -1e-6 {
		s.over = true
	}
}

// report sends the reports of every five seconds. After the end of a stream it opens another one.
func (s *schedule) report(e *envoyModel) {
	if s.now < e.reportAt {
		return
	}
	e.reportAt += 5 * time.Second
	if e.cut && s.now < e.away {
		return
	}
	e.cut = false
	if e.known {
		e.join(s)
		e.send(s)
	}
}

// join opens a stream, or goes on.
func (e *envoyModel) join(s *schedule) {
	if e.client == nil {
		e.inbox = nil // Envoy has closed the stream before
	}
	if s.d == nil && !s.begin() {
		return
	}
	if e.client == nil {
		e.weir = s.weirs[s.random.IntN(len(s.weirs))]
	}
	if (e.client == nil || e.client.Over()) && !e.weir.stopped(s.now) {
		e.client = e.weir.d.Join(s.now, e)
		e.weir.due = 0
	}
}

// die ends the stream of an Envoy. Messages on their way may arrive, or not.
func (s *schedule) die(e *envoyModel) {
	if e.client == nil {
		return
	}
	gone := e.client
	e.client, e.cut = nil, true
	if s.random.IntN(3) == 0 {
		e.away = s.now + 35*time.Second
	}
	lost := func(m message) bool { return s.random.IntN(2) == 0 }
	e.inbox, e.outbox = slices.DeleteFunc(e.inbox, lost), slices.DeleteFunc(e.outbox, lost)
	s.post(&e.outbox, message{weir: e.weir, client: gone, leave: true})
	if s.random.IntN(3) == 0 { // the process too; another one begins without an assignment
		e.known, e.assigned, e.rule = false, false, nil
		e.allowed, e.denied = 0, 0
		e.inbox = nil
		for i := range e.workers {
			e.workers[i] = worker{}
		}
	}
}

func newSchedule(seed uint64, envoys int, l Limit, m mistake) *schedule {
	s := &schedule{random: rand.New(rand.NewPCG(seed, 27)), mistake: m, weirModel: &weirModel{d: New(l, 0)}}
	s.weirs, s.whole = []*weirModel{s.weirModel}, l
	for range envoys {
		s.envoys = append(s.envoys, &envoyModel{
			clock: 1 + (s.random.Float64()*2-1)/drift, workers: make([]worker, 2), rate: 3000,
			reportAt: time.Duration(s.random.Int64N(int64(5*time.Second))) / tick * tick,
		})
	}
	s.restless, s.deaths = []int{150, 600, 2000}[s.random.IntN(3)], []int{500, 4000, 20_000}[s.random.IntN(3)]
	s.slow = []int{12, 4, 2}[s.random.IntN(3)]
	s.rates = [][]float64{{0, 0, 5, 100, 3000}, {20, 3000}, {0, 3000}}[s.random.IntN(3)]
	s.oracle = &bucketOfEnvoy{Bucket: Bucket{Max: uint32(l.Burst / token), Fill: uint32(l.Rate / 1e6), Interval: 1000}}
	s.oracle.tokens = float64(s.oracle.Max)
	return s
}
