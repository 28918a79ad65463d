package parts

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// ClientOption is what a client needs to reach it over TCP, as the user that may do everything. The caller may change it.
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

// Do sends one command over a connection of its own and returns the answer, which can be nil (IsNil). An answer that is an error is an
// error, and so is none before ctx is done.
func (r *Redis) Do(ctx context.Context, args ...string) (rueidis.RedisMessage, error) {
	message, err := r.do(ctx, args)
	if err != nil {
		return message, fmt.Errorf("redis %s: %s: %w", r.Address(), shorten(args), err)
	}
	return message, nil
}

// do is Do without saying where and what.
func (r *Redis) do(ctx context.Context, args []string) (rueidis.RedisMessage, error) {
	option := r.ClientOption()
	// The client has no context of its own for what it does before the command.
	option.Dialer = net.Dialer{Timeout: remaining(ctx)}
	option.ConnWriteTimeout = option.Dialer.Timeout
	option.PipelineMultiplex = -1
	option.AlwaysRESP2 = true // in RESP3 the text of INFO begins with its format
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

// remaining is how long ctx has, at most some seconds and at least an instant: 0 would mean for ever.
func remaining(ctx context.Context) time.Duration {
	const most = 10 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Millisecond, min(time.Until(deadline), most))
	}
	return most
}

// shorten is a command for an error: it can have thousands of words.
func shorten(args []string) string {
	const most = 6
	if len(args) > most {
		return strings.Join(args[:most], " ") + " …"
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

// fields reads lines of "name:value", as INFO and CLUSTER INFO have them.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			m[name] = value
		}
	}
	return m
}
