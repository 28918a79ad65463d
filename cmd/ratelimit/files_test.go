package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func rules(domain, key string, requests int) string {
	return fmt.Sprintf("domain: %s\ndescriptors:\n- {key: %s, rate_limit: {unit: hour, requests_per_unit: %d}}\n", domain, key, requests)
}

// lay writes files below a directory; a name that ends in @ is a symbolic link to its content.
func lay(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		var err error
		if link, is := cutLink(path); is {
			err = os.Symlink(content, link)
		} else {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func cutLink(path string) (string, bool) {
	last := len(path) - 1
	return path[:last], path[last] == '@'
}

// load starts what the environment says on a directory of files; root is RUNTIME_ROOT.
func load(t *testing.T, root string, environment ...string) (*limiter.Limiter, *reload.Reloader, error) {
	t.Helper()
	c := read(t, append(environment, "RUNTIME_ROOT="+root)...)
	w := must.Get(lab.New(nil, memstore.Options{MaxKeys: 10}))(t)
	t.Cleanup(w.Close)
	r := must.Get(reload.New(reload.Options{
		Limiter: w.Limiter, Paths: []string{c.Rules.Paths[0]}, Files: reload.All(c.DotFiles), Options: descriptors.Options{MergeDomains: c.Rules.MergeDomains}, Logger: slog.New(slog.DiscardHandler),
	}))(t)
	return w.Limiter, r, r.Load(t.Context())
}

func inForce(l *limiter.Limiter) map[string]uint32 {
	all := make(map[string]uint32)
	for _, r := range l.Rules().All() {
		for _, limit := range r.Limits {
			all[r.Domain+"/"+r.Path] = limit.Requests
		}
	}
	return all
}

// ranged returns a document of the domain d with a limit for the addresses in ranges.txt.
func ranged(key string, requests int) string {
	return fmt.Sprintf("domain: d\ndescriptors:\n- key: %s\n  match: {cidr_file: ranges.txt}\n  rate_limit: {unit: hour, requests_per_unit: %d}\n", key, requests)
}

// The text of a pattern is its identity, and has no directory: a root that moves keeps its counts.
func TestTwoFilesOfRangesOfOneNameAtOneKeyAreAMistakeThatSaysSo(t *testing.T) {
	for other, want := range map[string]string{
		"11.0.0.0/8\n": `"ip={cidr_file: ranges.txt}" is given twice, first at ROOT/config/a/x.yaml:3, with other ranges in a file of the same name: give one of the two files another name`,
		"10.0.0.0/8\n": `"ip={cidr_file: ranges.txt}" is given twice, first at ROOT/config/a/x.yaml:3: descriptors side by side must differ in key or value`,
	} {
		root := t.TempDir()
		lay(t, root, map[string]string{
			"config/a/x.yaml": ranged("ip", 1), "config/a/ranges.txt": "10.0.0.0/8\n", "config/b/x.yaml": ranged("ip", 2), "config/b/ranges.txt": other,
		})
		_, _, err := load(t, root, "MERGE_DOMAIN_CONFIG=true")
		if want = strings.ReplaceAll(want, "ROOT", root); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got the mistake %v, want %s", err, want)
		}
	}
}

func TestRuleFilesAreFoundInEveryLayoutInUse(t *testing.T) {
	tests := map[string]struct {
		environment []string
		files       map[string]string
		want        map[string]uint32
	}{
		"plain files": {
			nil,
			map[string]string{"config/a.yaml": rules("a", "k", 1), "config/b.yml": rules("b", "k", 2), "other/c.yaml": "never"},
			map[string]uint32{"a/k": 1, "b/k": 2},
		},
		"all directories by name": {
			[]string{"RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_APPDIRECTORY=rules"},
			map[string]string{"ratelimit/rules/a.yaml": rules("a", "k", 1), "ratelimit/config/b.yaml": "never"},
			map[string]uint32{"a/k": 1},
		},
		"any name and directories below": {
			nil,
			map[string]string{"config/limits": rules("a", "k", 1), "config/team/b.conf": rules("b", "k", 2), "config/c.json": `{"domain":"c","descriptors":[{"key":"k","rate_limit":{"unit":"hour","requests_per_unit":3}}]}`},
			map[string]uint32{"a/k": 1, "b/k": 2, "c/k": 3},
		},
		"a ConfigMap, dot files ignored": {
			[]string{"RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false"},
			configMap("ratelimit/config"),
			map[string]uint32{"a/k": 1},
		},
		"a ConfigMap, dot files not ignored": {
			[]string{"RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false"},
			configMap("ratelimit/config"),
			map[string]uint32{"a/k": 1},
		},
		"dot files not ignored": {
			nil,
			map[string]string{"config/a.yaml": rules("a", "k", 1), "config/.b.yaml": rules("b", "k", 2), "config/.git": "gitdir: x"},
			map[string]uint32{"a/k": 1, "b/k": 2},
		},
		"dot files ignored": {
			[]string{"RUNTIME_IGNOREDOTFILES=true"},
			map[string]string{"config/a.yaml": rules("a", "k", 1), "config/.b.yaml": rules("b", "k", 2)},
			map[string]uint32{"a/k": 1},
		},
		"what people and editors leave behind": {
			nil,
			map[string]string{"config/a.yaml": rules("a", "k", 1), "config/README.md": "# Rules", "config/a.yaml~": "x", "config/.a.yaml.swp": "x", "config/a.yaml.bak": "x"},
			map[string]uint32{"a/k": 1},
		},
		"one domain in several files": {
			[]string{"MERGE_DOMAIN_CONFIG=true"},
			map[string]string{"config/a.yaml": rules("d", "k", 1), "config/b.yaml": rules("d", "l", 2)},
			map[string]uint32{"d/k": 1, "d/l": 2},
		},
		"one domain in two directories, each with ranges of its own": {
			[]string{"MERGE_DOMAIN_CONFIG=true"},
			map[string]string{
				"config/a/x.yaml": ranged("ip", 1), "config/a/ranges.txt": "10.0.0.0/8\n",
				"config/b/x.yaml": ranged("client", 2), "config/b/ranges.txt": "11.0.0.0/8\n",
			},
			map[string]uint32{"d/ip={cidr_file: ranges.txt}": 1, "d/client={cidr_file: ranges.txt}": 2},
		},
		"links to files": {
			nil,
			map[string]string{"config/a.yaml@": "../elsewhere/a", "elsewhere/a": rules("a", "k", 1)},
			map[string]uint32{"a/k": 1},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			lay(t, root, test.files)
			l := must.First(load(t, root, test.environment...))(t)
			must.Match(t, "limits in force", test.want, inForce(l))
		})
	}
}

