package quota

import (
	"slices"
	"time"
)

// Division is the ledger of one limit. Instants are durations since any fixed moment, and never go
// back. Not safe for concurrent use. Make one with New.
type Division struct {
	limit   Limit         // that the clients and the level keep
	goal    Limit         // at most limit: the clients should have no more
	level   int64         // to pay for buckets
	at      time.Duration // of level
	clients []*Client     // in the order in which they came
	dirty   bool          // targets are older than demands

	rates  int64 // of all clients
	tokens int64 // in all buckets that clients may have
	seated int   // clients that may have a bucket

	demands []int64 // memory
	order   []int   // memory
}

// given is a bucket and its rate.
type given struct {
	Bucket

	speed int64
}

func give(b Bucket) given { return given{b, b.rate()} }

// Client is one client of a division: a bucket id on one stream.
type Client struct {
	Tag any // of the caller

	here  bool   // of this process: orders are in force at once, and do not expire
	own   bool   // as here, and more: see NewBeside
	taken int64  // tokens that requests from before the division may take
	asked uint64 // since the last report of an own client

	gone    bool // the stream has ended
	leaving bool // an order to forget the bucket is under way
	over    bool // the division has forgotten the client
	placed  bool // an order was sent and has not expired

	bucket given  // of the last order
	before given  // may be in use until the change has settled
	change bool   // has not settled
	seq    uint64 // of the last order; 0: none
	sent   time.Duration
	fresh  time.Duration // when the latest acknowledged order was sent
	acked  bool          // the last order is
	calm   time.Duration // when the last order has settled, if acked
	since  time.Duration // when the client got its bucket, or lost it

	demand   int64 // rate of requests; -1: unknown
	target   int64 // rate
	reported time.Duration
	wanted   time.Duration // when the client last had a request
}

// Order is a message for a client. The zero Bucket with Abandon says that the client must forget
// its bucket; else it denies all requests.
type Order struct {
	Client  *Client
	Seq     uint64 // for Acknowledge; grows with each order of a client
	Bucket  Bucket
	Empty   bool // the bucket starts without tokens; only for an own client
	Abandon bool
}

// New returns a division without clients. The level is full.
func New(l Limit, now time.Duration) *Division {
	return &Division{limit: l, goal: l, level: l.Burst, at: now}
}

// Limit returns the limit of the last SetLimit.
func (d *Division) Limit() Limit { return d.goal }

// SetLimit changes the limit. A lower one holds when the clients have no more: in some 300
// milliseconds. The bucket of a client that is gone must have expired.
func (d *Division) SetLimit(l Limit, now time.Duration) {
	if l != d.goal {
		d.advance(now)
		d.fit(l)
	}
}

// fit lets the limit follow a goal. A goal that is lower counts when the clients have no more.
// Until then the level can pay for the changes of their buckets.
func (d *Division) fit(goal Limit) {
	l := Limit{max(goal.Rate, d.rates), max(goal.Burst, d.limit.Burst)}
	if d.rates <= goal.Rate && d.tokens <= goal.Burst {
		l = goal
	}
	d.dirty = d.dirty || l != d.limit || goal != d.goal
	d.limit, d.goal = l, goal
	d.level = min(d.level, d.room())
}

// Join adds a client that has no bucket.
func (d *Division) Join(now time.Duration, tag any) *Client {
	c := &Client{Tag: tag, demand: -1, reported: now, wanted: now, since: now}
	d.clients, d.dirty = append(d.clients, c), true
	return c
}

// Report takes the hits of a client since its last report.
func (d *Division) Report(c *Client, allowed, denied uint64, now time.Duration) {
	sum := int64(min(allowed, MostHits) + min(denied, MostHits))
	if sum > 0 {
		c.wanted = now
	}
	since := now - c.reported
	if since < time.Second { // the first one has one request and no time
		return
	}
	c.demand, c.reported, d.dirty = scale(sum*token, time.Second, since), now, true
}

