package redisstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Reset implements [store.Store]. Reset fails as TakeAll does. The keys are reset one by one: they
// may lie in several slots, and requests over several slots wait for one key at most.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (forgotten int, err error) {
	until, err := s.until(ctx, time.Now(), charges)
	if err != nil {
		return 0, err
	}
	for i := range charges {
		n, err := s.resetKey(ctx, until, charges[i:i+1])
		if err != nil {
			return forgotten, err
		}
		forgotten += n
	}
	s.markReset(ctx, until)
	return forgotten, nil
}

// markReset has the other processes forget their seeds. Without an answer the seeds stay: they
// matter only if Redis loses its data.
func (s *Store) markReset(ctx context.Context, until time.Time) {
	client, err := s.main.client()
	if err != nil {
		return
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	mark := strconv.FormatUint(rand.Uint64(), 36)
	command := client.B().Set().Key(s.main.prefix + resets).Value(mark).ExSeconds(int64(resetsLife / time.Second)).Build()
	_ = s.main.connection.Report(client.Do(ctx, command).Error())
}

func (s *Store) resetKey(ctx context.Context, until time.Time, charge []store.Charge) (forgotten int, err error) {
	s.beginReset(charge[0].Key)
	defer func() { s.endReset(charge[0].Key, err != nil) }()
	defer s.gate.leave(aReset, charge)
	if err := s.gate.pass(ctx, until, aReset, charge); err != nil {
		return 0, err
	}
	if !s.idle() { // a question comes behind the calls of the outbox, and its own answer does not matter
		at := s.here()
		t := s.transaction(peek, s.locate(&charge[0], at), at, charge)
		if err := s.do(ctx, until, t); t.over != nil || t.refused {
			return 0, err
		}
	}
	server := s.of(&charge[0])
	client, err := server.client()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	var commands []rueidis.Completed
	for _, name := range s.namesOf(&charge[0]) {
		server.seeds.forget(name)
		commands = append(commands, client.B().Del().Key(name).Build())
	}
	ctx, done := server.queue.of(s.locate(&charge[0], s.here()).slot).command(ctx)
	results := client.DoMulti(ctx, commands...)
	failed := done(results[0].Error())
	for i, result := range results {
		n, err := result.AsInt64()
		if err := server.connection.Report(cmp.Or(failed, err)); err != nil {
			return 0, fmt.Errorf("resetting %q: %w", charge[0].Key, err)
		}
		if i > 0 || charge[0].Limit.Algorithm == algorithms.Concurrency {
			forgotten = max(forgotten, int(n))
		}
	}
	return forgotten, nil
}

// namesOf returns the names of all keys that are deleted to forget a charge's state: first the
// book, without which no holder is known. A window that is charged with holders in a cluster has no
// counter, and another window may have one.
func (s *Store) namesOf(c *store.Charge) []string {
	server, now := s.of(c), s.here()
	with, without := *c, *c
	with.Hold, without.Hold = new(store.Hold), nil
	book := server.appendBook(nil, &with)
	first, _ := server.appendName(nil, &with, now)
	names := []string{string(book), string(first)}
	if other, _ := server.appendName(nil, &without, now); !bytes.Equal(other, first) {
		names = append(names, string(other))
	}
	return names
}
