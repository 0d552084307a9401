# The parts of tests/run.sh one by one, and what takes longer than a check may.

# Debug build of everything.
build:
    cargo build --workspace

# Unit and property tests, and the shape of the tree. Needs no root.
test:
    cargo test --workspace --all-features --lib --bins
    cargo test -p minik8s-schema --all-features
    cargo test -p minik8s-tests --test tidy

# End-to-end tests: root, Docker, etcd. `just e2e crash` runs those whose name holds the word.
e2e *FILTER:
    cargo test -p minik8s-tests --test e2e -- --test-threads=2 {{FILTER}}

# The long tests in full.
soak:
    MINIK8S_ROUNDS=20 cargo test -p minik8s-tests --test e2e -- --test-threads=1
    cargo bench -p minik8s-tests --bench spine

# Our figures beside the bare engine's.
bench:
    cargo bench -p minik8s-tests --bench spine

# Format in place.
fmt:
    cargo fmt --all

# What CI refuses.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# Write the generated pages anew, then build the API documentation.
docs:
    MINIK8S_UPDATE=1 cargo test -q -p minik8s-tests --test tidy
    cargo doc --workspace --no-deps

# One node on this machine from sample-repo/.
quickstart:
    ./deploy/quickstart.sh
