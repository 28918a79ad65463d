package quota

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
)

// redisModel is a Redis with parts.lua: the script once more, by its first lines. Instants are in
// milliseconds.
type redisModel struct {
	run    string // of the server
	clock  *clockModel
	limits map[string]*recordModel

	// Deliberate mistakes.
	dead           int64 // 0: as the script has it
	noSum, noOrder bool  // parts grow beyond the sum; a late call has an effect
	refills        bool  // a record that is lost begins as a new limit
}

type clockModel struct {
	last, clock, whole int64
	run                string
}

type recordModel struct {
	at, still, level int64
	members          []memberModel
}

type memberModel struct {
	name                                             string
	beat, number, rate, burst, demand, weight, since int64
}

const deadModel = 40_500

// claimModel is a claim of a process.
type claimModel struct{ number, rate, burst, demand, weight, grain, turn, fills int64 }

// copied returns the data, as a replica has them.
func (r *redisModel) copied(run string) *redisModel {
	c := *r
	c.run, c.limits = run, make(map[string]*recordModel)
	if r.clock != nil {
		clock := *r.clock
		c.clock = &clock
	}
	for key, of := range r.limits {
		c.limits[key] = &recordModel{of.at, of.still, of.level, slices.Clone(of.members)}
	}
	return &c
}

func claimOf(text string) claimModel {
	at := 0
	next := func(size int) int64 {
		var b [8]byte
		copy(b[:], text[at:at+size])
		at += size
		return int64(binary.LittleEndian.Uint64(b[:]))
	}
	return claimModel{next(4), next(4), next(4), next(4), next(2), next(4), next(4), next(6)}
}

// call is the script, for one limit.
func (r *redisModel) call(me string, now int64, key, claim string) string {
	r.tick(now)
	rate, burst, tokens, ok := r.divide(me, key, claimOf(claim))
	if !ok {
		return ""
	}
	var b []byte
	for _, n := range []int64{rate, burst, tokens} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return string(binary.LittleEndian.AppendUint16(b, uint16(len(r.limits[key].members))))
}

// tick advances the clock.
func (r *redisModel) tick(now int64) {
	if r.clock == nil {
		r.clock = &clockModel{last: now, clock: now}
	}
	t := r.clock
	t.clock += max(0, min(now-t.last, 2000))
	t.last = now
	if t.run != r.run {
		t.run = r.run
		if !r.refills {
			t.whole = t.clock + deadModel
		}
	}
}

// read returns the record of a limit with the tokens of now, without dead processes.
func (r *redisModel) read(me, key string, fills int64) *recordModel {
	of := r.limits[key]
	if of == nil {
		of = &recordModel{at: r.clock.clock, level: One}
		if r.clock.clock < r.clock.whole {
			of.level = 0
		}
		r.limits[key] = of
		return of
	}
	free, dead := int64(One), cmp.Or(r.dead, deadModel)
	for _, m := range of.members {
		free -= m.rate
	}
	if sure := max(r.clock.whole, of.still); of.at < sure {
		of.at, of.level = sure, 0
	}
	of.level += max(0, min(r.clock.clock-of.at, 4_000_000)) * max(0, free) / fills
	of.at = r.clock.clock
	of.members = slices.DeleteFunc(of.members, func(m memberModel) bool { return m.name != me && r.clock.clock-m.beat >= dead })
	return of
}

func (r *redisModel) divide(me, key string, c claimModel) (rate, burst, tokens int64, ok bool) {
	isMe := func(m memberModel) bool { return m.name == me }
	if was := r.limits[key]; was != nil {
		if i := slices.IndexFunc(was.members, isMe); i >= 0 && c.number <= was.members[i].number && !r.noOrder {
			return 0, 0, 0, false
		}
	}
	of := r.read(me, key, c.fills)
	i := slices.IndexFunc(of.members, isMe)
	if i < 0 {
		i = len(of.members)
		of.members = append(of.members, memberModel{name: me, since: r.clock.clock})
		if c.rate+c.burst > 0 && !r.refills {
			of.still, of.level = r.clock.clock+deadModel, 0
		}
	}
	mine := &of.members[i]
	if mine.burst >= c.grain && c.burst < c.grain {
		mine.since = r.clock.clock
	}
	*mine = memberModel{me, r.clock.clock, c.number, c.rate, c.burst, c.demand, c.weight, mine.since}
	toRate, toBurst := r.target(of, i, c)
	rate, burst = min(c.rate, toRate), min(c.burst, toBurst)
	rates, bursts, _, _ := of.sums()
	if r.clock.clock >= max(r.clock.whole, of.still) {
		freeRate, freeBurst := One-rates, One-bursts
		spareRate, spareBurst := spares(c)
		if 2*c.rate > toRate {
			freeRate -= spareRate
		}
		if 2*c.burst > toBurst {
			freeBurst -= spareBurst
		}
		if r.noSum {
			freeRate, freeBurst = One, One
		}
		rate = max(rate, min(toRate, c.rate+freeRate))
		more := min(toBurst, c.burst+freeBurst)
		if rest := more % c.grain; rest < 0 {
			more -= rest + c.grain
		} else {
			more -= rest
		}
		burst = max(burst, more)
		tokens = max(0, min(of.level, burst-c.burst))
	}
	if burst < c.grain {
		rate = 0
	}
	mine.rate, mine.burst = max(c.rate, rate), max(c.burst, burst)
	of.level = max(0, min(of.level-tokens, One-bursts+c.burst-mine.burst))
	if c.burst < c.grain && burst >= c.grain {
		mine.since = r.clock.clock
	}
	if c.weight+c.rate+c.burst == 0 {
		of.members = slices.Delete(of.members, i, i+1)
	}
	return rate, burst, tokens, true
}

