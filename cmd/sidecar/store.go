package main

import (
	"log/slog"

	"github.com/weirproxy/weir/internal/serving"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/tracing"
)

// newStores makes the store that the settings ask for, with spans for what it asks of Redis unless traces is nil. It waits for
// nothing.
func newStores(c *config, logger *slog.Logger, traces *tracing.Tracing) (*serving.Stores, error) {
	o := serving.StoreOptions{MaxKeys: c.MaxKeys, OnFull: memstore.Allow, Logger: logger, Traces: traces}
	if c.OnFull == "deny" {
		o.OnFull = memstore.Deny
	}
	if c.Store == storeRedis {
		o.Redis = &redisstore.Options{
			Target:    c.Redis.target,
			Prefix:    c.Redis.Prefix,
			Timeout:   c.Redis.Timeout,
			DenyCache: c.Redis.DenyCache,
		}
		if c.Redis.HashTag == hashTagDomain {
			o.Redis.HashTag = descriptors.KeyDomain
		}
	}
	return serving.NewStores(o)
}

// ready returns what tells whether the store is there, for --ready-requires-store; nil where it always is.
func (c *config) ready(counts *serving.Stores) func() error {
	if c.Store != storeRedis || !c.ReadyRequiresStore {
		return nil
	}
	return counts.Ready
}
