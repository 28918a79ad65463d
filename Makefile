# Everything but Go and make is fetched or said to be missing. Developer tools are pinned in tools/go.mod; the first use of
# each compiles it, a few minutes in all on two cores, and Go keeps the result.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules

TOOL := go tool -modfile=tools/go.mod
MODULES := $(patsubst %/go.mod,%,$(wildcard ./go.mod ./*/go.mod ./*/*/go.mod))
IMAGE ?= weir
BENCH ?= .
BENCHFLAGS ?= -benchmem
TESTFLAGS ?=
ARGS ?=

# The race detector needs a C compiler; where there is none the tests run without it, except in CI.
RACE = $$(if [ "$$(go env CGO_ENABLED)" = 1 ] || [ -n "$${CI:-}" ]; then echo -race; else echo "no C compiler: tests run without the race detector" >&2; fi)

# The packages whose tests are built from what they test. Those below test/ drive programs that `go test` does not see
# change, so they never run from its cache.
UNITS = $$(go list ./... | grep -v '/weir/test/')

# Sets ENVOY to a real Envoy; where there is none to be had, says so and goes on unless WEIR_REQUIRE asks for it. So does
# FIND_REDIS with REDIS_SERVER.
FIND_ENVOY = if envoy=$$(scripts/envoy.sh); then export ENVOY="$$envoy"; else [[ "$${WEIR_REQUIRE:-}" != *envoy* ]]; fi
FIND_REDIS = if redis=$$(scripts/redis.sh); then export REDIS_SERVER="$$redis"; else [[ "$${WEIR_REQUIRE:-}" != *redis* ]]; fi

.PHONY: help
help: ## Show the targets
	@sed -nE 's/^([a-z0-9]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: build
build: ## Build bin/sidecar and bin/ratelimit, static binaries
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/sidecar ./cmd/ratelimit

.PHONY: run
run: build ## Serve the example rules on :8081 (gRPC) and :8080 (HTTP); ARGS='--log-level debug' adds flags
	bin/sidecar serve --rules deploy/rules $(ARGS)

.PHONY: demo
demo: ## Put real Envoy and a small backend in front, and print the curl lines to try
	@ENVOY=$$(scripts/envoy.sh); export ENVOY; go build -o bin/demo ./test/demo && exec bin/demo $(ARGS)

.PHONY: test
test: ## Run all tests: unit, property, with real Redis, end to end through real Envoy, with the race detector
	@$(FIND_REDIS); units=$(UNITS); race=$(RACE); set -x; go test $$race $(TESTFLAGS) -timeout 15m $$units
	@$(FIND_ENVOY); $(FIND_REDIS); race=$(RACE); set -x; go test $$race $(TESTFLAGS) -count=1 -timeout 15m ./test/...

.PHONY: race
race: ## Run all tests but the end-to-end ones with the race detector
	@$(FIND_REDIS); units=$(UNITS); set -x; go test -race $(TESTFLAGS) -count=1 -timeout 15m $$units

.PHONY: e2e
e2e: ## Run the end-to-end tests alone, each named as it runs
	@$(FIND_ENVOY); $(FIND_REDIS); race=$(RACE); set -x; go test $$race $(TESTFLAGS) -count=1 -timeout 15m -v ./test/...

.PHONY: bench
bench: ## Run the benchmarks, and Weir against a bare gRPC server, without and with Redis; BENCH=regexp chooses, BENCHFLAGS adds
	go test -run '^$$' -bench '$(BENCH)' $(BENCHFLAGS) ./pkg/...
	@scripts/h2load.sh >/dev/null
	go run ./internal/bench/grpcbench $(ARGS)
	@$(FIND_REDIS); [ -n "$${REDIS_SERVER:-}" ] || exit 0; set -x; \
		go run ./internal/bench/grpcbench -store redis $(ARGS); \
		go run ./internal/bench/latency; \
		go run ./internal/bench/overadmission -n 100000

.PHONY: lint
lint: ## Lint the Go code
	$(TOOL) golangci-lint run ./...

.PHONY: check
check: lint ## Check all that is not a test: lint, vet, protobuf, generated code, go.mod
	go vet ./...
	$(TOOL) buf lint
	$(TOOL) buf format --diff --exit-code
	scripts/breaking.sh
	scripts/generated.sh
	@for module in $(MODULES); do (set -x; cd "$$module"; go mod tidy -diff); done

.PHONY: generate
generate: ## Write the generated code anew
	$(TOOL) buf generate
	go generate ./...

.PHONY: image
image: ## Build the container image (IMAGE=name:tag)
	@command -v docker >/dev/null || { echo "no image: docker is missing" >&2; exit 1; }
	@docker info >/dev/null 2>&1 || { echo "no image: docker is here, but no engine answers it" >&2; exit 1; }
	docker build -f deploy/Dockerfile -t $(IMAGE) .
