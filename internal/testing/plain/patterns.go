package main

import (
	"regexp"
	"strings"
)

// maxWords is the largest number of words of a sentence.
const maxWords = 25

// pattern is one way to break the rule.
type pattern struct {
	name string
	is   *regexp.Regexp
}

// patterns returns all patterns. Sentences that are questions are exempt from the first two.
func patterns() []pattern {
	compile := func(name, expression string) pattern {
		return pattern{name, regexp.MustCompile(`(?i)` + expression)}
	}
	return []pattern{
		compile("what", `\bwhat(ever)?\b`),
		compile("who", `(^|\b(by|for|to|of|from|with|and|or|as|than|is|are|says|tells|knows|to it|asks|see|sees|show|shows|let|lets|leave|leaves|,|;|:)\s+)who(m|ever|se)?\b`),
		compile("those", `\b(those|that) (of|which|who|whose)\b|\bthose (that|in|on|with|from)\b`),
		compile("none", `\bnone (of|that|which)\b|\bis none\b|\bare none\b`),
		compile("pronoun", `^(it|they|its|their|them|he|his|she)\b|^(this|that|these|those) (is|are|was|were|has|have|does|do|makes|means|keeps|lets|holds|says|takes|can|must|may|will|would|gives|goes|counts|costs)\b`),
		compile("word", `\b(as if never used|heed(s|ed|ing)?|knock(s|ed|ing)?|mend(s|ed|ing|er|ers)?|patience|nobody's business|comes? to itself|whoever|hurr(y|ies|ied|iedly))\b`),
	}
}

// broken returns the names of the patterns that a sentence matches.
func broken(sentence string, all []pattern) []string {
	question := strings.HasSuffix(sentence, "?")
	var names []string
	for i, p := range all {
		if question && i < 2 {
			continue
		}
		if p.is.MatchString(sentence) {
			names = append(names, p.name)
		}
	}
	if len(strings.Fields(sentence)) > maxWords {
		names = append(names, "long")
	}
	return names
}
