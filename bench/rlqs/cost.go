package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/bench/drive"
)

// clients is the number of clients of a cost row. Each acts as an Envoy that reports its buckets
// every 5 seconds.
const clients = 10

// costs measures the CPU time of the sidecar for clients with more and more buckets.
func costs(ctx context.Context, o *options, stdout io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "rlqs")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fmt.Fprintln(stdout, "\n| clients | buckets of each | CPU of Weir for a client, in a second |\n|---|---|---|")
	for _, buckets := range []int{1, 10, 100, 1000} {
		w := &world{o: o, dir: dir}
		const rules = "domain: edge\ndescriptors:\n  - key: tenant\n    rate_limit: {algorithm: token_bucket, requests_per_unit: 1000, unit: second, burst: 200}\n"
		if err := w.startSidecar(ctx, rules); err != nil {
			return err
		}
		idle, err := cpuIn(ctx, w.sidecar.PID(), 5*time.Second)
		if err != nil {
			return err
		}
		run, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		failed := make(chan error, clients)
		for i := range clients {
			running.Go(func() { failed <- report(run, w.address, i, buckets) })
		}
		drive.Pause(ctx, 10*time.Second)
		used, err := cpuIn(ctx, w.sidecar.PID(), 15*time.Second)
		early := len(failed) > 0
		cancel()
		running.Wait()
		w.close()
		if err == nil && early {
			err = <-failed
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "| %d | %d | %.2f ms |\n", clients, buckets, (used-idle)/clients)
	}
	return nil
}

// cpuIn returns the milliseconds of CPU time of a process in a second.
func cpuIn(ctx context.Context, pid int, d time.Duration) (float64, error) {
	before, err := drive.CPU(pid)
	begun := time.Now()
	drive.Pause(ctx, d)
	after, again := drive.CPU(pid)
	return (after - before).Seconds() * 1000 / time.Since(begun).Seconds(), errors.Join(err, again)
}

// report reports buckets until the context ends. Which client has the most requests changes.
func report(ctx context.Context, address string, client, buckets int) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	drive.Pause(ctx, time.Duration(client)*5*time.Second/clients)
	for n := 0; ctx.Err() == nil; n++ {
		in := &rlqsv3.RateLimitQuotaUsageReports{Domain: "edge"}
		for i := range buckets {
			in.BucketQuotaUsages = append(in.BucketQuotaUsages, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
				BucketId:    &rlqsv3.BucketId{Bucket: map[string]string{"tenant": fmt.Sprint("tenant-", i)}},
				TimeElapsed: durationpb.New(5 * time.Second), NumRequestsAllowed: uint64(100 + 2000*((client+n/6)%clients/(clients-1))),
			})
		}
		if err := stream.Send(in); err != nil && ctx.Err() == nil {
			return err
		}
		drive.Pause(ctx, 5*time.Second)
	}
	return nil
}
