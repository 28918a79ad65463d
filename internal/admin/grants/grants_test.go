package grants

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const rules = `
domain: edge
descriptors:
  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: user, rate_limits: [{unit: minute, requests_per_unit: 2, name: short}, {unit: hour, requests_per_unit: 9, name: long}]}
  - {key: plan, value: "free_*", share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 2}}
`

// process is a limiter and its keeper, as one process has them.
type process struct {
	*Keeper
	limiter *limiter.Limiter
	log     lines
	end     func() // kills the process
}

// lines is a log that goroutines may write.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start starts a process.
func start(t *testing.T, change func(*Options)) *process {
	t.Helper()
	return startAt(t, change, time.Now)
}

// startAt starts a process with another wall clock.
func startAt(t *testing.T, change func(*Options), wall func() time.Time) *process {
	t.Helper()
	s, err := memstore.New(memstore.Options{MaxKeys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{}
	p.limiter, err = limiter.New(s, limiter.Options{Now: wall})
	if err != nil {
		t.Fatal(err)
	}
	p.load(t, rules)
	o := Options{Limiter: p.limiter, Logger: slog.New(slog.NewTextHandler(&p.log, nil))}
	if change != nil {
		change(&o)
	}
	if p.Keeper, err = open(t.Context(), o, wall); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	p.end = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		p.Close()
		s.Close()
	})
	t.Cleanup(p.end)
	return p
}

// in starts a process whose grants are in a directory.
func in(t *testing.T, dir string) *process {
	t.Helper()
	return start(t, func(o *Options) { o.Dir = dir })
}

// on starts a process whose grants are in a Redis.
func on(t *testing.T, redis Redis) *process {
	t.Helper()
	return start(t, func(o *Options) { o.Redis = redis })
}

func (p *process) load(t *testing.T, text string) {
	t.Helper()
	set, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(text)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.limiter.SetRules(set)
}

// of returns a grant of requests for tenant=NAME for an hour.
func of(name string, requests uint32) limiter.Grant {
	return limiter.Grant{
		Domain: "edge", Entries: []limiter.Entry{{Key: "tenant", Value: name}}, Gives: limiter.GivesRequests, Requests: uint64(requests),
		Until: time.Now().Add(time.Hour), Reason: "a test", By: "me",
	}
}

// give gives a grant that must be given.
func (p *process) give(t *testing.T, g limiter.Grant) (given, replaced *limiter.Grant) {
	t.Helper()
	given, replaced, err := p.Grant(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	return given, replaced
}

// limit returns the limit of a tenant now.
func (p *process) limit(t *testing.T, name string) uint32 {
	t.Helper()
	r := limiter.Request{Domain: "edge"}
	d := r.Add()
	d.Entries, d.Probe = []limiter.Entry{{Key: "tenant", Value: name}}, true
	var v limiter.Verdict
	if err := p.limiter.Check(t.Context(), &r, &v); err != nil {
		t.Fatal(err)
	}
	return v.Statuses[0].Limit.Requests
}

func (p *process) wantLimit(t *testing.T, name string, want uint32) {
	t.Helper()
	if got := p.limit(t, name); got != want {
		t.Errorf("tenant %s has %d requests, want %d\n%s", name, got, want, &p.log)
	}
}

func TestAGrantIsInForceUntilItEndsOrIsRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, nil)
		first, _ := p.give(t, of("a", 5))
		p.wantLimit(t, "a", 5)
		second, replaced := p.give(t, of("a", 6))
		if replaced == nil || replaced.ID != first.ID {
			t.Errorf("got %v as the replaced grant, want %v", replaced, first)
		}
		p.wantLimit(t, "a", 6)
		if _, _, err := p.Revoke(t.Context(), first.ID, "me"); !errors.Is(err, limiter.ErrUnknownGrant) {
			t.Errorf("revoking the replaced grant: got %v", err)
		}
		if g, notKept, err := p.Revoke(t.Context(), second.ID, "you"); err != nil || notKept != "" || g.ID != second.ID {
			t.Errorf("got %v, %v", g, err)
		}
		p.wantLimit(t, "a", 2)
		p.give(t, of("a", 7))
		time.Sleep(time.Hour - 1)
		p.wantLimit(t, "a", 7)
		time.Sleep(time.Nanosecond)
		p.wantLimit(t, "a", 2)
		if all := p.List(); len(all) != 0 {
			t.Errorf("after the end: got %v", all)
		}
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		for g := range p.limiter.Grants() {
			t.Errorf("the limiter still has %v", g)
		}
		for _, text := range []string{
			`level=WARN msg="an operator gave a grant" grant=` + first.ID + ` domain=edge descriptor="tenant=a" rule=tenant requests=5 until=`,
			`reason="a test" by=me key="4:edge|6:tenant=1:a#fixed_window/1m"`, "replaces=" + first.ID,
			`msg="an operator revoked a grant" grant=` + second.ID, "revoked_by=you", `level=INFO msg="a grant has ended"`,
		} {
			if !strings.Contains(p.log.String(), text) {
				t.Errorf("the log has no %s\n%s", text, &p.log)
			}
		}
	})
}

func TestTooManyGrantsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, func(o *Options) { o.Max = 2 })
		short := of("a", 5)
		short.Until = time.Now().Add(time.Minute)
		p.give(t, short)
		p.give(t, of("b", 5))
		if _, _, err := p.Grant(t.Context(), of("c", 5)); !errors.Is(err, limiter.ErrTooManyGrants) {
			t.Errorf("got %v, want ErrTooManyGrants", err)
		}
		p.give(t, of("b", 6)) // replaces
		time.Sleep(time.Minute)
		p.give(t, of("c", 5)) // in place of the one that has ended
	})
}

// Two keys of a pattern with one count have one grant.
func TestGrantsOfOneCountReplaceEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, nil)
		for i, name := range []string{"free_x", "free_y"} {
			g := of("", 5)
			g.Entries = []limiter.Entry{{Key: "plan", Value: name}}
			if _, replaced := p.give(t, g); (replaced != nil) != (i == 1) {
				t.Errorf("%s replaces %v", name, replaced)
			}
		}
	})
}

// The names of a limit, and all limits of a rule with one limit, are the same limit: a revoke
// brings no earlier grant back.
func TestAGrantForALimitByAnotherNameReplacesTheFirst(t *testing.T) {
	for _, c := range []struct {
		key, first, second string
		replaces           bool
	}{
		{"tenant", "", "fixed_window/1m", true},
		{"tenant", "fixed_window/1m", "", true},
		{"user", "short", "fixed_window/1m", true},
		{"user", "fixed_window/1h", "long", true},
		{"user", "short", "long", false},
		{"user", "", "long", false},
	} {
		t.Run(c.key+" "+c.first+" and "+c.second, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := start(t, nil)
				g := of("a", 0)
				g.Entries[0].Key, g.Limit = c.key, c.first
				first, _ := p.give(t, g)
				g.Limit = c.second
				second, replaced := p.give(t, g)
				if (replaced != nil) != c.replaces {
					t.Errorf("replaced %v", replaced)
				}
				if _, _, err := p.Revoke(t.Context(), second.ID, "me"); err != nil {
					t.Error(err)
				}
				if all := p.List(); len(all) == 0 != c.replaces || len(all) > 0 && all[0].ID != first.ID {
					t.Errorf("after the revoke of %s: got %v", second.ID, all)
				}
			})
		})
	}
}

func TestHostileGrantsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, nil)
		for _, c := range []struct {
			name   string
			change func(*limiter.Grant)
		}{
			{"a line break in the reason", func(g *limiter.Grant) { g.Reason = "a\nlevel=ERROR msg=forged" }},
			{"an escape sequence in by", func(g *limiter.Grant) { g.By = "\x1b[2J" }},
			{"text from right to left in the reason", func(g *limiter.Grant) { g.Reason = "a\u202eb" }},
			{"no reason", func(g *limiter.Grant) { g.Reason = "" }},
			{"a long reason", func(g *limiter.Grant) { g.Reason = strings.Repeat("a", 501) }},
			{"a long name", func(g *limiter.Grant) { g.By = strings.Repeat("a", 201) }},
			{"a long key", func(g *limiter.Grant) { g.Entries[0].Value = strings.Repeat("a", 3000) }},
			{"no entries", func(g *limiter.Grant) { g.Entries = nil }},
			{"an end that has come", func(g *limiter.Grant) { g.Until = time.Now() }},
			{"no end", func(g *limiter.Grant) { g.Until = time.Time{} }},
			{"an end in 11 years", func(g *limiter.Grant) { g.Until = time.Now().AddDate(11, 0, 0) }},
			{"no change", func(g *limiter.Grant) { g.Gives = 0 }},
			{"a negative factor", func(g *limiter.Grant) { g.Gives, g.Factor = limiter.GivesFactor, -1 }},
			{"a huge factor", func(g *limiter.Grant) { g.Gives, g.Factor = limiter.GivesFactor, 1e7 }},
			{"a burst of a block", func(g *limiter.Grant) { g.Requests, g.Burst = 0, 5 }},
		} {
			g := of("a", 5)
			c.change(&g)
			if _, _, err := p.Grant(t.Context(), g); !errors.Is(err, limiter.ErrInvalidGrant) {
				t.Errorf("%s: got %v, want ErrInvalidGrant", c.name, err)
			}
		}
		if text := p.log.String(); text != "" {
			t.Errorf("a refused grant is in the log: %s", text)
		}
	})
}
