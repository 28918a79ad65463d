// Package xds receives rule documents from a control plane. A client speaks Envoy's aggregated
// discovery service, state of the world or delta, for resources of the type
// ratelimit.config.ratelimit.v3.RateLimitConfig. The client keeps a stream, pushes each response to
// package reload, and accepts the response or refuses it with the reasons.
//
// The package decides when to connect and how to answer. Package descriptors decides the meaning of
// a document, and package reload whether a document comes into force. The protocol is
// https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol; docs/decisions/0018 records
// the choices that the protocol leaves.
package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Defaults of Options.
const (
	DefaultNodeID          = "default" // as in envoyproxy/ratelimit
	DefaultMaxMessageBytes = 64 << 20  // three times as much as all rules may have by default; their names need space too
	DefaultMinBackoff      = time.Second
	DefaultMaxBackoff      = 30 * time.Second
)

// Options holds the arguments of New. Address, Push and Logger must be set.
type Options struct {
	Address string // host:port of the control plane, or another target of gRPC such as unix:///run/xds.sock
	Node    Node   // names this client
	Delta   bool   // incremental; false: state of the world
	Headers []Header
	TLS     *TLS // nil means plaintext

	MaxMessageBytes   int           // largest response; 0 means DefaultMaxMessageBytes
	MaxMessageSetting string        // the operator's name of that bound, for errors; may be ""
	MinBackoff        time.Duration // wait after a first failure; 0 means DefaultMinBackoff
	MaxBackoff        time.Duration // longest wait, which doubles with each failure; 0 means DefaultMaxBackoff
	Steady            bool          // wait for exactly these times; else for a random time, at least half as long

	Bounds descriptors.Options // MaxBytes holds for the resources of a response, before Weir decodes these

	// Push puts rule documents in force, and replaces all documents of the last call. After
	// descriptors.Errors, the documents that the errors name are not in force, and all others are.
	// After another error nothing has changed. Calls do not overlap.
	Push   func(ctx context.Context, documents []descriptors.Source) error
	Logger *slog.Logger
}

// Node names a client to a control plane.
type Node struct {
	ID       string         // "" means DefaultNodeID
	Cluster  string         // may be empty
	Metadata map[string]any // JSON-like values; may be nil
}

// Header is gRPC metadata of each stream.
type Header struct{ Name, Value string }

// Check returns why a header is refused. The error does not show the value, which may be a secret.
func (h Header) Check() error {
	name := strings.ToLower(h.Name)
	switch {
	case !httpguts.ValidHeaderFieldName(name) || strings.HasPrefix(name, "grpc-"):
		return fmt.Errorf("%q: must be the name of an HTTP header, and not start with grpc-", h.Name)
	case !strings.HasSuffix(name, "-bin") && strings.Trim(h.Value, printable) != "":
		return fmt.Errorf("%s: its value must be of printable ASCII characters", h.Name)
	}
	return nil
}

// printable holds the characters that gRPC allows in values.
const printable = " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"

// Client is a client of one control plane. All methods are safe for concurrent use, but Run must be
// called once.
type Client struct {
	options Options
	node    *corev3.Node
	connect func(ctx context.Context) (stream, func(), error) // opens a stream; the func closes its connection
	rules   rules                                             // owned by Run
	status  atomic.Pointer[Status]
	logged  loglimit.Limiter // of responses
}

// Check returns every mistake in the settings of an operator: all options except Push and Logger.
// Check reads the files of TLS.
func (o *Options) Check() error {
	var errs []error
	if o.Address == "" {
		errs = append(errs, errors.New("address: must not be empty"))
	}
	if o.MaxMessageBytes < 0 || o.MinBackoff < 0 || o.MaxBackoff < 0 {
		errs = append(errs, fmt.Errorf("max message bytes %d, min backoff %v, max backoff %v: must not be negative",
			o.MaxMessageBytes, o.MinBackoff, o.MaxBackoff))
	}
	for _, h := range o.Headers {
		if err := h.Check(); err != nil {
			errs = append(errs, fmt.Errorf("header %w", err))
		}
	}
	if _, err := o.Node.message(); err != nil {
		errs = append(errs, err)
	}
	if o.TLS != nil {
		if err := o.TLS.Check(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// message returns the node as a message. The error joins every field that protobuf refuses.
func (n *Node) message() (*corev3.Node, error) {
	var errs []error
	if !utf8.ValidString(n.ID) || !utf8.ValidString(n.Cluster) {
		errs = append(errs, fmt.Errorf("node id %q, node cluster %q: must be UTF-8", n.ID, n.Cluster))
	}
	metadata, err := structpb.NewStruct(n.Metadata)
	if err != nil {
		errs = append(errs, fmt.Errorf("node metadata: %w", err))
	}
	m := &corev3.Node{Id: n.ID, Cluster: n.Cluster, UserAgentName: "weir"}
	if len(n.Metadata) > 0 {
		m.Metadata = metadata
	}
	return m, errors.Join(errs...)
}

// New returns a client that does nothing until Run. The error joins every mistake in the options.
func New(o Options) (*Client, error) {
	var errs []error
	if o.Push == nil {
		errs = append(errs, errors.New("push: must not be nil"))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("logger: must not be nil"))
	}
	if err := errors.Join(o.Check(), errors.Join(errs...)); err != nil {
		return nil, err
	}
	o.Node.ID = cmp.Or(o.Node.ID, DefaultNodeID)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, DefaultMaxMessageBytes)
	o.MinBackoff = cmp.Or(o.MinBackoff, DefaultMinBackoff)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, max(DefaultMaxBackoff, o.MinBackoff))
	node, err := o.Node.message()
	if err != nil {
		return nil, err
	}
	c := &Client{options: o, node: node}
	c.connect = c.dial
	c.status.Store(&Status{})
	return c, nil
}

