package shared

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestOneLinePerChangeOfState(t *testing.T) {
	inBubble(t, setup{}, func(r *rig) {
		t := r.t
		r.probeAnswers(errDown)
		r.primary.fail(errDown)
		for range 100 { // 4 before it opens
			r.hit()
		}
		opened := time.Now()
		time.Sleep(time.Minute) // many probes
		r.halfOpen()
		r.primary.fail(context.DeadlineExceeded)
		r.hit()
		synctest.Wait()
		r.halfOpen()
		r.primary.fail(nil)
		for range successesToClose {
			r.hit()
		}
		away := time.Since(opened)
		r.primary.fail(errDown)
		for range defaultFailures { // the breaker closes and opens again, maybe before the watcher has looked
			r.hit()
		}
		synctest.Wait()
		want := []string{
			`level=INFO msg="store answers, its counts rule"`,
			`level=WARN msg="store is away, limits go by their on_store_error" error="connection refused"`,
			`level=INFO msg="store answers again, single requests try it"`,
			`level=WARN msg="store failed again, limits go on by their on_store_error" error="context deadline exceeded"`,
			`level=INFO msg="store answers again, single requests try it"`,
			fmt.Sprintf(`level=INFO msg="store is back, its counts rule again" away=%v decided_without=%d`, away, 100-4+1),
			`level=WARN msg="store is away, limits go by their on_store_error" error="connection refused"`,
		}
		must.Match(t, "log", want, r.log.Lines())
	})
}

// A store that comes and goes, or fails each request after a good probe, can change the state many
// times a second.
func TestLinesAboutAStoreThatComesAndGoesAreLimited(t *testing.T) {
	for name, again := range map[string]error{"comes and goes": nil, "fails again": errDown} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, setup{}, func(r *rig) {
				t := r.t
				begun := time.Now()
				for over := false; !over; {
					over = time.Since(begun) > 10*time.Minute
					r.primary.fail(errDown)
					for r.State() == Closed {
						r.hit()
						time.Sleep(defaultFailingFor / 4)
						synctest.Wait()
					}
					r.halfOpen()
					if !over {
						r.primary.fail(again)
					}
					for range successesToClose {
						r.hit()
					}
					synctest.Wait()
				}
				lines := r.log.Lines()
				if most := 3 * (linesAtOnce + int(time.Since(begun)/linesEvery) + 1); len(lines) > most {
					t.Errorf("%d lines, want at most %d; the last ones: %q", len(lines), most, lines[len(lines)-6:])
				}
				if last := lines[len(lines)-1]; !strings.Contains(last, "store is back") {
					t.Errorf("the last line is %q, want that the store is back", last)
				}
				if !strings.Contains(strings.Join(lines, "\n"), "not_logged=") {
					t.Errorf("no line has the number of missing lines")
				}
			})
		})
	}
}

func TestCloseEndsAProbeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{Probe: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		synctest.Wait()
		start := time.Now()
		r.Store.Close()
		r.Store.Close()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("Close waited %v for the probe", waited)
		}
		r.want(Open)
		if got := r.log.Lines(); len(got) != 0 {
			t.Errorf("log = %q; want nothing about a probe that was cut short", got)
		}
	})
}

func TestAProbeThatHangsIsAFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{Probe: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		time.Sleep(AwaitTimeout)
		synctest.Wait()
		r.want(Open)
		want := []string{`level=WARN msg="store is away, limits go by their on_store_error" error="context deadline exceeded"`}
		must.Match(t, "log", want, r.log.Lines())
	})
}

func TestStateSinceAndReadinessFollowTheBreaker(t *testing.T) {
	inBubbleAway(t, setup{}, func(r *rig) {
		t, opened := r.t, time.Now()
		check := func(want State, since time.Time, name string, ready string) {
			t.Helper()
			if got := r.Stats(); got.State != want || since.Sub(got.Since) < 0 || since.Sub(got.Since) > time.Millisecond || got.State.String() != name {
				t.Errorf("stats = %+v; want %s since %v", got, name, since)
			}
			if got := fmt.Sprint(r.Ready()); got != ready {
				t.Errorf("%s: Ready = %s; want %s", name, got, ready)
			}
		}
		away := fmt.Sprintf("the store is away since %s: ", opened.UTC().Format(time.RFC3339))
		check(Open, opened, "open", away+errDown.Error())
		r.probeAnswers(context.DeadlineExceeded)
		time.Sleep(time.Minute)
		check(Open, opened, "open", away+context.DeadlineExceeded.Error()) // the last reason
		r.halfOpen()
		half := time.Now() // or less than a millisecond ago
		time.Sleep(2 * time.Millisecond)
		check(HalfOpen, half, "half_open", "<nil>")
		for range successesToClose {
			r.hit()
		}
		check(Closed, time.Now(), "closed", "<nil>")
		if got := State(9).String(); got != "state(9)" {
			t.Errorf("State(9) = %s", got)
		}
	})
}
