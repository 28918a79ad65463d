package descriptors

import (
	"testing"
	"time"
)

func TestUnitNamesAreReadInAnyCase(t *testing.T) {
	for name, want := range map[string]Unit{
		"second": Second, "Minute": Minute, "HOUR": Hour, "dAy": Day, "week": Week, "MONTH": Month, "year": Year,
		"unknown": UnitUnknown, "UNKNOWN": UnitUnknown, "": UnitUnknown, "seconds": UnitUnknown, "s": UnitUnknown,
	} {
		got, ok := ParseUnit(name)
		if got != want || ok != (want != UnitUnknown) {
			t.Errorf("ParseUnit(%q) = %v, %t, want %v", name, got, ok, want)
		}
	}
}

func TestUnitsReadTheirOwnNames(t *testing.T) {
	for u := range Unit(9) {
		got, ok := ParseUnit(u.String())
		if want := u.Duration() != 0; ok != want || ok && got != u {
			t.Errorf("ParseUnit(%q) = %v, %t, want %v, %t", u, got, ok, u, want)
		}
	}
}

func TestPeriodIsReportedInItsLargestUnit(t *testing.T) {
	for _, tt := range []struct {
		period     time.Duration
		unit       Unit
		multiplier uint32
	}{
		{time.Second, Second, 1},
		{90 * time.Second, Second, 90},
		{2 * time.Minute, Minute, 2},
		{90 * time.Minute, Minute, 90},
		{24 * time.Hour, Day, 1},
		{168 * time.Hour, Week, 1},
		{336 * time.Hour, Week, 2},
		{720 * time.Hour, Month, 1},
		{8760 * time.Hour, Year, 1},
		{87600 * time.Hour, Year, 10},
		{87600*time.Hour - time.Second, Second, 315_359_999},
		{100 * time.Millisecond, UnitUnknown, 0},
		{1001 * time.Millisecond, UnitUnknown, 0},
		{0, UnitUnknown, 0},
	} {
		if unit, multiplier := unitOf(tt.period); unit != tt.unit || multiplier != tt.multiplier {
			t.Errorf("%v: got %v x %d, want %v x %d", tt.period, unit, multiplier, tt.unit, tt.multiplier)
		}
	}
}
