package redis

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/redis/rueidis"
)

// unavailable makes err wrap ErrUnavailable.
func unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// errorCode returns the first word of an error of Redis, as READONLY, and "" for other errors.
func errorCode(err error) string {
	said, ok := errors.AsType[*rueidis.RedisError](err)
	if !ok || said.IsNil() {
		return ""
	}
	code, _, _ := strings.Cut(said.Error(), " ")
	return code
}

// kindOf returns the kind of an error, without addresses, ports and times. Each kind is worth a log
// line.
func kindOf(err error) string {
	switch {
	case errors.Is(err, ErrVersion):
		return "version"
	case errors.Is(err, ErrTopology):
		return "topology"
	}
	if code := errorCode(err); code != "" {
		return code
	}
	for {
		switch e := err.(type) { //nolint:errorlint // the loop walks the chain
		case syscall.Errno:
			return e.Error()
		case interface{ Unwrap() []error }:
			all := e.Unwrap()
			err = all[len(all)-1]
		default:
			inner := errors.Unwrap(err)
			if inner == nil {
				return fmt.Sprintf("%T", err)
			}
			err = inner
		}
	}
}
