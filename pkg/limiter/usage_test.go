package limiter_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// usage checks the use of the keys of a rule: "entries used/of until".
func (b *budgets) usage(q limiter.UsageQuery, want ...string) {
	b.tb.Helper()
	q.Domain = "edge"
	u := must.Get(b.Usage(b.tb.Context(), q))(b.tb)
	all := []string{}
	for _, k := range u.Keys {
		var entries []string
		for _, e := range k.Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		text := fmt.Sprintf("%s %d/%d", strings.Join(entries, ","), k.Used, k.Of)
		if !k.Until.IsZero() {
			text += " " + k.Until.UTC().Format("02T15:04:05")
		}
		if !k.Current {
			text += " seen"
		}
		all = append(all, text)
	}
	if diff := cmp.Diff(append([]string{}, want...), all); diff != "" {
		b.tb.Errorf("usage of %+v (-want +got):\n%s", q, diff)
	}
}

func TestUsageHasEachKeyWithTheMostFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil) // the clock begins at midnight
		for _, text := range []string{"user=a hits=3", "user=b hits=7", "user=c", "user=a hits=2", "user=d hits=11", "two=t hits=4", "one=x"} {
			must.Do(t, b.Check(t.Context(), request("edge", text), &b.v))
		}
		time.Sleep(time.Minute)
		b.usage(limiter.UsageQuery{Path: "user"},
			"user=d 10/10 01T01:00:00", "user=b 7/10 01T01:00:00", "user=a 5/10 01T01:00:00", "user=c 1/10 01T01:00:00")
		b.usage(limiter.UsageQuery{Path: "user", Most: 1}, "user=d 10/10 01T01:00:00")
		b.usage(limiter.UsageQuery{Path: "two"}, "two=t 4/20 02T00:00:00", "two=t 4/10 01T01:00:00")
		b.usage(limiter.UsageQuery{Path: "user", Last: true})

		// A probe of the store, not the last decision: the hits were forgotten.
		_, _, err := b.Reset(t.Context(), request("edge", "user=b"))
		must.Do(t, err)
		b.usage(limiter.UsageQuery{Path: "user", Most: 2}, "user=d 10/10 01T01:00:00", "user=a 5/10 01T01:00:00")
	})
}

func TestUsageOfTheLastWindowIsKeptForOneWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		must.Do(t, b.Check(t.Context(), request("edge", "user=a hits=3"), &b.v))
		must.Do(t, b.Check(t.Context(), request("edge", "user=b hits=7"), &b.v))
		last := limiter.UsageQuery{Path: "user", Last: true}
		time.Sleep(time.Hour) // b has no charge in the new window
		must.Do(t, b.Check(t.Context(), request("edge", "user=a hits=9"), &b.v))
		b.usage(limiter.UsageQuery{Path: "user"}, "user=a 9/10 01T02:00:00")
		b.usage(last, "user=b 7/10 01T01:00:00 seen", "user=a 3/10 01T01:00:00 seen")
		time.Sleep(time.Hour)
		b.usage(last, "user=a 9/10 01T02:00:00 seen")
		time.Sleep(time.Hour)
		b.usage(last)
	})
}

func TestUsageOfABucketIsItsMissingTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		must.Do(t, b.Check(t.Context(), request("edge", "bucket=a hits=5"), &b.v))
		time.Sleep(12 * time.Minute) // two tokens
		b.usage(limiter.UsageQuery{Path: "bucket"}, "bucket=a 3/10")
	})
}

func TestUsageCountsWithGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		must.Do(t, b.Check(t.Context(), request("edge", "user=a hits=3"), &b.v))
		grant := &limiter.Grant{
			ID: "1", Domain: "edge", Entries: []limiter.Entry{{Key: "user", Value: "a"}}, Gives: limiter.GivesFactor, Factor: 2,
			Until: time.Now().Add(time.Hour), Given: time.Now(),
		}
		b.ChangeGrants(nil, []*limiter.Grant{grant})
		b.usage(limiter.UsageQuery{Path: "user"}, "user=a 3/20 01T01:00:00")
		all := *grant
		all.Gives = limiter.GivesUnlimited
		b.ChangeGrants(nil, []*limiter.Grant{&all})
		b.usage(limiter.UsageQuery{Path: "user"}, "user=a 3/10 01T01:00:00")
	})
}

func TestUsageWithoutAnAnswerOfTheStoreIsTheLastDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := must.Get(memstore.New(memstore.Options{}))(t)
		defer memory.Close()
		b := newBudgets(t, failing{memory})
		must.Do(t, b.Check(t.Context(), request("edge", "user=a hits=3"), &b.v))
		b.usage(limiter.UsageQuery{Path: "user"}, "user=a 3/10 01T01:00:00 seen")
		time.Sleep(time.Hour)
		b.usage(limiter.UsageQuery{Path: "user"})
	})
}

func TestUsageSaysWhyThereIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(t, nil)
		for want, q := range map[string]limiter.UsageQuery{
			`there is no usage: domain "shop" has no rules`: {Domain: "shop", Path: "user"},
			`there is no usage: domain "edge" has no rule "usr" with warn_at; these have: ` +
				`user, drop, bucket, tokens, leased, ban, shadow, two`: {Domain: "edge", Path: "usr"},
			`there is no usage: rule one has no limit with warn_at, and Weir keeps accounts of keys of such limits alone`: {Domain: "edge", Path: "one"},
			`there is no usage: rule bucket has no windows that end: token_bucket`:                                        {Domain: "edge", Path: "bucket", Last: true},
		} {
			if _, err := b.Usage(t.Context(), q); err == nil || err.Error() != want {
				t.Errorf("%+v:\ngot  %v\nwant %s", q, err, want)
			}
		}
	})
}