// Acknowledge says that the order of that number has arrived at the client, and so all before it. A
// change settles then: Step is due when it says so.
func (d *Division) Acknowledge(c *Client, seq uint64, now time.Duration) (due time.Duration) {
	if seq == c.seq && !c.acked {
		c.acked, c.fresh, c.calm = true, c.sent, now+Settle
	}
	if c.acked && c.change {
		return c.calm
	}
	return now + patience
}

// Leave says that the stream of a client has ended. The bucket of the client counts until
// the bucket has expired.
func (d *Division) Leave(c *Client) { c.gone, d.dirty = true, true }

// Over reports whether the division has forgotten the client. Only an idle client is forgotten
// while its stream lasts.
func (c *Client) Over() bool { return c.over }

// Clients returns the number of clients but the own one. A client that is gone counts as long as
// its bucket may be in use.
func (d *Division) Clients() int {
	if n := len(d.clients); n > 0 && d.clients[0].own {
		return n - 1
	}
	return len(d.clients)
}

// Empty reports whether no bucket is in force, and no client is left.
func (d *Division) Empty() bool { return len(d.clients) == 0 }

// Full reports whether nobody has a part of the limit, so that a new division would be the same.
// With an own client it is enough that no other client is left, and nothing is owed.
func (d *Division) Full(now time.Duration) bool {
	d.advance(now)
	if len(d.clients) == 1 && d.clients[0].own {
		return d.level >= 0
	}
	return d.Empty() && d.level >= d.limit.Burst
}

// Rate returns the rate that all clients may use, in billionths of a hit in a second.
func (d *Division) Rate() int64 { return d.limit.Rate - d.free() }

// Unsettled returns the number of clients with a change that has not settled.
func (d *Division) Unsettled() int {
	n := 0
	for _, c := range d.clients {
		if c.change {
			n++
		}
	}
	return n
}

// Times between two steps. The short one is for a division that waits for its level.
const (
	patience = time.Second
	hurry    = 50 * time.Millisecond
)

// Step does all work that is due, and appends the orders to send. The caller calls Step after each
// of the other methods, and not later than the instant that it returns.
func (d *Division) Step(now time.Duration, orders []Order) ([]Order, time.Duration) {
	d.advance(now)
	d.settle(now)
	if d.limit != d.goal {
		d.fit(d.goal)
	}
	if d.dirty {
		d.aim()
	}
	for _, c := range d.clients {
		if !c.placed && !c.gone && !c.change {
			orders = d.place(c, now, orders)
		}
	}
	lack, waiting := d.lack()
	if lack > 0 {
		orders = d.shrink(lack, now, orders)
	}
	if waiting {
		orders = d.rotate(now, orders)
	}
	orders = d.grow(now, orders)
	if lack <= 0 && !waiting {
		orders = d.even(now, orders)
	}
	orders = d.renew(now, orders)
	next := now + patience
	if lack > 0 || waiting {
		next = now + hurry
	}
	for _, c := range d.clients {
		if c.change && c.acked {
			next = min(next, c.calm)
		}
	}
	return orders, next
}

// put replaces the buckets that a client may have.
func (d *Division) put(c *Client, bucket, before given) {
	d.sum(c, -1)
	c.bucket, c.before = bucket, before
	d.sum(c, 1)
}

func (d *Division) sum(c *Client, sign int64) {
	d.rates += sign * c.rate()
	d.tokens += sign * (c.bucket.tokens() + c.before.tokens())
	if c.bucket.Max > 0 || c.before.Max > 0 {
		d.seated += int(sign)
	}
}

// advance brings the level to now.
func (d *Division) advance(now time.Duration) {
	if now > d.at {
		d.level += min(scale(d.free(), now-d.at, time.Second), d.limit.Burst)
		d.at = now
	}
	d.level = min(d.level, d.room())
}

// rate returns the rate of all buckets that the client may have.
func (c *Client) rate() int64 { return max(c.bucket.speed, c.before.speed) }

// free returns the part of the limit's rate that no client has.
func (d *Division) free() int64 { return d.limit.Rate - d.rates }

