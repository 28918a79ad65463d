// Package readme holds the tests of README.md and docs/. The tests run the documents' commands
// against a built sidecar, real Redis and, for `make demo`, real Envoy, and compare the output with
// the documents. The tests also load the rule files of the documents, and check quotes, links and
// names.
//
// A comment before a fenced block, which readers do not see, gives the block's kind:
//
//	<!-- test: serve [and] -->      the sidecar is started like this, on ports that are free; and:
//	                                beside what runs already
//	<!-- test: demo -->             so is what `make demo` starts
//	<!-- test: redis -->            so is a redis-server
//	<!-- test: start ARGS -->       (no block) the sidecar is started with these arguments of serve
//	<!-- test: start nothing -->    (no block) what was started before is over
//	<!-- test: run [exit=N] -->     these commands are run; the next block, without a comment, is
//	                                what they print
//	<!-- test: file PATH -->        the reader saves this under that path; rules in it load, without
//	                                a warning
//	<!-- test: file PATH broken --> rules in it do not load, or with warnings
//	<!-- test: rules -->            a rule document that loads, without a warning
//	<!-- test: topology NAME -->    the sidecar is started like this where servers of that kind (see
//	                                topologies) are at the addresses it names
//	<!-- test: quote PATH -->       these lines stand in that file
//	<!-- test: envoy -->            a part of a configuration of Envoy, which Envoy's own types
//	                                decode
//	<!-- test: not run REASON -->   nothing is tested
//
// In the output of commands, a line `…` stands for any number of lines. Dates do not count, and
// waits may differ by a few seconds (`run waits=any`: by any time). `go test ./test/readme -update`
// writes the output of commands anew.
//
// Tests that need a Redis skip, with a message, where scripts/redis.sh finds no Redis; with
// WEIR_REQUIRE=redis these tests fail.
//
// The tests replace addresses of the documents (localhost:8080, redis-cli without an address, and
// so on) by the addresses of the programs. The tests read each document in order. A command sees
// the effects of earlier ones: files, and hits since the last start.
package readme
