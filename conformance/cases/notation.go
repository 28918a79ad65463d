package cases

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A Request is a message, and the deadline of its call.
type Request struct {
	Message *ratelimitv3.RateLimitRequest
	Timeout time.Duration // 0 means the runner's own
}

// ParseRequest reads the words of a request:
//
//	k=v,k2=v2     a descriptor; %XX is a byte, and $ a value that no other case has
//	-             a descriptor without entries
//	+3  -3        hits_addend of the descriptor before, and the same with is_negative_hits
//	negative      is_negative_hits of the descriptor before, without hits_addend
//	limit:5/hour  an override of the descriptor before; the unit is a name or a number
//	hits:3        hits_addend of the request
//	domain:x      another domain than the case's
//	timeout:50ms  the deadline of the call
//
// {text*3} anywhere is the text three times, with # for the number of each.
func ParseRequest(text, domain, fresh string) (Request, error) {
	r := Request{Message: &ratelimitv3.RateLimitRequest{Domain: domain}}
	text, err := repeat(text)
	if err != nil {
		return r, err
	}
	for word := range strings.FieldsSeq(text) {
		if err := r.word(word, fresh); err != nil {
			return r, fmt.Errorf("request word %q: %w", short(word), err)
		}
	}
	return r, nil
}

// repeat writes out the repetitions of a text.
func repeat(text string) (string, error) {
	for {
		m := regexp.MustCompile(`\{([^{}]*)\*(\d+)\}`).FindStringSubmatchIndex(text)
		if m == nil {
			return text, nil
		}
		n, err := strconv.Atoi(text[m[4]:m[5]])
		if err != nil || n > 1<<22 {
			return "", fmt.Errorf("%s is too often", text[m[4]:m[5]])
		}
		part := text[m[2]:m[3]]
		if n*len(part) > 1<<23 {
			return "", fmt.Errorf("%d times %d bytes is too much", n, len(part))
		}
		var all strings.Builder
		for i := range n {
			all.WriteString(strings.ReplaceAll(part, "#", strconv.Itoa(i)))
		}
		text = text[:m[0]] + all.String() + text[m[1]:]
	}
}

func (r *Request) word(word, fresh string) error {
	last := func() (*commonv3.RateLimitDescriptor, error) {
		if n := len(r.Message.Descriptors); n > 0 {
			return r.Message.Descriptors[n-1], nil
		}
		return nil, fmt.Errorf("there is no descriptor before it")
	}
	switch name, value, _ := strings.Cut(word, ":"); {
	case name == "domain" && !strings.Contains(name, "="):
		r.Message.Domain = value
		return nil
	case name == "hits":
		hits, err := strconv.ParseUint(value, 10, 32)
		r.Message.HitsAddend = uint32(hits)
		return err
	case name == "timeout":
		timeout, err := time.ParseDuration(value)
		r.Timeout = timeout
		return err
	case word == "negative":
		d, err := last()
		if err != nil {
			return err
		}
		d.IsNegativeHits = true
		return nil
	case name == "limit":
		d, err := last()
		if err != nil {
			return err
		}
		d.Limit, err = parseLimit(value)
		return err
	}
	if n, found := strings.CutPrefix(word, "+"); found || (len(word) > 1 && word[0] == '-') {
		d, err := last()
		if err != nil {
			return err
		}
		hits, err := strconv.ParseUint(strings.TrimPrefix(n, "-"), 10, 64)
		d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(hits), !found
		return err
	}
	d := new(commonv3.RateLimitDescriptor)
	if word != "-" {
		for pair := range strings.SplitSeq(word, ",") {
			e, err := parseEntry(pair, fresh)
			if err != nil {
				return err
			}
			d.Entries = append(d.Entries, e)
		}
	}
	r.Message.Descriptors = append(r.Message.Descriptors, d)
	return nil
}

