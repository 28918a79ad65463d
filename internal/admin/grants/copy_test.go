package grants

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// beside starts a process that shares a Redis, and has a directory.
func beside(t *testing.T, s Redis, dir string) *process {
	t.Helper()
	return start(t, func(o *Options) { o.Redis, o.Dir = s, dir })
}

// While Redis is away a process starts with the last grants that another process in its directory
// knew: a blocked key stays blocked. When Redis answers, its grants count.
func TestAStartWithoutRedisHasTheLastGrants(t *testing.T) {
	for _, c := range []struct {
		name  string
		after func(*slow) // while the second process is up
		want  uint32      // of tenant 0, with Redis back
	}{
		{"nothing has changed", func(*slow) {}, 0},
		{"a revoke while it was down", func(s *slow) { s.named, s.values = map[int]string{4: "s0"}, append(s.values, "") }, 2},
		{"Redis has lost all, and others have given their grants back", func(s *slow) { s.epoch, s.values = "two", s.values[1:2] }, 2},
		{"Redis has gone back", func(s *slow) { s.values = s.values[:1] }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s := newSlow(t, 3)
				s.values[0] = strings.Replace(s.values[0], `"requests":5`, `"requests":0`, 1)
				first := beside(t, s, dir)
				first.wantLimit(t, "0", 0)
				first.mu.Lock()
				s.values = append(s.values, valueOf("late", of("late", 7)))
				first.mu.Unlock()
				time.Sleep(2 * syncEvery)
				first.wantLimit(t, "late", 7)
				first.end()
				s.fails = true
				second := beside(t, s, dir)
				second.wantLimit(t, "0", 0)
				second.wantLimit(t, "1", 5)
				second.wantLimit(t, "late", 7)
				if where, _ := second.Kept(); !strings.Contains(where, "the grants that were known last go on") {
					t.Errorf("kept %s", where)
				}
				time.Sleep(time.Minute)
				second.mu.Lock()
				s.fails = false
				c.after(s)
				second.mu.Unlock()
				time.Sleep(2 * countEvery)
				second.wantLimit(t, "0", c.want)
				second.end()
				s.fails = true
				beside(t, s, dir).wantLimit(t, "0", c.want)
			})
		})
	}
}

// Without a directory a start without Redis has no grants, and says so.
func TestAStartWithoutRedisAndWithoutADirectorySaysThatNoGrantIsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 3)
		s.fails = true
		p := on(t, s)
		if where, _ := p.Kept(); !strings.Contains(where, "no grant is known here yet") {
			t.Errorf("kept %s", where)
		}
		if !strings.Contains(p.log.String(), `level=WARN msg="grants cannot be read from Redis: no grant is in force until Redis answers"`) {
			t.Errorf("the log says nothing\n%s", &p.log)
		}
	})
}

// The grants of a process are its own when the process keeps them in its directory alone. A start
// with Redis takes the grants of Redis.
func TestADirectoryIsUsedWithRedisAndWithout(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 3)
		p := beside(t, s, dir)
		p.end()
		p = in(t, dir)
		p.wantLimit(t, "1", 5)
		p.give(t, of("own", 7))
		p.end()
		p = beside(t, s, dir)
		time.Sleep(2 * syncEvery)
		p.wantLimit(t, "1", 5)
		p.wantLimit(t, "own", 2)
	})
}
