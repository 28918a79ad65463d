// Package xds gets rule documents from a control plane: it is a client of Envoy's aggregated discovery service for resources of
// the type ratelimit.config.ratelimit.v3.RateLimitConfig, state of the world or delta. It keeps a stream, hands what comes to who
// puts rules in force, and accepts or refuses it with the reasons.
//
// It decides when to connect and what to answer; what the documents mean is the business of package descriptors, and what becomes
// of a bad one that of who is handed them (package reload). The rules of the protocol are those of
// https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol; docs/decisions/0018 says where it leaves a choice.
package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/types/known/structpb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Defaults of Options.
const (
	DefaultNodeID          = "default" // that of envoyproxy/ratelimit
	DefaultMaxMessageBytes = 64 << 20
	DefaultMinBackoff      = time.Second
	DefaultMaxBackoff      = 30 * time.Second
)

// Options is what New needs. Address, Push and Logger must be set.
type Options struct {
	Address string // host:port of the control plane, or another target of gRPC such as unix:///run/xds.sock
	Node    Node   // how this client is known there
	Delta   bool   // incremental; false: state of the world
	Headers []Header
	TLS     *TLS // nil: none

	MaxMessageBytes   int           // largest response; 0 means DefaultMaxMessageBytes
	MaxMessageSetting string        // what an operator knows that bound by, for the error of a larger one; "" means "max message bytes"
	MinBackoff        time.Duration // wait after a first failure; 0 means DefaultMinBackoff
	MaxBackoff        time.Duration // longest wait, which doubles with each failure; 0 means DefaultMaxBackoff
	Steady            bool          // wait for just these times, not for half of them to all of them, at random

	// Push puts rule documents in force, all that there are. It returns nil, or descriptors.Errors whose Files are the names of
	// documents that are not in force, while the others are, or another error when nothing has changed. It is never called twice at
	// a time.
	Push   func(ctx context.Context, documents []descriptors.Source) error
	Logger *slog.Logger
}

// Node is how a client is known to a control plane.
type Node struct {
	ID       string         // "" means DefaultNodeID
	Cluster  string         // may be empty
	Metadata map[string]any // of what JSON knows; may be nil
}

// Header is gRPC metadata that goes along with each stream.
type Header struct{ Name, Value string }

// Check returns what is wrong with a header. It does not show the value, which may be a secret.
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

// printable is what gRPC allows in values.
const printable = " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"

// Client is a client of one control plane. All methods are safe for concurrent use, but Run must be called once.
type Client struct {
	options Options
	node    *corev3.Node
	connect func(ctx context.Context) (conversation, func(), error) // opens a stream; the func ends it and all that it needs
	rules   rules                                                   // belongs to Run
	status  atomic.Pointer[Status]
}

// Check returns everything that is wrong with what an operator sets, which is all but Push and Logger. Files that TLS names must be
// there and be right.
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

// message returns the node as it is sent. The error says everything that cannot be.
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

// New returns a client that does nothing until Run. It fails with everything that is wrong with the options.
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
	o.complete()
	node, err := o.Node.message()
	if err != nil {
		return nil, err
	}
	c := &Client{options: o, node: node}
	c.connect = c.dial
	c.status.Store(&Status{})
	return c, nil
}

// complete fills in defaults.
func (o *Options) complete() {
	if o.Node.ID == "" {
		o.Node.ID = DefaultNodeID
	}
	if o.MaxMessageBytes == 0 {
		o.MaxMessageBytes = DefaultMaxMessageBytes
	}
	if o.MaxMessageSetting == "" {
		o.MaxMessageSetting = "max message bytes"
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = DefaultMinBackoff
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = max(DefaultMaxBackoff, o.MinBackoff)
	}
}

// Run keeps a stream to the control plane until ctx ends, and then returns nil: after the end of one, and after each attempt that
// fails, it waits, and tries again. The waits double; a stream that brought a response and lasted as long as it was waited for
// makes them begin anew.
func (c *Client) Run(ctx context.Context) error {
	failures := 0
	var waited time.Duration
	for {
		began := time.Now()
		answered, err := c.stream(ctx)
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

// stream opens a stream, and follows it to its end. It reports whether there was a response, and why the stream ended.
func (c *Client) stream(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	talk, end, err := c.connect(ctx)
	if err != nil {
		return false, err
	}
	var listening sync.WaitGroup
	defer listening.Wait()
	defer end()
	defer cancel()
	incoming := make(chan received)
	listening.Go(func() { listen(ctx, talk, incoming) })
	return c.follow(ctx, talk, incoming)
}
