package limiter

import (
	"context"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Check decides a request and writes the answer to v. After an error nothing was charged, and v has
// no meaning. The error is an [*InvalidError], [ErrNoRules] (see Options.NeedRules), or the error
// of the store or of ctx.
func (l *Limiter) Check(ctx context.Context, r *Request, v *Verdict) error {
	if err := l.prepare(r, v); err != nil {
		return err
	}
	admitted, err := l.take(ctx, v, v.charges, v.decisions)
	for err == nil && v.again(admitted) {
		err = v.further(l.takeFurther(ctx, v))
	}
	return l.finish(r, v, admitted, err)
}

// CheckNow is Check for a request that the store decides without waiting, see [store.Store]. If the
// request has to wait, decided is false, and v is prepared. As long as r and v stay as they are,
// [Limiter.CheckAll] goes on from v with Question.Prepared. The caller may also drop v.
func (l *Limiter) CheckNow(r *Request, v *Verdict) (decided bool, err error) {
	if err := l.prepare(r, v); err != nil {
		return true, err
	}
	if len(v.Groups) > 0 || v.escalates && !l.local { // may take several transactions
		return false, nil
	}
	admitted, decided := l.takeNow(v)
	if !decided {
		return false, nil
	}
	for v.again(admitted) { // as a store that has decided in place can do
		l.store.TakeNow(v.choice.charges, v.choice.decisions)
	}
	return true, l.finish(r, v, admitted, nil)
}

func (l *Limiter) takeNow(v *Verdict) (admitted, decided bool) {
	if len(v.charges) == 0 {
		return true, true
	}
	return l.store.TakeNow(v.charges, v.decisions)
}

// take is [store.Take] for charges of v, without allocating.
func (l *Limiter) take(ctx context.Context, v *Verdict, charges []store.Charge, decisions []algorithms.Decision) (admitted bool, err error) {
	if len(charges) == 0 {
		return true, nil
	}
	if ctx.Err() == nil {
		if admitted, decided := l.store.TakeNow(charges, decisions); decided {
			return admitted, nil
		}
	}
	v.one[0] = store.Transaction{Ctx: ctx, Charges: charges, Decisions: decisions}
	l.store.TakeAll(v.one[:], func([]int) {})
	one := v.one[0]
	v.one[0] = store.Transaction{} // releases ctx
	return one.Admitted, one.Err
}

// prepare begins a request: it fills in v's charges for the store. After an error the request has
// ended; else finish ends the request.
//
// The rules and grants in force now decide the request, and count it, also if others come in
// between: the request has begun before these. The states that the store tells then belong to the
// limits of v.charges. A charge under another limit does not use them.
func (l *Limiter) prepare(r *Request, v *Verdict) error {
	set := l.current.Load()
	if err := l.charges(set, r, v); err != nil {
		l.requests.failed.Add(1)
		l.requests.invalid.Add(1)
		return err
	}
	if !set.loaded && l.options.NeedRules {
		l.requests.failed.Add(1)
		l.requests.early.Add(1)
		return ErrNoRules
	}
	return nil
}

// finish ends a prepared request: it fills in the verdict by the store's decisions, and counts the
// request. err is the error of the store, which finish returns.
func (l *Limiter) finish(r *Request, v *Verdict, admitted bool, err error) error {
	if err != nil {
		l.requests.failed.Add(1)
		return err
	}
	v.OverLimit = !admitted
	if len(v.Groups) > 0 {
		v.judge(admitted)
	}
	if v.notes {
		l.note(r, v)
	}
	if v.escalates {
		l.noteBlocks(r, v)
	}
	if v.scheduled {
		v.waitForEdges(r)
	}
	if v.cuts {
		v.waitForSlots()
	}
	if len(v.parts.holds) > 0 && l.estimates.Load() != nil {
		l.learned(v)
	}
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.Outcome == Limited {
			v.sum(s)
		}
		l.count(r, v, i)
	}
	if l.tracking.keys != nil && len(v.charges) > 0 {
		l.tracking.count(r, v)
	}
	if v.OverLimit && l.options.Shadow {
		v.OverLimit = false
		l.requests.shadowed.Add(1)
	}
	if v.OverLimit {
		l.requests.overLimit.Add(1)
	} else {
		l.requests.passed.Add(1)
	}
	return nil
}

