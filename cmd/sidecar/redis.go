package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// What --store, --redis-hash-tag and --on-store-error may name.
const (
	storeMemory = "memory"
	storeRedis  = "redis"

	hashTagNone   = "none"
	hashTagDomain = "domain"

	onErrorLocal = "local"
	onErrorAllow = "allow"
	onErrorDeny  = "deny"
)

// storeOf is where counts are kept.
func storeOf(to *string) value { return choice(to, storeMemory, storeRedis) }

// granularity returns what periods must be whole multiples of for a store to count them, 0 where any period will do.
func granularity(kind string) time.Duration {
	if kind == storeRedis {
		return redisstore.Granularity
	}
	return 0
}

// completeStore reads what the settings of the store need, and returns what is wrong with them. Settings of Redis without
// --store redis are refused, as who gives them wants a fleet to share its counts, and each sidecar would count for itself; but
// --store memory may be named beside them, to do without Redis for a while.
func (c *config) completeStore() []error {
	if c.Store == storeRedis {
		return c.Redis.complete()
	}
	if _, named := c.given["store"]; named {
		return nil
	}
	var idle []string
	for _, name := range slices.Sorted(maps.Keys(c.given)) {
		if strings.HasPrefix(name, "redis-") {
			idle = append(idle, c.given[name])
		}
	}
	if len(idle) == 0 {
		return nil
	}
	return []error{fmt.Errorf("%s: counts are not kept in Redis: name --store redis, or --store memory if that is meant", strings.Join(idle, ", "))}
}

// complete reads the passwords and finds out what the settings mean together. No error shows a password.
func (r *redisConfig) complete() []error {
	errs := r.readPasswords()
	if len(r.URLs) == 0 {
		return append(errs, errors.New("redis-url: there is none: --store redis needs to know where Redis is, such as redis://127.0.0.1:6379"))
	}
	var err error
	r.target, err = redisstore.ParseTarget(redisstore.TargetOptions{
		URLs:             r.URLs,
		Username:         r.Username,
		Password:         r.Password,
		SentinelUsername: r.SentinelUsername,
		SentinelPassword: r.SentinelPassword,
		CA:               r.CAFile,
		Cert:             r.CertFile,
		Key:              r.KeyFile,
		ServerName:       r.ServerName,
		AnyServerName:    r.AnyServerName,
	})
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			errs = append(errs, fmt.Errorf("redis: %s", line))
		}
	}
	return errs
}

// readPasswords reads the passwords that are in files.
func (r *redisConfig) readPasswords() []error {
	var errs []error
	for _, p := range []struct {
		setting, path string
		to            *string
	}{
		{"redis-password", r.PasswordFile, &r.Password},
		{"redis-sentinel-password", r.SentinelFile, &r.SentinelPassword},
	} {
		if p.path == "" {
			continue
		}
		if *p.to != "" {
			errs = append(errs, fmt.Errorf("%s, %s-file: both are given: must be one of the two", p.setting, p.setting))
			continue
		}
		data, err := os.ReadFile(p.path)
		if data = bytes.TrimRight(data, "\r\n"); err == nil && len(data) == 0 {
			err = fmt.Errorf("%s: is empty, must hold the password", p.path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s-file: %w", p.setting, err))
		}
		*p.to = string(data)
	}
	return errs
}

// keyPrefix accepts what keys in Redis may begin with. Braces are for hash tags.
func keyPrefix(s string) error {
	if s == "" || strings.ContainsAny(s, "{}") {
		return errors.New("must not be empty, and have no { and }")
	}
	return nil
}

// onStoreError returns what --on-store-error says.
func (c *config) onStoreError() store.OnError {
	switch c.OnStoreError {
	case onErrorAllow:
		return store.Allow
	case onErrorDeny:
		return store.Deny
	default:
		return store.Local
	}
}
