package main

import (
	"encoding/hex"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func newHolds() *cobra.Command {
	var c remote
	var name, id string
	var most uint32
	cmd := &cobra.Command{
		Use:   "holds [--server ADDRESS] DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short: "Say which requests hold hits of a limit with hold, and free one",
		Long: `Say which requests hold hits of the limits with hold that a descriptor leads to, since when, and until when at most. Weir does
not store the names of requests: an id is the first 128 bits of the SHA-256 of a name. With Redis only concurrency can be listed.

--release ends one request by its name, --release-id by its id, at no cost: its hits are free again. The server logs that. Exit code 3 when the
request held nothing.

The descriptor needs no entry that names a request. ` + entriesHelp,
		Example: `  sidecar holds models model=a
  sidecar holds models model=a --release 8f0c1a9e-7c1d-4a60-9b7e-0a52a4b0c0de`,
		Args: arguments(2, 2, "DOMAIN DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := parseDescriptors(args[1:], nil)
			if err != nil {
				return err
			}
			domain, entries := args[0], all[0].GetEntries()
			byName, byID := cmd.Flags().Changed("release"), cmd.Flags().Changed("release-id")
			if !byName && !byID {
				if most == 0 {
					most = math.MaxUint32 // which the server bounds
				}
				request := &adminv1.ListHoldersRequest{Domain: domain, Entries: entries, Most: most}
				return show(cmd, &c, adminv1.AdminServiceClient.ListHolders, request, render.HoldersText)
			}
			request := &adminv1.ReleaseHolderRequest{Domain: domain, Entries: entries, Holder: &adminv1.ReleaseHolderRequest_Name{Name: name}}
			switch {
			case byName && byID:
				return usage("--release and --release-id: got both, must be one of the two")
			case byName && name == "":
				return usage("--release: is empty, must be the name of a request, as Envoy sends it")
			case byID && !isID(id):
				return usage("--release-id: %q: must be %d hexadecimal digits, as in the list", id, 2*len(store.Holder{}))
			case byID:
				request.Holder = &adminv1.ReleaseHolderRequest_Id{Id: id}
			}
			return releaseHolder(cmd, &c, request)
		},
	}
	addServer(cmd, &c.server)
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint32Var(&most, "most", 100, "list at most this `number` for each limit; 0 lists as many as the server tells")
	flags.StringVar(&name, "release", "", "free the hits of the request with this `name`")
	flags.StringVar(&id, "release-id", "", "free the hits of the request with this `id`")
	c.addOutput(cmd)
	return cmd
}

// isID reports whether a text can be the id of a holder.
func isID(text string) bool {
	id, err := hex.DecodeString(text)
	return err == nil && len(id) == len(store.Holder{})
}

// releaseHolder frees one holder of a running sidecar. Without a limit that it held hits of,
// releaseHolder fails with exitNone.
func releaseHolder(cmd *cobra.Command, c *remote, request *adminv1.ReleaseHolderRequest) error {
	answer, err := ask(cmd, c.server, adminv1.AdminServiceClient.ReleaseHolder, request)
	if err != nil {
		return err
	}
	if err := writeAnswer(cmd.OutOrStdout(), c.output, answer, render.ReleaseText(answer)); err != nil {
		return err
	}
	held := func(l *adminv1.ReleaseHolderResponse_Release) bool {
		return l.GetStatus() == adminv1.HolderStatus_HOLDER_STATUS_HELD
	}
	if !slices.ContainsFunc(answer.GetLimits(), held) {
		return reported(exitNone)
	}
	return nil
}
