package server

import (
	"maps"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/quota"
)

// maxEnvoyName bounds a name of an Envoy, in bytes.
const maxEnvoyName = 100

// nameHeader is the metadata of a stream by which an Envoy names itself.
const nameHeader = "x-weir-envoy"

// Quotas returns the limits that are divided among Envoys now.
func (s *Server) Quotas() quota.Picture { return s.service.quotas.picture() }

// picture copies all that people can see, limit by limit. The lock is held for one limit, or one
// stream, at a time: reports do not wait for the whole copy.
func (q *quotas) picture() quota.Picture {
	q.mu.Lock()
	p := quota.Picture{Off: q.refused, Streams: len(q.streams), Buckets: q.buckets, Refused: maps.Clone(q.turnedOff)}
	divisions, streams := slices.Collect(maps.Values(q.divisions)), slices.Collect(maps.Values(q.streams))
	q.mu.Unlock()

	p.Limits = make([]quota.Divided, len(divisions))
	parts := make([]quota.Part, 0, p.Buckets)
	for i, d := range divisions {
		begin := len(parts)
		parts = q.parts(d, &p.Limits[i], parts)
		p.Limits[i].Parts = parts[begin:len(parts):len(parts)]
	}
	for _, s := range streams {
		p.Others = q.others(s, p.Others)
	}
	return p
}

// parts copies a limit, and appends its parts.
func (q *quotas) parts(d *divided, to *quota.Divided, parts []quota.Part) []quota.Part {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	to.Rule, to.Limit, to.Rate = d.about, d.Limit(), d.Rate()
	d.Each(func(c *quota.Client) {
		switch of := c.Tag.(type) {
		case *member:
			parts = append(parts, of.part(c, now))
		case *rlsClient:
			if of.asked > 0 {
				parts = append(parts, quota.Part{Envoy: quota.Envoy{Name: "RLS"}, Share: c.Share(now), Domain: of.domain, Entries: of.entries})
			}
		}
	})
	return parts
}

// others appends the buckets of a stream that have no part of a limit.
func (q *quotas) others(s *quotaStream, parts []quota.Part) []quota.Part {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for _, m := range s.members {
		if m.client == nil && !s.closed {
			parts = append(parts, m.part(nil, now))
		}
	}
	return parts
}

// part returns the picture of a bucket. c is nil for a bucket without a part of a limit.
func (m *member) part(c *quota.Client, now time.Duration) quota.Part {
	p := quota.Part{
		Envoy: quota.Envoy{Name: m.stream.name, Peer: m.stream.peer}, Domain: m.stream.domain, Entries: m.entries,
		Report: m.report.Report, Open: m.open, Early: m.report.early, Against: m.report.against,
	}
	p.Report.Age = now - m.report.at
	switch {
	case c != nil:
		p.Share = c.Share(now)
	case !m.open:
		p.Why = m.why
	}
	return p
}

// reports is the content of the reports about a bucket.
type reports struct {
	quota.Report

	at      time.Duration // of the last one
	some    bool
	early   uint64 // allowed before the first assignment
	against bool   // hits were allowed against an assignment
}

// noteReport keeps a report of now.
func (m *member) noteReport(allowed, denied uint64, now time.Duration) {
	r := &m.report
	if m.client == nil && !m.open || m.client != nil && !m.client.Share(now).Ordered {
		r.early += allowed
	}
	r.against = allowed > 0 && r.some && m.client != nil && m.client.Denies(r.at)
	r.Allowed, r.Denied, r.Span = allowed, denied, 0
	if r.some {
		r.Span = now - r.at
	}
	r.at, r.some = now, true
}

// ObserveQuotas adds an observer of reports and of assignments, and returns the function that
// removes the observer. Reports wait for observers: an observer must not block. An event is valid
// during the call. After the removal the observer may still see an event that is under way.
func (s *Server) ObserveQuotas(see func(*quota.Event)) (remove func()) {
	return s.service.quotas.observers.add(see)
}

// tell completes an event and gives it to the observers.
func (m *member) tell(e quota.Event) {
	observers := m.stream.of.observers.all.Load()
	if observers == nil {
		return
	}
	e.Envoy, e.At = quota.Envoy{Name: m.stream.name, Peer: m.stream.peer}, time.Now()
	e.Domain, e.Entries = m.stream.domain, m.entries
	if m.division != nil {
		e.Rule = m.division.about
	}
	for _, see := range *observers {
		(*see)(&e)
	}
}

// tellReport tells the last report.
func (m *member) tellReport() {
	e := quota.Event{Reported: true, Report: m.report.Report}
	if m.client == nil && !m.open {
		e.Why = m.why
	}
	m.tell(e)
}

// tellAssignment tells an assignment that is another one than before.
func (m *member) tellAssignment(a *assignment) {
	now := assigned{bucket: a.order.Bucket, open: a.client == nil && !a.order.Abandon, abandon: a.order.Abandon}
	if m.assigned == nil || *m.assigned != now {
		m.assigned = &now
		m.tell(quota.Event{Bucket: now.bucket, Open: now.open, Abandon: now.abandon})
	}
}

// assigned is an assignment as people see it.
type assigned struct {
	bucket        quota.Bucket
	open, abandon bool
}
