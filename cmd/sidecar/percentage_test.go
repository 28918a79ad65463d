package main

import "testing"

// Exactly as many denials as --max-denied allows are not too many: 7 of 1000 are 0.7%.
func TestPercentagesAreTheNearestNumber(t *testing.T) {
	for _, c := range []struct {
		text      string
		some, all float64
	}{{"0.7%", 7, 1000}, {"0.5%", 1, 200}, {"0.07%", 7, 10000}, {"5.7%", 57, 1000}, {"29%", 29, 100}, {"100%", 1, 1}, {"0%", 0, 1}, {"1e-1%", 1, 1000}} {
		var p percentage
		if err := p.Set(c.text); err != nil || p.part != c.some/c.all {
			t.Errorf("%s: got %v, %v, want %v", c.text, p.part, err, c.some/c.all)
		}
		if c.text != "1e-1%" && p.String() != c.text {
			t.Errorf("%s: is written %s", c.text, p.String())
		}
	}
}
