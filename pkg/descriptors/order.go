package descriptors

// maxOrderSteps bounds the search of Order. A search of 16 entries in a tree of usual rules takes a
// few dozen.
const maxOrderSteps = 10_000

// Order sorts entries without an order, such as a bucket id of RLQS. The domain has a rule for the
// entries in the new order. Order returns the number of orders with a rule. The rule is for all
// entries: none is left out. With no order, or with several, the entries stay in an order of no
// meaning. A search that takes too long counts as several.
func (d *Domain) Order(entries []Entry) (orders int) {
	s := orderSearch{entries: entries, found: make([]Entry, len(entries))}
	s.from(&d.root, 0)
	if s.orders == 1 {
		copy(entries, s.found)
	}
	return s.orders
}

type orderSearch struct {
	entries, found []Entry
	orders, steps  int
}

// from looks for rules below a node. Entries before done are used.
func (s *orderSearch) from(n *node, done int) {
	for i := done; i < len(s.entries) && s.orders < 2; i++ {
		if s.steps++; s.steps > maxOrderSteps {
			s.orders = 2
			return
		}
		last := done == len(s.entries)-1
		next := n.next(s.entries[i].Key, s.entries[i].Value, last)
		if next == nil {
			continue
		}
		s.entries[done], s.entries[i] = s.entries[i], s.entries[done]
		switch {
		case !last:
			s.from(next, done+1)
		case next.rule.limiting():
			if s.orders++; s.orders == 1 {
				copy(s.found, s.entries)
			}
		}
		s.entries[done], s.entries[i] = s.entries[i], s.entries[done]
	}
}
