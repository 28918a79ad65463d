package redisstore

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestNodeThatHangsDelaysItsOwnCallsOnly(t *testing.T) {
	for name, layout := range layouts() {
		for _, perSecond := range []float64{400, 1500, 6000} {
			t.Run(fmt.Sprintf("%s, %v per second", name, perSecond), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, c := awayCluster(t, time.Millisecond, layout)
					const hangs = 1
					ask := func(during time.Duration) (asked, failed [3]int) {
						var mu sync.Mutex // guards the counts
						atRandom(perSecond, during, func(n int) {
							x := hit(strconv.Itoa(n), perAge(algorithms.FixedWindow, 10))
							node := c.nodes[s.locate(&x, 0).slot]
							_, err := store.Take(t.Context(), s, []store.Charge{x}, make([]algorithms.Decision, 1))
							mu.Lock()
							defer mu.Unlock()
							if asked[node]++; err != nil {
								failed[node]++
							}
						})
						return asked, failed
					}
					asked, failed := ask(300 * time.Millisecond)
					if failed != [3]int{} {
						t.Errorf("%v of %v requests failed while all nodes answer", failed, asked)
					}
					t.Logf("%v requests in %d calls", asked, c.calls())
					c.fars[hangs].hang(10 * time.Second)
					asked, failed = ask(500 * time.Millisecond)
					for node := range asked {
						want := 0
						if node == hangs {
							want = asked[node]
						}
						if failed[node] != want {
							t.Errorf("%d of %d requests to node %d failed while node %d hangs; want %d", failed[node], asked[node], node, hangs, want)
						}
					}
				})
			})
		}
	}
}
