package grants

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// remember notes the grants in Redis. The result brings them back at once, as a failover does to a
// replica that has not heard of later ones.
func remember(t *testing.T, r *parts.Redis) (failOver func()) {
	t.Helper()
	names := []string{"weir:{grants}", "weir:{grants}:changes", "weir:{grants}:ends", "weir:{grants}:meta"}
	const script = `for i = 1, 4 do redis.call('COPY', KEYS[i] .. ARGV[1], KEYS[i] .. ARGV[2], 'REPLACE') end`
	eval := append([]string{"EVAL", script, "4"}, names...)
	do(t, r, append(eval, "", ".copy")...)
	return func() { do(t, r, append(eval, ".copy", "")...) }
}

// A failover loses a grant in the place of an older one. The processes that know the newer one go
// on with it, and put it back.
func TestAGrantInPlaceOfAnOlderOneOutlivesAFailover(t *testing.T) {
	r := startRedis(t)
	a, b := join(t, r), join(t, r)
	older, _ := a.give(t, of("x", 5))
	soonLimit(t, "x", 5, b)
	failOver := remember(t, r)
	newer, _ := a.give(t, of("x", 6))
	soonLimit(t, "x", 6, b)
	failOver()
	soon(t, "Redis has the newer grant", func() bool { return strings.Contains(do(t, r, "HVALS", "weir:{grants}"), newer.ID) })
	soon(t, "one of the processes knows the loss", func() bool {
		return strings.Contains(a.log.String()+b.log.String(), "Redis has lost changes")
	})
	for _, p := range []*process{a, b} {
		p.wantLimit(t, "x", 6)
		if n := strings.Count(p.log.String(), "here\" grant="+older.ID); n > 1 {
			t.Errorf("the older grant came back\n%s", &p.log)
		}
	}
	join(t, r).wantLimit(t, "x", 6)
	if n := grantsIn(t, r); n != 1 {
		t.Errorf("Redis has %d grants, want 1", n)
	}
}

// A change by an operator after a failover counts, also before the other processes look.
func TestAChangeAfterAFailoverCountsBeforeALostGrant(t *testing.T) {
	for name, revoke := range map[string]bool{"a grant": false, "a revoke": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t)
			a := join(t, r)
			older, _ := a.give(t, of("x", 5))
			failOver := remember(t, r)
			for i := range 3 {
				a.give(t, of("x", uint32(6+i)))
			}
			a.mu.Lock() // the process does not look
			failOver()
			b, want := join(t, r), uint32(2)
			b.wantLimit(t, "x", 5)
			if revoke {
				if _, _, err := b.Revoke(t.Context(), older.ID, "me"); err != nil {
					t.Error(err)
				}
			} else {
				want = 9
				b.give(t, of("x", want))
			}
			a.mu.Unlock()
			soon(t, "the loss is known", func() bool { return strings.Contains(a.log.String(), "Redis has lost changes") })
			soonLimit(t, "x", want, a, b)
			join(t, r).wantLimit(t, "x", want)
		})
	}
}
