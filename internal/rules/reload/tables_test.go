package reload_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

func withTable(domain string, requests int, table string) string {
	return strings.Replace(document(domain, requests), "{unit", "{table: "+strconv.Quote(table)+", unit", 1)
}

func tabled(l *limiter.Limiter, user string) int {
	entries := []descriptors.Entry{{Key: "user", Value: user}}
	var limit descriptors.Limit
	l.Rules().Domain("a").Match(entries).LimitFor(0, entries, &limit)
	return int(limit.Requests)
}

func wantUser(t *testing.T, l *limiter.Limiter, user string, want int) {
	t.Helper()
	if got := tabled(l, user); got != want {
		t.Errorf("requests of %s: got %d, want %d", user, got, want)
	}
}

func TestATableIsFollowedAsRulesAre(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": withTable("a", 1, "lists/t.csv"), "lists/t.csv": "x,10\n", "lists/u.csv": "x,70\n"})
	table := filepath.Join(dir, "lists", "t.csv")
	l, r, log := start(t, reload.Options{Paths: []string{dir}}, true)
	wantUser(t, l, "x", 10)
	wantUser(t, l, "y", 1)
	write(t, table, "x,20\ny,21\n")
	log.await(t, "rules loaded", "rules refused")
	wantUser(t, l, "x", 20)
	wantUser(t, l, "y", 21)
	wantUnchanged(t, log, table)

	write(t, table, "x,20\n\ny,many\n")
	log.await(t, "rules refused", "rules loaded")
	want := []string{table + `:3: requests_per_unit: is "many", must be a whole number from 0 to 4294967295`}
	must.Match(t, "errors", want, r.Status().Errors)
	must.Do(t, os.Remove(table))
	log.await(t, "rules refused", "rules loaded")
	want = []string{filepath.Join(dir, "a.yaml") + ":4: descriptors[0].rate_limit.table: " + table + ": no such file or directory"}
	must.Match(t, "errors", want, r.Status().Errors)
	wantUser(t, l, "y", 21)
	write(t, table, "x,30\n")
	log.await(t, "rules loaded", "rules refused")
	wantUser(t, l, "x", 30)
	wantUser(t, l, "y", 1)

	write(t, filepath.Join(dir, "a.yaml"), withTable("a", 1, "lists/u.csv")) // another table
	log.await(t, "rules loaded", "rules refused")
	wantUser(t, l, "x", 70)
	log.await(t, "rules unchanged") // followed
	write(t, filepath.Join(dir, "lists", "u.csv"), "x,80\n")
	log.await(t, "rules loaded", "rules refused")
	wantUser(t, l, "x", 80)
	wantLoads(t, r, 5, 2)
}

func TestASwapOfAConfigMapWithATableIsOneReload(t *testing.T) {
	dir := t.TempDir()
	files := func(n int) map[string]string {
		return map[string]string{"a.yaml": withTable("a", n, "t.csv"), "t.csv": "x,1" + strconv.Itoa(n) + "\n"}
	}
	configMap(t, dir, "1", files(1))
	l, r, log := start(t, reload.Options{Paths: []string{dir}}, true)
	for n := 2; n < 5; n++ {
		configMap(t, dir, strconv.Itoa(n), files(n))
		log.await(t, "rules loaded", "rules refused")
		wantUser(t, l, "x", 10+n)
		wantUser(t, l, "y", n)
		wantUnchanged(t, log, filepath.Join(dir, "a.yaml"))
		wantLoads(t, r, uint64(n), 0)
	}
}

func TestAPushLeavesTablesAsTheyWereRead(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": withTable("a", 1, "t.csv"), "t.csv": "x,10\n"})
	l, r, _ := start(t, reload.Options{Paths: []string{dir}, Pushed: true}, false)
	before := l.Rules().All()[0].Limits[0].Table()
	write(t, filepath.Join(dir, "t.csv"), "x,many\n")
	must.Do(t, r.Push(t.Context(), pushed(doc{"b", "b", 5})))
	wantUser(t, l, "x", 10)
	if l.Rules().All()[0].Limits[0].Table() != before {
		t.Error("a push has read a table again")
	}
	if err := r.Reload(t.Context()); err == nil {
		t.Error("a reload with a bad table: got no error")
	}
	if err := r.Push(t.Context(), pushed(doc{"b", "b", 6})); err != nil {
		t.Errorf("a push after a bad table: %v", err)
	}
	write(t, filepath.Join(dir, "t.csv"), "x,10\n")
	must.Do(t, r.Reload(t.Context()))
	if l.Rules().All()[0].Limits[0].Table() != before {
		t.Error("a table with the bytes of the one in force was decoded again")
	}
	rules := pushed(doc{"c", "c", 7})
	rules[0].Data = []byte(withTable("c", 7, "t.csv"))
	if got := refusals(t, r.Push(t.Context(), rules)); len(got) != 1 || !strings.Contains(got[0], "do not come from a file") {
		t.Errorf("a pushed document with a table: got %q", got)
	}
}

