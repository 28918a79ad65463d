# Everything but Go and make is fetched or said to be missing. Developer tools are pinned in
# tools/go.mod. Go compiles each at its first use, golangci-lint in up to 12 minutes on two cores,
# and keeps the result.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules

TOOL := go tool -modfile=tools/go.mod
MODULES := $(patsubst %/go.mod,%,$(wildcard ./go.mod ./*/go.mod ./*/*/go.mod))
# The modules with Go code of ours that is linted and vetted; deploy/crds only pins modules.
LINTED := . bench conformance deploy tools
IMAGE ?= weir
# The version in binaries and images; a build without git says its own: make build VERSION=v1.2.3.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
STAMP = -X github.com/weirproxy/weir/internal/version.linked=$(VERSION) -X github.com/weirproxy/weir/internal/version.revision=$(REVISION)
# With one set of flags the programs share their compiled packages. The tag leaves out grpc's pages
# of traces: with their templates the linker would keep every method of every library.
BUILD = CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags='-s -w $(STAMP)' -o $(OUT)
OUT ?= bin/
BENCH ?= .
BENCHFLAGS ?= -benchmem
TESTFLAGS ?=
GORACE ?=
ARGS ?=
LIMITADOR ?=
SNAPSHOT ?=

# The race detector needs a C compiler; without one the tests run without the detector, except in
# CI.
RACE = $$(if [ "$$(go env CGO_ENABLED)" = 1 ] || [ -n "$${CI:-}" ]; then echo -race; else echo "no C compiler: tests run without the race detector" >&2; fi)

# pkg/algorithms has no goroutines: the race detector would only make its tests five times slower.
PURE := pkg/algorithms
# The packages whose tests are built from the code under test. The tests below test/ start programs.
# `go test` does not see a change of a program, so never take those results from the cache.
# The longest packages come first: at the end no package should run alone.
FIRST := $(addprefix ./,pkg/store/redisstore cmd/sidecar cmd/ratelimit pkg/store/shared pkg/store/memstore pkg/limiter)
UNITS = $$(go list $(FIRST) ./... | grep -v -e '/weir/test/' -e '/weir/$(PURE)$$')
# Sets ENVOY to a real Envoy and REDIS_SERVER to a real Redis. Where one is missing the script says
# so, and tests that need it skip, or fail where WEIR_REQUIRE names it.
FIND = for part in envoy redis; do if path=$$(scripts/$$part.sh); then \
	case $$part in envoy) export ENVOY="$$path" ;; redis) export REDIS_SERVER="$$path" ;; esac; fi; done
# The same of CHROMIUM, for the tests of the admin page.
FIND_CHROMIUM = if path=$$(scripts/chromium.sh); then export CHROMIUM="$$path"; fi

# Runs commands, each shown; all run, and `ended` fails when one failed. Without the trap an
# interrupt would end one command alone: `go test` exits like a test that failed.
RUN = failed=0; trap 'exit 130' INT; run() { (set -x; "$$@") || failed=1; }; ended() { exit "$$failed"; }

# Most tests wait for programs and timers more than they compute, so more of them run at once than
# there are cores.
PARALLEL = -parallel $$((3 * $$(getconf _NPROCESSORS_ONLN)))
# `make check` vets.
GOTEST = go test -vet=off $(PARALLEL) $(TESTFLAGS) -timeout 30m
# The race detector sleeps this long at each end of a program, by default a second.
export GORACE := atexit_sleep_ms=10 $(GORACE)

.PHONY: help
help: ## Show the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

.PHONY: build
build: ## Build bin/sidecar and bin/ratelimit, static binaries
	$(BUILD) ./cmd/sidecar ./cmd/ratelimit

.PHONY: run
run: build ## Serve the example rules on :8081 (gRPC) and :8080 (HTTP); ARGS='--log-level debug' adds flags
	bin/sidecar serve --rules deploy/rules $(ARGS)

.PHONY: demo
demo: build ## Put real Envoy and a small backend in front, and print the curl lines to try
	$(BUILD) ./test/demo
	@ENVOY=$$(scripts/envoy.sh); export ENVOY; exec bin/demo -sidecar bin/sidecar $(ARGS)

.PHONY: test
test: ## Run all tests: unit, property, with real Redis, end to end through real Envoy, with the race detector (about 20 minutes on two cores)
	@$(FIND); $(MAKE) --no-print-directory --keep-going --jobs=2 race e2e sizes manifests

