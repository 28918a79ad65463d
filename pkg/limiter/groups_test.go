package limiter_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// grouped writes the answer to a request as text: the verdict, the groups with room, and the hits
// left for each descriptor.
func (f fixture) grouped(r *limiter.Request) string {
	f.tb.Helper()
	var v limiter.Verdict
	must.Do(f.tb, f.Check(f.tb.Context(), r, &v))
	return textOf(&v)
}

func textOf(v *limiter.Verdict) string {
	words := []string{"OK"}
	if v.OverLimit {
		words[0] = "OVER"
	}
	for _, g := range v.Groups {
		if g.Room {
			words = append(words, g.Name)
		}
	}
	words = append(words, "|")
	for _, s := range v.Statuses {
		words = append(words, describe(s))
	}
	return strings.Join(words, " ")
}

const groupRules = `
domain: d
descriptors:
  - {key: pt, quota_mode: true, group: pt, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: tenant, quota_mode: true, group: pt, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: od, quota_mode: true, group: od, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: free, quota_mode: true, group: free, rate_limit: {unlimited: true}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: rare, rate_limit: {unit: hour, requests_per_unit: 100, count_rejected: false}}
  - {key: strict, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: flat, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`

func TestARequestIsChargedUnderTheFirstGroupWithRoom(t *testing.T) {
	for _, c := range []struct {
		name string
		asks []string // descriptors, separated by blanks
		want []string
	}{
		{"three, then five, then none", slices.Repeat([]string{"od=a pt=a"}, 9), []string{
			"OK pt od | ok:5/5 ok:2/3", "OK pt od | ok:5/5 ok:1/3", "OK pt od | ok:5/5 ok:0/3",
			"OK od | ok:4/5 over:0/3", "OK od | ok:3/5 over:0/3", "OK od | ok:2/5 over:0/3", "OK od | ok:1/5 over:0/3", "OK od | ok:0/5 over:0/3",
			"OVER | over:0/5 over:0/3",
		}},
		{"a spent tenant spends its group", []string{"pt=a tenant=t od=a", "pt=a tenant=t od=a", "pt=a tenant=u od=a"}, []string{
			"OK pt od | ok:2/3 ok:0/1 ok:5/5", "OK od | ok:2/3 over:0/1 ok:4/5", "OK pt od | ok:1/3 ok:0/1 ok:4/5",
		}},
		{"a lone group", []string{"pt=a tenant=t", "pt=a tenant=t", "pt=a tenant=u"}, []string{
			"OK pt | ok:2/3 ok:0/1", "OVER | ok:1/3 over:0/1", "OK pt | ok:0/3 ok:0/1",
		}},
		{"an unlimited group always has room", slices.Repeat([]string{"pt=a:3 free=a"}, 2), []string{
			"OK pt free | ok:0/3 unlimited", "OK free | over:0/3 unlimited",
		}},
		{"more hits than are left", []string{"pt=a:2 od=a:2", "pt=a:2 od=a:2", "pt=a:6 od=a:6"}, []string{
			"OK pt od | ok:1/3 ok:5/5", "OK od | over:1/3 ok:3/5", "OVER | over:1/3 over:3/5",
		}},
		{"a question needs room for one hit", []string{"pt=a:0 od=a:0", "pt=a:3", "pt=a:0 od=a:0", "od=a:5", "pt=a:0 od=a:0"}, []string{
			"OK pt od | ok:3/3 ok:5/5", "OK pt | ok:0/3", "OK od | over:0/3 ok:5/5", "OK od | ok:0/5", "OVER | over:0/3 over:0/5",
		}},
		{"an end may go beyond a lone group", []string{"pt=a:9", "pt=a:0 od=a:0"}, []string{"OVER | over:0/3", "OK od | over:0/3 ok:5/5"}},
		{"other limits deny alone", []string{"strict=a pt=a od=a", "user=a:100 pt=a od=a", "user=a pt=a od=a"}, []string{
			"OVER pt od | over:0/0 ok:3/3 ok:5/5", "OK pt od | ok:0/100 ok:2/3 ok:5/5", "OVER pt od | over:0/100 ok:2/3 ok:5/5",
		}},
		{"without a group nothing else is charged, but what counts denied hits", []string{"pt=a:3", "user=a rare=a pt=a", "user=a rare=a"}, []string{
			"OK pt | ok:0/3", "OVER | ok:99/100 ok:100/100 over:0/3", "OK | ok:98/100 ok:99/100",
		}},
		{"the same with a question", []string{"pt=a:3 od=a:5", "od=a:5", "user=a rare=a pt=a:0 od=a:0", "user=a rare=a"}, []string{
			"OK pt od | ok:0/3 ok:5/5", "OK od | ok:0/5", "OVER | ok:99/100 ok:100/100 over:0/3 over:0/5", "OK | ok:98/100 ok:99/100",
		}},
		{"quotas without a group are judged alone", []string{"flat=a pt=a", "flat=a pt=a", "flat=b pt=b", "flat=b flat=c pt=b"}, []string{
			"OK pt | ok:0/1 ok:2/3", "OVER pt | over:0/1 ok:1/3", "OK pt | ok:0/1 ok:2/3", "OK pt | over:0/1 ok:0/1 ok:1/3",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, groupRules)
				got := make([]string, len(c.asks))
				for i, ask := range c.asks {
					texts := strings.Fields(ask)
					for n, text := range texts {
						texts[n] = strings.Replace(text, ":", " hits=", 1)
					}
					got[i] = f.grouped(request("d", texts...))
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("answers (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// ideal is the slow second implementation of groups: one transaction of package model, at one
// instant, with the groups tried one after another.
type ideal struct {
	keys   model.Keys
	groups []string
}

type idealLimit struct {
	group   string // "": none
	limit   algorithms.Limit
	counted bool // count_rejected
}

// ask decides hits of limits by their names.
func (m *ideal) ask(limits map[string]idealLimit, names []string, hits []int64, now algorithms.Instant) string {
	others, members := []store.Charge{}, map[string][]store.Charge{}
	for i, name := range names {
		l := limits[name]
		c := store.Charge{Key: []byte(name), Limit: l.limit, Hits: hits[i], Rule: i, CountRejected: l.counted}
		if l.group == "" {
			others = append(others, c)
		} else {
			members[l.group] = append(members[l.group], c)
		}
	}
	room := []string{}
	for _, g := range m.groups {
		asked := slices.Clone(members[g])
		for i := range asked {
			asked[i].Hits = max(asked[i].Hits, 1)
		}
		if len(asked) > 0 && maps.Clone(m.keys).Take(asked, now).Admitted {
			room = append(room, g)
		}
	}
	admitted := maps.Clone(m.keys).Take(others, now).Admitted
	if len(members) == 1 { // the limits of a lone group count denied hits as any limit does
		for _, of := range members {
			others = append(others, of...)
		}
	} else if admitted && len(room) > 0 {
		others = append(others, members[room[0]]...)
	}
	if len(members) > 0 && len(room) == 0 {
		admitted = false
		others = append(others, store.Charge{Key: []byte("never"), Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Period: time.Second}, Hits: 1, Rule: len(names)})
	}
	m.keys.Take(others, now)
	verdict := "OVER"
	if admitted {
		verdict = "OK"
	}
	return fmt.Sprint(verdict, room)
}

func TestGroupsAreDecidedAsBySlowSecondImplementation(t *testing.T) {
	limits := map[string]idealLimit{}
	var doc strings.Builder
	doc.WriteString("domain: d\ndescriptors:\n")
	m := &ideal{groups: []string{"g0", "g1", "g2"}}
	kinds := []algorithms.Algorithm{
		algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowCounter, algorithms.SlidingWindowLog, algorithms.TokenBucketInteger,
	}
	for i, kind := range kinds {
		for _, group := range append([]string{""}, m.groups...) {
			name := fmt.Sprintf("%v%s", kind, group)
			l := idealLimit{group: group, counted: kind == algorithms.FixedWindow && i%2 == 0}
			l.limit = algorithms.Limit{Algorithm: kind, Requests: uint32(4 + 3*i), Period: time.Minute}
			limits[name] = l
			fmt.Fprintf(&doc, "  - {key: %s, rate_limit: {algorithm: %v, unit: minute, requests_per_unit: %d, count_rejected: %t}", name, kind, l.limit.Requests, l.counted)
			if group != "" {
				fmt.Fprintf(&doc, ", quota_mode: true, group: %s", group)
			}
			doc.WriteString("}\n")
		}
	}
	names := slices.Sorted(maps.Keys(limits))
	// Rules are in the order of the algorithms, and groups in the order of their first rules.
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			f, r, seen := newFixture(t, doc.String()), rand.New(rand.NewPCG(seed, 1)), map[string]int{}
			m.keys = model.Keys{}
			for n := range race.Scale(4000) {
				time.Sleep(time.Duration(r.Int64N(int64(8 * time.Second))))
				some := slices.Clone(names)
				r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
				some = some[:1+r.IntN(7)]
				ask, hits := make([]string, len(some)), make([]int64, len(some))
				for i, name := range some {
					hits[i] = int64(r.IntN(4))
					ask[i] = fmt.Sprintf("%s=x hits=%d", name, hits[i])
				}
				want := m.ask(limits, some, hits, algorithms.Instant(time.Now().UnixNano()))
				var v limiter.Verdict
				must.Do(t, f.Check(t.Context(), request("d", ask...), &v))
				room := []string{}
				for _, g := range v.Groups {
					if g.Room {
						room = append(room, g.Name)
					}
				}
				got := "OVER"
				if !v.OverLimit {
					got = "OK"
				}
				if got += fmt.Sprint(room); got != want {
					t.Fatalf("seed %d, request %d, %q: got %s, want %s", seed, n, ask, got, want)
				}
				seen[want]++
			}
			if seen["OK[g0 g1 g2]"] == 0 || seen["OK[g2]"] == 0 || seen["OVER[]"] == 0 {
				t.Errorf("answers: got %v, want some of each: else the requests show little", seen)
			}
		})
	}
}

// later is a store that decides nothing at once.
type later struct{ store.Store }

func (later) TakeNow([]store.Charge, []algorithms.Decision) (admitted, decided bool) {
	return false, false
}

func TestGroupsOfRequestsThatWaitTogether(t *testing.T) {
	s := must.Get(memstore.New(memstore.Options{}))(t)
	t.Cleanup(s.Close)
	f := newFixtureOn(t, later{s}, groupRules, limiter.Options{})
	q := limiter.Questions{All: make([]limiter.Question, 12)}
	verdicts := make([]limiter.Verdict, len(q.All))
	for i := range q.All {
		q.All[i] = limiter.Question{Ctx: t.Context(), Request: request("d", "pt=a", "od=a"), Verdict: &verdicts[i]}
		if i == 11 {
			q.All[i].Request = request("d", "user=a")
		}
		if i%2 == 0 {
			decided, err := f.CheckNow(q.All[i].Request, q.All[i].Verdict)
			if q.All[i].Prepared = !decided; decided || err != nil {
				t.Fatalf("CheckNow: decided %t, error %v", decided, err)
			}
		}
	}
	var reported []int
	f.CheckAll(&q, func(indexes []int) { reported = append(reported, indexes...) })
	slices.Sort(reported)
	if len(slices.Compact(reported)) != 12 || len(reported) != 12 {
		t.Errorf("reported: got %v, want each index once", reported)
	}
	chosen := map[string]int{}
	for i := range verdicts {
		switch v := &verdicts[i]; {
		case q.All[i].Err != nil:
			t.Errorf("request %d: %v", i, q.All[i].Err)
		case v.OverLimit:
			chosen["none"]++
		case len(v.Groups) == 0:
			chosen["user"]++
		case v.Groups[0].Room:
			chosen["pt"]++
		default:
			chosen["od"]++
		}
	}
	if diff := cmp.Diff(map[string]int{"pt": 3, "od": 5, "none": 3, "user": 1}, chosen); diff != "" {
		t.Errorf("charged (-want +got):\n%s", diff)
	}
}

func TestGroupsAreNeverOverAmongRequestsAtOnce(t *testing.T) {
	f := newFixture(t, groupRules)
	var pt, od, none atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var v limiter.Verdict
			for range 50 {
				if err := f.Check(t.Context(), request("d", "pt=a", "od=a", "rare=a"), &v); err != nil {
					t.Error(err)
				}
				switch {
				case v.OverLimit:
					none.Add(1)
				case v.Groups[0].Room:
					pt.Add(1)
				default:
					od.Add(1)
				}
			}
		})
	}
	all.Wait()
	if pt.Load() != 3 || od.Load() != 5 || none.Load() != 392 {
		t.Errorf("pt %d, od %d, none %d; want 3, 5, 392", pt.Load(), od.Load(), none.Load())
	}
	if got, want := f.grouped(request("d", "rare=a")), "OK | ok:91/100"; got != want {
		t.Errorf("a limit beside the groups: got %s, want %s: the 8 requests that passed", got, want)
	}
}

