package main

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// topOrders are the values of --by.
func topOrders() map[string]adminv1.TopOrder {
	return map[string]adminv1.TopOrder{
		"hits": adminv1.TopOrder_TOP_ORDER_HITS, "denied": adminv1.TopOrder_TOP_ORDER_DENIED, "used": adminv1.TopOrder_TOP_ORDER_USED,
	}
}

func newTop() *cobra.Command {
	var (
		c             remote
		by            string
		request       adminv1.ListTopKeysRequest
		window, every time.Duration
		once          bool
	)
	cmd := &cobra.Command{
		Use:   "top [--server ADDRESS] [--by hits|denied|used]",
		Short: "Show the keys with the most hits, and how much of their limits they have used",
		Long: `Show the keys of a running sidecar with the most hits, the most denied hits, or the largest part of their limit used.
On a terminal the table is drawn again every two seconds until Ctrl-C. Anywhere else, and with --once or --output json, it is written once.

HITS and DENIED are hits of the window, denied ones included. "80+9?" says that fewer than 9 more may have come before the sidecar tracked the
key. DENIED has the hits that only a limit in shadow mode denied, too. USED, LEFT and RESET are of now.`,
		Example: `  sidecar top
  sidecar top --by denied --window 10m --domain shop`,
		Args: arguments(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			order, ok := topOrders()[by]
			if !ok {
				return usage("--by: %q: must be hits, denied or used", by)
			}
			if window != limiter.ShortWindow && window != limiter.LongWindow {
				return usage("--window: %v: must be 1m or 10m", window)
			}
			if every < 100*time.Millisecond {
				return usage("--every: %v: must be at least 100ms", every)
			}
			request.Order, request.Window = order, durationpb.New(window)
			if once || c.output == outputJSON || !isTerminal(cmd.OutOrStdout()) {
				return show(cmd, &c, adminv1.AdminServiceClient.ListTopKeys, &request, render.TopText)
			}
			return redraw(cmd, &c, adminv1.AdminServiceClient.ListTopKeys, &request, render.TopText, every)
		},
	}
	addServer(cmd, &c.server)
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&by, "by", "hits", "order of the keys: hits|denied|used")
	addDuration(flags, &window, "window", limiter.ShortWindow, "`time` to look back: 1m or 10m")
	flags.StringVar(&request.Domain, "domain", "", "only keys of this `domain`")
	flags.StringVar(&request.Rule, "rule", "", "only keys of the rule with this `path`, as match prints it, or override")
	flags.Uint32Var(&request.Most, "most", 20, "show at most this `number` of keys, 1 to 1000")
	addDuration(flags, &every, "every", redrawTime, "`time` between two tables")
	flags.BoolVar(&once, "once", false, "write one table, without control characters")
	c.addOutput(cmd)
	return cmd
}

// redrawTime is the usual time between two drawings.
const redrawTime = 2 * time.Second

// clearScreen moves to the upper left corner and clears the screen.
const clearScreen = "\x1b[H\x1b[2J"

// redraw draws the text of an answer again and again, until the command's context ends. A sidecar
// that answers no more is a line of text.
func redraw[Q, A proto.Message](
	cmd *cobra.Command, c *remote, call method[Q, A], request Q, text func(A) string, every time.Duration,
) error {
	fitted := func(answer A) string {
		table := text(answer)
		if f, ok := cmd.OutOrStdout().(*os.File); ok {
			if columns, rows, err := term.GetSize(int(f.Fd())); err == nil { // anew each time: a window changes
				table = fit(table, columns, rows)
			}
		}
		return clearScreen + table
	}
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for first := true; ; first = false {
		if err := show(cmd, c, call, request, fitted); err != nil {
			if first || cmd.Context().Err() != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s%v\n", clearScreen, err)
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-ticks.C:
		}
	}
}

// fit cuts a text to the size of a terminal, in columns and rows. Lines that wrap, or too many,
// would push the first ones off the screen. The last row stays free for the cursor. A size of 0 is
// not known.
func fit(text string, columns, rows int) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if rows > 1 && len(lines) > rows-1 {
		lines = lines[:rows-1]
	}
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\n")
		if columns > 0 && utf8.RuneCountInString(line) > columns {
			line = string([]rune(line)[:columns-1]) + "…"
		}
		lines[i] = line + "\n"
	}
	return strings.Join(lines, "")
}
