package model

import (
	"slices"
	"time"
)

// A state is the count of one key. The fields of other algorithms are zero.
type state struct {
	window   int64 // number of the window since 1970
	count    uint64
	previous uint64 // of the window before
	tokens   float64
	last     time.Time
	log      []time.Time
}

// A bill is one limit that a descriptor of a request charges.
type bill struct {
	descriptor int
	key        string
	requests   uint64
	unit       string
	seconds    int64
	algorithm  string
	burst      uint64
	name       string
	counted    bool // denied hits count
	shadow     bool
	quota      bool
	hits       uint64
	refund     bool

	// The verdict.
	state     *state
	over      bool
	charged   bool
	remaining uint64
	reset     int64
}

// advance brings a state to an instant.
func (s *state) advance(b *bill, now time.Time, h *Hooks) {
	window, _ := h.Window(b.key, now, b.seconds)
	if window != s.window {
		s.previous = 0
		if window == s.window+1 {
			s.previous = s.count
		}
		s.window, s.count = window, h.Carry(s.count)
	}
	switch b.algorithm {
	case "token_bucket":
		if s.last.IsZero() {
			s.tokens = float64(b.burst)
		} else {
			s.tokens += now.Sub(s.last).Seconds() * float64(b.requests) / float64(b.seconds)
		}
		s.tokens, s.last = h.Full(s.tokens, float64(b.burst)), now
	case "sliding_window_log":
		begin := now.Add(-time.Duration(b.seconds) * time.Second)
		s.log = slices.DeleteFunc(s.log, func(t time.Time) bool { return !t.After(begin) })
	default:
	}
}

// used is the number of hits that count now, and limit how many may.
func (s *state) used(b *bill, now time.Time, h *Hooks) (used, limit uint64) {
	switch b.algorithm {
	case "token_bucket":
		return b.burst - uint64(max(0, s.tokens)), b.burst
	case "sliding_window_log":
		return uint64(len(s.log)), b.requests
	case "sliding_window_counter":
		_, left := h.Window(b.key, now, b.seconds)
		weighed := float64(s.previous) * (float64(left) / 1e9) / float64(b.seconds)
		return s.count + uint64(weighed+0.999999), b.requests
	default:
		return s.count, b.requests
	}
}

// add charges hits.
func (s *state) add(b *bill, hits uint64, now time.Time) {
	s.count += hits
	s.tokens -= float64(hits)
	if b.algorithm == "sliding_window_log" {
		for range hits {
			s.log = append(s.log, now)
		}
	}
}

// remove gives hits back.
func (s *state) remove(hits uint64) {
	s.count -= min(hits, s.count)
	s.tokens += float64(hits)
	s.log = s.log[:max(0, len(s.log)-int(min(hits, 1<<20)))]
}
