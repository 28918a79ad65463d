package quota

import (
	"fmt"
	"slices"
	"time"
)

// Deliberate errors in the division among processes.
const (
	backTooEarly mistake = iota + 100 // a part is given back before the clients have less
	deadTooEarly                      // the part of a process is given on after five seconds
	growWithoutSum
	refillLost    // a record that is lost begins as a new limit
	lateCallTaken // a call has an effect after a later one
	wakeAndSend   // a process that was stopped sends orders before it has called
	lateAnswer    // an answer counts after the next call
)

var sharingMistakes = map[string]mistake{
	"part given back before the Envoys have less": backTooEarly, "part of a dead process reused early": deadTooEarly,
	"growth before the sum is looked at": growWithoutSum, "lost record refilled at once": refillLost,
	"late call taken": lateCallTaken, "orders after a stop without a call": wakeAndSend, "late answer taken": lateAnswer,
}

// Deliberate errors with the requests of RLS in several processes.
const (
	hereNotDebited   mistake = iota + 200 // the bucket of RLS is not debited
	hereGrowsEarly                        // the old bucket of RLS is free at once
	hereAfterAStop                        // RLS goes on with its bucket after the process was stopped
	hereWithoutAKeep                      // the first requests after a stop find the bucket
	hereEndsEarly                         // the part of RLS is free before the last requests have ended
)

var hereMistakes = map[string]mistake{
	"bucket of RLS not debited": hereNotDebited, "growth before RLS has shrunk": hereGrowsEarly,
	"bucket of RLS after a stop": hereAfterAStop, "first requests after a stop": hereWithoutAKeep, "end of RLS before its requests": hereEndsEarly,
}

// rare has a number shortly before the first schedule that finds a mistake, for mistakes that few
// schedules find.
var rare = map[mistake]int{hereAfterAStop: 850, hereWithoutAKeep: 1700}

// sharer is the part of a weirModel that speaks with Redis.
type sharer struct {
	h        *Holding
	name     string
	number   uint32
	call     *callModel // under way; nil: none
	askAt    time.Duration
	worked   time.Duration // when the process last had time
	until    time.Duration // when the process goes on after a stop
	answered bool          // since the process begins, or goes on
	cut      time.Duration // until then the process does not reach Redis
	rls      *envoyModel   // the requests of RLS; nil: none
}

// callModel is a call on its way to Redis, or its answer on the way back.
type callModel struct {
	weir          *weirModel
	number        uint32
	begun, at     time.Duration
	claim, answer string
	back          bool
}

const theLimit = "limit"

func (w *weirModel) stopped(now time.Duration) bool { return w.sharer != nil && now < w.until }

// works reports whether the process may send orders.
func (w *weirModel) works(now time.Duration) bool {
	return w.sharer == nil || w.answered && !w.stopped(now)
}

// addRedis makes so many processes share the limit of the schedule.
func (s *schedule) addRedis(weirs int, l Limit) {
	s.redis = &redisModel{
		run: "1", limits: make(map[string]*recordModel),
		noSum: s.mistake == growWithoutSum, refills: s.mistake == refillLost, noOrder: s.mistake == lateCallTaken,
	}
	if s.mistake == deadTooEarly {
		s.redis.dead = 5000
	}
	s.redis.clock = &clockModel{run: "1"}
	s.weirs = nil
	for range weirs {
		s.weirs = append(s.weirs, s.newWeir(l))
	}
	s.weirModel = s.weirs[0]
}

func (s *schedule) newWeir(l Limit) *weirModel {
	s.names++
	h := Hold(l, s.now)
	w := &weirModel{d: h.Division, sharer: &sharer{h: h, name: fmt.Sprintf("weir%04d", s.names), worked: s.now}}
	if s.asks > 0 {
		w.rls = &envoyModel{clock: 1, workers: make([]worker, 3), known: true, rate: s.rates[s.random.IntN(len(s.rates))]}
	}
	return w
}

// holds reports whether requests of RLS in a process may use its bucket.
func (s *schedule) holds(w *weirModel) bool {
	return s.now-w.worked <= Away || s.mistake == hereWithoutAKeep
}

