package wire

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/testing/must"
)

// listAll calls the method that lists, and returns the bytes of the answer.
func (f *grpcFixture) listAll(ctx context.Context) (int, error) {
	all := new(wrapperspb.BytesValue)
	err := f.client.Invoke(ctx, "/test.Service/ListAll", new(emptypb.Empty), all, grpc.MaxCallRecvMsgSize(1<<30))
	return len(all.GetValue()), err
}

func TestOneListIsMadeAtATimeAndOtherCallsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startGRPC(t)
		var now, most, answers atomic.Int32
		f.list = func() proto.Message {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer now.Add(-1)
			time.Sleep(time.Second)
			return wrapperspb.Bytes(make([]byte, 2*MaxPooled))
		}
		for range 8 {
			go func() {
				if n, err := f.listAll(t.Context()); err == nil && n == 2*MaxPooled {
					answers.Add(1)
				}
			}()
		}
		time.Sleep(500 * time.Millisecond)
		must.Do(t, f.do(t))
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.listAll(short); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a list that waits for the others: got %v, want the end of its deadline", err)
		}
		time.Sleep(10 * time.Second)
		if most.Load() != 1 || answers.Load() != 8 || f.lists.unread.Load() != 0 {
			t.Errorf("%d lists at once, %d answers of 8, %d bytes unread", most.Load(), answers.Load(), f.lists.unread.Load())
		}
	})
}

func TestListsThatNobodyReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startGRPC(t)
		f.list = func() proto.Message { return wrapperspb.Bytes(make([]byte, maxUnread/4)) }
		idle, leave := context.WithCancel(t.Context())
		const n = 8
		for range n { // asks, and reads nothing
			s := must.Get(f.client.NewStream(idle, &grpc.StreamDesc{ServerStreams: true}, "/test.Service/ListAll", grpc.MaxCallRecvMsgSize(1<<30)))(t)
			must.Do(t, s.SendMsg(new(emptypb.Empty)))
			must.Do(t, s.CloseSend())
			synctest.Wait()
		}
		if got := f.lists.unread.Load(); got <= maxUnread || got > maxUnread+maxUnread/2 {
			t.Errorf("%d bytes wait for clients, want little more than %d", got, maxUnread)
		}
		if _, err := f.listAll(t.Context()); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one more: got %v, want RESOURCE_EXHAUSTED", err)
		}
		must.Do(t, f.do(t))
		leave()
		synctest.Wait()
		if got := f.lists.unread.Load(); got != 0 {
			t.Errorf("the clients have gone: %d bytes are unread", got)
		}
		if n, err := f.listAll(t.Context()); err != nil || n != maxUnread/4 {
			t.Errorf("after that: got %d bytes, %v", n, err)
		}
	})
}
