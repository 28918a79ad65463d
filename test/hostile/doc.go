// Package hostile attacks a running sidecar from outside. Each attack runs against the real binary,
// started with its defaults, in a memory cgroup of 256 MiB as in deploy/k8s. Beside each attack an
// honest client asks 200 times a second on its own connection, and a newcomer connects ten times a
// second. The process must live on, below a stated ceiling of memory. Each honest request must get
// an answer, and no answer may be wrong.
//
// A trap is no load: a file, another process or a peer that lies in the way of the program. Traps
// are rows of tables, too.
//
// The attacks are rows of tables: messages, headers, floods, slow peers, connections, pages, keys,
// the admin service, a Unix socket and a hostile Redis. SECURITY.md names each attack and each
// trap, and the bound that holds; a test compares the page with the tables.
//
// Without more each attack takes less than a second and meets a store of 20 000 keys. With the
// environment variable HOSTILE=30s each lasts so long, and meets a million keys. `go test -v`
// prints the figures: memory, answers, and the latency of the honest client.
//
// With WEIR_GRPC_SERVER=grpc the program serves with grpc-go, which has no bound of memory over all
// connections. The tables name the attacks that grpc-go loses, and the suite skips them then.
//
// The tests need Linux, and a writable cgroup of version 1 or 2. Without the cgroup the program
// gets GOMEMLIMIT as in such a cgroup, and its resident memory alone is judged. SIDECAR may name
// the binary to attack.
package hostile