// serveRLS lets the requests of RLS in a process ask, and does all for them that is due.
func (s *schedule) serveRLS(w *weirModel) {
	if w.sharer == nil || w.rls == nil || w.stopped(s.now) {
		return
	}
	e := w.rls
	if !s.holds(w) {
		was := e.workers
		e.workers = make([]worker, len(was))
		s.serve(e)
		e.workers = was
		return
	}
	s.serve(e)
	switch {
	case e.client == nil && e.denied > 0:
		e.client = w.d.JoinHere(s.now, e)
		w.due = 0
	case e.client != nil && !s.calm && s.random.IntN(s.asks) == 0:
		s.endHere(w)
	case e.client != nil:
		w.d.Asked(e.client, e.allowed+e.denied, s.now)
	}
	e.allowed, e.denied = 0, 0
}

// takeHere puts an order for the requests of RLS in force.
func (s *schedule) takeHere(w *weirModel, o Order) {
	var b *bucketOfEnvoy
	if o.Bucket.Max > 0 {
		b = &bucketOfEnvoy{Bucket: o.Bucket, tokens: float64(o.Bucket.Max), at: s.now.Seconds()}
	}
	w.rls.put(s, b)
	w.due = min(w.due, w.d.Acknowledge(o.Client, o.Seq, s.now))
	switch {
	case s.mistake == hereGrowsEarly:
		w.d.put(o.Client, o.Client.bucket, given{})
		o.Client.change = false
	case s.mistake == hereNotDebited:
		w.d.level += o.Bucket.tokens()
	}
}

// endHere ends the part of RLS in a process. The next request asks for another one.
func (s *schedule) endHere(w *weirModel) {
	e := w.rls
	e.put(s, nil)
	w.d.Deny(e.client, s.now)
	w.d.Leave(e.client)
	if s.mistake == hereEndsEarly {
		w.forget(func(c *Client) bool { return c == e.client })
	}
	e.client, w.due = nil, 0
}

// unspent returns the tokens of all levels.
func (s *schedule) unspent() float64 {
	if s.redis == nil {
		return float64(s.d.level) / token
	}
	sum := int64(0)
	for _, w := range s.weirs {
		if !w.stopped(s.now) || s.now-w.h.called < Dead-Call { // else the process has lost its part when it goes on
			sum += max(0, w.d.level)
		}
	}
	if of := s.redis.limits[theLimit]; of != nil && s.redis.clock.run == s.redis.run && of.at >= max(s.redis.clock.whole, of.still) {
		sum += scale(s.whole.Burst, time.Duration(of.level), One)
	}
	return float64(sum) / token
}

// share lets a process call Redis, and take answers. Redis and processes fail now and then.
func (s *schedule) share(w *weirModel) {
	if w.sharer == nil {
		return
	}
	if w == s.weirs[0] {
		s.serveCalls()
		s.harm()
	}
	if w.stopped(s.now) {
		return
	}
	if s.now-w.worked > Away && s.mistake != wakeAndSend {
		w.answered = false
		if w.rls != nil && w.rls.client != nil && s.mistake != hereAfterAStop {
			w.rls.put(s, nil)
			w.d.Deny(w.rls.client, s.now)
		}
		w.h.Wake(s.now)
	}
	w.worked = s.now
	if w.call != nil && s.now-w.call.begun > Call && s.mistake != lateAnswer {
		w.call, w.askAt = nil, s.now
	}
	if w.call == nil && s.now >= w.askAt || s.mistake == lateAnswer && w.call != nil && s.now-w.call.begun > Call && s.now >= w.askAt {
		s.ask(w)
	}
}

func (s *schedule) ask(w *weirModel) {
	w.number++
	claim := w.h.Claim(nil, w.number, s.now)
	if s.mistake == backTooEarly {
		claim = append(append(claim[:4:4], unitsOf(w.h.part)...), claim[12:]...)
	}
	c := &callModel{weir: w, number: w.number, begun: s.now, claim: string(claim)}
	w.call, w.askAt = c, s.now+Call/2
	c.at = s.now + s.callDelay()
	if s.now >= w.cut && (s.calm || s.random.IntN(20) > 0) {
		s.calls = append(s.calls, c)
	}
}

