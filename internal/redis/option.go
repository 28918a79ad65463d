package redis

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

// clientOption returns the options of rueidis.
func (c *Conn) clientOption(dial func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)) rueidis.ClientOption {
	t := &c.target
	// Timeout bounds the login. After KeepAlive without an answer rueidis sends a PING on a
	// connection, and closes the connection ConnWriteTimeout later. reconnect is faster when commands
	// fail.
	dialer := net.Dialer{Timeout: timeout, KeepAlive: time.Second}
	o := rueidis.ClientOption{
		InitAddress:       slices.Clone(t.addresses), // ShuffleInit shuffles the slice
		DialCtxFn:         dial,
		AuthCredentialsFn: c.login,
		Dialer:            dialer,
		ConnWriteTimeout:  timeout,
		SelectDB:          t.database,
		ClientName:        "weir",
		ClientSetInfo:     rueidis.DisableClientSetInfo, // Redis before 7.2 does not know the command

		DisableCache: true, // no client-side caching

		// Two goroutines for each connection write commands and read answers. Otherwise a lone command
		// closes the connection when its context ends before the answer.
		AlwaysPipelining: true,
		// One connection for each node: redisstore has few commands in flight, each with many requests.
		PipelineMultiplex: -1,
		BlockingPipeline:  -1, // not another connection for a long pipeline
		// 2^8 commands in flight on a connection. The buffers are in bytes, by default 0.5 MiB each.
		RingScaleEachConn:   8,
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,

		// rueidis would retry only commands that read, and no caller waits for the retry.
		DisableRetry: true,
	}
	if t.security != nil {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} // selects the TLS port of a cluster's node; session.dial does the handshake
	}
	switch t.topology {
	case topologySingle:
		o.ForceSingleClient = true
	case topologySentinel:
		o.ShuffleInit = true
		dialer.LocalAddr = toSentinel{}
		o.Sentinel = rueidis.SentinelOption{
			Dialer:     dialer,
			TLSConfig:  o.TLSConfig,
			MasterSet:  t.primary,
			ClientName: o.ClientName,
			// A demoted primary goes on to answer, so that rueidis would never notice a missed
			// +switch-master.
			TopologyRefreshInterval: maxBackoff,
		}
	case topologyCluster:
		o.ShuffleInit = true
		// MOVED and lost connections make rueidis ask for the slots. The interval is for slots without
		// traffic.
		o.ClusterOption.ShardsRefreshInterval = 30 * time.Second
		// Two MOVED and two ASK; the default has no limit.
		o.ClusterOption.MaxMovedRedirections = 4
	}
	return o
}
