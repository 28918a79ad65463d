package drive

import (
	"errors"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// A Call is a method that a Wire calls.
type Call struct {
	Method string // "/package.Service/Method"
	// Denied reads the verdict of an answer. A message without a verdict is an error.
	Denied func(message []byte) (denied bool, err error)
}

// ShouldRateLimit is the call of Envoy.
func ShouldRateLimit() Call {
	return Call{ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, func(message []byte) (bool, error) {
		var code ratelimitv3.RateLimitResponse_Code
		if err := (codec{}).Unmarshal(message, &code); err != nil {
			return false, err
		}
		if code == ratelimitv3.RateLimitResponse_UNKNOWN {
			return false, errors.New("the code is UNKNOWN")
		}
		return code == ratelimitv3.RateLimitResponse_OVER_LIMIT, nil
	}}
}