// spare returns the part of the rate that may be given. A part is held back to pay for changes.
func (d *Division) spare() int64 { return d.free() - d.limit.Rate + d.goal.Rate - d.goal.Rate/48 }

// room returns the level that fits beside all buckets.
func (d *Division) room() int64 { return d.limit.Burst - d.tokens }

// settle ends changes that all threads of the client use, and forgets expired buckets.
func (d *Division) settle(now time.Duration) {
	d.clients = slices.DeleteFunc(d.clients, func(c *Client) bool {
		if c.change && c.acked && now >= c.calm {
			d.put(c, c.bucket, given{})
			c.change, d.dirty = false, true
			if c.leaving {
				c.placed = false
			}
		}
		if c.own && c.acked && now >= c.calm {
			d.tokens -= c.taken
			c.taken = 0
		}
		if c.placed && !c.here && now >= c.sent+expiry {
			d.put(c, given{}, given{})
			c.change, c.placed, c.acked, d.dirty = false, false, false, true
		}
		if c.leaving && !c.placed && c.wanted >= c.since { // a request has come meanwhile
			c.leaving, c.demand = false, -1
		}
		c.over = !c.placed && (c.gone || c.leaving) || c.gone && c.bucket.Max == 0 && c.before.Max == 0
		return c.over
	})
}

// aim sets the targets by the demands. Clients without a stream keep their rates.
func (d *Division) aim() {
	d.dirty = false
	rate := d.goal.Rate - d.goal.Rate/48
	d.demands = d.demands[:0]
	for _, c := range d.clients {
		switch {
		case c.gone:
			rate -= c.rate()
		case c.idle():
			c.target = d.goal.Rate / 64
			rate -= c.target
		case c.demand < 0:
			d.demands = append(d.demands, d.limit.Rate)
		default:
			d.demands = append(d.demands, min(c.demand, d.limit.Rate)/8*9)
		}
	}
	n := len(d.demands)
	if rate = max(rate, 0); n == 0 {
		return
	}
	for i := range d.demands {
		d.demands[i] = min(d.demands[i], rate)
	}
	d.order = slices.Grow(d.order[:0], n)[:n]
	shares(d.demands, rate, d.order)
	at, seats := 0, d.seats()
	for _, c := range d.clients {
		if !c.gone && !c.idle() {
			c.target = max(d.demands[at], rate/int64(32*n))
			if seats < n { // the others wait
				c.target = max(c.target, rate/int64(seats))
			}
			at++
		}
	}
}

// size returns the tokens of a bucket of that rate. A third of the burst is for all clients
// together: half equally, half by their rates. The rest pays for new clients and for changes at
// once.
func (d *Division) size(c *Client, rate int64) int64 {
	if c.idle() {
		return d.goal.Burst / 32
	}
	n, half := int64(len(d.clients)), d.goal.Burst/6
	if d.clients[0].idle() {
		n--
	}
	size := half/n + scale(half, time.Duration(rate), time.Duration(max(d.goal.Rate, 1)))
	return min(max(size/token, 1)*token, d.goal.Burst)
}

// hungry reports whether the client could use a larger rate.
func (c *Client) hungry() bool { return c.demand < 0 || c.demand > c.bucket.speed/8*7 }

// ready reports whether the client may get an order that changes its bucket. An order after no
// bucket at all waits for nothing.
func (c *Client) ready(now time.Duration) bool {
	return !c.gone && !c.leaving && c.placed && !c.change && (c.bucket.Max == 0 || c.acked && !c.late(now))
}

// late reports whether an order sent now may find that the bucket has expired.
func (c *Client) late(now time.Duration) bool {
	return !c.here && now+Delivery >= c.fresh+TTL-TTL/drift
}

// place sends the first order to a client, which has no bucket: a bucket, or none if the level does
// not suffice.
func (d *Division) place(c *Client, now time.Duration, orders []Order) []Order {
	n := len(orders)
	if orders = d.seat(c, now, orders); len(orders) == n {
		return d.send(c, Bucket{}, now, orders)
	}
	return orders
}

