package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// shared is a store that denies the first transaction of each wait at once, and admits the others
// when it is told to.
type shared struct {
	store.Store
	release chan struct{}
	waits   atomic.Int64
	taken   atomic.Int64
	bug     bool // panics in place of the admissions
}

func (s *shared) Forget() {}

func (s *shared) TakeNow([]store.Charge, []algorithms.Decision) (admitted, decided bool) {
	return false, false
}

func (s *shared) TakeAll(all []store.Transaction, decided func([]int)) {
	s.waits.Add(1)
	s.taken.Add(int64(len(all)))
	for i := range all {
		for n := range all[i].Charges {
			all[i].Decisions[n] = algorithms.Decision{Allowed: i > 0}
		}
		all[i].Admitted = i > 0
	}
	decided([]int{0})
	<-s.release
	var rest []int
	for i := range all[1:] {
		if all[i+1].Err = all[i+1].Ended(time.Now()); i%2 == 0 {
			decided([]int{i + 1})
		} else {
			rest = append(rest, i+1)
		}
	}
	if s.bug {
		panic("the store") //nolint:forbidigo // the test is about this
	}
	decided(rest)
}

// conversation is a client that sends requests in one write, and gathers the answers.
func conversation(t *testing.T, f *fixture, requests int, more ...hpack.HeaderField) (c *frames, answers map[uint32]string) {
	t.Helper()
	message := asking(1)
	c = dialFrames(t, f.server.Serve, 1<<20)
	var all bytes.Buffer
	c.Framer = http2.NewFramer(&all, c.Conn)
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for i := range requests {
		id := uint32(2*i + 1)
		must.Do(t, c.call(id, false, more...))
		must.Do(t, c.WriteData(id, true, append([]byte{0, 0, 0, 0, byte(len(message))}, message...)))
	}
	answers = make(map[uint32]string)
	go func() {
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.DataFrame:
				answer := new(ratelimitv3.RateLimitResponse)
				if err := proto.Unmarshal(frame.Data()[5:], answer); err != nil {
					t.Error(err)
				}
				answers[frame.StreamID] = answer.GetOverallCode().String()
			case *http2.MetaHeadersFrame:
				for _, field := range frame.RegularFields() {
					if field.Name == "grpc-status" && field.Value != "0" {
						answers[frame.StreamID] = field.Value
					}
				}
			}
		}
	}()
	must.Get(c.Conn.Write(all.Bytes()))(t)
	synctest.Wait()
	return c, answers
}

// onTheLane runs a test with a store that answers when release is closed.
func onTheLane(t *testing.T, test func(t *testing.T, f *fixture, s *shared)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shared{release: make(chan struct{})}
		f := startOn(t, s, everything, func(o *Options) { o.GRPCGo = false })
		test(t, f, s)
	})
}

// inBatches skips a test where the fixture hides the store.
func inBatches(t *testing.T, s *shared) {
	t.Helper()
	if s.waits.Load() == 0 {
		t.Skip("the store of the fixture decides each transaction alone")
	}
}

// knowing is a shared that denies now as many calls as it is told, and then others only by TakeAll.
type knowing struct {
	*shared
	now, tries int
}

func (k *knowing) TakeNow(_ []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	k.tries++
	if k.tries > k.now {
		return false, false
	}
	decisions[0] = algorithms.Decision{}
	return false, true
}

func TestCallsThatTheStoreDecidesNowDoNotWaitForTheOthersOfTheirRead(t *testing.T) {
	if os.Getenv("WEIR_STORE") == "waits" {
		t.Skip("the fixture hides that the store decides some calls now")
	}
	synctest.Test(t, func(t *testing.T) {
		s := &knowing{shared: &shared{release: make(chan struct{})}, now: 3}
		f := startOn(t, s, everything, func(o *Options) { o.GRPCGo = false })
		_, answers := conversation(t, f, 70)
		inBatches(t, s.shared)
		if s.taken.Load() != 67 {
			t.Errorf("%d transactions waited, want 67", s.taken.Load())
		}
		if len(answers) != 4 || answers[1] == "" || answers[3] == "" || answers[5] == "" {
			t.Errorf("while the store waits: got the answers %v, want the first three calls', and the one that TakeAll denies", answers)
		}
		if s.tries != 70 {
			t.Errorf("the store was tried %d times, want 70: each call once", s.tries)
		}
		close(s.release)
		synctest.Wait()
		if len(answers) != 70 {
			t.Errorf("got %d answers, want 70", len(answers))
		}
		requests := f.limiter.Requests()
		if total := requests.OK + requests.OverLimit; total != 70 {
			t.Errorf("got %d requests in the counts, want 70: a try in vain counts nothing", total)
		}
	})
}

func TestTheCallsOfOneReadWaitForTheStoreOnce(t *testing.T) {
	onTheLane(t, func(t *testing.T, f *fixture, s *shared) {
		t.Helper()
		_, answers := conversation(t, f, 30)
		inBatches(t, s)
		if s.waits.Load() != 1 || s.taken.Load() != 30 {
			t.Errorf("got %d waits for %d transactions, want one for 30", s.waits.Load(), s.taken.Load())
		}
		if got := fmt.Sprint(answers); got != "map[1:OVER_LIMIT]" {
			t.Errorf("while the store waits: got the answers %s, want the denied call's", got)
		}
		close(s.release)
		synctest.Wait()
		for i := range uint32(30) {
			want := "OK"
			if i == 0 {
				want = "OVER_LIMIT"
			}
			if got := answers[2*i+1]; got != want {
				t.Errorf("call %d: got %q, want %q", i, got, want)
			}
		}
		if got := f.server.service.bytes.Stats(); got.Bytes != 0 {
			t.Errorf("got %d bytes in flight after the answers, want 0", got.Bytes)
		}
	})
}

func TestACallOfABatchHasItsDeadline(t *testing.T) {
	onTheLane(t, func(t *testing.T, f *fixture, s *shared) {
		t.Helper()
		_, answers := conversation(t, f, 3, hpack.HeaderField{Name: "grpc-timeout", Value: "20m"})
		inBatches(t, s)
		time.Sleep(20 * time.Millisecond)
		close(s.release)
		synctest.Wait()
		want := fmt.Sprintf("map[1:OVER_LIMIT 3:%[1]d 5:%[1]d]", codes.DeadlineExceeded)
		if got := fmt.Sprint(answers); got != want {
			t.Errorf("got the answers %s, want %s", got, want)
		}
	})
}

func TestAPanicAnswersTheRestOfABatchAndNothingTwice(t *testing.T) {
	onTheLane(t, func(t *testing.T, f *fixture, s *shared) {
		t.Helper()
		s.bug = true
		_, answers := conversation(t, f, 6)
		inBatches(t, s)
		close(s.release)
		synctest.Wait()
		want := fmt.Sprintf("map[1:OVER_LIMIT 3:OK 5:%[1]d 7:OK 9:%[1]d 11:OK]", codes.Internal)
		if got := fmt.Sprint(answers); got != want {
			t.Errorf("got the answers %s, want %s", got, want)
		}
		if got := f.server.service.bytes.Stats(); got.Bytes != 0 {
			t.Errorf("got %d bytes in flight after the answers, want 0", got.Bytes)
		}
		if got := f.server.Lost(); got != 2 {
			t.Errorf("got %d lost requests, want 2", got)
		}
		s.bug = false
		if _, err := f.client.ShouldRateLimit(context.Background(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: asks(descriptor("minute", "a"))}); err != nil {
			t.Errorf("later: got %v", err)
		}
	})
}
