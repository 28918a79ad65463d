package statistics

import (
	"net"
	"slices"
	"time"

	dogstatsd "github.com/DataDog/datadog-go/v5/statsd"
	"github.com/cactus/go-statsd-client/v5/statsd"
)

// sink tells figures over one connection, which close closes.
type sink interface {
	count(name string, n uint64)
	time(name string, took time.Duration, times uint64)
	close() error // the first error there was
}

func (p *Reporter) sink(conn net.Conn) (sink, error) {
	if p.options.Dog {
		return p.dog(conn)
	}
	packet := 1432 // what fits everywhere, of UDP
	if p.options.TCP {
		packet = 16 << 10
	}
	lines := &lines{conn: conn, most: packet}
	client, err := statsd.NewClientWithSender(lines, "", 0)
	if err != nil {
		return nil, err
	}
	if c, ok := client.(*statsd.Client); ok { // it is
		c.SetSamplerFunc(func(float32) bool { return true }) // what is sampled was so before
	}
	return &plain{client: client, lines: lines, suffix: p.suffix}, nil
}

// plain is StatsD.
type plain struct {
	client statsd.Statter
	lines  *lines
	suffix string
}

// Errors stay in lines.
func (s *plain) count(name string, n uint64) { _ = s.client.Inc(name+s.suffix, int64(n), 1) }

// time tells a time as often as it was taken: by lines that stand for 1, 10, 100 and so on, up to a million.
func (s *plain) time(name string, took time.Duration, times uint64) {
	for weight, rate := uint64(1_000_000), float32(1e-6); weight > 0; weight, rate = weight/10, rate*10 {
		if weight == 1 {
			rate = 1
		}
		for ; times >= weight; times -= weight {
			_ = s.client.TimingDuration(name+s.suffix, took, rate)
		}
	}
}

func (s *plain) close() error { return s.client.Close() }

// lines puts lines together and sends as many at once as fit.
type lines struct {
	conn net.Conn
	most int // bytes at once
	held []byte
	err  error // the first
}

// Send takes one line, without its end.
func (l *lines) Send(line []byte) (int, error) {
	if len(l.held)+len(line)+1 > l.most {
		l.flush()
	}
	l.held = append(append(l.held, line...), '\n')
	return len(line), l.err
}

func (l *lines) flush() {
	if len(l.held) > 0 && l.err == nil {
		_, l.err = l.conn.Write(l.held)
	}
	l.held = l.held[:0]
}

// Close sends what is held and closes the connection. It returns the first error there was.
func (l *lines) Close() error {
	l.flush()
	if err := l.conn.Close(); l.err == nil {
		l.err = err
	}
	return l.err
}

// dog is DogStatsD.
type dog struct {
	client     *dogstatsd.Client
	mogrifiers []Mogrifier
	tags       []string
	lines      int // since the last flush
	err        error
}

func (p *Reporter) dog(conn net.Conn) (sink, error) {
	client, err := dogstatsd.NewWithWriter(conn,
		dogstatsd.WithoutTelemetry(), dogstatsd.WithoutClientSideAggregation(), dogstatsd.WithoutOriginDetection(),
		dogstatsd.WithMaxBytesPerPayload(1432), dogstatsd.WithBufferPoolSize(8), dogstatsd.WithWorkersCount(1),
		dogstatsd.WithSenderQueueSize(2*flushEvery),
	)
	if err != nil {
		return nil, err
	}
	return &dog{client: client, mogrifiers: p.options.Mogrifiers, tags: p.tags}, nil
}

// flushEvery is how many lines are given to the client of DogStatsD at once: what finds its queue full is lost.
const flushEvery = 512

// dogTag returns a tag of DogStatsD. What it holds may come from a request, and must not become a second one.
func dogTag(name, text string) string { return without(name, ":|,") + ":" + without(text, "|,") }

// name returns what a name becomes, with its tags.
func (s *dog) name(name string) (string, []string) {
	for i := range s.mogrifiers {
		if short, tags, ok := s.mogrifiers[i].apply(name); ok {
			return short, append(slices.Clip(s.tags), tags...)
		}
	}
	return name, s.tags
}

// after keeps the error of one line, and flushes when there are many.
func (s *dog) after(err error) {
	if s.err == nil {
		s.err = err
	}
	if s.lines++; s.lines%flushEvery == 0 {
		if err := s.client.Flush(); s.err == nil {
			s.err = err
		}
	}
}

func (s *dog) count(name string, n uint64) {
	short, tags := s.name(name)
	s.after(s.client.Count(short, int64(n), tags, 1))
}

// time tells a time as often as it was taken. The client draws which of the calls it sends, with their rate.
func (s *dog) time(name string, took time.Duration, times uint64) {
	short, tags := s.name(name)
	const most = 100 // lines, about
	rate := min(1, most/float64(times))
	for range times {
		s.after(s.client.TimeInMilliseconds(short, float64(took)/float64(time.Millisecond), tags, rate))
	}
}

func (s *dog) close() error {
	if err := s.client.Flush(); s.err == nil {
		s.err = err
	}
	if err := s.client.Close(); s.err == nil { // closes the connection too
		s.err = err
	}
	return s.err
}