// seat gives a client without a bucket one. If the level cannot pay, a client that has just come
// gets a small one, of at least one token, and grows later.
func (d *Division) seat(c *Client, now time.Duration, orders []Order) []Order {
	least := d.goal.Rate / 96 / int64(len(d.clients))
	rate := min(c.target, max(d.spare(), least))
	size := d.size(c, rate)
	if d.level < size && c.demand < 0 && !c.own {
		rate = min(rate, least)
		size = min(d.size(c, rate), max(d.level, 0)/token*token)
	}
	b := give(bucketOf(size, rate, c.bucket.Bucket))
	if b.Max == 0 || d.free() < b.speed || d.level < b.tokens() && !c.own || d.seated >= d.seats() {
		return orders
	}
	return d.pay(c, b, now, orders)
}

// seats returns how many clients may have a bucket, of at least one token. A limit of few tokens
// goes to few clients.
func (d *Division) seats() int { return max(int(d.goal.Burst/token-d.goal.Burst/token/8), 1) }

// pay sends a bucket, and debits it. A bucket of the own client that the level cannot pay starts
// empty.
func (d *Division) pay(c *Client, b given, now time.Duration, orders []Order) []Order {
	cost := c.cost(b)
	empty := c.own && d.level < cost
	if empty {
		cost -= b.tokens()
	}
	d.level -= cost
	orders = d.send(c, b.Bucket, now, orders)
	d.level = min(d.level, d.room())
	orders[len(orders)-1].Empty = empty
	return orders
}

// send sends a bucket. The caller has paid the tokens.
func (d *Division) send(c *Client, b Bucket, now time.Duration, orders []Order) []Order {
	if (b.Max > 0) != (c.bucket.Max > 0) {
		c.since = now
	}
	c.change = b.Max > 0 || c.bucket.Max > 0 || c.leaving
	d.put(c, give(b), c.bucket)
	c.placed, c.acked = true, false
	c.seq++
	c.sent = now
	return append(orders, Order{Client: c, Seq: c.seq, Bucket: b, Abandon: c.leaving})
}

// cost returns the tokens that a change to a bucket costs. Both buckets gain until it has settled.
func (c *Client) cost(b given) int64 {
	return b.tokens() + scale(min(b.speed, c.bucket.speed), Settle, time.Second)
}

// turnTo changes the bucket of a client if the level can pay. A change that the level can never pay
// begins with no bucket, if the client may lose its bucket for a moment.
func (d *Division) turnTo(c *Client, rate int64, deny bool, now time.Duration, orders []Order) []Order {
	b := give(bucketOf(d.size(c, rate), rate, c.bucket.Bucket))
	cost := c.cost(b)
	if c.own { // the bucket may start empty
		cost -= b.tokens()
	}
	keep := d.goal.Burst / 64 // for clients that wake
	switch {
	case b.Max == 0 && !deny:
	case b.Max == 0:
		return d.send(c, Bucket{}, now, orders)
	case cost+keep <= d.level && max(b.speed-c.bucket.speed, 0) <= d.free():
		return d.pay(c, b, now, orders)
	case deny && (cost+keep > d.room() || d.free() <= 0):
		return d.send(c, Bucket{}, now, orders)
	}
	return orders
}

// lack returns the rate that hungry clients lack beyond the free rate, and whether a client waits
// for a bucket. A lowered limit lacks too.
func (d *Division) lack() (lack int64, waiting bool) {
	lack = -d.spare()
	for _, c := range d.clients {
		if c.gone || c.leaving || !c.hungry() {
			continue
		}
		if c.bucket.Max == 0 && c.placed && d.goal.Burst >= token {
			waiting = true
		}
		if r := c.bucket.speed; c.target >= r+r/16 {
			lack += c.target - r
		}
	}
	return lack - d.goal.Rate/64, waiting
}

// coming returns the rate that is free when all changes have settled.
func (d *Division) coming() (rate int64) {
	for _, c := range d.clients {
		rate += max(c.before.speed-c.bucket.speed, 0)
	}
	return rate
}

