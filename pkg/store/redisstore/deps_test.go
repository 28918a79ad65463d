package redisstore

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"pkg/algorithms", "pkg/store", "pkg/store/redisstore/owed", "internal/wire/certificates", "internal/regular", "internal/durations", "internal/loglimit", "internal/zones", "internal/ranges", "internal/spelling", "internal/timespan", "internal/rawio", "internal/redis", "internal/redis/resp"},
		Third: []string{"github.com/redis/rueidis"},
	})
}
