package xds

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/metrics"
)

// Status is the state of a client, for people and probes.
type Status struct {
	Connected bool   // there is a stream
	Streams   uint64 // opened so far
	Failures  uint64 // streams that ended, and attempts to open one that failed
	Accepted  uint64 // responses that came into force as a whole
	Refused   uint64 // all other responses
	Resources int    // that the control plane asks for
	Bad       int    // resources of these that are not in force
	Ready     bool   // a response has come into force, at least in part
	// Unconfirmed is the end of the last stream, while its rules are in force and no response has come
	// since. The zero time: the control plane stands by its rules.
	Unconfirmed time.Time
	Reason      string // why the last stream ended, or why the last response was refused; "" when all is well
}

// Status returns the current state.
func (c *Client) Status() Status { return *c.status.Load() }

// Ready returns nil once rules of the control plane have come into force, even an empty set, and
// until then the reason. Neither a lost control plane nor a refused response changes that.
func (c *Client) Ready() error {
	s := c.status.Load()
	switch {
	case s.Ready:
		return nil
	case s.Refused > 0:
		return fmt.Errorf("the configuration from xds server %s was refused: %s", c.options.Address, s.Reason)
	case s.Connected: // the reason of an earlier failure is out of date
		return fmt.Errorf("no configuration from xds server %s yet: it has sent none to node %q", c.options.Address, c.options.Node.ID)
	case s.Reason != "":
		return fmt.Errorf("no configuration from xds server %s yet: %s", c.options.Address, s.Reason)
	default:
		return fmt.Errorf("no configuration from xds server %s yet", c.options.Address)
	}
}

// update changes the status. Only the goroutine of Run calls it.
func (c *Client) update(change func(s *Status)) {
	s := *c.status.Load()
	change(&s)
	c.status.Store(&s)
}

func (c *Client) connected(ctx context.Context) {
	c.update(func(s *Status) { s.Connected, s.Streams = true, s.Streams+1 })
	c.options.Logger.LogAttrs(ctx, slog.LevelInfo, "xds stream opened",
		slog.String("address", c.options.Address), slog.Bool("delta", c.options.Delta), slog.String("node", c.options.Node.ID))
}

func (c *Client) disconnected(ctx context.Context, err error, wait time.Duration) {
	c.update(func(s *Status) {
		s.Connected, s.Failures = false, s.Failures+1
		if s.Ready && s.Unconfirmed.IsZero() {
			s.Unconfirmed = time.Now()
		}
		if s.Bad == 0 {
			s.Reason = err.Error()
		}
	})
	c.options.Logger.LogAttrs(ctx, slog.LevelWarn, "no xds stream", slog.String("address", c.options.Address),
		slog.String("error", err.Error()), slog.String("next_attempt_in", wait.Round(time.Millisecond).String()))
}

// A control plane may send a thousand responses a second, good or bad. The metrics count all.
const (
	linesAtOnce = 10
	lineEvery   = 5 * time.Second
)

// judged records the answer to a response; bad counts its resources that are not in force.
func (c *Client) judged(ctx context.Context, r response, resources, bad int, refusal error) {
	c.update(func(s *Status) {
		s.Resources, s.Bad, s.Unconfirmed = resources, bad, time.Time{}
		s.Ready = s.Ready || refusal == nil || bad < resources
		if refusal != nil {
			s.Refused, s.Reason = s.Refused+1, detail(refusal)
		} else {
			s.Accepted, s.Reason = s.Accepted+1, ""
		}
	})
	missed, due := c.logged.DueOf(linesAtOnce, lineEvery)
	if !due {
		return
	}
	attrs := []slog.Attr{
		slog.String("version", r.version), slog.Int("resources", resources), slog.Int("bad", bad), slog.Uint64("not_logged", missed),
	}
	if refusal == nil {
		c.options.Logger.LogAttrs(ctx, slog.LevelInfo, "xds configuration accepted", attrs...)
		return
	}
	// Push has logged the reasons.
	c.options.Logger.LogAttrs(ctx, slog.LevelWarn, "xds configuration refused", attrs...)
}

// maxDetail bounds the reasons in an answer to the control plane, which logs them, in bytes.
const maxDetail = 16 << 10

// detail returns the first reasons of an error, one per line, within maxDetail.
func detail(err error) string {
	text := err.Error()
	if len(text) <= maxDetail {
		return text
	}
	end := strings.LastIndexByte(text[:maxDetail], '\n')
	if end < 0 {
		return strings.ToValidUTF8(text[:maxDetail], "") + "…"
	}
	return fmt.Sprintf("%s\n… and %d more", text[:end], strings.Count(text[end:], "\n"))
}

// Metrics returns the metrics of the client.
func (c *Client) Metrics() prometheus.Collector {
	return metrics.NewCollector("weir_xds_", nil, c.collect,
		metrics.New("connected", "Whether there is a stream to the xDS server."),
		metrics.New("streams_total", "Streams to the xDS server that were opened."),
		metrics.New("failures_total", "Streams to the xDS server that ended, and attempts that failed."),
		metrics.New("responses_total", "Responses of the xDS server. The good resources of a refused response are in force.", "result"),
		metrics.New("resources", "Resources that the xDS server asks for."),
		metrics.New("resources_bad", "Resources that the xDS server asks for and that are not in force. An older version may be."),
		metrics.New("unconfirmed_seconds", "How long rules have been in force that the xDS server may have changed since: "+
			"no response has come since its stream ended. 0 while it stands by them."),
	)
}

func (c *Client) collect(to metrics.Scrape) {
	s := c.Status()
	to.Bool("connected", s.Connected)
	to.Counter("streams_total", s.Streams)
	to.Counter("failures_total", s.Failures)
	to.Counter("responses_total", s.Accepted, "accepted")
	to.Counter("responses_total", s.Refused, "refused")
	to.Gauge("resources", float64(s.Resources))
	to.Gauge("resources_bad", float64(s.Bad))
	var unconfirmed time.Duration
	if !s.Unconfirmed.IsZero() {
		unconfirmed = time.Since(s.Unconfirmed)
	}
	to.Gauge("unconfirmed_seconds", unconfirmed.Seconds())
}
