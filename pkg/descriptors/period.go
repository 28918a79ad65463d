package descriptors

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

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
	text, ok := t.text(v)
	if !ok {
		return
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
		l.Period = d
		l.Unit, l.Multiplier = unitOf(d)
	}
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
