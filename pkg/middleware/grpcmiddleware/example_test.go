package grpcmiddleware_test

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/middleware/grpcmiddleware"
)

func ExamplePerKey() {
	limits, err := limiter.PerKey(limiter.PerSecond(10), 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limits.Close()
	limited := grpcmiddleware.PerKey(limits, grpcmiddleware.Metadata("x-api-key"))
	server := grpc.NewServer(grpc.UnaryInterceptor(limited.Unary), grpc.StreamInterceptor(limited.Stream))
	fmt.Println(len(server.GetServiceInfo()), "services")
	// Output: 0 services
}
