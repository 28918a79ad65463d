package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/redis"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// farCluster is a cluster of far servers, for tests in a bubble. farCluster implements connection.
type farCluster struct {
	far

	fars  []*far
	nodes *redis.Nodes
}

func (c *farCluster) Cluster() bool       { return true }
func (c *farCluster) Nodes() *redis.Nodes { return c.nodes }

// calls returns the calls of the script that all servers got.
func (c *farCluster) calls() (n int64) {
	for _, f := range c.fars {
		n += f.calls.Load()
	}
	return n
}

// slots returns the answer to CLUSTER SLOTS.
func (c *farCluster) slots() string {
	var ranges strings.Builder
	n := 0
	for first := 0; first < slots; n++ {
		last := first
		for last+1 < slots && c.nodes[last+1] == c.nodes[first] {
			last++
		}
		fmt.Fprintf(&ranges, "*3\r\n:%d\r\n:%d\r\n*3\r\n$4\r\nfar%d\r\n:1\r\n$1\r\n%d\r\n", first, last, c.nodes[first], c.nodes[first])
		first = last + 1
	}
	return fmt.Sprintf("*%d\r\n%s", n, ranges.String())
}

// awayCluster returns a store in a bubble that asks a cluster of three servers, each at a constant
// distance. The bubble's end closes the store.
func awayCluster(t *testing.T, distance time.Duration, of func(slot int) int) (*Store, *farCluster) {
	t.Helper()
	c := &farCluster{nodes: new(redis.Nodes)}
	for slot := range c.nodes {
		c.nodes[slot] = uint16(of(slot))
	}
	for range 3 {
		c.fars = append(c.fars, &far{trip: func() time.Duration { return distance }, slots: c.slots})
	}
	c.client = farClient(t, rueidis.ClientOption{
		InitAddress: []string{"far0:1"},
		DialCtxFn: func(ctx context.Context, to string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(to, "far"), ":1"))
			if err != nil {
				return nil, err
			}
			return c.fars[n].dial(ctx, to, d, secure)
		},
	})
	o := Options{Target: Target{URLs: []string{"redis-cluster://127.0.0.1:1"}}, Logger: slog.New(slog.DiscardHandler)}
	s, err := newStore(o, func(redis.Target) connection { return c })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		time.Sleep(20 * time.Second) // rueidis closes the connections of a cluster in the background
	})
	return s, c
}

// layouts are ways to give slots to three nodes.
func layouts() map[string]func(slot int) int {
	return map[string]func(slot int) int{
		"thirds":      func(slot int) int { return slot * 3 / slots },
		"interleaved": func(slot int) int { return slot / 16 % 3 },
	}
}

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
