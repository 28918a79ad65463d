package hostile

import "sync"

// togetherAttacks are attacks at the same time: each fills another term of the formula of memory.
func togetherAttacks() []attack {
	return []attack{{
		name:  "all_at_once",
		grpc:  unreadAnswers,
		how:   "at the same time `held_messages_on_many_connections`, `window_zero`, `idle_handshakes`, `held_http_headers`, `json_of_many_items_in_small_bodies`, `unread_pages` and `unique_keys`",
		bound: "the sum of all",
		fresh: true,
		run: func(a *assault) {
			var all sync.WaitGroup
			all.Go(func() { holdMessages(a, 200, 60<<10) })
			all.Go(func() { unread(a, 20, true) })
			all.Go(func() { a.crowd(2000, a.address, []byte(greeting)) })
			all.Go(func() { largeHeaders(a, 1600) })
			all.Go(func() { smallBodies(a) })
			all.Go(func() { unreadPages(a) })
			all.Go(func() { uniqueKeys(a) })
			all.Wait()
		},
	}}
}
