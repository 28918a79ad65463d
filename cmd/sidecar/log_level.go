package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/settings"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func newLogLevel() *cobra.Command {
	var c remote
	var denials string
	cmd := &cobra.Command{
		Use:   "log-level [--server ADDRESS] [debug|info|warn|error] [--denials RATE]",
		Short: "Show or change the log of a running sidecar: its level, and denied requests",
		Long: `Show or change the log of a running sidecar until its end: the lowest level, and how many denied requests it logs. Denied requests are
logged at warn. The sidecar logs the change.`,
		Example: `  sidecar log-level
  sidecar log-level debug
  sidecar log-level --denials 1/s
  sidecar log-level info --denials 0`,
		Args: arguments(0, 1, "none, or one of debug, info, warn, error"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := new(adminv1.SetLogLevelRequest)
			if len(args) > 0 {
				if err := settings.Choice(&request.Level, "debug", "info", "warn", "error").Set(args[0]); err != nil {
					return usage("level: %w", err)
				}
			}
			if cmd.Flags().Changed("denials") {
				rate, err := settings.RateOf(denials, admin.MaxLogDenials)
				if err != nil {
					return usage("--denials: %w", err)
				}
				request.DenialsPerSecond = &rate
			}
			return show(cmd, &c, adminv1.AdminServiceClient.SetLogLevel, request, func(answer *adminv1.SetLogLevelResponse) string {
				return fmt.Sprintf("level    %s\ndenials  %s\n", answer.GetLevel(), rateText(answer.GetDenialsPerSecond()))
			})
		},
	}
	addServer(cmd, &c.server)
	cmd.Flags().StringVar(&denials, "denials", "", "denied requests to log, such as 1/s or 10/m; 0 = none")
	c.addOutput(cmd)
	return cmd
}

// rateText words a rate, in the first unit of --denials that makes a whole number of it.
func rateText(perSecond float64) string {
	for _, unit := range []struct {
		name    string
		seconds float64
	}{{"second", 1}, {"minute", 60}, {"hour", 3600}} {
		n := math.Round(perSecond * unit.seconds)
		if math.Abs(perSecond*unit.seconds-n) < 1e-9*n || perSecond == 0 {
			return fmt.Sprintf("%.0f per %s", n, unit.name)
		}
	}
	return fmt.Sprintf("%v per second", perSecond)
}