func TestABeginHoldsInTheFirstGroupWithRoomAlone(t *testing.T) {
	const rules = `
domain: d
descriptors:
  - {key: pt, quota_mode: true, group: pt, rate_limit: {unit: hour, requests_per_unit: 10, hold: {begin: begin, end: end, at_most: 5m}}}
  - {key: slots, quota_mode: true, group: pt, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: begin, end: end, at_most: 5m}}}
  - {key: od, quota_mode: true, group: od, rate_limit: {unit: hour, requests_per_unit: 20, hold: {begin: begin, end: end, at_most: 5m}}}
  - {key: user, rate_limit: {algorithm: concurrency, max_in_flight: 2, hold: {begin: begin, end: end, at_most: 5m}}}
`
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, rules)
		begin := func(name string) string {
			return f.grouped(request("d", "pt=a,begin="+name+" hits=4", "slots=a,begin="+name, "od=a,begin="+name+" hits=4", "user=a,begin="+name))
		}
		end := func(name string, pt, od int) string {
			return f.grouped(request("d", fmt.Sprintf("pt=a,end=%s hits=%d", name, pt), "slots=a,end="+name,
				fmt.Sprintf("od=a,end=%s hits=%d", name, od), "user=a,end="+name))
		}
		for i, step := range []struct{ got, want string }{
			{begin("r1"), "OK pt od | ok:6/10 ok:0/1 ok:20/20 ok:1/2"},
			{begin("r1"), "OK pt od | ok:6/10 ok:0/1 ok:20/20 ok:1/2"}, // a repeat
			{begin("r2"), "OK od | ok:6/10 over:0/1 ok:16/20 ok:0/2"},  // the slot is taken: pt has nothing of r2
			{begin("r3"), "OVER od | ok:6/10 over:0/1 ok:16/20 over:0/2"},
			{end("r1", 0, 7), "OK | ok:10/10 ok:1/1 ok:9/20 ok:1/2"}, // od has served: pt is released
			{end("r2", 0, 4), "OK | ok:10/10 ok:1/1 ok:9/20 ok:2/2"},
			{begin("r4"), "OK pt od | ok:6/10 ok:0/1 ok:9/20 ok:1/2"},
			{end("r4", 9, 0), "OK | ok:1/10 ok:1/1 ok:9/20 ok:2/2"},
			{begin("r5"), "OK od | over:1/10 ok:1/1 ok:5/20 ok:1/2"},
			{end("r5", 0, 9), "OK | ok:1/10 ok:1/1 ok:0/20 ok:2/2"},
			{begin("r6"), "OVER | over:1/10 ok:1/1 over:0/20 ok:2/2"}, // nothing is held, the slot of user neither
		} {
			if step.got != step.want {
				t.Errorf("step %d: got %s, want %s", i, step.got, step.want)
			}
		}
	})
}

