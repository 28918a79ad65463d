package algorithms

import (
	"fmt"
	"strings"
)

// Algorithm names a way to keep a limit. The zero value is none and not valid. The numbers may be stored: they do not change.
type Algorithm uint8

// kind is what one algorithm brings.
type kind interface {
	name() string // as in rule files
}

// stateful is a kind that keeps its state in a [State].
type stateful interface {
	kind
	take(l Limit, s State, now Instant, hits int64, countRejected bool) (State, Decision)
	freshAt(l Limit, s State) Instant                  // s is not unused
	change(from, to Limit, s State, now Instant) State // same algorithm and period; s is not fresh at now
}

// statefulOf returns the kind of an algorithm that keeps a State, nil when there is none of that number. A new algorithm is
// one line here.
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
	default:
		return nil
	}
}

// kindOf returns the kind of an algorithm, nil when there is none of that number.
func kindOf(a Algorithm) kind {
	if a == SlidingWindowLog {
		return slidingWindowLog{}
	}
	if k := statefulOf(a); k != nil {
		return k
	}
	return nil
}

// Algorithms returns every algorithm, in the order of their numbers.
func Algorithms() []Algorithm {
	var all []Algorithm
	for a := Algorithm(1); kindOf(a) != nil; a++ {
		all = append(all, a)
	}
	return all
}

// Names returns the names of all algorithms as rule files write them, separated by ", ".
func Names() string {
	var names []string
	for _, a := range Algorithms() {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// String returns the algorithm's name as in rule files.
func (a Algorithm) String() string {
	if k := kindOf(a); k != nil {
		return k.name()
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// ParseAlgorithm returns the algorithm of that name, which is case-sensitive, or an error that lists the names there are.
func ParseAlgorithm(name string) (Algorithm, error) {
	for _, a := range Algorithms() {
		if a.String() == name {
			return a, nil
		}
	}
	return 0, fmt.Errorf("%q is not an algorithm, must be one of %s", name, Names())
}
