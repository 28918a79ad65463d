package simulate

import (
	"math"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// sweep lets the stores forget idle keys, at most as often in virtual time as a service does in
// real time. A sweep visits all keys, so about as many descriptors must come before the next one as
// there are keys. There are fewer if the room for keys or holders is small.
func (s *Simulation) sweep(r *limiter.Request) {
	s.decided += uint64(len(r.Descriptors))
	if s.decided < s.pause || time.Duration(s.requests.last-s.swept) < memstore.DefaultSweepInterval {
		return
	}
	s.decided, s.swept = 0, s.requests.last
	kept, room := 0, math.MaxInt
	for _, w := range []*world{s.after, s.before} {
		if w == nil {
			continue
		}
		w.store.Sweep()
		st := w.store.Stats()
		holders := st.HoldersHeld + st.HoldersDenied + st.HoldersEnded
		kept += st.Places + holders
		room = min(room, st.MaxKeys-st.Places, st.MaxHolds-holders)
	}
	s.pause = max(s.leastPause, uint64(max(min(kept, room/4), 0)))
}