// charges validates the request, matches its descriptors and fills in v's statuses and charges.
func (l *Limiter) charges(set *ruleSet, r *Request, v *Verdict) error {
	v.reset()
	v.set = set
	if all := l.violations(r); len(all) > 0 {
		return &InvalidError{all}
	}
	v.grow(len(r.Descriptors))
	domain := set.rules.Domain(r.Domain)
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		v.Statuses = append(v.Statuses, DescriptorStatus{}) // and filled in there, as a charge is
		s := &v.Statuses[i]
		s.domain, s.Hits = domain, r.HitsOf(i)
		if domain != nil {
			s.Overridden = d.Override != nil
			if s.Rule = domain.Match(d.Entries); s.Rule == nil && !s.Overridden {
				s.Rule = domain.Default
			}
		}
		if s.Rule != nil && !s.Overridden && len(s.Rule.Replaces) > 0 {
			v.replaced = append(v.replaced, s.Rule.Replaces...)
			if len(v.replaced) > MaxCharges {
				return tooMuch("names to replace")
			}
		}
		if s.Rule != nil && s.Rule.Group.Rank > 0 && !s.Overridden {
			v.enter(s.Rule, d)
		}
	}
	if len(v.replaced) > 1 { // one for each limit of each descriptor
		slices.Sort(v.replaced)
	}
	for i := range v.Statuses {
		if err := l.charge(r, i, v); err != nil {
			return err
		}
		if len(v.charges) > MaxCharges {
			return tooMuch("charges: each limit of each descriptor is one")
		}
	}
	if l.options.Quota {
		v.quotas()
	}
	if v.cuts {
		v.passSlots()
	}
	v.link()
	if v.TellSource = v.TellSource || l.options.Remembered; v.TellSource || v.notes || v.escalates {
		v.tellSource()
	}
	if cap(v.decisions) < len(v.charges) {
		v.decisions = make([]algorithms.Decision, cap(v.charges))
	}
	v.decisions = v.decisions[:cap(v.decisions)]
	return nil
}

func tooMuch(of string) error {
	return &InvalidError{[]Violation{violation(FieldDescriptors, -1, "one request for more than %d %s", MaxCharges, of)}}
}

// charging is a descriptor while its charges are added.
type charging struct {
	request *Request
	verdict *Verdict
	at      int // index of the descriptor
	holder  holder
	mode    store.Mode
	asks    bool // of a group behind the first: nothing is charged yet
}

