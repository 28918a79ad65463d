package shared

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// play is a process with holders, as a text of steps sees it.
type play struct {
	t      *testing.T
	fleet  *fleet
	limit  algorithms.Limit
	policy store.OnError
	second *store.Charge // of each begin; nil: none
	told   int           // of link.told
	out    strings.Builder
}

// charge returns the charge of a phase of a holder.
func (p *play) charge(phase algorithms.HoldPhase, holder string, hits int64) store.Charge {
	c := store.Charge{
		Key: []byte("key"), Limit: p.limit, Hits: hits, OnError: p.policy,
		Hold: &store.Hold{Phase: phase, Holder: store.HolderOf([]byte(holder)), AtMost: time.Minute},
	}
	if holder == "nobody" {
		c.Hold.Holder = store.Holder{}
	}
	return c
}

// step plays one step, and writes its outcome:
//
//	up, down, late, void  the condition of the link; the breaker follows up and down
//	back                  up, and other processes may not have told their holders
//	wait                  two minutes
//	begin R 3, end R 3    a request; "left" is the remaining hits, "was" the hold as the caller is
//	                      told
func (p *play) step(line string) {
	link, s := p.fleet.links[0], p.fleet.procs[0]
	var verb, holder string
	var hits int64
	_, _ = fmt.Sscan(line, &verb, &holder, &hits) // shorter lines leave the rest
	fmt.Fprint(&p.out, line)
	switch verb {
	case "late":
		link.is.Store(late)
	case "void":
		link.is.Store(void)
	case "down":
		link.is.Store(down)
		for s.State() != Open {
			c := charge("another key", 1000)
			p.fleet.take(p.t, s, []store.Charge{c}, false)
			time.Sleep(10 * time.Millisecond)
		}
	case "up":
		link.is.Store(up)
		link.flush()
		for !s.breaker.settled() {
			time.Sleep(time.Second)
			synctest.Wait()
		}
	case "back":
		link.is.Store(up)
		for s.State() != Closed {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
	case "wait":
		time.Sleep(2 * time.Minute)
	default:
		phase := algorithms.HoldBegin
		if verb == "end" {
			phase = algorithms.HoldEnd
		}
		charges := []store.Charge{p.charge(phase, holder, hits)}
		if p.second != nil && phase == algorithms.HoldBegin {
			charges = append(charges, *p.second)
		}
		admitted, decisions := p.fleet.take(p.t, s, charges, false)
		d, was := decisions[0], charges[0].Hold.Was
		fmt.Fprintf(&p.out, ": %t, %d left", admitted && d.Allowed, d.Remaining)
		if names := [...]string{"", "held", "denied", "ended"}; was.Status != algorithms.HoldUnknown {
			fmt.Fprintf(&p.out, ", was %s %d", names[was.Status], was.Hits)
		}
		if admitted != d.Allowed && phase == algorithms.HoldEnd {
			p.t.Errorf("%s: admitted %t, allowed %t", line, admitted, d.Allowed)
		}
	}
	for ; p.told < len(link.told); p.told++ {
		c := link.told[p.told]
		fmt.Fprintf(&p.out, "; told %s %d", [...]string{"", "begin", "end", "begun", "cancel"}[c.Hold.Phase], c.Hits)
	}
	fmt.Fprintln(&p.out)
}

// finish writes the hits that the hub counts in the end.
func (p *play) finish() string {
	p.fleet.links[0].flush()
	c := p.charge(algorithms.HoldBegin, "", 0)
	d := p.fleet.hub.probe(&c)
	fmt.Fprintf(&p.out, "the primary counts %d\n", c.Limit.Requests-d.Remaining)
	return p.out.String()
}

//go:embed testdata/holds.txt
var outagesOfHolders string

// scenario returns the play of a scenario's words.
func scenario(t *testing.T, words string, f *fleet) *play {
	t.Helper()
	p := &play{t: t, fleet: f}
	size := 1
	for word := range strings.SplitSeq(words, ", ") {
		switch word {
		case "day":
			p.limit = algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 100, Period: 24 * time.Hour}
		case "bucket":
			p.limit = algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 100, Period: 240 * time.Hour}
		case "slots":
			p.limit = algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: 10}
		case "ban":
			p.limit = algorithms.Limit{Algorithm: algorithms.Concurrency}
		case "allow":
			p.policy = store.OnErrorAllow
		case "deny":
			p.policy = store.OnErrorDeny
		case "never":
			c := charge("other", 0)
			p.second = &c
		default:
			if _, err := fmt.Sscan(word, &size); err != nil {
				t.Fatalf("%q: %v", word, err)
			}
		}
	}
	f.procs[0].breaker.FleetSize = size
	return p
}

func TestHoldersAroundAnOutage(t *testing.T) {
	_, all, _ := strings.Cut(outagesOfHolders, "\n== ")
	for text := range strings.SplitSeq(all, "\n== ") {
		head, want, _ := strings.Cut(text, "\n")
		want = strings.TrimSpace(want) + "\n"
		name, words, _ := strings.Cut(head, ": ")
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, end := newFleet(t, rand.New(rand.NewPCG(1, 2)), 1, 0)
				defer end()
				synctest.Wait()
				p := scenario(t, words, f)
				for line := range strings.Lines(want) {
					line, _, _ = strings.Cut(line, ":")
					line, _, _ = strings.Cut(line, ";")
					if line = strings.TrimSpace(line); !strings.HasPrefix(line, "the primary") {
						p.step(line)
					}
				}
				if diff := cmp.Diff(want, p.finish()); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		})
	}
}
