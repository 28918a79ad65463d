package shared

// instantOfEvent is the time of an event in microseconds since the simulation began, by the clock
// of Redis.
type instantOfEvent = int64

// eventKind is the kind of an event.
type eventKind uint8

const (
	requestsArrive  eventKind = iota // clients ask a sidecar
	callReaches                      // a call reaches Redis
	replyReaches                     // a reply reaches the sidecar
	grantTimesOut                    // a sidecar stops to wait for a grant
	leaseEnds                        // a microsecond before a sidecar's clock ends its leases
	outboxTicks                      // a sidecar sends the hits in its outbox
	loadMoves                        // clients move between sidecars
	everythingSpent                  // all sidecars spend all they hold, and somebody empties Redis
	redisPauses                      // Redis stands still
	sidecarStops                     // a sidecar stands still
	sidecarDies                      // a sidecar is killed, and a new one starts
	connectionEnds                   // a sidecar's connection ends, and a new one begins
)

// event is one event of the simulation. Events at the same time happen in the order of their
// numbers.
type event struct {
	at     instantOfEvent
	number uint64
	kind   eventKind
	who    int // number of the sidecar
	call   *simulatedCall
}

// events is a binary heap of events, the next one first.
type events struct {
	heap []event
	next uint64
}

func (q *events) push(e event) {
	e.number = q.next
	q.next++
	q.heap = append(q.heap, e)
	at := len(q.heap) - 1
	for at > 0 {
		parent := (at - 1) / 2
		if !q.heap[at].before(&q.heap[parent]) {
			break
		}
		q.heap[at], q.heap[parent] = q.heap[parent], q.heap[at]
		at = parent
	}
}

func (q *events) pop() event {
	first := q.heap[0]
	last := len(q.heap) - 1
	moved := q.heap[last]
	q.heap[last] = event{}
	q.heap = q.heap[:last]
	at := 0
	for {
		child := 2*at + 1
		if child >= last {
			break
		}
		if child+1 < last && q.heap[child+1].before(&q.heap[child]) {
			child++
		}
		if !q.heap[child].before(&moved) {
			break
		}
		q.heap[at] = q.heap[child]
		at = child
	}
	if last > 0 {
		q.heap[at] = moved
	}
	return first
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.number < o.number
}
