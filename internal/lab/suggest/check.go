package suggest

import "github.com/weirproxy/weir/internal/lab/simulate"

// Check compares the suggestions with a simulation under the rules of Documents, and notes the
// denials of each rule. Check raises the limits of rules with too many denials. Then the new rules
// must be simulated again. A rule with a table is not checked.
func (r *Result) Check(s *simulate.Result, g Goal) (raised bool) {
	type name struct{ domain, rule string }
	rows := make(map[name]*simulate.Rule, len(s.Rules))
	for i := range s.Rules {
		rows[name{s.Rules[i].Domain, s.Rules[i].Rule}] = &s.Rules[i]
	}
	for _, shape := range r.Shapes {
		row := rows[name{shape.Domain, shape.Rule}]
		if row == nil || shape.hasTable() { // keys in the table have denials too
			continue
		}
		denied := row.Denied + row.Shadowed
		shape.Checked, shape.Denied, shape.KeysDenied = true, float64(denied)/float64(max(row.Requests, 1)), row.KeysDenied
		if shape.Denied > g.Deny || float64(row.KeysDenied) > (1-g.Keys)*float64(shape.Keys) {
			raised = shape.Raise() || raised
		}
	}
	return raised
}
