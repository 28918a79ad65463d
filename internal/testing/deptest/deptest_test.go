package deptest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDeps(t *testing.T) {
	Check(t, Rules{Third: []string{}})
}

// files is a module of six packages; ground is clean, roof reaches
// everything, and third stands for somebody else's module.
var files = map[string]string{
	"go.mod":             "module example.com/house\n\ngo 1.26\n\nrequire example.com/third v0.0.0\n\nreplace example.com/third => ./third\n",
	"ground/ground.go":   "package ground\n\nimport _ \"math\"\n",
	"ground/clock.go":    "//go:build never\n\npackage ground\n\nimport _ \"time\"\n",
	"ground/x_test.go":   "package ground\n\nimport (\n\t_ \"os\"\n\t_ \"example.com/house/roof\"\n)\n",
	"store/store.go":     "package store\n\nimport (\n\t_ \"example.com/house/ground\"\n\t_ \"example.com/third/wire\"\n\t_ \"sync\"\n)\n",
	"store/mem/mem.go":   "package mem\n\nimport _ \"example.com/house/store\"\n",
	"roof/roof.go":       "package roof\n\nimport (\n\t_ \"example.com/house/store/mem\"\n\t_ \"fmt\"\n)\n",
	"third/go.mod":       "module example.com/third\n\ngo 1.26\n",
	"third/wire/wire.go": "package wire\n\nimport _ \"example.com/third/deep\"\n",
	"third/deep/deep.go": "package deep\n\nimport _ \"net\"\n",
	"storefront/shop.go": "package storefront\n",
	"roof/x/x.go":        "package x\n\nimport _ \"example.com/house/storefront\"\n",
}

func TestCheckReportsEveryForbiddenImport(t *testing.T) {
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	tests := []struct {
		name    string
		dir     string
		rules   Rules
		want    []string // the way, one per finding, in the order found
		because string   // in each of them
	}{
		{name: "nothing_but_std_is_clean", dir: "ground"},
		{name: "tests_and_excluded_files_do_not_count", dir: "ground", rules: Rules{Std: []string{"math"}}},
		{
			name: "std_allow_list", dir: "ground", rules: Rules{Std: []string{"cmp"}},
			want:    []string{"example.com/house/ground -> math"},
			because: `only ["cmp"]`,
		},
		{
			name: "empty_std_list_allows_none", dir: "ground", rules: Rules{Std: []string{}},
			want:    []string{"example.com/house/ground -> math"},
			because: "standard library",
		},
		{
			name: "own_is_none_unless_listed", dir: "store",
			want:    []string{"example.com/house/store -> example.com/house/ground"},
			because: "of our packages",
		},
		{
			name: "own_counts_through_others", dir: "store/mem", rules: Rules{Own: []string{"store"}},
			want:    []string{"example.com/house/store/mem -> example.com/house/store -> example.com/house/ground"},
			because: "of our packages",
		},
		{
			name: "own_path_does_not_cover_what_is_below", dir: "roof", rules: Rules{Own: []string{"store", "ground"}},
			want:    []string{"example.com/house/roof -> example.com/house/store/mem"},
			because: "of our packages",
		},
		{name: "dots_cover_what_is_below", dir: "roof", rules: Rules{Own: []string{"store/...", "ground"}}},
		{
			name: "dots_stop_at_the_slash", dir: "roof/x", rules: Rules{Own: []string{"store/..."}},
			want:    []string{"example.com/house/roof/x -> example.com/house/storefront"},
			because: "of our packages",
		},
		{
			name: "std_counts_only_where_named", dir: "roof",
			rules: Rules{Own: []string{"store/...", "ground"}, Std: []string{"fmt"}, Never: []string{"sync", "net"}},
		},
		{
			name: "std_named_directly_can_be_banned", dir: "store", rules: Rules{Own: []string{"ground"}, Never: []string{"sync"}},
			want:    []string{"example.com/house/store -> sync"},
			because: "never",
		},
		{
			name: "third_party_is_banned_through_others", dir: "roof",
			rules:   Rules{Own: []string{"store/...", "ground"}, Never: []string{"example.com/third/deep"}},
			want:    []string{"example.com/house/roof -> example.com/house/store/mem -> example.com/house/store -> example.com/third/wire -> example.com/third/deep"},
			because: "never",
		},
		{
			name: "never_covers_what_is_below", dir: "store", rules: Rules{Own: []string{"ground"}, Never: []string{"example.com/third"}},
			want:    []string{"example.com/house/store -> example.com/third/wire"},
			because: "never",
		},
		{
			name: "never_wins_over_own", dir: "store", rules: Rules{Own: []string{"ground"}, Never: []string{"example.com/house/ground"}},
			want:    []string{"example.com/house/store -> example.com/house/ground"},
			because: "never",
		},
		{
			name: "empty_third_list_allows_none", dir: "store", rules: Rules{Own: []string{"ground"}, Third: []string{}},
			want:    []string{"example.com/house/store -> example.com/third/wire"},
			because: "third-party",
		},
		{name: "third_list_counts_direct_imports", dir: "store", rules: Rules{Own: []string{"ground"}, Third: []string{"example.com/third/wire"}}},
		{name: "third_list_takes_dots", dir: "store", rules: Rules{Own: []string{"ground"}, Third: []string{"example.com/third/..."}}},
		{
			name: "every_finding_is_told", dir: "store", rules: Rules{Std: []string{}, Third: []string{}},
			want: []string{
				"example.com/house/store -> example.com/house/ground",
				"example.com/house/store -> example.com/third/wire",
				"example.com/house/store -> sync",
			},
			because: "may be imported here",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			findings, err := check(filepath.Join(root, filepath.FromSlash(tt.dir)), tt.rules)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range findings {
				way, why, _ := strings.Cut(f, ": ")
				got = append(got, way)
				if !strings.Contains(why, tt.because) {
					t.Errorf("finding %q does not say %q", f, tt.because)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckSaysWhatGoListSaid(t *testing.T) {
	_, err := check(t.TempDir(), Rules{})
	if err == nil {
		t.Fatal("check of a folder without a module: got no error")
	}
	if !strings.Contains(err.Error(), "go list") {
		t.Errorf("check of a folder without a module: got %q; want the words of go list", err)
	}
}
