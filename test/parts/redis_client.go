package parts

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// ClientOption returns the options of a client over TCP, as the user with all permissions. The
// caller may change the options.
func (r *Redis) ClientOption() rueidis.ClientOption {
	option := rueidis.ClientOption{
		InitAddress:       []string{r.Address()},
		Username:          r.options.Username,
		Password:          r.options.Password,
		ForceSingleClient: true,
		DisableCache:      true,
		DisableRetry:      true,
	}
	if r.options.TLS != nil {
		option.TLSConfig = r.options.TLS.ClientConfig()
	}
	return option
}

// Do sends one command over a connection of its own, and returns the answer, which can be nil
// (IsNil). An error of Redis is an error, and so is a missing answer when ctx ends.
func (r *Redis) Do(ctx context.Context, args ...string) (rueidis.RedisMessage, error) {
	message, err := r.do(ctx, args)
	if err != nil {
		return message, fmt.Errorf("redis %s: %s: %w", r.Address(), shorten(args), err)
	}
	return message, nil
}

// do is Do, without address and command in the error.
func (r *Redis) do(ctx context.Context, args []string) (rueidis.RedisMessage, error) {
	option := r.ClientOption()
	// rueidis connects without the context of the command.
	option.Dialer = net.Dialer{Timeout: remaining(ctx)}
	option.ConnWriteTimeout = option.Dialer.Timeout
	option.PipelineMultiplex = -1
	option.AlwaysRESP2 = true // in RESP3 a format precedes the text of INFO
	option.ReadBufferEachConn, option.WriteBufferEachConn, option.RingScaleEachConn = 1<<14, 1<<14, 4
	client, err := rueidis.NewClient(option)
	if client != nil {
		defer client.Close()
	}
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	message, err := client.Do(ctx, client.B().Arbitrary(args...).Build()).ToMessage()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return message, err
}

// remaining returns the time until the deadline of ctx, from 1 ms to 10 s. 0 would mean no timeout.
func remaining(ctx context.Context) time.Duration {
	const maxTime = 10 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Millisecond, min(time.Until(deadline), maxTime))
	}
	return maxTime
}

// shorten returns the first words of a command, for an error. A command can have thousands of
// words.
func shorten(args []string) string {
	const maxWords = 6
	if len(args) > maxWords {
		return strings.Join(args[:maxWords], " ") + " …"
	}
	return strings.Join(args, " ")
}

// Info returns one section of INFO as a map: Info(ctx, "replication")["role"].
func (r *Redis) Info(ctx context.Context, section string) (map[string]string, error) {
	message, err := r.Do(ctx, "INFO", section)
	if err != nil {
		return nil, err
	}
	text, err := message.ToString()
	if err != nil {
		return nil, fmt.Errorf("redis %s: INFO %s: %w", r.Address(), section, err)
	}
	return fields(text), nil
}

// fields reads lines of "name:value", as in INFO and CLUSTER INFO.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			m[name] = value
		}
	}
	return m
}
