package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

// Check refuses the files that a start refuses, also in directories below, and of any name.
func TestCheckSaysWhetherTheRulesWouldLoad(t *testing.T) {
	root := t.TempDir()
	lay(t, root, map[string]string{
		"good/config/a.yaml": rules("a", "k", 1), "good/config/below/b.conf": rules("b", "k", 2), "good/config/README.md": "Text.",
		"bad/config/a.yaml": rules("a", "k", 1), "bad/config/below/b.conf": "domain: b\ndescriptors: 7\n",
		"warned/a.yaml": "domain: a\ndescriptors:\n- {key: k, value: v, rate_limit: {unit: hour}}\n",
		"fine/a.yaml":   "domain: a\ndescriptors:\n- {key: k, rate_limit: {period: 1ms1ns, requests_per_unit: 1}}\n",
	})
	tests := map[string]struct {
		environ, paths []string
		out, warning   string
		mistake        string // "" for a good set
	}{
		"the directory of the environment": {environ: []string{"RUNTIME_SUBDIRECTORY=good"}, out: "ok: files 2, domains 2, rules 2\n"},
		"mistakes below it":                {environ: []string{"RUNTIME_SUBDIRECTORY=bad"}, mistake: "/bad/config/below/b.conf:2: descriptors: "},
		"paths":                            {paths: []string{root + "/bad/config/a.yaml", root + "/good/config/below"}, out: "ok: files 2, domains 2, rules 2\n"},
		"a warning":                        {paths: []string{root + "/warned"}, out: "ok: files 1, domains 1, rules 1\n", warning: "warned/a.yaml:3: warning: "},
		"nothing":                          {environ: []string{"RUNTIME_SUBDIRECTORY=none"}, mistake: "/none/config: no such file or directory"},
		"xDS without paths":                {environ: []string{"CONFIG_TYPE=GRPC_XDS_SOTW"}, mistake: "check: rules come by xDS (CONFIG_TYPE=GRPC_XDS_SOTW), name the files to check"},
		"xDS with paths":                   {environ: []string{"CONFIG_TYPE=GRPC_XDS_SOTW"}, paths: []string{root + "/good"}, out: "ok: files 2, domains 2, rules 2\n"},
		"a period too fine for Redis":      {environ: []string{"REDIS_URL=redis:6379"}, paths: []string{root + "/fine"}, mistake: "is too fine"},
		"a variable that is not valid":     {environ: []string{"PORT=x"}, mistake: "PORT: "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out, warnings bytes.Buffer
			err := check(append(test.environ, "RUNTIME_ROOT="+root, "RUNTIME_APPDIRECTORY=config"), test.paths, &out, &warnings)
			must.Match(t, "standard output", test.out, out.String())
			if !strings.Contains(warnings.String(), test.warning) || test.warning == "" && warnings.Len() > 0 {
				t.Errorf("warnings: got %q, want %q", warnings.String(), test.warning)
			}
			if (test.mistake == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.mistake) {
				t.Errorf("mistakes: got %v, want %q", err, test.mistake)
			}
		})
	}
}
