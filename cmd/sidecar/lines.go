package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// lines reads the lines of an input that are not blank and do not begin with #, and numbers them.
type lines struct {
	in     *bufio.Reader
	number int // of the last line, from 1
}

// maxLine bounds a line, in bytes.
const maxLine = 1 << 20

func newLines(in io.Reader) *lines { return &lines{in: bufio.NewReaderSize(in, maxLine)} }

// next returns the next line without the space around it, good until the next call; io.EOF after
// the last.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil, io.EOF
		}
		l.number++
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, l.wrong("is longer than %d bytes", maxLine)
		case err != nil && !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("read requests: %w", err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return line, nil
		}
	}
}

// wrong returns the failure of the last line.
func (l *lines) wrong(format string, args ...any) error {
	return bad(fmt.Errorf("line %d: "+format, append([]any{l.number}, args...)...), exitUsage)
}

// request is one line of replay's input.
type request struct {
	client    []byte // good until the next line is read
	timestamp int64  // in time units
	at        algorithms.Instant
	hits      int64 // 0 to algorithms.MaxHits

	phase  algorithms.HoldPhase // 0 of a request without a holder
	holder []byte               // good until the next line is read
}

// parseRequest reads "request <client> <timestamp> [hits]", or "begin <client> <timestamp> <holder>
// [hits]", or the same with end or pair.
func parseRequest(line []byte, unit time.Duration) (request, error) {
	var fields [6][]byte // one more than there may be
	n := 0
	for rest := line; len(rest) > 0 && n < len(fields); n++ {
		end := bytes.IndexAny(rest, " \t\v\f\r")
		if end < 0 {
			end = len(rest)
		}
		fields[n], rest = rest[:end], bytes.TrimLeft(rest[end:], " \t\v\f\r")
	}
	form, own, q := "request <client> <timestamp> [hits]", 0, request{client: fields[1], hits: 1}
	switch word := string(fields[0]); word {
	case "begin", "end", "pair":
		form, own, q.holder = word+" <client> <timestamp> <holder> [hits]", 1, fields[3]
		switch q.phase = algorithms.HoldEnd; word {
		case "begin":
			q.phase = algorithms.HoldBegin
		case "pair":
			q.phase = algorithms.HoldPair
		}
	case "request":
	default:
		n = 0
	}
	if n < 3+own || n > 4+own {
		return request{}, fmt.Errorf("%s: must be %s", excerpt(line), form)
	}
	var err error
	if q.timestamp, err = strconv.ParseInt(string(fields[2]), 10, 64); err != nil {
		return request{}, fmt.Errorf("timestamp %s: must be a whole number of %v", excerpt(fields[2]), unit)
	}
	if q.timestamp > math.MaxInt64/int64(unit) || q.timestamp < math.MinInt64/int64(unit) {
		return request{}, fmt.Errorf("timestamp %d times %v: must be within 292 years of 0", q.timestamp, unit)
	}
	q.at = algorithms.Instant(q.timestamp * int64(unit))
	if n == 4+own {
		hits, err := strconv.ParseUint(string(fields[3+own]), 10, 32)
		if err != nil {
			return request{}, fmt.Errorf("hits %s: must be a whole number from 0 to %d", excerpt(fields[3+own]), uint64(algorithms.MaxHits))
		}
		q.hits = int64(hits)
	}
	return q, nil
}

// parseCount reads a line that holds one number.
func parseCount(line []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(line), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: must be a whole number", excerpt(line))
	}
	return n, nil
}

// excerpt quotes a text of the input, shortened where it is long.
func excerpt(text []byte) string {
	const most = 60
	if len(text) > most {
		return fmt.Sprintf("%q…", bytes.ToValidUTF8(text[:most], nil))
	}
	return strconv.Quote(string(text))
}

// appendJSON appends a request and its decision as one JSON object. Bytes of the client that are no
// UTF-8 become U+FFFD.
func appendJSON(dst []byte, q request, d algorithms.Decision, never bool) []byte {
	event := [...]string{0: "", algorithms.HoldBegin: "begin", algorithms.HoldEnd: "end", algorithms.HoldPair: "pair"}[q.phase]
	line := struct {
		Event      string         `json:"event,omitempty"`
		Holder     string         `json:"holder,omitempty"`
		Client     string         `json:"client"`
		Timestamp  int64          `json:"timestamp"`
		Hits       int64          `json:"hits"`
		Allowed    bool           `json:"allowed"`
		Remaining  uint64         `json:"remaining"`
		RetryAfter *time.Duration `json:"retry_after_ns"`
		ResetAfter time.Duration  `json:"reset_after_ns"`
		Never      bool           `json:"never,omitempty"`
	}{event, string(q.holder), string(q.client), q.timestamp, q.hits, d.Allowed, d.Remaining, &d.RetryAfter, d.ResetAfter, never}
	if never {
		line.RetryAfter = nil
	}
	b := bytes.NewBuffer(dst)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(line) // texts, numbers and booleans always have a JSON form
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
