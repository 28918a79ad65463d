package limiter_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// tabledRules has limits with a table.
const tabledRules = `domain: edge
descriptors:
  - key: tenant
    rate_limit: {table: t.csv, unit: minute, requests_per_unit: 1}
  - key: several
    rate_limits:
      - {table: t.csv, unit: hour, requests_per_unit: 2}
      - {unit: minute, requests_per_unit: 7}
      - {unit: second, requests_per_unit: 4294967295}
  - key: vip
    rate_limit: {unlimited: true, replaces: [{name: plan}]}
  - key: named
    rate_limit: {table: t.csv, unit: minute, requests_per_unit: 1, name: plan}
  - key: slots
    rate_limit: {table: slots.csv, algorithm: concurrency, max_in_flight: 1, hold: {begin: b, end: e, at_most: 1h}}
`

// tabledFixture is a limiter with tabledRules from files.
func tabledFixture(t *testing.T) fixture {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"rules.yaml": tabledRules, "t.csv": "gold,3\nbanned,0\nslow,5,hour\n", "slots.csv": "gold,2\n"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	f := newFixture(t, "domain: edge\n")
	if warnings, err := f.LoadFiles(filepath.Join(dir, "rules.yaml")); err != nil || len(warnings) > 0 {
		t.Fatalf("LoadFiles: %v, warnings %v", err, warnings)
	}
	return f
}

func TestLimitsHaveTheNumbersOfATable(t *testing.T) {
	f := tabledFixture(t)
	for i, c := range []struct {
		request *limiter.Request
		want    string
	}{
		{request("edge", "tenant=gold hits=2"), "OK ok:1/3"},
		{request("edge", "tenant=gold hits=2"), "OVER over:0/3"},
		{request("edge", "tenant=other"), "OK ok:0/1"},
		{request("edge", "tenant=other"), "OVER over:0/1"},
		{request("edge", "tenant=banned"), "OVER over:0/0"},
		{request("edge", "tenant=slow hits=4", "tenant=slow", "tenant=new"), "OK ok:1/5 ok:0/5 ok:0/1"},
		{request("edge", "tenant=slow override=9"), "OK ok:8/9"}, // a count per minute, as the override says
		{request("edge", "several=slow hits=5"), "OK ok:0/5"},
		{request("edge", "several=slow"), "OVER over:0/5"},
		{request("edge", "several=x"), "OK ok:1/2"},
		{request("edge", "named=gold", "vip=1"), "OK replaced unlimited"},
		{request("edge", "slots=gold,b=1"), "OK ok:1/2"},
		{request("edge", "slots=gold,b=2"), "OK ok:0/2"},
		{request("edge", "slots=gold,b=3"), "OVER over:0/2"},
		{request("edge", "slots=gold,e=2"), "OK ok:1/2"},
		{request("edge", "slots=gold,b=3 override=9"), "OK ok:7/9"},
	} {
		if got := f.check(c.request); got != c.want {
			t.Errorf("request %d: got %s, want %s", i, got, c.want)
		}
	}
}

func TestExplainSaysWhichLineOfATableCounts(t *testing.T) {
	f := tabledFixture(t)
	all := must.Get(f.Explain(t.Context(), request("edge", "tenant=slow", "tenant=other", "slots=gold,b=1 override=5")))(t)
	for i, want := range []struct {
		line  int
		table bool
		key   string
	}{
		{3, true, "4:edge|6:tenant=4:slow#fixed_window/1h"}, {0, true, "4:edge|6:tenant=5:other#fixed_window/1m"}, {0, false, "4:edge|5:slots=4:gold#concurrency"},
	} {
		l := all[i].Limits[0]
		if l.Limit.TableLine != want.line || (l.Limit.Table() != nil) != want.table || l.Key != want.key {
			t.Errorf("descriptor %d: got line %d, table %v, key %s; want %v", i, l.Limit.TableLine, l.Limit.Table(), l.Key, want)
		}
	}
}

func TestLoadFilesNamesMistakesInTables(t *testing.T) {
	f := tabledFixture(t)
	before := f.Rules()
	dir := t.TempDir()
	path := filepath.Join(dir, "rules.yaml")
	must.Do(t, os.WriteFile(path, []byte(tabledRules), 0o600))
	must.Do(t, os.WriteFile(filepath.Join(dir, "slots.csv"), []byte("gold\n"), 0o600))
	_, err := f.LoadFiles(path)
	mistakes, ok := errors.AsType[descriptors.Errors](err)
	if !ok || len(mistakes) != 2 || f.Rules() != before {
		t.Fatalf("got %v, want two mistakes and the rules of before", err)
	}
	for i, want := range []string{path + ":4: descriptors[0].rate_limit.table: read table: ", filepath.Join(dir, "slots.csv") + ":1: has 1 columns"} {
		if got := mistakes[i].Error(); !strings.HasPrefix(got, want) {
			t.Errorf("mistake %d: got %s, want %s", i, got, want)
		}
	}
}
