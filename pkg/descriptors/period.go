package descriptors

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// readRate decodes the period and the burst of a limit with hits per period.
func (t *tree) readRate(v value, fs fields, l *limit) {
	if at, ok := fs.get("max_in_flight"); ok {
		t.fail(at, "is for concurrency only, must be left out for %s", l.Algorithm)
	}
	t.readPeriod(v, fs, &l.Limit)
	if at, ok := fs.get("burst"); ok {
		t.readBurst(at, &l.Limit)
	}
}

// isConcurrency reports whether a limit is one of concurrency, or probably means to be one despite
// a mistake in its algorithm.
func (t *tree) isConcurrency(fs fields, l *limit) bool {
	return l.Algorithm == algorithms.Concurrency || l.Algorithm == 0 && !l.unlimited && fs.has("max_in_flight")
}

// readSlots decodes the number of a limit of concurrency.
func (t *tree) readSlots(v value, fs fields, f form, l *limit) {
	if f == defaultForm {
		at, ok := fs.get("algorithm")
		if !ok {
			at = v
		}
		t.fail(at, "is concurrency, which needs a hold: the default limit cannot have one, must have another algorithm")
		return
	}
	for _, key := range []string{"requests_per_unit", "unit", "unit_multiplier", "period", "burst"} {
		if at, ok := fs.get(key); ok {
			t.fail(at, "has no meaning for concurrency, must be left out: max_in_flight is the whole limit")
		}
	}
	at, ok := fs.get("max_in_flight")
	if !ok {
		t.fail(v.under("max_in_flight"), "is missing, must be the number of hits that may be held at the same time")
		return
	}
	l.Requests, _ = t.count(at, 0)
}

// readPeriod decodes the period of a limit.
func (t *tree) readPeriod(v value, fs fields, l *Limit) {
	unit, hasUnit := fs.get("unit")
	period, hasPeriod := fs.get("period")
	multiplier, hasMultiplier := fs.get("unit_multiplier")
	switch {
	case hasUnit && hasPeriod:
		t.fail(period, "stands beside unit: must be one of the two")
		return
	case hasPeriod:
		if hasMultiplier {
			t.fail(multiplier, "stands beside period: it multiplies a unit")
		}
		t.readDuration(period, l)
		return
	case !hasUnit:
		if at, _ := fs.get("unlimited"); fs.has("unlimited") {
			if _, ok := truth(at.node); !ok {
				return // the mistake is recorded already
			}
		}
		t.fail(v, "has neither unit (second, minute, hour, day, week, month, year) nor period (such as 10s), must have one of the two")
		return
	}
	name, ok := t.text(unit)
	if !ok {
		return
	}
	if l.Unit, ok = ParseUnit(name); !ok {
		t.fail(unit, "%s is not a unit, must be second, minute, hour, day, week, month or year", quote(name))
	}
	l.Multiplier = 1
	if hasMultiplier {
		m, known := t.count(multiplier, 1)
		if ok = ok && known; known {
			l.Multiplier = m
		}
	}
	if !ok {
		return
	}
	if longest := uint32(algorithms.MaxPeriod / l.Unit.Duration()); l.Multiplier > longest {
		t.fail(multiplier, "is %d, must be at most %d for the unit %s: a period is at most 10 years", l.Multiplier, longest, l.Unit)
		return
	}
	l.Period = time.Duration(l.Multiplier) * l.Unit.Duration()
}

// readDuration decodes a period.
func (t *tree) readDuration(v value, l *Limit) {
	if d := t.duration(v); d > 0 {
		l.Period = d
		l.Unit, l.Multiplier = unitOf(d)
	}
}

// duration decodes a duration that is a valid period, 0 after a mistake.
func (t *tree) duration(v value) time.Duration {
	text, ok := t.text(v)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		t.fail(v, "%s is not a duration, must be a number and its unit (ms, s, m, h), such as 10s or 1h30m, and at most 87600h", quote(text))
	case d < algorithms.MinPeriod || d > algorithms.MaxPeriod:
		t.fail(v, "%s is out of range, must be from 1ms to 87600h (10 years)", quote(text))
	case t.options.Granularity > 0 && d%t.options.Granularity != 0:
		t.fail(v, "%s is too fine, must be a whole multiple of %v, the step in which the store counts time", quote(text), t.options.Granularity)
	default:
		return d
	}
	return 0
}

// readBurst decodes the capacity of a token bucket.
func (t *tree) readBurst(v value, l *Limit) {
	burst, ok := t.count(v, 1)
	if !ok {
		return
	}
	switch {
	case l.Algorithm == 0: // reported already
	case l.Algorithm != algorithms.TokenBucket:
		t.fail(v, "is for token_bucket only, must be left out for %s", l.Algorithm)
	case l.Requests == 0:
		t.fail(v, "is %d, must be left out: requests_per_unit 0 denies every hit", burst)
	default:
		l.Burst = burst
	}
}
