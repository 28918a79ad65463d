package denycache

import (
	"context"

	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Lister = (*Store)(nil)

// Holders implements [store.Lister], if the other store does.
func (s *Store) Holders(ctx context.Context, charge *store.Charge, most int) (held []store.Held, all int, err error) {
	return store.HoldersOf(ctx, s.Store, charge, most)
}
