package deploy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// asked is a request and the answer that the comments in rules/*.yaml give.
type asked struct {
	hits        uint32
	descriptors string // such as "plan=pro,user=u1 contract=acme"; "0:user=u1" is a probe
	denied      bool
}

// ask sends the request and returns whether it was denied.
func ask(t *testing.T, l *limiter.Limiter, domain string, a asked) bool {
	t.Helper()
	var (
		request limiter.Request
		verdict limiter.Verdict
	)
	request.Domain, request.Hits = domain, a.hits
	for text := range strings.FieldsSeq(a.descriptors) {
		d := request.Add()
		text, d.Probe = strings.CutPrefix(text, "0:")
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, descriptors.Entry{Key: key, Value: value})
		}
	}
	if err := l.Check(t.Context(), &request, &verdict); err != nil {
		t.Fatal(err)
	}
	return verdict.OverLimit
}

func TestRuleFilesDoWhatTheirCommentsSay(t *testing.T) {
	t.Parallel()
	rules := load(t, "rules")
	tests := []struct {
		name, domain string
		asked        []asked
	}{
		{"anonymous callers share a path, callers with a key do not", "edge", []asked{
			{3, "path=/hello", false},
			{1, "path=/hello", true},
			{10, "path=/hello,api_key=alice", false},
			{1, "path=/hello,api_key=alice", true},
			{10, "path=/hello,api_key=bob", false},
		}},
		{"all files share one count, apart from who has a key", "edge", []asked{
			{60, "path=/files/a.txt/download", false},
			{40, "path=/files/b.txt/download", false},
			{1, "path=/files/c.txt/download", true},
			{60, "path=/files/a.txt/download,api_key=alice", false},
			{41, "path=/files/b.txt/download,api_key=alice", true},
			{100, "path=/files/b.txt/download,api_key=bob", false},
		}},
		{"what has no rule has the default, each a count of its own", "edge", []asked{
			{600, "path=/one", false},
			{1, "path=/one", true},
			{600, "path=/two", false},
		}},
		{"probes and the hosts that check on us are not limited", "edge", []asked{
			{1e9, "path=/healthz", false},
			{1e9, "path=/healthz remote_address=192.0.2.7", false},
		}},
		{"an address may send its burst at once and no more", "edge", []asked{
			{100, "remote_address=198.51.100.1", false},
			{1, "remote_address=198.51.100.1", true},
			{1, "remote_address=198.51.100.2", false},
		}},
		{"both limits of an API key hold", "edge", []asked{
			{50, "api_key=alice", false},
			{1, "api_key=alice", true},
		}},
		{"who keeps hammering the login stays out", "edge", []asked{
			{30, "path=/login", false},
			{1, "path=/login", true},
		}},
		{"a contract replaces the limit of the plan", "plans", []asked{
			{100, "plan=free_2024,user=u1", false},
			{1, "plan=free_2024,user=u1", true},
			{1, "plan=free_2024,user=u1 contract=acme", false},
			{1, "plan=free_2024,user=u1 contract=internal", false},
			{1, "plan=free_2024,user=u1 contract=other", true},
			{1, "plan=free_2024,user=u2", false},
			{200, "plan=pro,user=u1", false},
			{1, "plan=pro,user=u1", true},
		}},
		{"all trials share one count", "plans", []asked{
			{30, "contract=trial_1", false},
			{30, "contract=trial_2", false},
			{1, "contract=trial_3", true},
		}},
		{"shadow mode refuses nothing", "rollout", []asked{
			{400, "service=checkout", false},
			{400, "service=checkout", false},
		}},
		{"budgets refuse only together", "rollout", []asked{
			{10000, "budget=team,team=x budget=company", false},
			{1, "budget=team,team=x budget=company", false},
			{39000, "budget=company", false},
			{1000, "budget=company", true},
			{1, "budget=team,team=x budget=company", true},
			{1, "budget=team,team=y budget=company", false},
		}},
		{"reserved capacity is spent first, then on demand", "rollout", []asked{
			{1000, "backend=reserved backend=on-demand", false},
			{5000, "backend=reserved backend=on-demand", false},
			{1, "backend=reserved backend=on-demand", true},
		}},
		{"nothing passes at zero", "rollout", []asked{
			{1, "service=retired", true},
		}},
		{"one answer may overdraw the account, and the next request waits", "tokens", []asked{
			{1, "0:user=alice", false},
			{39999, "user=alice", false},
			{1, "0:user=alice", false},
			{500, "user=alice", true}, // charged all the same
			{1, "0:user=alice", true},
			{1, "0:user=bob", false},
		}},
		{"a dear model is limited in requests", "tokens", []asked{
			{5, "user=alice,model=large-1", false},
			{1, "user=alice,model=large-1", true},
			{1, "user=alice,model=small", false},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // time stands still, at the start of a day
				store, err := memstore.New(memstore.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				l, err := limiter.New(store, limiter.Options{})
				if err != nil {
					t.Fatal(err)
				}
				l.SetRules(rules)
				for i, a := range test.asked {
					if got := ask(t, l, test.domain, a); got != a.denied {
						t.Errorf("%s: denied: got %t, want %t", fmt.Sprintf("request %d, %d hits on %s", i+1, a.hits, a.descriptors), got, a.denied)
					}
				}
			})
		})
	}
}
