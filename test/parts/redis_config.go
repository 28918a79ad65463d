package parts

import (
	"fmt"
	"net"
	"strconv"
	"time"
)

// RedisOptions are the options of a Redis. The zero value means a free port, no password, no TLS
// and no data on disk.
type RedisOptions struct {
	// Port is the TCP port on 127.0.0.1; 0 means a free port.
	Port int

	// Username and Password are the login of Do, of ClientOption and of replicas. A Password alone is
	// the default user's (requirepass). With both, Username has all permissions, and the default user
	// is off.
	Username, Password string

	// Users are further ACL users, each written as after "user" in redis.conf: "weir on >secret
	// ~weir:* +@all".
	Users []string

	// TLS makes the TCP port a TLS port for clients with a certificate of that CA; nil means plain
	// TCP. The Unix socket is always plain.
	TLS *Certificates

	// Cluster makes the Redis a node of a cluster, without slots; see StartCluster.
	Cluster bool

	// ReplicaOf is host:port of the primary; "" means that the Redis is a primary.
	ReplicaOf string

	// NodeTimeout is the silence after which nodes of a cluster take another node for dead; 0 means a
	// second. A machine that is busy causes silences of a second, so tests in which no node dies
	// choose a longer time.
	NodeTimeout time.Duration

	// Config are further lines of redis.conf. Later lines override earlier lines.
	Config []string
}

// config returns the lines of redis.conf.
func (r *Redis) config() []string {
	o := r.options
	lines := append(r.listens(),
		`save ""`, "appendonly no",
		// A replica gets its copy at once, and without the disk.
		"repl-diskless-sync yes", "repl-diskless-sync-delay 0",
		fmt.Sprintf("dbfilename redis-%d.rdb", r.port),
	)
	if r.socket != "" {
		lines = append(lines, "unixsocket "+strconv.Quote(r.socket), "unixsocketperm 700")
	}
	lines = append(lines, o.login("masteruser", "masterauth")...)
	for _, user := range o.Users {
		lines = append(lines, "user "+user)
	}
	if o.Cluster {
		lines = append(lines, "cluster-enabled yes", fmt.Sprintf("cluster-config-file nodes-%d.conf", r.port))
		if o.TLS != nil {
			lines = append(lines, "tls-cluster yes")
		}
	}
	if host, port, err := net.SplitHostPort(o.ReplicaOf); err == nil {
		lines = append(lines, fmt.Sprintf("replicaof %s %s", host, port))
	}
	return lines
}

// listens returns the lines of redis.conf about listening, files and TLS.
func (r *Redis) listens() []string {
	lines := []string{"bind 127.0.0.1", "dir " + strconv.Quote(r.dir)}
	t := r.options.TLS
	if t == nil {
		return append(lines, fmt.Sprintf("port %d", r.port))
	}
	return append(lines, "port 0", fmt.Sprintf("tls-port %d", r.port), "tls-replication yes", "tls-auth-clients yes",
		"tls-ca-cert-file "+strconv.Quote(t.CA),
		"tls-cert-file "+strconv.Quote(t.ServerCert), "tls-key-file "+strconv.Quote(t.ServerKey))
}

// login returns the lines about Username and Password. The server itself logs in with them too, at
// its primary. The lines about that begin with the two given names.
func (o *RedisOptions) login(username, password string) []string {
	switch {
	case o.Username != "":
		return []string{
			"user default off", fmt.Sprintf("user %s on >%s ~* &* +@all", o.Username, o.Password),
			username + " " + o.Username, password + " " + o.Password,
		}
	case o.Password != "":
		return []string{"requirepass " + o.Password, password + " " + o.Password}
	}
	return nil
}
