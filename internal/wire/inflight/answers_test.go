package inflight

import (
	"testing"
	"testing/synctest"
	"time"
)

// A large answer that the client does not read waits in grpc-go.
func TestALargeAnswerCountsUntilItsStreamEnds(t *testing.T) {
	b, _ := newBound(t)
	c := followed(t, b)
	c.receive(headers(1))
	c.receive(headers(3))
	small := b.Stats().Bytes
	for range 2 {
		if !c.LargeAnswer() {
			t.Error("a quarter of the bound is two large answers, and one was refused")
		}
	}
	if got, want := b.Stats().Bytes, small+2*LargeAnswerBytes; got != want {
		t.Errorf("with two large answers: got %d bytes, want %d", got, want)
	}
	if c.LargeAnswer() || b.Stats().Refused != 1 {
		t.Errorf("a third large answer: got %+v, want it refused", b.Stats())
	}
	c.wrote(answer(1))
	if got, want := b.Stats().Bytes, small/2+LargeAnswerBytes; got != want {
		t.Errorf("with one stream left: got %d bytes, want %d", got, want)
	}
	c.wrote(answer(3))
	c.LargeAnswer() // the client has given up
	if got := b.Stats(); got.Bytes != 0 || b.answers.Load() != 0 {
		t.Errorf("afterwards: got %+v, want nothing", got)
	}
	c.receive(headers(5))
	c.LargeAnswer()
	_ = c.Close()
	if c.LargeAnswer() || b.answers.Load() != 0 {
		t.Error("a large answer counts on a connection that has ended")
	}
}

// A stream without a large answer that ends late must not make the next large answer look like one
// too many.
func TestALargeAnswerThatHasGoneOutKeepsNoOtherFromItsRoom(t *testing.T) {
	b, _ := newBound(t)
	c := followed(t, b)
	c.receive(headers(1)) // small, and slow
	c.receive(headers(3))
	if !c.LargeAnswer() {
		t.Fatal("refused")
	}
	c.wrote(answer(3))
	c.receive(headers(5))
	c.wrote(answer(1))
	if !c.LargeAnswer() || b.answers.Load() != 1 {
		t.Errorf("the only open stream: refused, or %d large answers count; want one", b.answers.Load())
	}
	c.wrote(answer(5))
	if got := b.Stats(); got.Bytes != 0 || b.answers.Load() != 0 {
		t.Errorf("afterwards: got %+v, want nothing", got)
	}
}

// Clients that do not read their large answers must not keep others from theirs for ever.
func TestOldLargeAnswersMakeWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		held, honest := followed(t, b), followed(t, b)
		for id, room := uint32(1), true; room; id += 2 {
			held.receive(ending(id))
			room = held.LargeAnswer()
		}
		honest.receive(headers(1))
		if honest.LargeAnswer() || held.ended() {
			t.Error("there was room for one more")
		}
		honest.wrote(ending(1))
		time.Sleep(fullAge + 2*lookEvery)
		honest.receive(headers(3))
		if !held.ended() || !honest.LargeAnswer() || honest.ended() {
			t.Errorf("after %v: ended %t, want room for another client", fullAge, held.ended())
		}
	})
}

// grpc-go keeps the large answer of a stream that its client has reset, while a Write waits for the
// client.
func TestALargeAnswerOfAResetStreamCountsUntilTheWriteHasEnded(t *testing.T) {
	b, _ := newBound(t)
	c := followed(t, b)
	c.receive(headers(1))
	if !c.LargeAnswer() {
		t.Fatal("refused")
	}
	c.writes.Add(1) // a Write begins
	before := b.Stats().Bytes
	c.receive(reset(1))
	if got := b.Stats().Bytes; got != before {
		t.Errorf("while the Write waits: got %d bytes, want %d", got, before)
	}
	if c.LargeAnswer() {
		t.Error("a call without a stream may make a large answer")
	}
	c.wrote(nil)
	if got := b.Stats().Bytes; got != 0 || b.answers.Load() != 0 {
		t.Errorf("afterwards: got %d bytes, want none", got)
	}
}