.PHONY: test-short
test-short: ## Run the unit tests with a part of their repetitions, without the race detector, Envoy or the end-to-end tests (2 minutes)
	@$(FIND); units=$(UNITS); set -x; $(GOTEST) -short ./$(PURE) $$units

.PHONY: race
race: ## Run the unit tests with the race detector, except pkg/algorithms, which has no goroutines; the server's also over grpc-go, and with a store that waits
	@$(FIND); $(RUN); race=$(RACE); units=$(UNITS); \
		run scripts/race.sh $(GOTEST) $$race $$units; \
		run env WEIR_GRPC_SERVER=grpc scripts/race.sh $(GOTEST) -short $$race ./pkg/server; \
		run env WEIR_STORE=waits scripts/race.sh $(GOTEST) -short $$race ./pkg/server; \
		ended

.PHONY: sizes
sizes: ## Run pkg/algorithms, and the tests of sizes, repetitions and allocations, without the race detector, which would slow or spoil them
	@$(FIND); $(RUN); run $(GOTEST) ./$(PURE); run scripts/sized.sh $(GOTEST); ended

.PHONY: manifests
manifests: ## Run the tests of deploy/, which start programs, and of tools/
	@$(FIND); $(FIND_CHROMIUM); $(RUN); \
		cd deploy; run $(GOTEST) ./...; \
		cd ../tools; run $(GOTEST) ./...; \
		ended

.PHONY: pictures
pictures: ## Make the pictures of the admin page in docs/images anew, after 3 minutes of traffic through real Envoy
	@$(FIND); $(FIND_CHROMIUM); cd deploy && PICTURES=3m go test -count=1 -run TestPictures -timeout 10m ./page

.PHONY: e2e
# RACE_DETECTOR gives the race detector to the programs under test. The tests themselves do without,
# which saves a third of their CPU. With -short, tests for which another server of Envoy's calls
# changes nothing skip.
e2e: ## Run the end-to-end tests, and some also over grpc-go; TESTFLAGS=-v names each as it runs
	@$(FIND); $(RUN); race=$(RACE); export RACE_DETECTOR=$$race; \
		run $(filter-out -count=1,$(GOTEST)) -count=1 $$race ./test/parts/... ./test/demo/...; \
		run $(filter-out -count=1,$(GOTEST)) -count=1 $$(go list ./test/... | grep -v -e /test/parts -e /test/demo); \
		run env -u RACE_DETECTOR WEIR_GRPC_SERVER=grpc $(filter-out -count=1,$(GOTEST)) -count=1 -short ./test/e2e ./test/hostile; \
		ended

.PHONY: conformance
conformance: build ## Play the suite for rate limit services against both programs, with Redis where there is one
	CGO_ENABLED=0 go -C conformance build -trimpath -o ../bin/rls-conformance ./rls-conformance
	@$(FIND); $(RUN); redis=$${REDIS_SERVER:+--redis=$$REDIS_SERVER}; \
		run bin/rls-conformance run --starter weir-sidecar --program bin/sidecar --profile weir $$redis $(ARGS); \
		run bin/rls-conformance run --starter weir-ratelimit --program bin/ratelimit $$redis $(ARGS); \
		run bin/rls-conformance run --starter weir-ratelimit-stop --program bin/ratelimit --cases '^(denials|races|hits)/' $$redis $(ARGS); \
		ended

.PHONY: conformance-mutants
conformance-mutants: ## Play the suite against a small service with deliberate faults: a case must find each (a minute and a half)
	@$(FIND); go -C conformance test -count=1 -parallel 40 ./...

.PHONY: platforms
# Variables of make reach the tests as environment.
platforms: ## Play the tests and examples of other projects against Weir. PLATFORMS_GATEWAY and PLATFORMS_ISTIO name trees of their source
	@$(FIND); $(RUN); export PLATFORMS_RATELIMIT=$${PLATFORMS_RATELIMIT:-module}; \
		run go -C deploy test -count=1 -v -timeout 60m -run 'EndAsThePageSays|ThatItShows|ContoursExample' . ./platforms; \
		run go test -count=1 -v -run TheTwoCallsOfAgentgateway ./pkg/server; \
		ended

