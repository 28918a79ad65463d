package main

import (
	"errors"
	"fmt"

	"github.com/weirproxy/weir/test/promise"
)

// verdict is the result of a plan.
type verdict struct {
	admitted int
	denied   int
	expected int // admitted by one process
	over     int // hits admitted beyond a promise, of all keys
	share    float64
	worst    float64 // percent over, of the key with most
	used     float64 // percent of the hits that one process would have admitted; hits over the limit do not count
	errors   failures
}

// judge counts the admitted hits, and the hits that no promise allows.
func judge(p *plan, r *results) verdict {
	v := verdict{errors: r.failed}
	for _, a := range r.history {
		if !a.Admitted {
			v.denied++
		}
	}
	for _, c := range promise.Judge(p.limits, r.history, r.since) {
		v.admitted, v.expected, v.over = v.admitted+c.Admitted, v.expected+c.Expected, v.over+c.Over
		v.worst = max(v.worst, percent(c.Over, c.Expected))
	}
	v.share, v.used = percent(v.over, v.expected), percent(v.admitted-v.over, v.expected)
	return v
}

// percent returns the share of a part, in percent; 0 of nothing.
func percent(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// err returns the mistakes of a verdict. One process knows a decision at once, and a client knows
// it when the answer has come. So one hit of each client may be missing besides the share. In a
// cluster a request that one slot denies has taken hits in another until the request gives the hits
// back.
func (v *verdict) err(o *options) error {
	var errs []error
	if v.share > o.mostOver {
		errs = append(errs, fmt.Errorf("%d hits more were admitted than the limits allow: %.2f %%, must be at most %g %%",
			v.over, v.share, o.mostOver))
	}
	if least := int(float64(v.expected)*o.leastUsed/100) - o.clients; v.admitted < least {
		errs = append(errs, fmt.Errorf("%d hits were admitted where one process would have admitted %d: must be at least %d",
			v.admitted, v.expected, least))
	}
	if v.denied == 0 {
		errs = append(errs, errors.New("nothing was denied: the load did not reach the limits"))
	}
	if v.errors.count > 0 && o.fault != "sidecar-kill" {
		errs = append(errs, fmt.Errorf("%d errors, such as: %w", v.errors.count, v.errors.first))
	}
	return errors.Join(errs...)
}
