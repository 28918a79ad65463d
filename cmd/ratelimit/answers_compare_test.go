package main

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// units is how long the windows of each unit are, in seconds.
func units() map[string]int64 {
	return map[string]int64{
		"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400, "MONTH": 30 * 86400, "YEAR": 365 * 86400,
	}
}

var windowEnd = regexp.MustCompile(`<([A-Z]+)>`)

// compare looks whether a message is the wanted one, of which all resets are of one second between
// begun and ended.
//
// The program runs on real time: it listens on real sockets, with which the time of a synctest
// bubble stands still, so that it would never end. A reset is exact nevertheless, as the window's
// end is known: which second it was the only thing to try, and nearly always there is one.
func (p *play) compare(s *step, want []string, got proto.Message, begun, ended time.Time) {
	if len(want) == 0 {
		p.problem(s, "got %v", got)
		return
	}
	var diff string
	for at := begun.Unix(); at <= ended.Unix(); at++ {
		text := windowEnd.ReplaceAllStringFunc(strings.Join(want, "\n"), func(unit string) string {
			length := units()[strings.Trim(unit, "<>")]
			if length == 0 {
				return unit
			}
			return strconv.FormatInt(length-at%length, 10)
		})
		m := got.ProtoReflect().New().Interface()
		if err := prototext.Unmarshal([]byte(text), m); err != nil {
			p.t.Fatalf("line %d: %v", s.line, err)
		}
		if diff = cmp.Diff(m, got, protocmp.Transform()); diff == "" {
			return
		}
	}
	p.problem(s, "(-want +got):\n%s", diff)
}

// awaitRoom waits where a case might run across the end of a year's window, of which there is one
// in 365 days: cases of several requests have limits per year for that.
func awaitRoom() {
	year := time.Duration(units()["YEAR"]) * time.Second
	if left := year - time.Duration(time.Now().UnixNano())%year; left < within {
		<-time.After(left)
	}
}

// matchLines reports whether lines are the wanted ones, of which "…" stands for any number of any,
// and at the end of a line for its rest.
func matchLines(want, got []string) bool {
	switch {
	case len(want) == 0:
		return len(got) == 0
	case want[0] == "…":
		return matchLines(want[1:], got) || len(got) > 0 && matchLines(want, got[1:])
	case len(got) == 0:
		return false
	}
	begins, any := strings.CutSuffix(want[0], "…")
	return (got[0] == want[0] || any && strings.HasPrefix(got[0], begins)) && matchLines(want[1:], got[1:])
}