.PHONY: bench
bench: ## Run the benchmarks, and Weir against a bare gRPC server, through Envoy and with Redis (about 20 minutes); BENCH=regexp chooses, BENCHFLAGS and ARGS add
	go test -run '^$$' -bench '$(BENCH)' $(BENCHFLAGS) ./pkg/...
	@scripts/h2load.sh >/dev/null
	go -C bench run ./grpcbench -shapes 4x50,2x25,1x8,1x1 -servers '^(floor|lane|pair)$$' $(ARGS)
	go -C bench run ./grpcbench -load h2load -shapes 4x50,2x25,1x8,1x1 -servers '^(grpc|lane|nghttpd)$$' $(ARGS)
	go -C bench run ./grpcbench -shapes 4x50,1x8,1x1 -network tls -servers '^lane$$' $(ARGS)
	go -C bench run ./latency -store memory -rate 0 -rounds 3
	@$(FIND); set -x; \
		[ -z "$${ENVOY:-}" ] || go -C bench run ./grpcbench -envoy -shapes 4x12,2x1 $(ARGS); \
		[ -n "$${REDIS_SERVER:-}" ] || exit 0; \
		go -C bench run ./grpcbench -store redis -keys 10000 $(ARGS); \
		go -C bench run ./grpcbench -store redis -shapes 1x1 -servers '(fixed_window|token_bucket)$$' $(ARGS); \
		go -C bench run ./latency; \
		go -C bench run ./grpcbench -store leased $(ARGS); \
		go -C bench run ./latency -store leased -keys 1 -rate 0 -rounds 3; \
		go -C bench run ./fleet -scenario 'steady.*' $(ARGS)

.PHONY: histories
histories: ## Record the answers of a fleet under faults, and judge them (4 minutes); ARGS='-operations 10000000 -file histories.gz' is long, and keeps them
	@REDIS_SERVER=$$(scripts/redis.sh); export REDIS_SERVER; go -C bench run ./histories $(ARGS)

.PHONY: versus
versus: ## Measure Weir against envoyproxy/ratelimit, limitador and gubernator, and write docs/versus.md (12 minutes and the builds); LIMITADOR=dir is a tree of its source
	@REDIS_SERVER=$$(scripts/redis.sh); export REDIS_SERVER; go -C bench run ./versus -limitador "$(LIMITADOR)" -page docs/versus.md $(ARGS)

.PHONY: fleet
fleet: ## Measure a fleet while Redis or a sidecar fails, from its clients' side (25 minutes); ARGS='-scenario late' chooses
	@REDIS_SERVER=$$(scripts/redis.sh); export REDIS_SERVER; go -C bench run ./fleet $(ARGS)

.PHONY: lint
lint: ## Lint the Go code, and count sentences that are not plain English (a first run compiles the linter: up to 12 minutes)
	@$(RUN); for module in $(LINTED); do run go -C "$$module" tool -modfile=$(CURDIR)/tools/go.mod golangci-lint run ./...; done; \
		run go run ./internal/testing/plain -max internal/testing/plain/max; \
		ended

.PHONY: check
check: lint ## Check all that is not a test: lint, vet, protobuf, workflows, generated code, go.mod
	@for module in $(LINTED); do (set -x; go -C "$$module" vet ./...); done
	$(TOOL) buf lint
	$(TOOL) buf format --diff --exit-code
	$(TOOL) actionlint -shellcheck= -pyflakes= .github/workflows/*.yml deploy/ci/github.yaml
	scripts/breaking.sh
	scripts/generated.sh
	@for module in $(MODULES); do (set -x; cd "$$module"; go mod tidy -diff); done

.PHONY: vulnerabilities
vulnerabilities: ## Find known vulnerabilities in code that Weir calls; ARGS=-db=URL chooses a database
	@scripts/vulnerabilities.sh $(ARGS) ./...

.PHONY: bom
bom: build ## Write bin/sidecar.bom.json and bin/ratelimit.bom.json, software bills of materials
	@scripts/bom.sh '$(VERSION)' bin/sidecar bin/ratelimit

.PHONY: release
release: ## Write the files of a release to dist/: archives, images, chart, bills of materials, checksums (5 minutes). The commit must have the tag of the chart's version; SNAPSHOT=1 does without
	@scripts/release.sh $(if $(SNAPSHOT),--snapshot)

.PHONY: generate
generate: ## Write the generated code anew
	$(TOOL) buf generate
	go generate ./...

.PHONY: image
image: ## Build the container image (IMAGE=name:tag)
	@command -v docker >/dev/null || { echo "no image: docker is missing" >&2; exit 1; }
	@docker info >/dev/null 2>&1 || { echo "no image: docker is here, but no engine answers it" >&2; exit 1; }
	docker build -f deploy/Dockerfile --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) -t $(IMAGE) .
