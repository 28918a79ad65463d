package limiter

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Notice says one of four: a key has used a part of its limit, a mark of warn_at. An estimate was
// cut to the limit. A request was denied because its model has no price. A key was blocked.
type Notice struct {
	Domain string
	Rule   *descriptors.Rule
	Key    string // readable, see descriptors.AppendKey
	Limit  descriptors.Limit
	Mark   uint8 // in percent
	Used   uint64
	Of     uint64    // the capacity of Limit
	Until  time.Time // the end of the window; zero for a limit without windows

	Estimate uint64 // hits that were cut to Of; else 0
	Model    string // without a price; else ""

	Block time.Duration // the length of a block that has begun; else 0
}

// MaxAccounts is the most keys of limits with warn_at of which a limiter keeps an account.
const MaxAccounts = 10_000

const (
	accountShards  = 16
	maxAccountText = 1024 // bytes. A key with a longer text has no account
	sampled        = 8    // accounts, of which one may make room
)

// accounts is the accounts of the keys of limits with warn_at. Other limits cost nothing. When all
// places are taken, a new key takes the place of a key that has used a smaller part of its limit.
// Of some random keys the least one goes, as Redis evicts keys.
type accounts struct {
	shards  [accountShards]accountShard
	since   time.Time     // the start of the process
	leftOut atomic.Uint64 // times that a key got no account, or lost it to another key
}

type accountShard struct {
	mu  sync.Mutex // guards all
	all map[uint64]*account
}

// account is the use of a key, as far as this process has seen it.
type account struct {
	text     string // see appendTracked
	used     uint64 // by the last decision
	capacity uint64
	until    int64 // Unix nanoseconds. The end of the window; without windows, the instant from which a mark may be said again
	period   time.Duration
	said     uint8 // bits of the marks
	jumped   bool  // hits were counted without a decision: the next charge may be far above the last one
	windows  bool
	closed   closedWindow
}

// closedWindow is the last window of a key that has ended. Without such a window all is 0.
type closedWindow struct {
	used, capacity uint64
	until          int64 // Unix nanoseconds
}

// sighting is one decided charge of a key that has an account, or should have one.
type sighting struct {
	now            int64 // Unix nanoseconds
	limit          *descriptors.Limit
	used, capacity uint64
	before         uint64 // the used hits before the charge
	rejected       bool   // the charge was denied, and counts: before is not known
	approximate    bool   // the decision says about how much all processes have used
	resetAfter     time.Duration
}

// note keeps the accounts of a decided request, and gives the notices. A charge crosses a mark when
// the used hits were below the mark before the charge, and are not below after. Decisions without
// the shared store say nothing about the use by all processes: these are left out.
func (l *Limiter) note(r *Request, v *Verdict) {
	var now int64
	if l.options.Now != nil {
		now = l.options.Now().UnixNano()
	}
	for i := range v.charges {
		c, d, limit := &v.charges[i], &v.decisions[i], v.terms[i].limit
		if limit.WarnAt[0] == 0 || v.terms[i].aside() {
			continue
		}
		if v.parts.states[i].Source == store.Without {
			l.accounts.jump(c.Hash)
			continue
		}
		capacity := c.Limit.Capacity()
		used := capacity - min(d.Remaining, capacity)
		if capacity == 0 {
			continue
		}
		if used >= descriptors.Threshold(capacity, limit.WarnAt[0]) {
			v.SoftBreach = true
		}
		hits := c.Hits
		if c.Hold != nil {
			hits = asked(c)
		}
		applied := d.Allowed && !v.OverLimit || c.CountRejected
		if hits == 0 || !applied || now == 0 {
			continue
		}
		s := sighting{
			now: now, limit: limit, used: used, capacity: capacity, before: used,
			rejected: !d.Allowed && hits > 1, approximate: !c.Exact, resetAfter: d.ResetAfter,
		}
		if d.Allowed {
			s.before = uint64(max(int64(used)-hits, 0))
		}
		marks, until := l.accounts.see(&s, r, v, i)
		if marks != 0 {
			l.give(r, v, i, &s, marks, until)
		}
	}
}

// give counts notices, and hands them over.
func (l *Limiter) give(r *Request, v *Verdict, i int, s *sighting, marks uint8, until int64) {
	c := &v.charges[i]
	of := &v.Statuses[c.Rule]
	counts := v.set.countsOf(r, of)
	for n, mark := range s.limit.WarnAt.All() {
		if marks&(1<<n) == 0 {
			continue
		}
		counts.further().warn(mark)
		if l.options.OnNotice == nil {
			continue
		}
		notice := Notice{Domain: r.Domain, Rule: of.Rule, Key: string(c.Key), Limit: *s.limit, Mark: mark, Used: s.used, Of: s.capacity}
		if until != 0 {
			notice.Until = time.Unix(0, until)
		}
		l.options.OnNotice(&notice)
	}
}

