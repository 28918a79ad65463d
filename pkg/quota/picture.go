package quota

import (
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Picture is all divided limits at one instant, for people.
type Picture struct {
	Off     string            // why nothing is divided; "" if limits are
	Streams int               // of Envoys
	Buckets int               // of all streams
	Refused map[string]uint64 // buckets that had no assignment, by reason
	Limits  []Divided
	Others  []Part // buckets that have no part of a limit
}

// Divided is one limit and its parts.
type Divided struct {
	Rule  *descriptors.Rule
	Limit Limit
	Rate  int64 // of all buckets that may be in use, in billionths of a hit in a second
	Parts []Part
}

// Part is a bucket of one Envoy. Times are ages. Without an Order the Envoy has not received one.
type Part struct {
	Envoy
	Share

	Domain  string
	Entries []descriptors.Entry // shared: nobody may change them
	Report  Report
	Open    bool   // all requests pass
	Why     string // there is no assignment; "" if there is one
	Early   uint64 // hits that the Envoy allowed before the first assignment
	Against bool   // the Envoy allowed hits in the last report, although it had to deny all
}

// Envoy is the client of a stream.
type Envoy struct{ Name, Peer string }

// Report is the last report about a bucket.
type Report struct {
	Allowed, Denied uint64
	Span            time.Duration // since the report before; 0 for the first one
	Age             time.Duration
}

// Share is the part that a division has given to one client. Ages are of the instant of the
// picture.
type Share struct {
	Bucket    Bucket
	Demand    int64 // rate of requests, in billionths of a hit in a second; -1: unknown
	Ordered   bool  // an order was sent
	Received  bool  // an order was acknowledged
	Last      bool  // the last order was
	Expired   bool  // the time to live of the last acknowledged order is over
	Unsettled bool  // the bucket before may be in use
	Gone      bool  // the stream has ended
	Leaving   bool  // an order to forget the bucket is under way
	Sent      time.Duration
}

// Share returns the part of a client.
func (c *Client) Share(now time.Duration) Share {
	received := c.acked || c.fresh > 0
	return Share{
		Bucket: c.bucket.Bucket, Demand: c.demand, Ordered: c.seq > 0, Received: received, Last: c.acked,
		Expired: received && now >= c.fresh+TTL, Unsettled: c.change, Gone: c.gone, Leaving: c.leaving, Sent: now - c.sent,
	}
}

// Denies reports whether the client has denied all requests since an instant, by all that the
// division can see.
func (c *Client) Denies(since time.Duration) bool {
	return c.bucket.Max == 0 && c.placed && !c.change && c.since+Delivery+Settle <= since
}

// Each calls f with each client, the oldest first.
func (d *Division) Each(f func(*Client)) {
	for _, c := range d.clients {
		f(c)
	}
}

// Event is a report of an Envoy about a bucket, or an assignment that differs from the one before.
type Event struct {
	Envoy

	At       time.Time
	Domain   string
	Entries  []descriptors.Entry // shared: nobody may change them
	Rule     *descriptors.Rule   // nil: nothing is divided
	Reported bool                // else assigned
	Report   Report              // without an age
	Why      string              // of a report: there is no assignment
	Bucket   Bucket              // assigned; zero: all requests are denied, unless they are open
	Open     bool                // all requests pass
	Abandon  bool                // Envoy must forget the bucket
}
