package parts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
)

// SentinelName is the Sentinels' name of the primary.
const SentinelName = "weir"

// SentinelOptions are the options of Sentinels and their data nodes.
type SentinelOptions struct {
	// Data are the options of the three data nodes, without Port and ReplicaOf. TLS is for the
	// Sentinels, too.
	Data RedisOptions

	// Username and Password are the login of the Sentinels, as in RedisOptions. The login of the data
	// nodes is in Data.
	Username, Password string
}

// Sentinels are a primary, two replicas and three Sentinels. After half a second of silence two
// Sentinels agree that the primary is down. Make them with StartSentinels, and end them with Kill.
type Sentinels struct {
	Data      []*Redis // a failover makes another one the primary, see Primary
	Sentinels []*Redis
}

// StartSentinels starts all six, and waits until the replicas have their copies and all Sentinels
// know each other.
func StartSentinels(ctx context.Context, binary, dir string, options SentinelOptions) (*Sentinels, error) {
	s := &Sentinels{}
	if err := s.start(ctx, binary, dir, options); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}

// start starts all six. After an error some may run.
func (s *Sentinels) start(ctx context.Context, binary, dir string, options SentinelOptions) error {
	data := options.Data
	data.Port, data.ReplicaOf = 0, ""
	for range 3 {
		r, err := StartRedis(ctx, binary, dir, data)
		if err != nil {
			return err
		}
		s.Data = append(s.Data, r)
		data.ReplicaOf = s.Data[0].Address()
	}
	for _, replica := range s.Data[1:] {
		if err := awaitCopy(ctx, replica); err != nil {
			return err
		}
	}
	for range 3 {
		own := RedisOptions{Username: options.Username, Password: options.Password, TLS: options.Data.TLS}
		r := &Redis{binary: binary, dir: dir, options: own, sentinel: true}
		r, err := startRedis(ctx, r, func(r *Redis) []string { return r.sentinelConfig(s.Data[0]) })
		if err != nil {
			return err
		}
		s.Sentinels = append(s.Sentinels, r)
	}
	return poll(ctx, "the Sentinels to know each other and the replicas", func() error {
		for _, sentinel := range s.Sentinels {
			if err := knowsAll(ctx, sentinel); err != nil {
				return err
			}
		}
		return nil
	})
}

// sentinelConfig returns the config file of a Sentinel for the primary.
func (r *Redis) sentinelConfig(primary *Redis) []string {
	data := primary.options
	lines := append(slices.Concat(r.listens(), r.options.login("sentinel sentinel-user", "sentinel sentinel-pass")),
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", SentinelName, primary.Port()),
		fmt.Sprintf("sentinel down-after-milliseconds %s 500", SentinelName),
		fmt.Sprintf("sentinel failover-timeout %s 3000", SentinelName),
		fmt.Sprintf("sentinel parallel-syncs %s 2", SentinelName))
	if data.Username != "" {
		lines = append(lines, fmt.Sprintf("sentinel auth-user %s %s", SentinelName, data.Username))
	}
	if data.Password != "" {
		lines = append(lines, fmt.Sprintf("sentinel auth-pass %s %s", SentinelName, data.Password))
	}
	return lines
}

// knowsAll returns an error until a Sentinel knows the others and the replicas.
func knowsAll(ctx context.Context, sentinel *Redis) error {
	message, err := sentinel.Do(ctx, "SENTINEL", "MASTER", SentinelName)
	if err != nil {
		return err
	}
	state, err := message.AsStrMap()
	if err != nil {
		return err
	}
	for name, want := range map[string]string{"flags": "master", "num-slaves": "2", "num-other-sentinels": "2"} {
		if got := state[name]; got != want {
			return fmt.Errorf("sentinel %s: %s is %q, not %q", sentinel.Address(), name, got, want)
		}
	}
	return nil
}

// awaitCopy waits until a replica has its primary's data.
func awaitCopy(ctx context.Context, replica *Redis) error {
	return poll(ctx, "a replica's copy", func() error {
		state, err := replica.Info(ctx, "replication")
		if err == nil && state["master_link_status"] != "up" {
			err = fmt.Errorf("replica %s: role %s, link %s", replica.Address(), state["role"], state["master_link_status"])
		}
		return err
	})
}

// Addresses returns the addresses of the Sentinels.
func (s *Sentinels) Addresses() []string { return addresses(s.Sentinels) }

// addresses returns host:port of each node.
func addresses(nodes []*Redis) []string {
	all := make([]string, len(nodes))
	for i, node := range nodes {
		all[i] = node.Address()
	}
	return all
}

// Primary returns the node that all running Sentinels, and the node itself, call the primary.
// During a failover there may be no such node: an error.
func (s *Sentinels) Primary(ctx context.Context) (*Redis, error) {
	address := ""
	for _, sentinel := range s.Sentinels {
		if !sentinel.Running() {
			continue
		}
		message, err := sentinel.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelName)
		if err != nil {
			return nil, err
		}
		pair, err := message.AsStrSlice()
		if err != nil || len(pair) != 2 {
			return nil, fmt.Errorf("sentinel %s: the primary is %q: %w", sentinel.Address(), pair, err)
		}
		said := net.JoinHostPort(pair[0], pair[1])
		if address != "" && address != said {
			return nil, fmt.Errorf("the Sentinels do not agree on the primary: %s or %s", address, said)
		}
		address = said
	}
	i := slices.IndexFunc(s.Data, func(r *Redis) bool { return r.Address() == address })
	if i < 0 {
		return nil, fmt.Errorf("no node has the address of the primary, %q", address)
	}
	state, err := s.Data[i].Info(ctx, "replication")
	if err == nil && state["role"] != "master" {
		err = fmt.Errorf("redis %s: primary for the Sentinels, but its role is %s", address, state["role"])
	}
	return s.Data[i], err
}

// AwaitNewPrimary waits until another node than old is the primary for all Sentinels, and returns
// it.
func (s *Sentinels) AwaitNewPrimary(ctx context.Context, old *Redis) (*Redis, error) {
	var primary *Redis
	err := poll(ctx, "a new primary", func() error {
		var err error
		if primary, err = s.Primary(ctx); err == nil && primary == old {
			err = errors.New("still the old one")
		}
		return err
	})
	return primary, err
}

// FailOver kills the primary, waits for another, and returns the new one. Restart brings the old
// one back, empty. Some seconds later the Sentinels make the old one a replica.
func (s *Sentinels) FailOver(ctx context.Context) (*Redis, error) {
	old, err := s.Primary(ctx)
	if err != nil {
		return nil, err
	}
	old.Kill()
	return s.AwaitNewPrimary(ctx, old)
}

// Kill ends all six. The Sentinels end first, as otherwise they would begin a failover.
func (s *Sentinels) Kill() {
	for _, r := range slices.Concat(s.Sentinels, s.Data) {
		r.Kill()
	}
}
