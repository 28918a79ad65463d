package main

import (
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/app"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve rate limits (also when no command is given)",
		Long: `Serve rate limits to Envoy until SIGTERM or SIGINT. SIGHUP reads the rules again, as a change of their files does.

SIGTERM drains: health says NOT_SERVING and /readyz 503 at once. The sidecar answers requests until a second has passed without
one, or four fifths of --drain-timeout. Then it finishes requests in flight; at --drain-timeout it cancels them. A second signal
stops at once.`,
		Args: arguments(0, 0, "none; rules are named with --rules"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := readConfig(cmd.Flags())
			if err != nil {
				return err
			}
			c.Logger = c.newLogger(cmd.ErrOrStderr())
			return app.Named(app.Run(cmd.Context(), c.Config), partSettings())
		},
	}
	addSettings(cmd.Flags())
	return cmd
}

// newLogger returns the logger of --log-level and --log-format. The server may change the level.
func (c *config) newLogger(w io.Writer) *slog.Logger {
	c.Pages.LogLevel = new(slog.LevelVar)
	c.Pages.LogLevel.Set(c.LogLevel)
	o := &slog.HandlerOptions{Level: c.Pages.LogLevel}
	if c.LogJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
