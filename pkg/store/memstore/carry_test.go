package memstore

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
)

func TestNoIntervalAdmitsMoreThanTheLargerLimit(t *testing.T) {
	inBubble(t, Options{SweepInterval: 10_000 * time.Hour}, func(t *testing.T, s *Store) {
		storetest.Intervals(t, storetest.Env{Store: s, Sleep: time.Sleep, Now: s.now}, race.Scale(1000))
	})
}
