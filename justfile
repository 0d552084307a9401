# The parts of tests/run.sh one by one, and longer runs.

# Debug build of everything.
build:
    cargo build --workspace

# Unit and property tests, and the tidy test. Needs no root.
test:
    cargo test --workspace --all-features --lib --bins
    cargo test -p minik8s-schema --all-features
    cargo test -p minik8s-tests --test tidy

# End-to-end tests: root, Docker, etcd. `just e2e crash` runs those whose name contains the word.
e2e *FILTER:
    cargo test -p minik8s-tests --test e2e -- --test-threads=4 {{FILTER}}

# The long tests in full. `just soak crash` runs the stories whose name contains the word, in full and four at once;
# `just soak metrics` lets alerts fire by real faults, `just soak word_back` tells forges of 200 commits while leaders
# are killed, and `just soak trust` replaces the authority of five machines under load (40 minutes: a node is away for
# twice the shortest lifetime of its certificate). MINIK8S_SEED=… repeats a walk.
soak WORD="":
    #!/usr/bin/env bash
    set -euo pipefail
    export MINIK8S_SEED=${MINIK8S_SEED:-$(date +%s)}
    word={{quote(WORD)}}
    if [ -n "$word" ]; then
        MINIK8S_ROUNDS=100 cargo test -p minik8s-tests --test e2e -- --nocapture --test-threads=4 "$word"
        exit
    fi
    MINIK8S_ROUNDS=100 cargo test -p minik8s-tests --test e2e -- --nocapture --test-threads=1
    MINIK8S_ROUNDS=1000 \
        cargo test -p minik8s-reconciler --lib -- --nocapture gitops::tests::walk gitops::tests::any_kind
    MINIK8S_ROUNDS=1000 cargo test -p minik8s-reconciler --lib -- --nocapture interleavings
    MINIK8S_ROUNDS=20000 cargo test -p minik8s-reconciler --lib -- --nocapture readers
    MINIK8S_FUZZ_ROUNDS=20000 cargo test -p minik8s-schema --all-features --test fuzz_smoke
    MINIK8S_FUZZ_ROUNDS=20000 cargo test -p minik8s-reconciler --lib fuzz_smoke

# Fuzzes each target for SECONDS. Needs `cargo install cargo-fuzz` and a C++ compiler. The toolchain is
# stable, so RUSTC_BOOTSTRAP makes it accept the fuzzer's flags, and there is no sanitizer: all code is safe
# Rust, where only panics are to be found.
fuzz SECONDS="60":
    for target in manifest_load dialects webhook; do \
        seeds=tests/fuzz/seeds; [ $target != webhook ] || seeds=tests/fuzz/requests; \
        mkdir -p tests/fuzz/corpus/$target; \
        RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir tests/fuzz --sanitizer none $target \
            tests/fuzz/corpus/$target $seeds -- \
            -max_total_time={{SECONDS}} -max_len=8192 -timeout=10 -rss_limit_mb=1024 || exit 1; \
    done

# Our figures next to the bare engine's; installs the programs for comparison. Needs a quiet machine, and root.
bench:
    #!/usr/bin/env bash
    set -euo pipefail
    . deploy/lib/prerequisites.sh
    want_build_and_node; want_tests; want_bench; install_wanted
    cargo bench -p minik8s-tests --bench spine

# Format in place.
fmt:
    cargo fmt --all

# Everything that CI rejects, and docs that can't be rendered.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --document-private-items

# Rewrites the generated pages, then builds the API documentation.
docs:
    MINIK8S_UPDATE=1 cargo test -q --workspace --all-features --test tidy --test published --test rules --test metrics
    cargo doc --workspace --no-deps

# One node on this machine from sample-repo/.
quickstart:
    ./deploy/quickstart.sh
