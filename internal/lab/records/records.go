// Package records keeps rate limit requests in files, and reads them again: to decide them anew
// under other rules. A record has the requests, with their instants, and perhaps the answers, but
// no rules and no counts.
//
// A record is lines of JSON, one request each, in files that may be compressed with zstd. Others
// can write such lines too, each without line ends:
//
//	{"at":"2026-11-23T04:31:55.123456789Z","domain":"edge",
//	 "descriptors":[{"entries":[{"key":"path","value":"/cart"}],"hits":3}],
//	 "hits":2,"over_limit":true}
//
// Most names are as in a request to /json:
//
//   - at: the instant, as RFC 3339 has it, from 1970 to 2260; required.
//   - domain and descriptors: must be there, and not be empty. A descriptor has entries, each with
//     a key, not empty, and a value.
//   - hits of a descriptor, 0 to 4294967295. 0 is a probe. Without hits the descriptor has the hits
//     of the request.
//   - refund of a descriptor: true gives the hits back.
//   - override of a descriptor: {"requests":10,"unit":"minute","multiplier":1}, a limit that came
//     with the request.
//   - hits of the request: 0 counts as 1, and so does a line without hits.
//   - over_limit: the answer, where it is known.
//
// A wrong line is a mistake with its file and line. A file that was cut off is read to its last
// whole line, so that a killed process leaves a good record.
package records

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Answer is the answer to a recorded request.
type Answer uint8

// The answers.
const (
	Unknown   Answer = iota
	Passed           // or reported so, in shadow mode
	OverLimit        // the request as a whole
)

// Record is one request that was answered.
type Record struct {
	At      algorithms.Instant // nanoseconds since the Unix epoch
	Request limiter.Request
	Answer  Answer
}

// Extension ends the name of a file that a [Recorder] writes.
const Extension = ".jsonl.zst"

// maxLine bounds a line, in bytes.
const maxLine = 1 << 20

// endOfTime is 2261-01-01 in Unix seconds, after all records: nanoseconds of 64 bits end in 2262.
const endOfTime = 9183110400
