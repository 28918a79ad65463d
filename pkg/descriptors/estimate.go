package descriptors

import (
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Estimate says how many hits a begin holds under a limit. The zero value: as many as it says.
type Estimate struct {
	// Quantile is the part of the true costs that the estimate covers, in thousandths. The costs of
	// earlier requests of the key and of their model teach it. 0: the estimate is not learned.
	Quantile uint32

	Ceiling uint32 // of each estimate of a limit that learns, in hits; at least 1
}

// Learns reports whether the limit learns its estimates.
func (e Estimate) Learns() bool { return e.Quantile > 0 }

// Percent writes the quantile in percent, such as 95 or 99.9.
func (e Estimate) Percent() string { return strconv.FormatFloat(float64(e.Quantile)/10, 'f', -1, 64) }

// Learn reports whether a limit of the rules learns its estimates.
func (r *Rules) Learn() bool { return r.learns }

// Charges returns the number of charges of a descriptor of the rule, one for each limit. A limit
// that learns its estimates has one more, and so has a limit that escalates. The number is at most
// three times MaxLimits.
func (r *Rule) Charges() int {
	n := len(r.Limits)
	for i := range r.Limits {
		if r.Limits[i].Estimate.Learns() {
			n++
		}
		if r.Limits[i].Escalate != nil {
			n++
		}
	}
	return n
}

const defaultQuantile = 950

// maxModel bounds a model that costs are learned for, in bytes.
const maxModel = 128

// Model returns the model in the entry of [UsageKey] of a descriptor; "" without the entry, or if
// its tokens cannot be read. Costs are learned for each model, and clients may choose models. So
// all models without a line in the table of prices are one, and so are all of more than 128 bytes.
// The rule must match the descriptor. A priced rule has read the usage, which other rules ignore.
func (r *Rule) Model(entries []Entry, usage Usage) string {
	if at := len(r.Levels); !r.Priced {
		if at >= len(entries) || entries[at].Key != UsageKey {
			return ""
		}
		usage, _ = ParseUsage(entries[at].Value) // the model is "" after a mistake
	}
	known := len(usage.Model) <= maxModel
	for i := range r.Limits {
		if l := &r.Limits[i]; l.Prices() {
			known = known && l.priced.prices.models[usage.Model] != nil
		}
	}
	if !known {
		return otherModels
	}
	return usage.Model
}

// readEstimate decodes the estimate of a hold, once the limit has its algorithm and its money.
func (t *tree) readEstimate(hold fields, l *Limit) {
	at, given := hold.get("estimate")
	if !given {
		return
	}
	if l.Algorithm == algorithms.Concurrency {
		t.fail(at, "has no meaning for concurrency, must be left out: a request says how many slots it takes")
		return
	}
	if at.node.Kind == yaml.ScalarNode {
		if name, ok := t.text(at); ok && name != "sent" {
			t.fail(at, "is %s, must be sent, or learned such as {learned: {quantile: 0.95, ceiling: 4000}}", quote(name))
		}
		return
	}
	in, ok := t.fields(at, estimateForm)
	if !ok {
		return
	}
	learned, given := in.get("learned")
	if !given {
		t.fail(at, "is empty, must be sent, or learned such as {learned: {quantile: 0.95, ceiling: 4000}}")
		return
	}
	if in, ok = t.fields(learned, learnedForm); !ok {
		return
	}
	l.Estimate.Quantile = t.quantile(in)
	ceiling, given := in.get("ceiling")
	switch {
	case !given:
		t.fail(learned.under("ceiling"), "is missing, must be the largest estimate, such as 4000: it counts also while nothing is learned")
	case l.Money:
		if n, ok := t.amount(ceiling, algorithms.MaxHits, ""); ok && n == 0 {
			t.fail(ceiling, "is 0, must be more: the largest price of a request")
		} else {
			l.Estimate.Ceiling = uint32(n)
		}
	default:
		l.Estimate.Ceiling, _ = t.count(ceiling, 1)
	}
}

// quantile decodes the quantile of an estimate, 0 after a mistake.
func (t *tree) quantile(learned fields) uint32 {
	at, given := learned.get("quantile")
	if !given {
		return defaultQuantile
	}
	text, ok := t.decimal(at)
	if !ok {
		return 0
	}
	n, ok := micros(text)
	if !ok || n%1000 != 0 || n < algorithms.MinQuantile*1000 || n > algorithms.MaxQuantile*1000 {
		t.fail(at, "is %s, must be from 0.5 to 0.999 with at most three decimals, such as 0.95: the part of the costs that the estimate covers",
			quote(text))
		return 0
	}
	return uint32(n / 1000)
}