func spares(c claimModel) (rate, burst int64) {
	if c.grain*16 > One {
		return 0, 0
	}
	return One / 240, One / 8
}

func (of *recordModel) sums() (rates, bursts, n, weights int64) {
	for _, m := range of.members {
		rates, bursts, weights = rates+m.rate, bursts+m.burst, weights+m.weight
		if m.weight > 0 {
			n++
		}
	}
	return rates, bursts, n, weights
}

// target returns the part that a process should have.
func (r *redisModel) target(of *recordModel, i int, c claimModel) (rate, burst int64) {
	_, bursts, n, weights := of.sums()
	few := One/c.grain < n
	if c.weight == 0 || few && !r.seated(of, i, c, bursts) {
		return 0, 0
	}
	spareRate, spareBurst := spares(c)
	left, room := One-spareRate, One-spareBurst
	var sharers []memberModel
	for at, m := range of.members {
		if m.weight == 0 {
			room -= m.burst
		}
		if m.weight > 0 && (!few || at == i || m.burst >= c.grain) {
			sharers = append(sharers, m)
		} else {
			left -= m.rate
		}
	}
	burst = c.grain
	if !few {
		tokens := room / c.grain
		if room < 0 && room%c.grain != 0 {
			tokens--
		}
		burst *= 1 + (max(0, tokens-n)*c.weight+weights-1)/weights
	}
	return shareModel(sharers, of.members[i].name, max(0, left)), burst
}

func (r *redisModel) seated(of *recordModel, i int, c claimModel, bursts int64) bool {
	now := r.clock.clock
	var wait, leave []memberModel
	for _, m := range of.members {
		switch {
		case m.weight == 0:
		case m.burst < c.grain && m.demand > 0 && now-m.beat < 10_000:
			wait = append(wait, m)
		case m.burst >= c.grain && (m.demand == 0 || now-m.since >= c.turn):
			leave = append(leave, m)
		}
	}
	order := func(a, b memberModel) int {
		return cmp.Or(cmp.Compare(a.since, b.since), strings.Compare(a.name, b.name))
	}
	first := func(all []memberModel) string {
		if len(all) == 0 {
			return ""
		}
		return slices.MinFunc(all, order).name
	}
	me, free := of.members[i], bursts+c.grain <= One
	if me.burst >= c.grain {
		return len(wait) == 0 || free || first(leave) != me.name
	}
	return free && first(wait) == me.name
}

// shareModel serves the processes with the smallest demand of a client first.
func shareModel(sharers []memberModel, me string, rate int64) int64 {
	slices.SortFunc(sharers, func(a, b memberModel) int {
		return cmp.Or(cmp.Compare(a.demand*b.weight, b.demand*a.weight), strings.Compare(a.name, b.name))
	})
	var weights, sum, own, weight int64
	for _, m := range sharers {
		weights += m.weight
	}
	left, heavy := rate, weights
	for _, m := range sharers {
		part := min(m.demand, left*m.weight/heavy)
		left, heavy, sum = left-part, heavy-m.weight, sum+part
		if m.name == me {
			own, weight = part, m.weight
		}
	}
	by := float64(weight) / float64(weights)
	more := by
	if sum > 0 {
		more = float64(own) / float64(sum)
	}
	return int64(max(float64(own)+float64(left)/2*by+float64(left)/2*more, float64(rate)*by/32))
}
