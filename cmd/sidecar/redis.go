package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/pkg/store/shared"
)

// The values of --store.
const (
	storeMemory = "memory"
	storeRedis  = "redis"
)

func stores() []string { return []string{storeMemory, storeRedis} }

// completeStore finds out where Redis is. The result is every mistake. Settings of Redis without
// --store redis are refused: an operator who gives them wants a fleet to share its counts. With an
// explicit --store memory they are accepted, so that an operator can do without Redis for a while.
func (c *config) completeStore() []error {
	if !c.InRedis {
		idle := c.givenWith("redis-")
		if _, named := c.given["store"]; named || idle == "" {
			return nil
		}
		return []error{fmt.Errorf("%s: counts are not kept in Redis: name --store redis, or --store memory if that is meant", idle)}
	}
	if len(c.Redis.Target.URLs) == 0 {
		return []error{errors.New("redis-url: is missing: --store redis needs the address of Redis, such as redis://127.0.0.1:6379")}
	}
	c.Store.Redis, c.Store.DenyCache = &c.Redis, shared.DefaultDenials
	return settings.Mistakes("redis", c.Redis.Target.Check())
}

// keyPrefix accepts a prefix of keys in Redis. Braces are for hash tags.
func keyPrefix(s string) error {
	if s == "" || strings.ContainsAny(s, "{}") {
		return errors.New("must not be empty, and have no { and }")
	}
	return nil
}

// urls is a list of URLs. A URL may be a list of hosts itself: an item without a scheme continues
// the URL before. Errors do not show URLs, as they may hold passwords.
func urls(to *[]string) settings.Value {
	var parts []string
	v := settings.List(&parts, "url", nil)
	read := v.Set
	v.Set = func(raw any) error {
		if read(raw) != nil {
			return errors.New("must be a URL or a list of URLs")
		}
		all := make([]string, 0, len(parts))
		for _, part := range parts {
			if n := len(all); n > 0 && !strings.Contains(part, "://") {
				all[n-1] += "," + part
				continue
			}
			all = append(all, part)
		}
		*to = all
		return nil
	}
	return v
}