func parseEntry(pair, fresh string) (*commonv3.RateLimitDescriptor_Entry, error) {
	key, value, found := strings.Cut(pair, "=")
	if !found {
		return nil, fmt.Errorf("%q has no =", short(pair))
	}
	var texts [2]string
	for i, text := range []string{key, value} {
		text, err := url.PathUnescape(strings.ReplaceAll(text, "$", fresh))
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	return &commonv3.RateLimitDescriptor_Entry{Key: texts[0], Value: texts[1]}, nil
}

func parseLimit(text string) (*commonv3.RateLimitDescriptor_RateLimitOverride, error) {
	number, unit, _ := strings.Cut(text, "/")
	requests, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return nil, err
	}
	value, known := typev3.RateLimitUnit_value[strings.ToUpper(unit)]
	if !known {
		n, err := strconv.ParseInt(unit, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("unit %q is not known", unit)
		}
		value = int32(n)
	}
	return &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(requests), Unit: typev3.RateLimitUnit(value)}, nil
}

// An Answer is an expected answer.
type Answer struct {
	OneOf    []string // OK, OVER, ERROR (any gRPC error of the target) or the name of a gRPC code
	Statuses []Status // of each descriptor; nil means any
	Empty    bool     // there must be no statuses
}

// A Status is an expected status of a descriptor.
type Status struct {
	Code      string // OK or OVER; empty means any
	Remaining *[2]uint64
	Unlimited bool   // without current_limit
	Limit     string // requests/unit; empty means any
	Name      *string
	Reset     string // "unit": until the end of the window; "from..to" in seconds
	HasReset  bool
}

// ParseAnswer reads an expected answer: OK, OVER, ERROR or the name of a gRPC code, or several of
// these with | between. [ … ] after it is the expected status of a descriptor:
//
//	OK OVER          the code
//	9  8..9          limit_remaining
//	10/hour          current_limit
//	name=x           its name
//	none             no current_limit
//	reset=3..4       duration_until_reset in whole seconds
//	reset=hour       the seconds until the hour ends, by the Unix epoch; 10*minute for ten minutes
func ParseAnswer(text string) (Answer, error) {
	var a Answer
	head, rest, found := strings.Cut(text, "[")
	for name := range strings.SplitSeq(strings.TrimSpace(head), "|") {
		if !slices.Contains([]string{"OK", "OVER", "ERROR", "SERVING", "NOT_SERVING"}, name) && !isCode(name) {
			return a, fmt.Errorf("answer %q is not known", name)
		}
		a.OneOf = append(a.OneOf, name)
	}
	for found {
		var status string
		status, rest, found = strings.Cut(rest, "]")
		if !found {
			return a, fmt.Errorf("a ] is missing in %q", text)
		}
		s, err := parseStatus(status)
		if err != nil {
			return a, err
		}
		a.Statuses = append(a.Statuses, s)
		rest = strings.TrimSpace(rest)
		rest, found = strings.CutPrefix(rest, "[")
	}
	if rest != "" && len(a.Statuses) > 0 {
		return a, fmt.Errorf("%q after the last ]", rest)
	}
	return a, nil
}

func isCode(name string) bool {
	var c codes.Code
	return name != "OK" && c.UnmarshalJSON([]byte(strconv.Quote(name))) == nil
}

func parseStatus(text string) (Status, error) {
	var s Status
	for word := range strings.FieldsSeq(text) {
		key, value, assigned := strings.Cut(word, "=")
		switch {
		case word == "OK", word == "OVER":
			s.Code = word
		case word == "none":
			s.Unlimited = true
		case assigned && key == "name":
			s.Name = &value
		case assigned && key == "reset":
			s.Reset, s.HasReset = value, true
		case strings.Contains(word, "/"):
			s.Limit = word
		default:
			from, to, err := Bounds(word)
			if err != nil {
				return s, err
			}
			s.Remaining = &[2]uint64{from, to}
		}
	}
	return s, nil
}

// Bounds reads a number, or "from..to".
func Bounds(text string) (from, to uint64, err error) {
	first, second, found := strings.Cut(text, "..")
	if !found {
		second = first
	}
	if from, err = strconv.ParseUint(first, 10, 64); err != nil {
		return 0, 0, err
	}
	to, err = strconv.ParseUint(second, 10, 64)
	return from, to, err
}

// Asks returns the requests of a race, which take turns.
func (r *Race) Asks() []string {
	if r.Or == "" {
		return []string{r.Ask}
	}
	return []string{r.Ask, r.Or}
}

// Bounds returns how many requests of a race may be admitted.
func (r *Race) Bounds() (from, to uint64, err error) { return Bounds(r.Admitted) }

func short(text string) string {
	if len(text) > 60 {
		return text[:60] + "…"
	}
	return text
}