// Run keeps a stream to the control plane until ctx ends, and then returns nil. After the end of a
// stream, and after each failed attempt, Run waits and retries. The waits double. A stream that
// brought a response and lasted longer than the last wait resets them.
func (c *Client) Run(ctx context.Context) error {
	failures := 0
	var waited time.Duration
	for {
		began := time.Now()
		answered, err := c.attempt(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if answered && time.Since(began) >= waited {
			failures = 0
		}
		waited = c.options.backoff(failures)
		failures++
		c.disconnected(ctx, err, waited)
		if !pause(ctx, waited) {
			return nil
		}
	}
}

// attempt follows a stream to the end. The results: whether responses came, and why it ended.
func (c *Client) attempt(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, end, err := c.connect(ctx)
	if err != nil {
		return false, err
	}
	var listening sync.WaitGroup
	defer listening.Wait()
	defer end()
	defer cancel()
	incoming := make(chan received)
	listening.Go(func() { listen(ctx, s, incoming) })
	return c.follow(ctx, s, incoming)
}

// backoff returns the wait after so many earlier failures: MinBackoff, doubled by each, MaxBackoff
// at most. Unless Steady, the wait is random, down to half of that, so that a fleet does not retry
// at once.
func (o *Options) backoff(failures int) time.Duration {
	wait := doubled(o.MinBackoff, o.MaxBackoff, failures)
	if o.Steady {
		return wait
	}
	return wait - rand.N(wait/2+1)
}

// doubled returns first, doubled so many times, longest at most.
func doubled(first, longest time.Duration, times int) time.Duration {
	for ; times > 0 && first < longest; times-- {
		first *= 2
	}
	return min(first, longest)
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// A control plane may repeat a refused response as soon as it hears of the refusal, for ever, as
// the snapshot cache of go-control-plane does. So the answer to a repeated response waits:
// minRepeat at first, twice as long after each repetition, up to maxRepeat. A control plane that
// sends nothing before the answer can delay a correction by that time.
const (
	minRepeat = time.Second
	maxRepeat = 15 * time.Second
)

type received struct {
	response
	err error
}

// follow greets, and answers responses until the stream ends, with the results of attempt.
func (c *Client) follow(ctx context.Context, s stream, incoming <-chan received) (answered bool, err error) {
	if err := s.greet(&c.rules); err != nil {
		return false, err
	}
	c.connected(ctx)
	var (
		repeated response         // the response whose answer waits
		due      <-chan time.Time // ends the wait; nil when no answer waits
		repeats  int
	)
	for {
		var in response
		select {
		case <-ctx.Done():
			return answered, ctx.Err()
		case r := <-incoming:
			if r.err != nil {
				return answered, r.err
			}
			answered, due = true, nil
			if c.rules.refusal != nil && c.rules.repeats(r.response) {
				repeated, due = r.response, time.After(doubled(minRepeat, maxRepeat, repeats))
				repeats++
				continue
			}
			in, repeats = r.response, 0
		case <-due:
			in, due = repeated, nil
		}
		refusal := c.put(ctx, in)
		if ctx.Err() != nil {
			return answered, ctx.Err()
		}
		if err := s.answer(in, refusal); err != nil {
			return answered, err
		}
	}
}

// listen sends every result of receive to a channel until the first error, or until ctx ends.
func listen(ctx context.Context, s stream, to chan<- received) {
	for {
		r, err := s.receive()
		select {
		case to <- received{r, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}
