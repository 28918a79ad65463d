package statistics

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// statsd writes the lines of StatsD or DogStatsD to a connection, as many at once as fit into a
// packet.
type statsd struct {
	conn       net.Conn
	dog        bool
	mogrifiers []Mogrifier
	suffix     string   // of every name: the tags of StatsD
	tags       []string // of every line, for DogStatsD
	maxPacket  int      // bytes
	held       []byte   // lines not yet written
	err        error    // the first
}

func (p *Reporter) statsd(conn net.Conn) *statsd {
	s := &statsd{conn: conn, dog: p.options.Dog, mogrifiers: p.options.Mogrifiers, suffix: p.suffix, tags: p.tags}
	s.maxPacket = 1432 // passes every network, by UDP
	if p.options.TCP {
		s.maxPacket = 16 << 10
	}
	return s
}

func (s *statsd) count(name string, n uint64) {
	s.write(name, strconv.AppendUint(nil, n, 10), "|c", 1)
}

// time writes a time that many requests took: lines of weight 1, 10, 100 and so on, up to a
// million, as if sampled at 1/weight.
func (s *statsd) time(name string, took time.Duration, requests uint64) {
	precision := -1
	if s.dog {
		precision = 6
	}
	ms := strconv.AppendFloat(nil, float64(took)/float64(time.Millisecond), 'f', precision, 64)
	for weight := uint64(1_000_000); weight > 0; weight /= 10 {
		for ; requests >= weight; requests -= weight {
			s.write(name, ms, "|ms", weight)
		}
	}
}

// write adds a line: name:value|kind, with a sampling rate of 1/weight and the tags of DogStatsD.
func (s *statsd) write(name string, value []byte, kind string, weight uint64) {
	tags := s.tags
	if s.dog {
		for i := range s.mogrifiers {
			if short, more, ok := s.mogrifiers[i].apply(name); ok {
				name, tags = short, append(slices.Clip(tags), more...)
				break
			}
		}
	}
	line := append([]byte(name), s.suffix...)
	line = append(append(append(line, ':'), value...), kind...)
	if weight > 1 {
		line = strconv.AppendFloat(append(line, "|@"...), 1/float64(weight), 'f', -1, 64)
	}
	if len(tags) > 0 {
		line = append(append(line, "|#"...), strings.Join(tags, ",")...)
	}
	if len(s.held)+len(line)+1 > s.maxPacket {
		s.flush()
	}
	s.held = append(append(s.held, line...), '\n')
}

func (s *statsd) flush() {
	if len(s.held) > 0 && s.err == nil {
		_, s.err = s.conn.Write(s.held)
	}
	s.held = s.held[:0]
}

// close writes the held lines, closes the connection, and returns the first error.
func (s *statsd) close() error {
	s.flush()
	return cmp.Or(s.err, s.conn.Close())
}

// dogTag returns a tag of DogStatsD. The text may come from a request, and must not become a second
// tag.
func dogTag(name, text string) string { return without(name, ":|,") + ":" + without(text, "|,") }