// charge adds the charges of descriptor i: one for each limit of the rule, unless another rule of
// the request replaces the limit. An override does not replace limits, and no rule replaces an
// override. The end of a holder charges limits with holders only.
func (l *Limiter) charge(r *Request, i int, v *Verdict) error {
	d, s := &r.Descriptors[i], &v.Statuses[i]
	c := charging{request: r, verdict: v, at: i}
	if s.Rule.Holds() {
		v.holder(s, d, &c.holder)
	}
	switch {
	case s.Overridden:
		return l.chargeOverride(&c)
	case s.Rule == nil:
		return nil
	case s.Rule.Unlimited:
		s.Outcome = Unlimited
		c.join(s)
		return nil
	case len(s.Rule.Limits) == 0:
		return nil
	}
	if s.Rule.Priced {
		if err := v.readUsage(s, d, i); err != nil {
			return err
		}
	}
	s.Outcome, s.charge = Limited, len(v.charges)
	s.Quota = s.Rule.Quota || l.options.Quota
	c.mode = modeOf(s.Rule.Shadow, s.Quota)
	if len(v.Groups) > 0 {
		c.join(s)
	}
	var first *descriptors.Limit // and its key: the keys of a rule differ in their ends, and a pattern takes time
	var key []byte
	for n := range s.Rule.Limits {
		limit := l.limitOf(v, s.Rule, n, d.Entries)
		if limit.Name != "" && v.replaces(limit.Name) || c.holder.skips(limit) {
			continue
		}
		from, charges := len(v.keys), len(v.charges)
		if first == nil {
			v.keys = s.Rule.AppendKey(v.keys, r.Domain, d.Entries, limit)
			first, key = limit, v.keys[from:]
		} else {
			v.keys = first.AppendKeyOf(v.keys, key, limit)
		}
		l.add(&c, limit, v.keys[from:])
		if v.set.formers != nil && len(v.charges) > charges {
			l.carry(&c, n, limit, &v.charges[charges])
		}
	}
	if parts := l.divided.table.Load(); (parts != nil || s.Rule.Divided) && !v.noPart && !c.mode.Shadows() && s.Group == 0 && !s.Rule.Holds() {
		l.part(&c, parts)
	}
	c.end()
	return nil
}

func modeOf(shadow, quota bool) store.Mode {
	switch {
	case shadow && quota:
		return store.ShadowQuota
	case shadow:
		return store.Shadow
	case quota:
		return store.Quota
	default:
		return store.Enforce
	}
}

// limitOf returns limit n of a rule, with the numbers of its table for a descriptor, and of its
// schedule for now.
func (l *Limiter) limitOf(v *Verdict, r *descriptors.Rule, n int, entries []Entry) *descriptors.Limit {
	limit := &r.Limits[n]
	if limit.Table() != nil {
		v.limits = append(v.limits, descriptors.Limit{})
		tabled := &v.limits[len(v.limits)-1]
		if r.LimitFor(n, entries, tabled) {
			limit = tabled
		} else {
			v.limits = v.limits[:len(v.limits)-1]
		}
	}
	if limit.Schedule() == nil {
		return limit
	}
	if !v.scheduled {
		v.scheduled, v.now = true, l.now()
	}
	at, changed := limit.At(v.now)
	if !changed {
		return limit
	}
	v.limits = append(v.limits, at)
	return &v.limits[len(v.limits)-1]
}

// chargeOverride adds the charge of a descriptor with an override, on the descriptor's own key,
// enforcing. The algorithm, count_rejected, on_store_error and hold come from the first limit of
// the matched rule. As in envoyproxy/ratelimit, nothing else of the rule applies.
func (l *Limiter) chargeOverride(c *charging) error {
	v, d, s := c.verdict, &c.request.Descriptors[c.at], &c.verdict.Statuses[c.at]
	like := descriptors.Limit{Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow}, CountRejected: !l.options.DropRejected}
	if s.Rule != nil && len(s.Rule.Limits) > 0 {
		like = s.Rule.Limits[0].WithoutTable()
	}
	limit, err := l.override(d.Override, c.at, &like)
	if err != nil || c.holder.skips(&like) {
		return err
	}
	s.Outcome, s.charge = Limited, len(v.charges)
	s.Quota = l.options.Quota
	c.mode = modeOf(false, s.Quota)
	v.limits = append(v.limits, limit)
	from := len(v.keys)
	v.keys = descriptors.AppendKey(v.keys, c.request.Domain, s.Rule.WithoutHolder(d.Entries), &limit)
	l.add(c, &v.limits[len(v.limits)-1], v.keys[from:])
	c.end()
	return nil
}

