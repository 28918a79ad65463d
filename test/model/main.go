// Command model serves a language model that is not real on 127.0.0.1:18080, the address in
// deploy/llm/envoy.yaml, until the command gets a signal. parts.Backend lists the words of a query.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/weirproxy/weir/test/parts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "127.0.0.1:18080", os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		stop()
		os.Exit(1)
	}
}

// run serves the model at host:port until ctx is done, and says when the model listens.
func run(ctx context.Context, address string, stdout io.Writer) error {
	model, err := parts.StartBackend(address)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "A model that is not real listens on", model.Address())
	select {
	case <-ctx.Done():
		return model.Close()
	case err := <-model.Ended():
		return fmt.Errorf("the model has ended by itself: %w", err)
	}
}
