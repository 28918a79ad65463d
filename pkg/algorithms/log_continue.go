package algorithms

// OwnHits is hits that this process has put into a log that several processes share. The zero value
// says nothing: no hit of the log is known to be one of this process.
type OwnHits struct {
	Hits  uint64 // of the last charge, at the price; 0: the charge put no hits into the log
	Price uint32 // of a hit of this process; 0: not known
}

// owned is the memory of [Log.Continue].
type owned struct {
	others logged // the hits of the entry at that instant that are of other processes
	price  uint64 // of the other hits of the log
}

const (
	ownedBytes = 24 // of an owned
	ownedCells = 30 // parts of a period that have an entry each, so that a ring of 32 holds all
)

// Continue makes the log go on from a log that several processes share. The shared log has
// used.Hits hits, the newest at used.At. Hits of this process keep the instants of their calls, and
// expire a cell later at most. So they make room one after the other, each for a hit of this
// process. The instants of the other hits are not known, so these expire with the newest one.
//
// If the hits of this process count more than all used hits, the oldest ones go. A new price counts
// for all of them. Without a price all hits expire with the newest one. Continue keeps the memory
// of the log as [Log.Apply] does.
func (g *Log) Continue(l Limit, used LogEntry, own OwnHits, now Instant) {
	g.forgetOthers()
	if own.Price == 0 {
		g.clear()
		g.own = nil
	} else {
		g.setPrice(uint64(own.Price))
	}
	cell := max(1, l.Period/ownedCells)
	expired, _ := g.live(l.Period-cell, now) // or a hit of the entry has
	g.dropOldest(expired, 0)
	at := min(used.At, now)
	if own.Hits > 0 && own.Price > 0 {
		g.addOwn(Instant(cell), at, min(own.Hits, used.Hits))
	}
	if g.hits > used.Hits {
		g.dropOldest(0, g.hits-used.Hits)
	}
	if g.len > 0 {
		at = max(at, g.at(g.len-1).at)
		g.last = at
	}
	others := LogEntry{At: at, Hits: min(used.Hits-g.hits, 2*MaxHits)}
	g.Restore(l, others, now)
	if g.own != nil {
		g.own.others = logged{at: at, hits: others.Hits}
	}
	g.shrink()
}

// SizeAfterContinue returns an upper bound of Size after Continue with a price.
func (g *Log) SizeAfterContinue() int {
	length := len(g.ring)
	for length < g.len+2 { // an entry of this process, and one of the others
		length = max(1, 2*length)
	}
	return logEntry*length + ownedBytes
}

// forgetOthers takes the hits of other processes out of the log. If they are not known, all hits
// go.
func (g *Log) forgetOthers() {
	if g.own == nil {
		g.clear()
		return
	}
	others := &g.own.others
	for i := g.len - 1; i >= 0 && others.hits > 0 && g.at(i).at >= others.at; i-- {
		if e := g.at(i); e.at == others.at {
			back := min(others.hits, e.hits)
			e.hits, g.hits, others.hits = e.hits-back, g.hits-back, 0
			if e.hits == 0 {
				g.remove(i)
			}
		}
	}
	others.hits = 0
}

// setPrice makes the hits of this process count at another price, rounded down.
func (g *Log) setPrice(price uint64) {
	if g.own == nil {
		g.own = &owned{price: price}
	}
	was := g.own.price
	if g.own.price = price; was == price {
		return
	}
	kept := 0
	g.hits = 0
	for i := range g.len {
		e := *g.at(i)
		if e.hits = min(product(e.hits, price).floorDiv(was), 2*MaxHits); e.hits > 0 {
			*g.at(kept) = e
			g.hits += e.hits
			kept++
		}
	}
	g.len = kept
}

// addOwn adds hits of this process: to the newest entry, if that is in the same cell.
func (g *Log) addOwn(cell, at Instant, hits uint64) {
	g.hits += hits
	if g.len > 0 {
		newest := g.at(g.len - 1)
		if at = max(at, newest.at); at/cell == newest.at/cell {
			newest.at = at
			newest.hits += hits
			return
		}
	}
	g.push(logged{at: at, hits: hits})
}

func (g *Log) clear() { g.head, g.len, g.hits, g.last = 0, 0, 0, 0 }
