package descriptors

import (
	"strings"
	"testing"
	"time"
)

func TestEscalateWarnsWhereItHasNoEffectAndOfAddressesThatAClientChooses(t *testing.T) {
	const words = "escalate: {after: 3, within: 10m, block: [1m, 1h], forget: 1d}"
	for text, want := range map[string]string{
		"{key: user, rate_limit: {unit: minute, requests_per_unit: 5, " + words + "}}":                                                    "",
		"{key: user, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5, " + words + "}}":                                 "has no effect in a rule with shadow_mode",
		"{key: user, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 5, " + words + "}}":                                  "has no effect in a rule with quota_mode",
		"{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5, " + words + "}}":                                          `blocks addresses of "remote_address". Without trusted hops`,
		"{key: masked_remote_address, rate_limit: {unit: minute, requests_per_unit: 5, " + words + "}}":                                   `blocks addresses of "masked_remote_address"`,
		"{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}":                                                         "",
		"{key: a, descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 5}}]}":                                  "",
		"{key: remote_address, rate_limits: [{unit: minute, requests_per_unit: 5}, {unit: second, requests_per_unit: 5, " + words + "}]}": "xff_num_trusted_hops",
	} {
		_, warnings, err := Load([]Source{{Name: "f", Data: []byte("domain: edge\ndescriptors:\n- " + text)}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(warnings) > 1 || (len(warnings) == 1) != (want != "") || want != "" && !strings.Contains(warnings[0].String(), want) {
			t.Errorf("%s:\ngot  %v\nwant %q", text, warnings, want)
		}
	}
}

func TestALineOfATableHasNoPeriodAboveWithin(t *testing.T) {
	const document = "domain: d\ndescriptors:\n- {key: a, rate_limit: {table: t.csv, unit: minute, requests_per_unit: 5, " +
		"escalate: {after: 2, within: 2h, block: [1h], forget: 1d}}}\n"
	_, _, err := Load([]Source{withTables(document, map[string]string{"t.csv": "x,1\ny,2,hour\nz,3,day\nw,3,month\n"})}, Options{})
	const want = "t.csv:3: unit: is day, must be at most the within of escalate: 2h (rules.yaml:3)\n" +
		"t.csv:4: unit: is month, must be at most the within of escalate: 2h (rules.yaml:3)"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestAnOverlayBlocksKeysOfOtherSources(t *testing.T) {
	rules, warnings, err := Load([]Source{
		{Name: "overlay.yaml", Data: []byte("overlay:\n- for: {domain: d}\n  set: {escalate: {after: 2, within: 2h, block: [1m, 90s], forget: 1d}}\n")},
		{Name: "a.yaml", Data: []byte("domain: d\ndescriptors:\n- {key: a, rate_limit: {requests_per_unit: 5, unit: hour}}\n- {key: ban, rate_limit: {requests_per_unit: 0, unit: hour}}\n")},
	}, Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	limits := limitsOf(rules)
	const want = "after: 2, within: 2h, block: [1m, 1m30s], forget: 1d"
	if e := limits[0].Escalate; e == nil || e.String() != want || limits[0].CountRejected {
		t.Errorf("got %v, want %s", e, want)
	}
	if limits[1].Escalate != nil {
		t.Error("a ban escalates")
	}
	e := limits[0].Escalate
	for blocks, length := range []time.Duration{time.Minute, 90 * time.Second, 90 * time.Second} {
		if got := e.Length(blocks); got != length {
			t.Errorf("after %d blocks the next one has %v, want %v", blocks, got, length)
		}
	}
	_, _, err = Load([]Source{{Name: "overlay.yaml", Data: []byte("overlay:\n- for: {domain: d}\n  set: {escalate: {after: 2}}\n")}}, Options{})
	if err == nil || !strings.Contains(err.Error(), "escalate.within: is missing") {
		t.Errorf("a wrong word of an overlay: got %v", err)
	}
}
