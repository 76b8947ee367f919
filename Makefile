# `make help` tells what there is. Where redis-server (or valkey-server) >= 6.2 is installed, plain cargo is enough.
.DEFAULT_GOAL := help
.PHONY: help run build test faults faults-full soak bench bench-full contract openapi clean tools redis

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 13

run: tools redis ## start it on http://127.0.0.1:8710 with a Redis of its own; data in ./.duepost
	cargo run --release --locked -- dev

build: tools ## the release binary: target/release/duepost
	cargo build --release --locked

test: tools redis ## format, lints, then every test against real redis-server processes
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run --locked; \
	else \
		set -x; cargo test --locked; \
	fi

faults: tools redis ## only the fault trials of `make test`; DUEPOST_FAULTS_SEED=n replays
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run --locked --test faults; \
	else \
		set -x; cargo test --locked --test faults -- --test-threads 2; \
	fi

faults-full: tools redis ## the same ten times as large, in release; writes docs/fault-report.md
	rm -rf target/tmp/faults-full
	DUEPOST_FAULTS=full cargo test --release --locked --test faults -- --test-threads 1 --nocapture
	cargo test --release --locked --test faults -- --ignored write_the_fault_report

soak: tools redis ## half an hour of random faults on a Cluster and three services, a million tasks, in release
	DUEPOST_FAULTS=full cargo test --release --locked --test faults -- --ignored --exact soak::soak --nocapture

bench: tools redis ## how fast it is on this machine, in three minutes; shows the change since the last time
	cargo bench --locked --bench speed

bench-full: tools redis ## the same at leisure; writes docs/benchmarks.md
	cargo bench --locked --bench speed -- --full

contract: tools redis ## schemathesis and generated clients against a running service; needs python3, node, go, java
	sh tests/contract/run.sh

openapi: tools ## write openapi/openapi.json anew from the code
	@mkdir -p openapi
	cargo run --locked -- openapi > openapi/openapi.json.part
	mv openapi/openapi.json.part openapi/openapi.json

clean: ## remove what was built; the data in ./.duepost stays
	cargo clean

redis:
	@sh scripts/ensure-redis.sh

tools:
	@command -v cargo >/dev/null || { echo "error: cargo is missing: install Rust from https://rustup.rs" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "error: cc is missing: install build-essential (Debian, Ubuntu), gcc (Fedora), build-base (Alpine) or the Xcode tools (macOS)" >&2; exit 1; }