func TestRulesOfSeveralFilesShareATable(t *testing.T) {
	dir := tree(t, map[string]string{
		"a.yaml": withTable("a", 1, "t.csv"), "b/b.yaml": withTable("b", 1, "../t.csv"), "weir.toml": "[[domains]]\ndomain = 'c'\n" +
			"descriptors = [{key = 'user', rate_limit = {table = 't.csv', unit = 'hour', requests_per_unit = 1}}]\n", "t.csv": "x,10\n",
	})
	l, _, _ := start(t, reload.Options{
		Paths: []string{filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b", "b.yaml")}, Settings: filepath.Join(dir, "weir.toml"),
		Options: descriptors.Options{MaxTableBytes: 5},
	}, false)
	var tables []*descriptors.Table
	for _, r := range l.Rules().All() {
		tables = append(tables, r.Limits[0].Table())
	}
	if len(tables) != 3 || tables[0] == nil || tables[0] != tables[1] || tables[0] != tables[2] {
		t.Errorf("got the tables %v, want one for the rule files and the settings file", tables)
	}
	if got := l.Rules().All()[2].File; !strings.HasSuffix(got, "weir.toml") {
		t.Errorf("the third rule is of %s", got)
	}
}

func TestTablesThatAreNoFilesOrTooLargeAreRefusedUnread(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": withTable("a", 1, "t.csv"), "t.csv": "x,10\n"})
	table := filepath.Join(dir, "t.csv")
	l, r, _ := start(t, reload.Options{
		Paths: []string{dir}, Options: descriptors.Options{MaxTableBytes: 1000},
	}, false)
	reload := func(want string) {
		t.Helper()
		if err := r.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		wantUser(t, l, "x", 10)
	}
	f := must.Get(os.Create(table))(t)
	if err := f.Truncate(1 << 40); err != nil { // a hole: nobody could read it all
		t.Fatal(err)
	}
	_ = f.Close()
	reload(table + ": has 1099511627776 bytes, must be at most 1000 together (max table bytes)")
	for _, target := range []string{"/dev/zero", dir} {
		must.Do(t, os.Remove(table))
		must.Do(t, os.Symlink(target, table))
		reload(table + ": must be a regular file")
	}
	must.Do(t, os.Remove(table))
	write(t, table, "x,"+strings.Repeat("1", 500))
	reload(table + `:1: requests_per_unit: is "11111`)
}

func TestAFileOfRangesIsFollowedAsRulesAre(t *testing.T) {
	const rules = "domain: a\ndescriptors:\n- {key: ip, match: {cidr_file: lists/r.txt}, rate_limit: {unit: hour, requests_per_unit: 1}}\n"
	dir := tree(t, map[string]string{"a.yaml": rules, "lists/r.txt": "10.0.0.0/8\n"})
	ranges := filepath.Join(dir, "lists", "r.txt")
	l, r, log := start(t, reload.Options{Paths: []string{dir}}, true)
	wantMatch := func(address string, want bool) {
		t.Helper()
		if got := l.Rules().Domain("a").Match([]descriptors.Entry{{Key: "ip", Value: address}}) != nil; got != want {
			t.Errorf("a rule for %s: got %t, want %t", address, got, want)
		}
	}
	wantMatch("10.1.2.3", true)
	wantMatch("192.0.2.1", false)
	write(t, ranges, "192.0.2.0/24\n")
	log.await(t, "rules loaded", "rules refused")
	wantMatch("10.1.2.3", false)
	wantMatch("192.0.2.1", true)
	wantUnchanged(t, log, ranges)

	write(t, ranges, "10.0.0.0/8\n192.0.2.256\n")
	log.await(t, "rules refused", "rules loaded")
	want := []string{ranges + `:2: is "192.0.2.256", must be a range such as 10.0.0.0/8 or 2001:db8::/32, or an address`}
	must.Match(t, "errors", want, r.Status().Errors)
	wantMatch("192.0.2.1", true)
	write(t, ranges, "10.0.0.0/8\n")
	log.await(t, "rules loaded", "rules refused")
	wantMatch("10.1.2.3", true)
	wantLoads(t, r, 3, 1)
}
