package hostile

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"

	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// reflection is the path of the calls that describe the services.
const reflection = reflectiongrpc.ServerReflection_ServerReflectionInfo_FullMethodName

// adminAttacks are other calls than ShouldRateLimit: streams that never end on the gRPC port, and
// calls of the admin port.
func adminAttacks() []attack {
	const (
		watch  = "/grpc.health.v1.Health/Watch"
		reload = "/weir.admin.v1.AdminService/Reload"
		rules  = "/weir.admin.v1.AdminService/ListRules"
	)
	empty := frame(nil, false)
	onAdmin := func(a *assault) *assault {
		return &assault{ctx: a.ctx, addresses: a.addresses, address: a.addresses.Admin, counts: a.counts}
	}
	return []attack{
		{
			name:  "health_watchers",
			how:   "200 connections hold 100 streams of health Watch open",
			bound: "1024 streams of a connection, `--max-bytes-in-flight`",
			run: func(a *assault) {
				a.calls(200, 100, watch, func(context.Context) io.Reader { return bytes.NewReader(empty) })
			},
		},
		{
			name:  "reflection_streams",
			how:   "200 connections hold 100 streams of reflection open",
			bound: "1024 streams of a connection, `--max-bytes-in-flight`",
			run: func(a *assault) {
				a.calls(200, 100, reflection, func(ctx context.Context) io.Reader { return stall(ctx, empty) })
			},
		},
		{
			name:  "admin_reloads",
			how:   "4 connections to the admin port reload the rules on 50 streams without end",
			bound: "one reload at a time",
			run: func(a *assault) {
				onAdmin(a).calls(4, 50, reload, func(context.Context) io.Reader { return bytes.NewReader(empty) })
			},
		},
		{
			name:  "admin_lists",
			how:   "50 connections to the admin port list the rules on 100 streams, and 200 hold messages open",
			bound: "64 connections, 8 streams of each, 64 KiB of a message; one list at a time, 32 MiB of lists that nobody reads",
			run: func(a *assault) {
				part := frame(make([]byte, 60<<10), false)[:60<<10]
				var both sync.WaitGroup
				defer both.Wait()
				both.Go(func() {
					onAdmin(a).calls(200, 100, rules, func(ctx context.Context) io.Reader { return stall(ctx, part) })
				})
				onAdmin(a).calls(50, 100, rules, func(context.Context) io.Reader { return bytes.NewReader(empty) })
			},
		},
	}
}

// socketAttacks come through the Unix socket, as a hostile Envoy of the pod would.
func socketAttacks() []attack {
	var rows []attack
	for _, row := range slices.Concat(messageAttacks(), headerAttacks(), connectionAttacks(), slowAttacks()) {
		switch row.name {
		case "held_messages_on_many_connections", "indexed_headers", "idle_handshakes", "unread_answers", "unread_answers_in_the_kernel",
			"reset_answers_of_reflection":
			row.name, row.how, row.socket = "socket_"+row.name, "through the Unix socket: "+strings.Replace(row.how, "10 000", "3 000", 1), true
			rows = append(rows, row)
		}
	}
	return rows
}
