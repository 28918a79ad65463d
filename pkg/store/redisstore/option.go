package redisstore

import (
	"crypto/tls"
	"net"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

// clientOption is how rueidis is to connect.
func (t *Target) clientOption(d *dialer) rueidis.ClientOption {
	// Timeout is for the login. A connection without an answer for KeepAlive is sent a PING, and closed when that has had none
	// for ConnWriteTimeout; mend is faster when commands fail.
	dialer := net.Dialer{Timeout: patience, KeepAlive: time.Second}
	o := rueidis.ClientOption{
		InitAddress:      slices.Clone(t.addresses), // ShuffleInit shuffles it
		DialCtxFn:        d.fetch,
		Dialer:           dialer,
		ConnWriteTimeout: patience,
		Username:         t.username,
		Password:         t.password,
		SelectDB:         t.database,
		ClientName:       "weir",
		ClientSetInfo:    rueidis.DisableClientSetInfo, // an unknown command before Redis 7.2; the name says it all

		// The store remembers denials by itself.
		DisableCache: true,

		// Commands are written and answers read by two goroutines for each connection. Without, a lone command reads its own
		// answer and, when its context ends before that, closes the connection.
		AlwaysPipelining: true,
		// One connection for each node: the store has few commands on their way at once, each of many requests.
		PipelineMultiplex: -1,
		// Never another one, as for long pipelines.
		BlockingPipeline: -1,
		// Commands on their way at once on a connection, 2^8; and bytes, where the default is 0.5 MiB each.
		RingScaleEachConn:   8,
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,

		// rueidis sends again only commands that read. The script is none, but nobody waits for what is sent again.
		DisableRetry: true,
	}
	if t.security != nil {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} // says which of a node's two ports to dial; the dialer does the rest
	}
	switch t.topology {
	case topologySingle:
		o.ForceSingleClient = true
	case topologySentinel:
		o.ShuffleInit = true
		o.Sentinel = rueidis.SentinelOption{
			Dialer:     dialer,
			TLSConfig:  o.TLSConfig,
			MasterSet:  t.primary,
			Username:   t.sentinelUsername,
			Password:   t.sentinelPassword,
			ClientName: o.ClientName,
			// A primary that was made a replica lives on and answers, so that a missed +switch-master would never be noticed.
			TopologyRefreshInterval: maxBackoff,
		}
	case topologyCluster:
		o.ShuffleInit = true
		// MOVED and lost connections have the slots asked for again; this finds what changes behind a slot without traffic.
		o.ClusterOption.ShardsRefreshInterval = 30 * time.Second
		// A MOVED, an ASK, and once more of each; the default is without end.
		o.ClusterOption.MaxMovedRedirections = 4
	}
	return o
}