// add adds a charge under the numbers of a grant, if there is one, and no charge where the grant
// lets everything pass. The end of a holder then costs nothing, and gives back the held hits.
func (l *Limiter) add(c *charging, limit *descriptors.Limit, key []byte) {
	v, s, hits, phase := c.verdict, &c.verdict.Statuses[c.at], c.holder.hits, c.holder.phase
	force := l.granted(v, s, limit, key)
	grant := force.grant
	if s.Grant == nil {
		s.Grant = grant
	}
	switch {
	case grant == nil:
	case grant.Gives != GivesUnlimited:
		v.limits = append(v.limits, force.change(limit))
		limit = &v.limits[len(v.limits)-1]
	case phase == 0 || phase == algorithms.HoldBegin || limit.AtMost == 0:
		return
	case phase == algorithms.HoldPair: // an end of a holder that nobody has begun does nothing
		phase, hits = algorithms.HoldEnd, -1
	default:
		hits = min(hits, 0)
	}
	v.charges = append(v.charges, store.Charge{}) // and filled in there: a charge is 128 bytes
	charge := &v.charges[len(v.charges)-1]
	charge.Key, charge.Hash = key, store.HashOf(key)
	charge.Limit = limit.Limit
	charge.Hits, charge.CountRejected = s.Hits, limit.CountRejected
	charge.Rule, charge.Mode = c.at, c.mode
	charge.OnError, charge.Exact = l.onError(limit.OnStoreError), !l.leased(limit.Sharing)
	held := 0
	if phase != 0 && limit.AtMost > 0 {
		v.parts.holds = append(v.parts.holds, store.Hold{Phase: phase, Holder: c.holder.id, AtMost: limit.AtMost, GivesBack: limit.GivesBack})
		held = len(v.parts.holds)
		charge.Hold, charge.Exact, charge.Hits = &v.parts.holds[held-1], true, hits
		if phase.Begins() && s.Rule.Pairs() {
			pairHits(charge)
		}
		if limit.Prices() && (grant == nil || grant.Gives != GivesUnlimited) {
			v.price(charge, limit)
		}
		if limit.Estimate.Learns() && charge.Hold != nil && charge.Limit.Requests > 0 && !v.noGrants {
			l.learns(c, limit, charge)
		}
	}
	v.terms = append(v.terms, term{limit: limit, grant: grant, hits: charge.Hits, hold: int32(held)})
	v.notes = v.notes || limit.WarnAt[0] != 0
	first := len(v.charges) - 1
	if cuts(charge) {
		v.cut(limit)
	}
	if limit.Escalate != nil && !l.options.Shadow {
		v.guard(c, first)
	}
	if s.Group > 0 {
		for i := first; i < len(v.charges); i++ {
			c.inGroup(&v.charges[i])
		}
	}
}

// end ends the charges of the descriptor. A quota without a charge, because of a grant, asks about
// 0 hits: it is a quota with room.
func (c *charging) end() {
	v, s := c.verdict, &c.verdict.Statuses[c.at]
	if len(v.lessons.all) > 0 {
		v.teach(c.at)
	}
	s.count = len(v.charges) - s.charge
	switch {
	case s.count > 0:
		return
	case s.Grant == nil:
		s.Outcome = Replaced
		return
	}
	s.Outcome = Unlimited
	if s.Group > 0 {
		return // the group has room
	}
	if c.mode == store.Quota || c.mode == store.ShadowQuota {
		limit, from := &s.Rule.Limits[0], len(v.keys)
		v.keys = s.Rule.AppendKey(v.keys, c.request.Domain, c.request.Descriptors[c.at].Entries, limit)
		v.charges = append(v.charges, store.Charge{Key: v.keys[from:], Limit: limit.Limit, Rule: c.at, Mode: store.ShadowQuota})
		v.terms = append(v.terms, term{limit: limit})
	}
}

func (l *Limiter) leased(s descriptors.Sharing) bool {
	return s == descriptors.SharingLeased || s == descriptors.SharingUnset && l.options.Leased
}