func configMap(dir string) map[string]string {
	return map[string]string{
		dir + "/..2026_11_21/a.yaml": rules("a", "k", 1),
		dir + "/..data@":             "..2026_11_21",
		dir + "/a.yaml@":             "..data/a.yaml",
	}
}

// Wildcards of a merged domain are tried in the order of their files' names, whoever reads them;
// the original's is random.
func TestMergedFilesAreInTheOrderOfTheirNames(t *testing.T) {
	root := t.TempDir()
	lay(t, root, map[string]string{
		"config/b.yaml":   "domain: d\ndescriptors:\n- {key: k, value: foo*, rate_limit: {unit: hour, requests_per_unit: 2}}\n",
		"config/a.yaml":   "domain: d\ndescriptors:\n- {key: k, value: fo*, rate_limit: {unit: hour, requests_per_unit: 1}}\n",
		"config/a/x.yaml": "domain: d\ndescriptors:\n- {key: k, value: f*, rate_limit: {unit: hour, requests_per_unit: 0}}\n",
	})
	l := must.First(load(t, root, "MERGE_DOMAIN_CONFIG=true"))(t)
	rule := l.Rules().Domain("d").Match([]descriptors.Entry{{Key: "k", Value: "foobar"}})
	if rule == nil || rule.Limits[0].Requests != 0 {
		t.Errorf("foobar meets %+v, want that of a/x.yaml", rule)
	}
}

// RUNTIME_ROOT is a link to a version in the original's own deployments; RUNTIME_WATCH_ROOT says
// whether that or the files are watched there. Here both are, either way.
func TestASwapOfTheRootAndAChangeOfAFileAreBothSeen(t *testing.T) {
	for _, watchRoot := range []string{"true", "false"} {
		t.Run("RUNTIME_WATCH_ROOT="+watchRoot, func(t *testing.T) {
			top := t.TempDir()
			lay(t, top, map[string]string{
				"v1/sub/config/a.yaml": rules("a", "k", 1), "v2/sub/config/deep/a.yaml": rules("a", "k", 2), "current@": "v1",
			})
			l, r, err := load(t, filepath.Join(top, "current"), "RUNTIME_SUBDIRECTORY=sub", "RUNTIME_WATCH_ROOT="+watchRoot)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() { defer close(done); _ = r.Run(t.Context()) }()
			t.Cleanup(func() { <-done })

			must.Do(t, os.Symlink("v2", filepath.Join(top, "next")))
			must.Do(t, os.Rename(filepath.Join(top, "next"), filepath.Join(top, "current")))
			await(t, l, map[string]uint32{"a/k": 2})
			lay(t, top, map[string]string{"v2/sub/config/deep/a.yaml": rules("a", "k", 3)})
			await(t, l, map[string]uint32{"a/k": 3})
			lay(t, top, map[string]string{"v2/sub/config/new/b": rules("b", "k", 4)})
			await(t, l, map[string]uint32{"a/k": 3, "b/k": 4})
			must.Do(t, os.Rename(filepath.Join(top, "v2/sub/config/deep/a.yaml"), filepath.Join(top, "a.yaml")))
			await(t, l, map[string]uint32{"b/k": 4})
		})
	}
}

func await(t *testing.T, l *limiter.Limiter, want map[string]uint32) {
	t.Helper()
	eventually(t, 30*time.Second, func() string { return cmp.Diff(want, inForce(l)) })
}

// All files of the directory and below are rule files, except tables.
func TestATableBesideRuleFilesIsNoRuleFile(t *testing.T) {
	root := t.TempDir()
	lay(t, root, map[string]string{
		"config/deep/rules": "domain: shop\ndescriptors:\n- {key: k, rate_limit: {table: t.csv, unit: hour, requests_per_unit: 1}}\n",
		"config/deep/t.csv": "gold,50\n", "config/deep/unused.csv": "not a table\n",
	})
	l := must.First(load(t, root))(t)
	result, err := l.Allow(t.Context(), "shop", limiter.Entry{Key: "k", Value: "gold"})
	if err != nil || result.Limit != 50 || result.Remaining != 49 {
		t.Errorf("got %+v, %v; want the 50 of the table", result, err)
	}
}
