// Floor does the least that a server of one unary gRPC method does. Floor walks the frames of
// HTTP/2 and answers a constant to each request, without a look at headers or message. One thread
// serves all connections. Floor costs the system calls and little more; grpcbench measures Weir
// against Floor. Floor trusts its clients, and needs Linux.
package main

import (
	"flag"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/weirproxy/weir/bench/drive"
)

func main() {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	socket := flag.String("socket", "", "`path` of a Unix socket to listen on, in place of a port")
	flag.Parse()
	if err := run(logger, *socket); err != nil {
		logger.Error("stopped", slog.Any("error", err))
		os.Exit(1)
	}
}

// run serves until the process ends, by default on any port of loopback, and says where as sidecar
// does.
func run(logger *slog.Logger, socket string) error {
	answer, err := newAnswer(drive.Constant())
	if err != nil {
		return err
	}
	s, err := listen(socket, answer)
	if err != nil {
		return err
	}
	debug.SetGCPercent(-1) // serving takes no memory, and a collection would wait for the thread for ever
	network := "tcp"
	if socket != "" {
		network = "unix"
	}
	logger.Info("listening", slog.String("server", "grpc"), slog.String("network", network), slog.String("address", s.address))
	return s.serve()
}
