package grants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// slow is a Redis with some grants that takes a while for each page, and breaks off before a page.
type slow struct {
	values []string // of the slots s0, s1, …
	takes  time.Duration
	epoch  string
	broken int            // number of the first grant of a page that has no answer; 0: none
	slots  int            // number of the first slot
	named  map[int]string // slots of some values, in place of their numbers
	given  []string

	refused int // number of the next changes that fail
	read    int // grants in all pages
	fails   bool
	after   func() // each page
	most    int    // grants in one change
}

func newSlow(t *testing.T, grants int) *slow {
	t.Helper()
	s := &slow{epoch: "one"}
	for i := range grants {
		s.values = append(s.values, valueOf(fmt.Sprintf("id%d", i), of(strconv.Itoa(i), 5)))
	}
	return s
}

// valueOf returns a grant as Redis keeps it.
func valueOf(id string, g limiter.Grant) string {
	g.ID, g.Given, g.Rule = id, time.Now(), "tenant"
	kept := item("", &g)
	return kept[1] + " " + kept[2]
}

// Run implements [Redis].
func (s *slow) Run(ctx context.Context, script string, _, args []string) ([]string, error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if strings.Contains(script, "HSET") {
		if s.refused > 0 {
			s.refused--
			return nil, errors.New("refused")
		}
		s.most = max(s.most, (len(args)-6)/4)
		for i := 6; i < len(args); i += 4 {
			s.given = append(s.given, args[i])
		}
		return []string{"ok", ""}, nil
	}
	if s.fails {
		return nil, errors.New("fails")
	}
	from, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, err
	}
	if args[0] != s.epoch || from > len(s.values) {
		from = 0
	}
	if s.broken > 0 && from >= s.broken {
		return nil, errors.New("broken off")
	}
	n := strconv.Itoa(len(s.values))
	answer := []string{s.epoch, n, strconv.Itoa(from), n, "1000000000000"}
	for i := from; i < min(len(s.values), from+pageSize); i++ {
		s.read++
		answer = append(answer, cmp.Or(s.named[i], fmt.Sprint("s", s.slots+i)), strconv.Itoa(i+1), s.values[i])
	}
	if s.after != nil {
		s.after()
	}
	return answer, nil
}

// A start takes as long as Redis goes on to answer, so that the first request meets all grants.
func TestAStartKnowsAllGrantsOfASlowRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 20*pageSize)
		s.takes = 200 * time.Millisecond
		begun := time.Now()
		p := on(t, s)
		if n := len(p.List()); n != 20*pageSize {
			t.Errorf("after %v the process knows %d grants, want %d", time.Since(begun), n, 20*pageSize)
		}
		p.wantLimit(t, strconv.Itoa(20*pageSize-1), 5)
	})
}

func TestAStartDoesNotWaitForARedisThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 1)
		s.takes = time.Hour
		begun := time.Now()
		on(t, s)
		if took := time.Since(begun); took != time.Second {
			t.Errorf("the start took %v, want 1s", took)
		}
		s = newSlow(t, 20*pageSize)      // the process above still asks the first
		s.takes = 900 * time.Millisecond // for each of the pages
		begun = time.Now()
		p := on(t, s)
		if took, known := time.Since(begun), len(p.List()); took != loadTimeout || known != 11*pageSize {
			t.Errorf("the start took %v and knows %d grants, want %v and %d", took, known, loadTimeout, 11*pageSize)
		}
		time.Sleep(20 * time.Second)
		if known := len(p.List()); known != 20*pageSize {
			t.Errorf("later the process knows %d grants, want all", known)
		}
	})
}

// Redis loses some grants, and breaks off while a process reads the others. The process puts the
// lost grants back at its next look.
func TestALossIsRepairedAfterABrokenLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 2*pageSize)
		p := on(t, s)
		p.mu.Lock()
		s.epoch, s.values, s.broken = "two", s.values[:pageSize+1], pageSize
		p.mu.Unlock()
		time.Sleep(2 * syncEvery)
		p.mu.Lock()
		known := len(p.slots)
		s.broken = 0
		p.mu.Unlock()
		time.Sleep(2 * syncEvery)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(s.given) != pageSize-1 || known != 2*pageSize {
			t.Errorf("the process put %d grants back, want %d; it knew %d during the failure, want all", len(s.given), pageSize-1, known)
		}
	})
}

// A grant that this version cannot read, such as one of a later version, must not cause a look at
// all grants each minute.
func TestAnUnreadableGrantCausesNoLookAtAllGrantsEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 2)
		s.values = append(s.values, `9 {"id":"a","gives":"something new"}`)
		p := on(t, s)
		time.Sleep(10 * countEvery)
		if n := strings.Count(p.log.String(), "a grant in Redis cannot be read"); n > 2 {
			t.Errorf("in ten minutes the process read the grant %d times, want 2 at most\n%s", n, &p.log)
		}
		p.wantLimit(t, "1", 5)
	})
}

// After a failover Redis has grants for other keys, as many as the bound allows. Grants that are
// gone make room at once.
func TestGrantsThatAreGoneMakeRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 10
		s := newSlow(t, most)
		p := start(t, func(o *Options) { o.Redis, o.Max = s, most })
		p.mu.Lock()
		s.slots = 5
		p.shared.epoch, p.shared.version, p.shared.loaded = "", 0, false // as after a count that differs
		p.mu.Unlock()
		time.Sleep(2 * syncEvery)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.slots) != most || strings.Contains(p.log.String(), "above the bound") {
			t.Errorf("the process knows %d grants, want %d\n%s", len(p.slots), most, &p.log)
		}
	})
}
