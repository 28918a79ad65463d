package shared

import "github.com/weirproxy/weir/pkg/algorithms"

// schedule is the fate of a fleet. Durations are in microseconds.
type schedule struct {
	seed       uint64
	limits     []algorithms.Limit // one for each key
	leasing    int                // sidecars with leases
	exact      int                // sidecars without
	fleetKnown int                // as the sidecars know it
	load       float64            // requests per microsecond of the whole fleet
	large      float64            // part of the requests that has many hits
	moves      int64              // mean time from one move of the load to the next; 0: the load is even
	batch      int                // requests at one instant
	usualDelay float64            // mean time of one way to Redis
	timeout    instantOfEvent     // wait for Redis
	lead       instantOfEvent     // error of the deadline that a call carries
	lost       float64            // part of the replies that is lost
	spendings  int64              // mean time between two events of a kind; 0: no such events
	pauses     int64
	stops      int64
	deaths     int64
	cuts       int64
	mistake    mistake
	most       int64 // decisions; then the run ends
}

// mistake is a deliberate error in the rules of leases, which the oracles must find.
type mistake uint8

const (
	noMistake              mistake = iota
	debitLate                      // hits are spent before Redis has charged them
	spendPastTheEnd                // a lease is spent after its end
	returnAcrossAWindow            // hits are given back as of now, and not as of their grant
	ignoreOutstanding              // a bucket refills over the hits of leases
	returnTwice                    // hits are given back twice
	mergeAtTheLatest               // several returns of a key count as of the latest grant
	returnAsIfNobodyLeased         // a bucket gets back all hits that it would have if nobody had leased meanwhile
)

func (m mistake) String() string {
	return [...]string{
		"no mistake", "debit late", "spend past the end", "return across a window", "ignore outstanding leases", "return twice",
		"merge returns as of the latest grant", "return as if nobody leased",
	}[m]
}
