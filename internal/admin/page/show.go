package page

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// row is a rule as the page lists it.
type row struct {
	About

	ID       int     `json:"id"`
	Passed   float64 `json:"ok"` // per second, as the next two
	Denied   float64 `json:"no"`
	Shadowed float64 `json:"shadow"`
	Total    uint64  `json:"total"`  // decisions since the start
	Refused  uint64  `json:"denied"` // denials since the start
}

// state is all that the page shows, without curves.
type state struct {
	Point     point   `json:"point"`
	Unmatched float64 `json:"unmatched"` // descriptors per second, as the next
	NoDomain  float64 `json:"noDomain"`
	StoreP99  float64 `json:"storeP99"` // of the answers of Redis in seconds, over the last step
	Rules     []row   `json:"rules"`
	Number    int     `json:"number"` // of all rules

	Status json.RawMessage `json:"status"` // a StatusResponse
}

// showLocked puts the state for viewers in place.
func (s *sampler) showLocked(now time.Time, status *adminv1.StatusResponse, p point) {
	step := now.Sub(s.at)
	if s.at.IsZero() {
		step = 0
	}
	data, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(status)
	if err != nil { // no text of a status can fail
		return
	}
	before, requests := s.before.GetRequests(), status.GetRequests()
	live, err := json.Marshal(state{
		Point: p, Status: data, Rules: s.rowsLocked(), Number: s.number,
		Unmatched: rate(requests.GetUnmatched(), before.GetUnmatched(), step),
		NoDomain:  rate(requests.GetNoDomain(), before.GetNoDomain(), step),
		StoreP99:  quantile(s.before.GetStore().GetLatency(), status.GetStore().GetLatency(), 0.99),
	})
	if err != nil { // no value of a state can fail
		return
	}
	s.live = live
	close(s.next)
	s.next = make(chan struct{})
}

// rowsLocked returns the rules with the most denials, and then the most requests.
func (s *sampler) rowsLocked() []row {
	all := make([]*curve, 0, len(s.rules))
	for _, c := range s.rules {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *curve) int {
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(b.passed, a.passed), cmp.Compare(b.now.sum(), a.now.sum()), cmp.Compare(a.number, b.number))
	})
	rows := make([]row, 0, min(len(all), maxRows))
	for _, c := range all[:min(len(all), maxRows)] {
		rows = append(rows, row{
			About: c.rule.About(), ID: c.number, Passed: c.passed, Denied: c.denied, Shadowed: c.shadowed, Total: c.now.sum(), Refused: c.now.Denied,
		})
	}
	return rows
}
