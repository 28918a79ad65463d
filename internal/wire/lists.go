package wire

import (
	"context"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxUnread bounds the bytes of lists that clients have not read, before one more is made.
const maxUnread = 32 << 20

// lists bounds the memory of methods that list: an answer may be many MiB. One answer is made at a
// time. An answer takes its memory until the client has read it. Safe for concurrent use.
type lists struct {
	making chan struct{} // has a value while an answer is made
	unread atomic.Int64  // bytes of large answers
}

func newLists() *lists { return &lists{making: make(chan struct{}, 1)} }

// isList reports whether the method of a service lists.
func isList(method string) bool { return strings.HasPrefix(method, "List") }

// listed is the answer of a list, encoded.
type listed struct {
	data []byte
	of   *lists
}

// handle makes an answer. The request is read first: a client may send it slowly.
func (l *lists) handle(ctx context.Context, decode func(any) error, handle func(decode func(any) error) (any, error)) (any, error) {
	begun := false
	defer func() {
		if begun {
			<-l.making
		}
	}()
	response, err := handle(func(request any) error {
		if err := decode(request); err != nil {
			return err
		}
		select {
		case l.making <- struct{}{}:
			begun = true
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		if n := l.unread.Load(); n > maxUnread {
			return status.Errorf(codes.ResourceExhausted, "%d bytes of lists wait for clients that do not read", n)
		}
		return nil
	})
	m, ok := response.(proto.Message)
	if err != nil || !ok || proto.Size(m) <= MaxPooled {
		return response, err
	}
	data, err := proto.Marshal(m)
	return &listed{data, l}, err
}

// buffer returns the bytes of the answer, which count until gRPC has sent them or gives them up.
func (a *listed) buffer() mem.BufferSlice {
	a.of.unread.Add(int64(len(a.data)))
	return mem.BufferSlice{mem.NewBuffer(&a.data, a.of)}
}

// Get implements [mem.BufferPool]. Nobody takes a buffer.
func (l *lists) Get(length int) *[]byte {
	data := make([]byte, length)
	return &data
}

// Put implements [mem.BufferPool]: gRPC needs the bytes of an answer no longer.
func (l *lists) Put(data *[]byte) { l.unread.Add(-int64(len(*data))) }
