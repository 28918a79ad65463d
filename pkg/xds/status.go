package xds

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status is how a client is doing.
type Status struct {
	Connected bool   // there is a stream that the control plane has answered on, or that has not failed yet
	Streams   uint64 // opened so far
	Failures  uint64 // streams that ended, and attempts to open one that failed
	Accepted  uint64 // responses all of which came into force
	Refused   uint64 // responses of which something did not
	Resources int    // that the control plane wants in force
	Bad       int    // of them, those that are not in force as they are
	Ready     bool   // something that came is in force, or nothing, if that is what came
	Reason    string // why the last stream ended, or why the last response was refused; "" when all is well
}

// Status returns how the client is doing.
func (c *Client) Status() Status { return *c.status.Load() }

// Ready returns nil once rules of the control plane have come into force, also when it has none, and else why they have not. It
// stays nil when the control plane is gone, or sends what is bad.
func (c *Client) Ready() error {
	s := c.status.Load()
	switch {
	case s.Ready:
		return nil
	case s.Refused > 0:
		return fmt.Errorf("the configuration from xds server %s was refused: %s", c.options.Address, s.Reason)
	case s.Connected: // whatever was the matter before
		return fmt.Errorf("no configuration from xds server %s yet: it has sent none to node %q", c.options.Address, c.options.Node.ID)
	case s.Reason != "":
		return fmt.Errorf("no configuration from xds server %s yet: %s", c.options.Address, s.Reason)
	default:
		return fmt.Errorf("no configuration from xds server %s yet", c.options.Address)
	}
}

// update changes the status. Only Run's goroutine does.
func (c *Client) update(change func(s *Status)) {
	s := *c.status.Load()
	change(&s)
	c.status.Store(&s)
}

// connected notes that a stream was opened.
func (c *Client) connected(ctx context.Context) {
	c.update(func(s *Status) { s.Connected, s.Streams = true, s.Streams+1 })
	c.options.Logger.LogAttrs(ctx, slog.LevelInfo, "xds stream opened",
		slog.String("address", c.options.Address), slog.Bool("delta", c.options.Delta), slog.String("node", c.options.Node.ID))
}

// disconnected notes that a stream ended, or could not be opened.
func (c *Client) disconnected(ctx context.Context, err error, wait time.Duration) {
	c.update(func(s *Status) {
		s.Connected, s.Failures = false, s.Failures+1
		if s.Bad == 0 {
			s.Reason = err.Error()
		}
	})
	c.options.Logger.LogAttrs(ctx, slog.LevelWarn, "no xds stream", slog.String("address", c.options.Address),
		slog.String("error", err.Error()), slog.String("next_attempt_in", wait.Round(time.Millisecond).String()))
}

// judged notes what became of a response: bad is how many of its resources are not in force.
func (c *Client) judged(ctx context.Context, r response, resources, bad int, refusal error) {
	c.update(func(s *Status) {
		s.Resources, s.Bad = resources, bad
		s.Ready = s.Ready || refusal == nil || bad < resources
		if refusal != nil {
			s.Refused, s.Reason = s.Refused+1, detail(refusal)
		} else {
			s.Accepted, s.Reason = s.Accepted+1, ""
		}
	})
	attrs := []slog.Attr{slog.String("version", r.version), slog.Int("resources", resources), slog.Int("bad", bad)}
	if refusal == nil {
		c.options.Logger.LogAttrs(ctx, slog.LevelInfo, "xds configuration accepted", attrs...)
		return
	}
	// The reasons are in the line of who put the rest in force.
	c.options.Logger.LogAttrs(ctx, slog.LevelWarn, "xds configuration refused", attrs...)
}

// maxDetail bounds what a control plane is told of a response that was refused, in bytes; it is to be logged there.
const maxDetail = 16 << 10

// detail returns the reasons of an error, one on a line, as many as fit.
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

// Describe implements [prometheus.Collector].
func (c *Client) Describe(all chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, all) }

// Collect implements [prometheus.Collector]: a Client is also the metrics about itself.
func (c *Client) Collect(all chan<- prometheus.Metric) {
	s := c.Status()
	send := func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		names := []string{"result"}[:len(labels)]
		all <- prometheus.MustNewConstMetric(prometheus.NewDesc("weir_xds_"+name, help, names, nil), kind, value, labels...)
	}
	connected := 0.0
	if s.Connected {
		connected = 1
	}
	send(prometheus.GaugeValue, "connected", "Whether there is a stream to the xDS server.", connected)
	send(prometheus.CounterValue, "streams_total", "Streams to the xDS server that were opened.", float64(s.Streams))
	send(prometheus.CounterValue, "failures_total", "Streams to the xDS server that ended, and attempts that failed.", float64(s.Failures))
	const responses = "Responses of the xDS server; of a refused one the good resources are in force all the same."
	send(prometheus.CounterValue, "responses_total", responses, float64(s.Accepted), "accepted")
	send(prometheus.CounterValue, "responses_total", responses, float64(s.Refused), "refused")
	send(prometheus.GaugeValue, "resources", "Resources that the xDS server wants in force.", float64(s.Resources))
	send(prometheus.GaugeValue, "resources_bad", "Of these, those that are not: an older one of the name may be.", float64(s.Bad))
}