// shrink takes rate from clients above their target, first from the one with the most too much.
func (d *Division) shrink(lack int64, now time.Duration, orders []Order) []Order {
	lack -= d.coming()
	for lack > 0 {
		var most *Client
		for _, c := range d.clients {
			if r := c.bucket.speed; c.ready(now) && r > c.target+c.target/16 && (most == nil || r-c.target > most.bucket.speed-most.target) {
				most = c
			}
		}
		if most == nil {
			break
		}
		r := most.bucket.speed
		if orders = d.turnTo(most, most.target, true, now, orders); !most.change {
			break
		}
		lack -= r - most.bucket.speed
	}
	return orders
}

// rotate takes the bucket of the client that has had one for longest, while others wait for one.
func (d *Division) rotate(now time.Duration, orders []Order) []Order {
	var oldest *Client
	for _, c := range d.clients {
		if !c.gone && c.change {
			return orders
		}
		if c.bucket.Max > 0 && c.ready(now) && (oldest == nil || c.since < oldest.since) {
			oldest = c
		}
	}
	if oldest == nil || d.seated < d.seats() {
		return orders
	}
	if few := scale(4*token, time.Second, time.Duration(d.limit.Rate)); now-oldest.since < turn*3/2+time.Duration(min(few, int64(time.Hour))) {
		return orders
	}
	return d.send(oldest, Bucket{}, now, orders)
}

// grow gives free rate to hungry clients, and buckets to clients that wait for one. The longest
// wait comes first. A client does not grow while more rate is on its way, as each change costs. A
// client that can never pay loses its bucket for a moment, if it gets an eighth more.
func (d *Division) grow(now time.Duration, orders []Order) []Order {
	var first *Client
	coming := d.coming()
	for _, c := range d.clients {
		if !c.ready(now) || !c.hungry() {
			continue
		}
		r := c.bucket.speed
		switch rate := min(c.target, r+max(d.spare(), 0)); {
		case c.bucket.Max > 0 && rate < c.target-c.target/8 && coming > 0:
		case c.bucket.Max > 0 && rate > r+r/16:
			orders = d.turnTo(c, rate, rate > r+r/8 && now-c.since >= turn, now, orders)
		case c.bucket.Max == 0 && (first == nil || c.since < first.since):
			first = c
		}
	}
	if first == nil {
		return orders
	}
	return d.seat(first, now, orders)
}

// even moves rates and sizes to their targets while nobody lacks any and the level is nearly full.
// Else the gain of the level would be lost. So a crowd that comes to all finds equal rates.
func (d *Division) even(now time.Duration, orders []Order) []Order {
	for _, c := range d.clients {
		if d.level < d.room()-d.room()/4 {
			break
		}
		r, rate := c.bucket.speed, min(c.target, c.bucket.speed+max(d.spare(), 0))
		if r > 0 && c.ready(now) && (r > c.target+c.target/4 || rate > r+r/4 || d.size(c, r) > 2*c.bucket.tokens()) {
			orders = d.turnTo(c, rate, false, now, orders)
		}
	}
	return orders
}

// renew repeats orders, and ends the buckets of idle clients.
func (d *Division) renew(now time.Duration, orders []Order) []Order {
	for _, c := range d.clients {
		switch {
		case c.here || c.gone || !c.placed || !c.acked || c.change || now < c.sent+Renew:
		case now-c.wanted >= Idle && !c.leaving:
			c.leaving = true
			orders = d.send(c, Bucket{}, now, orders)
			c.since = now
		case !c.late(now):
			c.seq++
			c.sent, c.acked = now, false
			orders = append(orders, Order{Client: c, Seq: c.seq, Bucket: c.bucket.Bucket, Abandon: c.leaving})
		case c.cost(c.bucket) <= d.level: // a full one, if the one before has expired
			d.level -= c.cost(c.bucket)
			orders = d.send(c, c.bucket.Bucket, now, orders)
		}
	}
	return orders
}
