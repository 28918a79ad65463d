package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/test/parts"
)

func TestTheClientComesBack(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", config("r1", "a", 1), config("r2", "b", 2))
			s := startClient(t, p, Options{Delta: delta})
			s.await(t, map[string]uint32{"a": 1, "b": 2})
			p.awaitRequest(t, 0, "an acceptance", func(r parts.XDSRequest) bool { return r.Nonce == "1" })

			p.Stop()
			eventually(t, func() string {
				if got := s.Status(); got.Connected || got.Failures < 3 {
					return "still connected, or not trying"
				}
				return ""
			})
			if err := s.Ready(); err != nil {
				t.Errorf("Ready without a control plane: got %v", err)
			}
			must.Match(t, "rules without a control plane", map[string]uint32{"a": 1, "b": 2}, s.inForce())
			from := len(p.Requests())
			p.set("2", config("r1", "a", 1), config("r3", "c", 3)) // r2 is gone by then
			p.restart()
			s.await(t, map[string]uint32{"a": 1, "c": 3})
			first, _ := p.awaitRequest(t, from, "a greeting", func(parts.XDSRequest) bool { return true })
			if first.Nonce != "" || first.Refused {
				t.Errorf("the first request on a new stream: got %+v, want no nonce of another stream", first)
			}
			if first.Version != "" {
				t.Errorf("version on a new stream: got %q, want none", first.Version)
			}
			if delta && (len(first.Initial) != 2 || first.Initial["r1"] == "" || first.Initial["r2"] == "") {
				t.Errorf("initial resource versions: got %v, want those of r1 and r2", first.Initial)
			}
		})
	}
}

func TestADeltaStreamAsksAgainForRefusedResources(t *testing.T) {
	p := startPlane(t)
	p.set("1", config("r1", "a", 1), config("r2", "b", 2))
	s := startClient(t, p, Options{Delta: true})
	s.await(t, map[string]uint32{"a": 1, "b": 2})
	_, from := p.awaitRequest(t, 0, "an acceptance", func(r parts.XDSRequest) bool { return r.Nonce == "1" })
	p.set("2", config("r1", "a", 0), config("r2", "b", 2), config("r3", "c", 0))
	p.awaitRequest(t, from, "a refusal", func(r parts.XDSRequest) bool { return r.Refused })
	before := p.Requests()
	p.Stop()
	p.restart()
	first, _ := p.awaitRequest(t, len(before), "a greeting", func(r parts.XDSRequest) bool { return r.Nonce == "" })
	if len(first.Initial) != 2 || first.Initial["r1"] == "" {
		t.Errorf("initial resource versions: got %v, want the good ones of r1 and r2", first.Initial)
	}
	p.awaitRequest(t, len(before), "another refusal", func(r parts.XDSRequest) bool { return r.Refused })
	must.Match(t, "rules", map[string]uint32{"a": 1, "b": 2}, s.inForce())
}

type fakeRules struct {
	mu      sync.Mutex
	pushes  int
	refusal error
}

func (f *fakeRules) push(context.Context, []descriptors.Source) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pushes++
	return f.refusal
}

// stage is a control plane in fake time: open decides the responses and the life of each stream.
type stage struct {
	start time.Time
	opens []time.Duration // when streams were opened, or tried
	open  func(ctx context.Context, n int) (stream, error)
}

func (s *stage) connect(ctx context.Context) (stream, func(), error) {
	s.opens = append(s.opens, time.Since(s.start))
	talk, err := s.open(ctx, len(s.opens)-1)
	return talk, func() {}, err
}

// script is a stream that sends responses, the next one as soon as there is an answer, and then
// ends after a while.
type script struct {
	ctx     context.Context
	say     []response
	lasts   time.Duration
	asked   chan struct{}
	answers []time.Time
}

func newScript(ctx context.Context, lasts time.Duration, say ...response) *script {
	return &script{ctx: ctx, say: say, lasts: lasts, asked: make(chan struct{}, 100)}
}

func (s *script) greet(*rules) error { s.asked <- struct{}{}; return nil }

func (s *script) answer(response, error) error {
	s.answers = append(s.answers, time.Now())
	s.asked <- struct{}{}
	return nil
}

func (s *script) receive() (response, error) {
	if len(s.say) > 0 {
		select {
		case <-s.asked:
			next := s.say[0]
			s.say = s.say[1:]
			return next, nil
		case <-s.ctx.Done():
			return response{}, s.ctx.Err()
		}
	}
	if !pause(s.ctx, s.lasts) {
		return response{}, s.ctx.Err()
	}
	return response{}, errors.New("the stream ended")
}

func perform(t *testing.T, stage *stage, rules *fakeRules, o Options, lasts time.Duration) *Client {
	t.Helper()
	o.Address, o.Push = "stage", rules.push
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := must.Get(New(o))(t)
	stage.start = time.Now()
	c.connect = stage.connect
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	if err := c.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
	return c
}

func TestWaitsDoubleWhileNothingAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{open: func(context.Context, int) (stream, error) { return nil, errors.New("connection refused") }}
		perform(t, s, &fakeRules{}, Options{Steady: true, MinBackoff: time.Second, MaxBackoff: 8 * time.Second}, 32*time.Second)
		var want []time.Duration
		for _, seconds := range []int{0, 1, 3, 7, 15, 23, 31} {
			want = append(want, time.Duration(seconds)*time.Second)
		}
		must.Match(t, "attempts", want, s.opens)
	})
}

func TestAGoodStreamMakesWaitsBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{open: func(ctx context.Context, n int) (stream, error) {
			if n == 3 {
				return newScript(ctx, time.Minute, response{version: "1", whole: true}), nil
			}
			return nil, errors.New("connection refused")
		}}
		perform(t, s, &fakeRules{}, Options{Steady: true}, 72*time.Second)
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 68 * time.Second, 70 * time.Second}
		must.Match(t, "attempts", want, s.opens)
	})
}

func TestStreamsThatEndAtOnceAreNoHotLoop(t *testing.T) {
	for name, say := range map[string][]response{"without a response": nil, "after a response": {{version: "1", whole: true}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stage{open: func(ctx context.Context, _ int) (stream, error) {
					return newScript(ctx, time.Millisecond, say...), nil
				}}
				perform(t, s, &fakeRules{}, Options{}, 10*time.Minute)
				if n := len(s.opens); n > 50 {
					t.Errorf("streams in ten minutes: got %d, want at most 50", n)
				}
			})
		})
	}
}

func TestWaitsAreSpread(t *testing.T) {
	o := Options{MinBackoff: time.Second, MaxBackoff: 30 * time.Second}
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := o.backoff(2)
		least, most = min(least, d), max(most, d)
	}
	if least < 2*time.Second || most > 4*time.Second || most-least < time.Second {
		t.Errorf("third wait: from %v to %v, want 2 to 4 s", least, most)
	}
	if d := o.backoff(1_000_000); d < 15*time.Second || d > 30*time.Second {
		t.Errorf("millionth wait: %v, want 15 to 30 s", d)
	}
}

// go-control-plane's snapshot cache repeats a refused response as soon as it hears of the refusal.
func TestARepeatedRefusedResponseIsAnsweredEverMoreSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := response{version: "2", whole: true, resources: []resource{{name: "r1", Source: descriptors.Source{Name: "xds:r1", Data: []byte("bad")}}}}
		good := response{version: "3", whole: true, resources: []resource{{name: "r1", Source: descriptors.Source{Name: "xds:r1", Data: []byte("good")}}}}
		rules := &fakeRules{refusal: errors.New("bad")}
		var talk *script
		s := &stage{open: func(ctx context.Context, _ int) (stream, error) {
			talk = newScript(ctx, time.Hour, bad, bad, bad, bad, bad, bad, bad, good, bad)
			return talk, nil
		}}
		perform(t, s, rules, Options{}, 10*time.Minute)
		var got []time.Duration
		for _, at := range talk.answers {
			got = append(got, at.Sub(s.start))
		}
		want := []time.Duration{0, 1, 3, 7, 15, 30, 45, 45, 45}
		for i := range want {
			want[i] *= time.Second
		}
		must.Match(t, "answers", want, got)
	})
}

func TestRulesInForceAreAcceptedWithoutAnotherLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := response{version: "1", whole: true, resources: []resource{{name: "r1", Source: descriptors.Source{Name: "xds:r1", Data: []byte("good")}}}}
		rules := &fakeRules{}
		s := &stage{open: func(ctx context.Context, _ int) (stream, error) {
			return newScript(ctx, time.Minute, good, good), nil
		}}
		c := perform(t, s, rules, Options{}, 5*time.Minute)
		if rules.pushes != 1 || c.Status().Accepted < 8 {
			t.Errorf("loaded %d times, accepted %d times; want once, and each time", rules.pushes, c.Status().Accepted)
		}
	})
}

// A control plane that sends many responses, all different, does not fill the log.
func TestTheLogOfResponsesIsBounded(t *testing.T) {
	for name, refusal := range map[string]error{"good": nil, "bad": errors.New("bad")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []response
				for i := range 2000 {
					source := descriptors.Source{Name: "xds:r1", Data: fmt.Append(nil, i)}
					all = append(all, response{version: fmt.Sprint(i), whole: true, resources: []resource{{name: "r1", Source: source}}})
				}
				s := &stage{open: func(ctx context.Context, _ int) (stream, error) {
					return newScript(ctx, time.Hour, all...), nil
				}}
				log := new(logtest.Log)
				c := perform(t, s, &fakeRules{refusal: refusal}, Options{Logger: slog.New(slog.NewTextHandler(log, nil))}, time.Second)
				if got := c.Status(); got.Accepted+got.Refused != 2000 {
					t.Fatalf("%d responses were judged, want 2000", got.Accepted+got.Refused)
				}
				if got := strings.Count(log.String(), "msg=\"xds configuration"); got != linesAtOnce {
					t.Errorf("%d lines about responses, want %d", got, linesAtOnce)
				}
			})
		})
	}
}
