package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// check loads the rules of paths, or of the environment without any, as a start would. Warnings go
// to stderr, one per line. The error joins every mistake. Certificates and Redis are not looked at.
func check(environ, paths []string, stdout, stderr io.Writer) error {
	c, err := readConfig(environ)
	if err != nil {
		return err
	}
	c.finishRules()
	if len(paths) == 0 {
		if c.overXDS() {
			return fmt.Errorf("check: rules come by xDS (CONFIG_TYPE=%s), name the files to check", c.ConfigType)
		}
		paths = c.Rules.Paths
	}
	if c.Backend == backendRedis {
		c.Rules.Granularity = redisstore.Granularity
	}
	c.Rules.Files.Bounds = c.Rules.Options
	sources, readErr := c.Rules.Files.Read(paths, "")
	rules, warnings, err := descriptors.Load(sources, c.Rules.Options)
	for _, w := range warnings {
		fmt.Fprintln(stderr, w)
	}
	if err := errors.Join(readErr, err); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "ok: files %d, domains %d, rules %d\n", len(sources), len(rules.Domains()), rules.Count())
	return nil
}
