package descriptors

import (
	"strings"

	"pgregory.net/rapid"
)

// documentOfReference draws documents that are odd and that the reference often takes.
func documentOfReference() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		b.WriteString("domain: edge\n")
		if rapid.Bool().Draw(t, "anchor") {
			b.WriteString("rate_limit: &one {key: k, value: v*, quota_mode: yes, rate_limit: {unit: hour, name: m, requests_per_unit: 3}}\n")
		}
		b.WriteString("descriptors: " + descriptorsOfReference(t, 0) + "\n")
		return b.String()
	})
}

func descriptorsOfReference(t *rapid.T, depth int) string {
	var items []string
	for range rapid.IntRange(0, 3-depth).Draw(t, "descriptors") {
		fields := []string{pick(t, "key", "key: a", "key: b", "key: c", `key: "d"`, "key: 5", "key: yes", "key: a, key: e")}
		maybe := func(name string, choices ...string) {
			if rapid.IntRange(0, 2).Draw(t, name+"?") == 0 {
				fields = append(fields, pick(t, name, choices...))
			}
		}
		maybe("value", "value: x", "value: 5", "value: 010", "value: 0x1f", "value: 1_0", "value: true", "value: n", "value: v*", "value: '*'",
			"value: ", "value: null", "value: ~", `value: ""`, "value: 2001-01-01", "value: 5, value: 6", "value: !!str 5.5", "value: +5", "value: .5.",
			"value: 0o7", "value: 1:30", "value: '5'", "value: <<", "value: !!binary aGk=")
		for _, flag := range []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"} {
			maybe(flag, flag+": true", flag+": yes", flag+": Y", flag+": Off", flag+": ", flag+": FALSE", flag+": !!bool on", flag+": on, "+flag+": no")
		}
		maybe("share", "share_threshold: true, value: a*", "share_threshold: n")
		maybe("level", "unit: second", "requests_per_unit: 5", "domain: x", "unlimited: 7", "replaces: []", "name: {}", "rate_limit: ")
		maybe("metadata", "metadata: {a: 1, b: [x, {c: y}]}", "metadata: ", "metadata: {}")
		maybe("merge", "<<: *one", "<<: [*one, {value: z, shadow_mode: on}]", "<<: {rate_limit: {unit: day}}")
		if rapid.IntRange(0, 5).Draw(t, "limited") > 0 {
			fields = append(fields, "rate_limit: "+limitOfReference(t))
		}
		if depth < 2 {
			maybe("descriptors", "descriptors: ", "descriptors: []", "descriptors: "+descriptorsOfReference(t, depth+1))
		}
		items = append(items, "{"+strings.Join(fields, ", ")+"}")
	}
	return "[" + strings.Join(items, ", ") + "]"
}

func limitOfReference(t *rapid.T) string {
	if rapid.IntRange(0, 4).Draw(t, "unlimited") == 0 {
		return pick(t, "limit", "{unlimited: true}", "{unlimited: yes, unit: }", "{unlimited: on, unit: none, requests_per_unit: 7}",
			"{unlimited: true, name: a, replaces: [{name: b}]}", "{unlimited: true, unlimited: no, unit: day}")
	}
	fields := []string{pick(t, "unit", "unit: second", "unit: MINUTE", "unit: Hour", "unit: day", "unit: week", "unit: month", "unit: 'year'", "unit: x, unit: day")}
	if rapid.IntRange(0, 9).Draw(t, "requests?") > 0 {
		fields = append(fields, pick(t, "requests", "requests_per_unit: 5", "requests_per_unit: 0", "requests_per_unit: 010", "requests_per_unit: 0x10",
			"requests_per_unit: 1_000", "requests_per_unit: +7", "requests_per_unit: 0b11", "requests_per_unit: 4294967295", "requests_per_unit: ",
			"requests_per_unit: -0", "requests_per_unit: 5, requests_per_unit: 6", "requests_per_unit: !!int '5'", "requests_per_unit: 0o17"))
	}
	if rapid.IntRange(0, 3).Draw(t, "named") == 0 {
		fields = append(fields, pick(t, "name", "name: a", "name: 5", "name: ", "name: yes, replaces: [{name: no}]", "replaces: ", "replaces: []",
			"replaces: [{name: b}, {name: b}, {name: a}]", "shadow_mode: true", "key: x", "unlimited: false"))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

func pick(t *rapid.T, name string, choices ...string) string {
	return rapid.SampledFrom(choices).Draw(t, name)
}