func unitsOf(p Portion) (b []byte) {
	for _, n := range []uint32{p.Rate, p.Burst} {
		b = append(b, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	return b
}

func (s *schedule) callDelay() time.Duration {
	if !s.calm && s.random.IntN(12) == 0 {
		return time.Duration(s.random.Int64N(int64(4 * time.Second)))
	}
	return time.Duration(s.random.Int64N(int64(5 * time.Millisecond)))
}

// serveCalls lets Redis run the calls that have arrived, and processes take the answers.
func (s *schedule) serveCalls() {
	s.calls = slices.DeleteFunc(s.calls, func(c *callModel) bool {
		switch {
		case c.at > s.now || !c.back && s.now < s.redisBack || c.back && c.weir.stopped(s.now):
			return false
		case !c.back:
			c.answer, c.back = s.redis.call(c.weir.name, 1000+s.now.Milliseconds(), theLimit, c.claim), true
			c.at = s.now + s.callDelay()
			return !s.calm && s.random.IntN(20) == 0
		}
		w := c.weir
		if w.call != c && s.mistake != lateAnswer || s.now-c.begun > Call && s.mistake != lateAnswer {
			return true
		}
		if w.h.Answer(c.answer, c.begun, s.now) {
			w.answered = true
		}
		w.call, w.due = nil, 0
		return true
	})
}

// harm stops, cuts off and kills processes, and stops and replaces Redis.
func (s *schedule) harm() {
	if s.now%(100*tick) == 0 {
		s.copies = append(s.copies, s.redis.copied(""))
		s.copies = s.copies[max(0, len(s.copies)-6):] // of three seconds
	}
	if s.calm || s.now > s.quiet {
		return
	}
	within := func(most time.Duration) time.Duration { return s.now + time.Duration(s.random.Int64N(int64(most))) }
	w := s.weirs[s.random.IntN(len(s.weirs))]
	switch s.random.IntN(s.harms) {
	case 0:
		s.kill(w)
	case 1:
		w.until = within([]time.Duration{5 * time.Second, 70 * time.Second}[s.random.IntN(2)])
	case 2:
		if s.now > w.cut+10*time.Second {
			w.cut = within(5 * time.Second)
		}
	case 3:
		s.redisBack = within([]time.Duration{5 * time.Second, 60 * time.Second}[s.random.IntN(2)])
	case 4: // another one takes over, with older data or without
		s.runs++
		run := fmt.Sprint("run", s.runs)
		if s.random.IntN(3) == 0 || len(s.copies) == 0 {
			s.redis = s.redis.copied(run)
			s.redis.clock, s.redis.limits = nil, make(map[string]*recordModel)
		} else {
			s.redis = s.copies[s.random.IntN(len(s.copies))].copied(run)
		}
		s.copies = nil
		s.redisBack = max(s.redisBack, within(3*time.Second))
		if s.random.IntN(2) == 0 {
			s.calls = slices.DeleteFunc(s.calls, func(c *callModel) bool { return !c.back })
		}
	}
}

// kill ends a process. Another one comes in its place, and the Envoys go to any.
func (s *schedule) kill(w *weirModel) {
	place := slices.Index(s.weirs, w)
	s.weirs[place] = s.newWeir(s.whole)
	s.weirModel = s.weirs[0]
	for _, e := range s.envoys {
		if e.weir != w {
			continue
		}
		e.client, e.cut = nil, true
		e.inbox = slices.DeleteFunc(e.inbox, func(message) bool { return s.random.IntN(2) == 0 })
		e.outbox = slices.DeleteFunc(e.outbox, func(m message) bool { return m.weir == w })
	}
	s.calls = slices.DeleteFunc(s.calls, func(c *callModel) bool { return c.weir == w && c.back })
	w.until = 1 << 62
}
