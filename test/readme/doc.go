// Package readme holds the tests of README.md and docs/: they run the commands that the documents print against the sidecar as built
// (and real Envoy, where a document says `make demo`, and real Redis), compare what comes out with what the documents say, load the rule files that
// they show, and hold their quotes, links and names equal to what is there.
//
// What a fenced block is stands in a comment before it, which readers do not see:
//
//	<!-- test: serve [and] -->      the sidecar is started like this, on ports that are free; and: beside what runs already
//	<!-- test: demo -->             so is what `make demo` starts
//	<!-- test: redis -->            so is a redis-server
//	<!-- test: start ARGS -->       (no block) the sidecar is started with these arguments of serve
//	<!-- test: start nothing -->    (no block) what was started before is over
//	<!-- test: run [exit=N] -->     these commands are run; the next block, without a comment, is what they print
//	<!-- test: file PATH -->        the reader saves this under that path; rules in it load, without a warning
//	<!-- test: file PATH broken --> rules in it do not load, or with warnings
//	<!-- test: rules -->            a rule document that loads, without a warning
//	<!-- test: topology NAME -->    the sidecar is started like this where servers of that kind (see topologies) are at the addresses it names
//	<!-- test: quote PATH -->       these lines stand in that file
//	<!-- test: not run REASON -->   nothing is tested
//
// In what commands print, a line `…` stands for any number of lines; dates do not count, and waits may differ by a few seconds
// (`run waits=any`: by any time). `go test ./test/readme -update` writes what commands print anew.
//
// What needs a Redis is skipped, with a message, where scripts/redis.sh finds none; WEIR_REQUIRE=redis makes that a failure.
//
// Addresses that the documents name (localhost:8080, redis-cli without one, and so on) are replaced by those that the programs were given. Documents are read
// in order, and a command sees what the ones before it did: files, and hits that were counted since the last start.
package readme