func (l *Limiter) onError(o descriptors.OnStoreError) store.OnError {
	switch o {
	case descriptors.OnStoreErrorLocal:
		return store.OnErrorLocal
	case descriptors.OnStoreErrorAllow:
		return store.OnErrorAllow
	case descriptors.OnStoreErrorDeny:
		return store.OnErrorDeny
	default:
		return l.options.OnStoreError
	}
}

// Question is the arguments and the result of one Check, for [Limiter.CheckAll].
type Question struct {
	Ctx      context.Context //nolint:containedctx // each question has a deadline of its own
	Request  *Request
	Verdict  *Verdict
	Prepared bool // [Limiter.CheckNow] has prepared Verdict for Request, and has not decided it

	Err error // set by CheckAll
}

// Questions is memory for [Limiter.CheckAll], reused from call to call. The zero value is ready.
// One goroutine at a time may use it.
type Questions struct {
	All []Question

	rest store.Rest
	more []int // indexes of questions whose groups take one more transaction
}

// CheckAll is [Limiter.Check] for each question in q.All, with one wait where the store can, see
// [store.Store]. CheckAll calls decided with the indexes of decided questions as soon as it can,
// on the calling goroutine, and with each index once. The slice is valid during the call. CheckAll
// returns after all are decided. The end of a Ctx may be noticed by its deadline only.
func (l *Limiter) CheckAll(q *Questions, decided func(indexes []int)) {
	for i := range q.All {
		one := &q.All[i]
		one.Err = nil
		if !one.Prepared {
			one.Err = l.prepare(one.Request, one.Verdict)
		}
		if v := one.Verdict; one.Err == nil && len(v.charges) > 0 {
			q.rest.Pass(i, store.Transaction{Ctx: one.Ctx, Charges: v.charges, Decisions: v.decisions})
			continue
		}
		if one.Err == nil {
			one.Err = l.finish(one.Request, one.Verdict, true, nil)
		}
		q.rest.Decide(i)
	}
	q.more = q.more[:0]
	q.rest.Take(l.store, func(i, _ int, answer *store.Transaction) bool {
		one := &q.All[i]
		if answer.Err == nil && one.Verdict.again(answer.Admitted) {
			q.more = append(q.more, i)
			return false
		}
		one.Err = l.finish(one.Request, one.Verdict, answer.Admitted, answer.Err)
		return true
	}, decided)
	l.takeAllFurther(q, decided)
}

// Result is the answer to one descriptor, for programs that need no more.
type Result struct {
	Allowed    bool
	Limit      uint64        // requests per period of the limit that decided; 0 when no limit applies
	Remaining  uint64        // hits that would pass now; 0 when no limit applies
	RetryAfter time.Duration // shortest wait after which the same hit passes without other traffic; 0 when allowed
	ResetAfter time.Duration // wait until the key is idle; 0 when no limit applies
	Never      bool          // one hit is more than the limit ever has: RetryAfter has no meaning
}

// Allow charges one hit to the descriptor with these entries and returns the decision. A descriptor
// that no limit applies to is allowed. Allow fails as [Limiter.Check] does; the caller then decides
// whether the request passes.
func (l *Limiter) Allow(ctx context.Context, domain string, entries ...Entry) (Result, error) {
	c, _ := l.calls.Get().(*call)
	defer l.calls.Put(c)
	c.request.Reset()
	c.request.Domain = domain
	d := c.request.Add()
	d.Entries = append(d.Entries, entries...)
	if err := l.Check(ctx, &c.request, &c.verdict); err != nil {
		return Result{}, err
	}
	result := Result{Allowed: !c.verdict.OverLimit}
	if s := &c.verdict.Statuses[0]; s.Outcome == Limited {
		result.Limit, result.Remaining, result.ResetAfter = s.Limit.PerPeriod(), s.Decision.Remaining, s.Decision.ResetAfter
		if !result.Allowed {
			result.RetryAfter, result.Never = s.Decision.RetryAfter, s.Never
		}
	}
	return result, nil
}

type call struct {
	request Request
	verdict Verdict
}
