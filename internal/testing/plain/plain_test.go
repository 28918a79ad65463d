package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEachPatternIsFound(t *testing.T) {
	tests := []struct {
		sentence string
		want     []string
	}{
		{"The store returns the state that the charge left.", nil},
		{"What the store returns is kept.", []string{"what"}},
		{"What does the store return?", nil},
		{"A client who asks twice waits.", nil},
		{"The log is for who asks.", []string{"who"}},
		{"Its limits and those of the rule differ.", []string{"those", "pronoun"}},
		{"None of the limits denies.", []string{"none"}},
		{"It waits for the answer.", []string{"pronoun"}},
		{"The store waits until it has the answer.", nil},
		{"This is the first attempt.", []string{"pronoun"}},
		{"This store waits.", nil},
		{"A key that was refunded is as if never used.", []string{"word"}},
		{strings.Repeat("word ", maxWords) + "word.", []string{"long"}},
	}
	for _, test := range tests {
		if got := broken(test.sentence, patterns()); !slices.Equal(got, test.want) {
			t.Errorf("broken(%q): got %v, want %v", test.sentence, got, test.want)
		}
	}
}

func TestProseIsFoundAndCodeIsNot(t *testing.T) {
	tests := []struct {
		file, text string
		want       []sentence
	}{
		{
			"a.go", "package a\n\n// One sentence. Two\n// sentences.\n//\n//\tcode := what\nvar x = \"the text of an error\"\n",
			[]sentence{{3, "One sentence."}, {3, "Two sentences."}, {7, "the text of an error"}},
		},
		{"a_test.go", "package a\n\nvar x = \"the text of an error\"\n", nil},
		{"a.lua", "local x = 1 -- the first number\n-- The second.\n-- And more.\n", []sentence{{1, "the first number"}, {2, "The second."}, {2, "And more."}}},
		{
			"a.md", "# A title\n\nSome `code of mine` here.\n\n```sh\nwhat is this\n```\n\n| a cell | another cell |\n\n- an item\n- second item\n",
			[]sentence{{3, "Some X here."}, {9, "a cell"}, {9, "another cell"}, {11, "an item"}, {12, "second item"}},
		},
		{"a.yaml", "#!/bin/sh\nkey: value # why it is so\n", []sentence{{2, "why it is so"}}},
		{"a.png", "what", nil},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, sentences(test.file, []byte(test.text)), cmp.AllowUnexported(sentence{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", test.file, diff)
		}
	}
}

func TestTheCountMayOnlyGoDown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "max")
	if err := os.WriteFile(file, []byte("10\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for total, want := range map[int]string{10: "", 11: "allows 10; run", 9: "write 9 into"} {
		switch err := hold(file, total); {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("hold(%d): got %v, want %q", total, err, want)
		}
	}
}