func (a *accounts) shard(hash uint64) *accountShard { return &a.shards[hash>>32%accountShards] }

// jump notes that hits of a key are counted, and that no decision gives the sum.
func (a *accounts) jump(hash uint64) {
	s := a.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.all[hash]; known != nil {
		known.jumped = true
	}
}

// reset notes that the hits of a key were forgotten.
func (a *accounts) reset(hash uint64) {
	s := a.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.all[hash]; known != nil {
		known.used, known.said = 0, 0
	}
}

// see enters a charge in the account of its key. marks is the marks to say, as bits. until is the
// end of the window; 0 without windows.
func (a *accounts) see(s *sighting, r *Request, v *Verdict, i int) (marks uint8, until int64) {
	hash := v.charges[i].KeyHash()
	shard := a.shard(hash)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	known := shard.all[hash]
	if known == nil {
		v.values = appendTracked(v.values[:0], r, v, i)
		before := len(shard.all)
		known = shard.admitLocked(hash, s, v.values)
		if len(shard.all) == before {
			a.leftOut.Add(1)
		}
		if known == nil {
			return 0, 0
		}
	}
	if !known.turn(s) {
		return 0, 0
	}
	marks = known.cross(s)
	if known.windows {
		return marks, known.until
	}
	return marks, 0
}

// admitLocked returns a new account for a key, or nil when there is no room. mu must be held.
func (s *accountShard) admitLocked(hash uint64, seen *sighting, text []byte) *account {
	if len(text) > maxAccountText {
		return nil
	}
	if s.all == nil {
		s.all = make(map[uint64]*account)
	}
	if len(s.all) >= MaxAccounts/accountShards && !s.makeRoomLocked(seen) {
		return nil
	}
	known := &account{
		text: string(text), used: seen.before, capacity: seen.capacity,
		period: seen.limit.Period, windows: seen.limit.Algorithm.HasWindows(),
	}
	for n, mark := range seen.limit.WarnAt.All() { // another process has said these, or this one before its restart
		if seen.before >= descriptors.Threshold(seen.capacity, mark) {
			known.said |= 1 << n
		}
	}
	s.all[hash] = known
	return known
}

func (s *accountShard) makeRoomLocked(seen *sighting) bool {
	var least uint64
	lowest, found, n := part(seen.used, seen.capacity), false, 0
	for hash, known := range s.all {
		if known.over(seen.now) {
			least, found = hash, true
			break
		}
		if p := part(known.used, known.capacity); p < lowest {
			least, lowest, found = hash, p, true
		}
		if n++; n == sampled {
			break
		}
	}
	if found {
		delete(s.all, least)
	}
	return found
}

func part(used, capacity uint64) float64 {
	if capacity == 0 {
		return 0
	}
	return float64(used) / float64(capacity)
}

// over reports whether the last window of the key ended more than a period ago.
func (a *account) over(now int64) bool {
	return a.windows && now-a.until > int64(a.period)
}

// turn moves the account to the window of a charge. false: the answer about the charge is late, and
// its window has ended. The ends of one window differ by the times that answers take.
func (a *account) turn(s *sighting) bool {
	if !a.windows {
		return true
	}
	end := s.now + int64(s.resetAfter)
	switch half := int64(a.period) / 2; {
	case a.until == 0:
		a.until = end
	case end-a.until > half:
		a.closed = closedWindow{a.used, a.capacity, a.until}
		a.used, a.until, a.said = 0, end, 0
	case a.until-end <= half:
		a.until = min(a.until, end)
	case a.until-end < 3*half:
		return false
	default: // the clock has gone back
		a.until, a.said = end, 0
	}
	return true
}

// cross returns the marks that the charge has crossed, and that were not said before.
func (a *account) cross(s *sighting) (marks uint8) {
	before := s.before
	if s.rejected { // the last charge of the key that this process has seen
		before = min(a.used, s.used)
	}
	again := a.capacity != s.capacity || !a.windows && s.now >= a.until
	anyway := s.approximate || a.jumped
	for n, mark := range s.limit.WarnAt.All() {
		bit, least := uint8(1)<<n, descriptors.Threshold(s.capacity, mark)
		if again && before < least {
			a.said &^= bit
		}
		if s.used >= least && a.said&bit == 0 && (before < least || anyway) {
			marks |= bit
		}
	}
	a.said |= marks
	a.used, a.capacity, a.jumped = s.used, s.capacity, false
	if marks != 0 && !a.windows {
		a.until = s.now + int64(a.period)
	}
	return marks
}
