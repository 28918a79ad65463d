package algorithms

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Algorithm names a way to keep a limit. The zero value is not valid. The numbers may be stored and
// never change.
type Algorithm uint8

// stateful is the methods of an algorithm that keeps a key in a [State].
type stateful interface {
	name() string // as in rule files
	take(l Limit, s State, now Instant, hits int64, excess Excess) (State, Decision)
	idleAt(l Limit, s State) Instant                                 // s is not unused
	change(from, to Limit, s State, now Instant) State               // same algorithm and period; s is not idle at now
	realign(l Limit, s State, now Instant, step time.Duration) State // s is not idle at now
	clamp(l Limit, s State, now Instant) State                       // s is not unused
	content(l Limit, s State, now Instant) wide                      // used hits in units of 1/Period hit; s is not unused
	layout() string                                                  // see Layout
	record(l Limit, s State) numbers                                 // s is not unused
	restore(l Limit, n numbers) (State, Limit)
}

// direct is the type beneath the algorithms. An interface holds one pointer as it is, and calls the
// methods at once. A method of an empty struct would have a wrapper that copies all arguments, in 1
// to 2 ns.
type direct struct{ _ *struct{} }

// statefulOf returns the algorithm of a number that keeps a [State], or nil. A new algorithm is one
// case here.
func statefulOf(a Algorithm) stateful {
	switch a {
	case FixedWindow:
		return fixedWindow{}
	case TokenBucket:
		return tokenBucket{}
	case SlidingWindowCounter:
		return slidingWindowCounter{}
	case TokenBucketInteger:
		return tokenBucketInteger{}
	case CalendarWindow:
		return calendarWindow{}
	case CalendarCounter:
		return calendarCounter{}
	case Learned:
		return learned{}
	case Escalation:
		return escalation{}
	default:
		return nil
	}
}

// known reports whether an algorithm has the number.
func (a Algorithm) known() bool {
	return statefulOf(a) != nil || a == SlidingWindowLog || a == Concurrency
}

// HasState reports whether the algorithm keeps a key in a [State], as all but sliding_window_log
// and concurrency do.
func (a Algorithm) HasState() bool { return a != SlidingWindowLog && a != Concurrency }

// Algorithms returns every algorithm without calendar windows, in the order of their numbers, but
// for [Learned] and [Escalation].
func Algorithms() []Algorithm {
	var all []Algorithm
	for a := Algorithm(1); a.known(); a++ {
		if !slices.Contains(InternalAlgorithms(), a) {
			all = append(all, a)
		}
	}
	return all
}

// RateAlgorithms returns every algorithm whose limits have a period, in the order of their numbers:
// all but concurrency.
func RateAlgorithms() []Algorithm {
	return slices.DeleteFunc(Algorithms(), func(a Algorithm) bool { return a == Concurrency })
}

// Aligned returns the algorithm that counts as a does, in windows of a [Calendar], and whether
// there is one. Rule files write it with the name of a and an alignment.
func (a Algorithm) Aligned() (Algorithm, bool) {
	switch a {
	case FixedWindow:
		return CalendarWindow, true
	case SlidingWindowCounter:
		return CalendarCounter, true
	default:
		return 0, false
	}
}

// Plain returns the algorithm that counts as a does without a [Calendar], see Aligned.
func (a Algorithm) Plain() Algorithm {
	switch a {
	case CalendarWindow:
		return FixedWindow
	case CalendarCounter:
		return SlidingWindowCounter
	default:
		return a
	}
}

// HasCalendar reports whether the algorithm counts in windows of a [Calendar].
func (a Algorithm) HasCalendar() bool { return a == CalendarWindow || a == CalendarCounter }

// InternalAlgorithms returns the algorithms that no rule file names: the ones of a [Calendar],
// [Learned], and [Escalation].
func InternalAlgorithms() []Algorithm { return append(CalendarAlgorithms(), Learned, Escalation) }

// CalendarAlgorithms returns the algorithms that count in windows of a [Calendar].
func CalendarAlgorithms() []Algorithm { return []Algorithm{CalendarWindow, CalendarCounter} }

// Names returns the names of all algorithms as rule files write them, separated by ", ".
func Names() string {
	var names []string
	for _, a := range Algorithms() {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// String returns the algorithm's name as in rule files. An algorithm with calendar windows has the
// name of the one without, see [Algorithm.Aligned].
func (a Algorithm) String() string {
	switch k := statefulOf(a); {
	case k != nil:
		return k.name()
	case a == SlidingWindowLog:
		return "sliding_window_log"
	case a == Concurrency:
		return "concurrency"
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// ParseAlgorithm returns the algorithm of a name, which is case-sensitive, or an error that lists
// all names. No name stands for an algorithm with calendar windows.
func ParseAlgorithm(name string) (Algorithm, error) {
	for _, a := range Algorithms() {
		if a.String() == name {
			return a, nil
		}
	}
	return 0, fmt.Errorf("%q is not an algorithm, must be one of %s%s", name, Names(), Hint(name))
}

// Hint says which algorithm stands for a name that other programs use, as the end of a sentence; ""
// for any other name.
func Hint(name string) string {
	plain := strings.NewReplacer("-", "", " ", "", "_", "").Replace(strings.ToLower(name))
	for _, a := range Algorithms() {
		if strings.ReplaceAll(a.String(), "_", "") == plain {
			return ": write " + a.String()
		}
	}
	switch plain {
	case "leakybucket":
		return ": as a meter it is token_bucket with the size of the bucket as burst, such as burst: 1; there is no queue"
	case "gcra":
		return ": token_bucket gives the same answers"
	case "slidingwindow", "rollingwindow", "movingwindow":
		return ": sliding_window_log is exact, sliding_window_counter is an estimate"
	case "bucket", "tokens":
		return ": write token_bucket"
	case "window", "counter", "fixed":
		return ": write fixed_window"
	case "concurrent", "semaphore", "inflight", "maxinflight", "connections":
		return ": write concurrency, which counts requests in flight, with max_in_flight and hold"
	default:
		return ""
	}
}
