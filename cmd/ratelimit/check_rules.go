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
	rules, files, warnings, err := loadRules(environ, paths)
	for _, w := range warnings {
		fmt.Fprintln(stderr, w)
	}
	if errors.Is(err, errOverXDS) {
		return fmt.Errorf("check: %w, name the files to check", err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "ok: files %d, domains %d, rules %d\n", files, len(rules.Domains()), rules.Count())
	return nil
}

var errOverXDS = errors.New("rules come by xDS")

// loadRules loads the rules of paths, or of the environment without any, and returns the number of
// their files. The error joins every mistake.
func loadRules(environ, paths []string) (rules *descriptors.Rules, files int, warnings []descriptors.Warning, err error) {
	c, err := readConfig(environ)
	if err != nil {
		return nil, 0, nil, err
	}
	c.finishRules()
	if len(paths) == 0 {
		if c.overXDS() {
			return nil, 0, nil, fmt.Errorf("%w (CONFIG_TYPE=%s)", errOverXDS, c.ConfigType)
		}
		paths = c.Rules.Paths
	}
	if c.Backend == backendRedis {
		c.Rules.Granularity = redisstore.Granularity
	}
	c.Rules.Files.Bounds = c.Rules.Options
	sources, readErr := c.Rules.Files.Read(paths, "")
	rules, warnings, err = descriptors.Load(sources, c.Rules.Options)
	return rules, len(sources), warnings, errors.Join(readErr, err)
}