// The three scenarios of envoyproxy/ai-gateway#2460, which users expect of quotas.
func TestQuotasOfModelsAreEnforcedAsUsersExpect(t *testing.T) {
	const (
		model = "  - {key: model, value: %s, quota_mode: true, group: %[1]s, rate_limit: %s}\n"
		hour  = "{unit: hour, requests_per_unit: %d}"
	)
	of := func(n int) string { return fmt.Sprintf(hour, n) }
	for name, c := range map[string]struct {
		rules string
		asks  map[string]int // descriptors, and how often
		want  map[string]int // first group with room, "" for none
	}{
		"a model without a quota serves when the other one is spent": {
			fmt.Sprintf(model, "mini", of(100)) + fmt.Sprintf(model, "large", "{unlimited: true}"),
			map[string]int{"model=mini model=large": 350},
			map[string]int{"mini": 100, "large": 250},
		},
		"no model is used beyond its quota": {
			fmt.Sprintf(model, "mini", of(100)) + fmt.Sprintf(model, "large", of(200)),
			map[string]int{"model=mini model=large": 350},
			map[string]int{"mini": 100, "large": 200, "": 50},
		},
		"a tenant has a quota of its own beside the default": {
			fmt.Sprintf(model, "mini", of(100)) + "  - {key: tenant, quota_mode: true, group: mini, rate_limit: " + of(10) + "}\n" +
				fmt.Sprintf(model, "large", of(200)),
			map[string]int{"model=mini tenant=a model=large": 50, "model=mini tenant=b model=large": 50},
			map[string]int{"mini": 20, "large": 80},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, "domain: d\ndescriptors:\n"+c.rules)
				got := make(map[string]int)
				for ask, times := range c.asks {
					for range times {
						words := strings.Fields(f.grouped(request("d", strings.Fields(ask)...)))
						served := ""
						if words[0] == "OK" {
							served = words[1]
						}
						got[served]++
					}
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("who serves (-want +got):\n%s", diff)
				}
			})
		})
	}
}
