package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weirproxy/weir/internal/lab/compare"
	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/printable"
)

const (
	// mostPlays bounds how often the requests of a rule are asked, as long as a second ends between
	// two answers.
	mostPlays = 3
	// mostShown bounds the differences that are printed.
	mostShown = 20
)

// comparison asks two services, and counts.
type comparison struct {
	stdout        io.Writer
	address       [2]string
	service       [2]compare.Service
	asked, differ int
	crossed       int    // requests during which a second ended
	shown         string // the place in the rules that was printed last
}

// compareServices asks two services about the rules of the environment, or about recorded requests.
// The error says that answers differ, or why nobody could ask.
func compareServices(ctx context.Context, environ, args []string, stdout, stderr io.Writer) error {
	if len(args) < 2 {
		return errors.New("compare: usage: ratelimit compare OLD NEW [RECORD…], where OLD and NEW are host:port of gRPC")
	}
	c := comparison{stdout: stdout}
	for i := range c.address {
		c.address[i] = args[i]
		service, end, err := compare.Dial(args[i])
		if err != nil {
			return fmt.Errorf("compare: %s: %w", args[i], err)
		}
		defer end()
		c.service[i] = service
		if _, err := c.service[i](ctx, compare.Nobody(mark())); err != nil {
			return fmt.Errorf("compare: %s: %w", args[i], err)
		}
	}
	of, err := c.play(ctx, environ, args[2:], stderr)
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	if c.differ > 0 {
		return fmt.Errorf("compare: %d of %d answers differ, %s, ends of a second between two answers: %d", c.differ, c.asked, of, c.crossed)
	}
	fmt.Fprintf(stdout, "the same: %d answers, %s\n", c.asked, of)
	return nil
}

// play asks, and returns a description of its requests.
func (c *comparison) play(ctx context.Context, environ, paths []string, stderr io.Writer) (of string, err error) {
	if len(paths) == 0 {
		return c.playRules(ctx, environ)
	}
	traffic, err := records.Open(ctx, paths, os.Stdin)
	if err != nil {
		return "", err
	}
	defer traffic.Close()
	for record, err := range traffic.All() {
		if err != nil {
			return "", err
		}
		d, crossed, err := c.ask(ctx, compare.FromRecord(&record.Request))
		if err != nil {
			return "", err
		}
		c.count(d, crossed, "")
	}
	for _, note := range traffic.Notes() {
		fmt.Fprintln(stderr, note)
	}
	return "of recorded requests", nil
}

func (c *comparison) playRules(ctx context.Context, environ []string) (of string, err error) {
	rules, _, _, err := loadRules(environ, nil)
	if errors.Is(err, errOverXDS) {
		err = fmt.Errorf("%w, name files of recorded requests", err)
	}
	if err != nil {
		return "", err
	}
	asked, left := 0, 0
	for _, r := range rules.All() {
		if !compare.Askable(r) {
			left++
			continue
		}
		asked++
		if err := c.playRule(ctx, func() []*compare.Request { return compare.Asks(r, rules.All(), mark()) }, fmt.Sprintf("%s:%d", r.File, r.Line)); err != nil {
			return "", err
		}
	}
	of = fmt.Sprintf("of %d places in the rules", asked)
	if left > 0 {
		of += fmt.Sprintf(" (not asked: %d with a pattern, a holder or a default)", left)
	}
	return of, nil
}

// playRule asks the requests of one rule in turn, and anew with new counts when a second ended
// between two answers.
func (c *comparison) playRule(ctx context.Context, asks func() []*compare.Request, where string) error {
	for play := 1; ; play++ {
		var found []*compare.Difference
		ended, all := 0, asks()
		for _, r := range all {
			d, crossed, err := c.ask(ctx, r)
			if err != nil {
				return err
			}
			if crossed {
				ended++
			}
			found = append(found, d)
		}
		if ended > 0 && play < mostPlays {
			continue
		}
		for _, d := range found {
			c.count(d, false, where)
		}
		c.crossed += ended
		return nil
	}
}

func (c *comparison) ask(ctx context.Context, r *compare.Request) (*compare.Difference, bool, error) {
	return compare.Ask(ctx, c.service[0], c.service[1], r)
}

func (c *comparison) count(d *compare.Difference, crossed bool, where string) {
	c.asked++
	if crossed {
		c.crossed++
	}
	if d == nil {
		return
	}
	if c.differ++; c.differ > mostShown {
		return
	}
	if where != c.shown {
		c.shown = where
		fmt.Fprintf(c.stdout, "%s\n", where)
	}
	fmt.Fprintf(c.stdout, "request %s\n  %s: %s\n  %s: %s\n", printable.Text(d.Text()), c.address[0], printable.Text(d.Old), c.address[1], printable.Text(d.New))
}

// mark is a value that no client has.
func mark() string { return "compare-" + rand.Text()[:8] }
