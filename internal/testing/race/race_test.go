package race

import "testing"

func TestScaleIsATenthWithTheRaceDetector(t *testing.T) {
	full := !Enabled && !testing.Short()
	for n, want := range map[int]int{1000: 100, 5: 1} {
		if full {
			want = n
		}
		if got := Scale(n); got != want {
			t.Errorf("Scale(%d) = %d, want %d", n, got, want)
		}
	}
}
