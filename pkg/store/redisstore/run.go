package redisstore

import (
	"context"

	"github.com/redis/rueidis"
)

// Run runs a script of the caller on the main server, for data beside the states, and returns the
// texts of its answer. Run puts Options.Prefix before each key. In a cluster all keys must lie in
// one slot. Before a connection Run fails with [ErrUnavailable]. An error of ctx, or of a lost
// connection, does not say whether the script ran.
func (s *Store) Run(ctx context.Context, script string, keys, args []string) ([]string, error) {
	client, err := s.main.connection.Client()
	if err != nil {
		return nil, err
	}
	named := make([]string, len(keys))
	for i, key := range keys {
		named[i] = s.prefix + key
	}
	answer, err := rueidis.NewLuaScript(script).Exec(ctx, client, named, args).AsStrSlice()
	return answer, s.main.connection.Report(err)
}
