package descriptors

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/timespan"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// foreign returns the words to write in place of a key that other products have in such a map; ""
// for any other key.
func (f form) foreign(key string) string {
	plain := strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(key))
	is := func(words ...string) bool { return slices.Contains(words, plain) }
	switch {
	case f == descriptorForm && is("limit", "ratelimits", "limits", "rate", "quota"):
		return "rate_limit: {requests_per_unit: 100, unit: minute}"
	case f == descriptorForm && is("match", "matches", "conditions", "when", "name", "header", "path", "method"):
		return "the key of an entry, such as key: path, and perhaps its value: as Envoy sends them"
	case f == descriptorForm && is("dryrun", "shadow", "logonly", "monitor"):
		return "shadow_mode: true"
	case f == documentForm && is("rules", "limits", "ratelimits", "policies", "routes", "zones"):
		return "descriptors, a list of maps with key and rate_limit"
	case f != limitForm && f != ownLimitForm && f != defaultForm:
		return ""
	case is("second", "minute", "hour", "day", "week", "month", "year"): // Kong
		return "requests_per_unit: 100 and unit: " + plain
	case is("nodelay", "delay"): // nginx
		return "left out: a token_bucket with burst is as in nginx with nodelay"
	case is("windowtype"):
		return "algorithm: fixed_window or sliding_window_counter"
	case is("limit", "rate", "max", "count", "requestsperperiod", "hits", "requests", "maxrequests", "maxhits", "quota", "points", "average", "amount", "limitcount"):
		return "requests_per_unit, such as requests_per_unit: 100"
	case is("requestspersecond", "rps", "qps", "tps", "ratepersecond"):
		return "requests_per_unit: 100 and unit: second"
	case is("requestsperminute", "rpm", "rateperminute"):
		return "requests_per_unit: 100 and unit: minute"
	case is("requestsperhour", "rph"):
		return "requests_per_unit: 100 and unit: hour"
	case is("window", "windowms", "windowsize", "windowsec", "windowseconds", "timewindow", "evaluationwindowsec", "interval", "per",
		"duration", "ttl", "resettime"):
		return "unit: minute, or a period such as period: 10s"
	case is("periodms", "periodseconds", "timeunit", "units"):
		return "unit: minute, or a period such as period: 10s"
	case is("capacity", "bucketsize", "burstsize", "maxburst", "maxtokens", "burstcapacity"):
		return "burst, beside algorithm: token_bucket"
	case is("fillrate", "refillrate", "tokensperfill", "replenishrate", "leakrate", "fillinterval", "refillinterval"):
		return "requests_per_unit and unit, beside algorithm: token_bucket"
	case is("type", "strategy", "policy", "algo", "mode", "limiter"):
		return "algorithm: " + strings.Join([]string{algorithms.FixedWindow.String(), algorithms.TokenBucket.String()}, " or ") + " or another one"
	case algorithms.Hint(key) != "":
		return "algorithm, beside requests_per_unit and unit" + algorithms.Hint(key)
	case is("maxconnections", "maxconcurrent", "maxconcurrency", "concurrencylimit"):
		return "algorithm: concurrency with max_in_flight and hold"
	case is("dryrun", "shadow", "logonly"):
		return "shadow_mode: true in the descriptor, beside rate_limit"
	default:
		return ""
	}
}

// unitHint ends an error about a text that is no unit.
func unitHint(name string) string {
	short := map[string]Unit{"s": Second, "m": Minute, "h": Hour, "d": Day, "w": Week, "y": Year, "sec": Second, "min": Minute, "hr": Hour}
	plain := strings.ToLower(name)
	unit := short[plain]
	for u := Second; u.Duration() > 0; u++ {
		if s := u.String(); plain == s+"s" || plain == "per_"+s || plain == "per "+s {
			unit = u
		}
	}
	if unit != UnitUnknown {
		return ": write unit: " + unit.String()
	}
	if d, err := timespan.Parse(plain); err == nil && d > 0 {
		return ": write period: " + plain + " in the place of unit"
	}
	return ""
}

// badLimit records a text or a number in the place of the map of a limit; false for other values.
func (t *tree) badLimit(v value) bool {
	if v.node.Kind != yaml.ScalarNode || t.beyond(v) {
		return false
	}
	t.fail(v, "is %s, must be a map%s", kind(v), cmp.Or(rateHint(v), " such as {requests_per_unit: 100, unit: minute}"))
	return true
}

// requests decodes requests_per_unit.
func (t *tree) requests(v value) uint32 {
	if hint := rateHint(v); hint != "" {
		t.fail(v, "is %s, must be a whole number%s", kind(v), hint)
		return 0
	}
	n, _ := t.count(v, 0)
	return n
}

// rateHint ends an error about a text such as 100/minute in the place of a limit or of a number.
func rateHint(v value) string {
	if v.node.Kind != yaml.ScalarNode {
		return ""
	}
	text := strings.ToLower(v.node.Value)
	number, unit, found := strings.Cut(text, "/")
	if !found {
		number, unit, found = strings.Cut(text, "per")
	}
	if fields := strings.Fields(number); found && len(fields) > 0 { // 100 requests per minute
		number = fields[0]
	}
	number, unit = strings.TrimSpace(number), strings.TrimSpace(unit)
	if s, ok := strings.CutSuffix(number, "r"); ok { // nginx: 10r/s
		number = s
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || !found {
		return ""
	}
	word := "unit: " + unit
	if _, is := ParseUnit(unit); !is {
		_, word, is = strings.Cut(unitHint(unit), "write ")
		word = strings.TrimSuffix(word, " in the place of unit")
		if !is {
			return ""
		}
	}
	return ": write requests_per_unit: " + strconv.FormatUint(n, 10) + " and " + word
}
