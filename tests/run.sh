#!/usr/bin/env bash
# The whole check, as root, also on a fresh Debian or Ubuntu machine: installs missing packages,
# starts Docker if it does not run (and stops it again), then goes from fast to slow. The last line is
# `N passed, N failed`; the exit code is 0 only if nothing failed.
#
#   MINIK8S_ROUNDS=100 tests/run.sh    runs all rounds of faults (1000: all random commits, too)
#   MINIK8S_STAGES="format lint" …     runs only these stages
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here" || exit 1
# shellcheck source=deploy/lib/prerequisites.sh
. "$here/deploy/lib/prerequisites.sh"

stages=${MINIK8S_STAGES:-"format build lint docs beside unit e2e beside_still licences"}
passed=0
failed=0
failures=()
scratch=$(mktemp -d)
began=$SECONDS
beside=$scratch/beside

# Stops everything that this script started, however it ends.
finish() {
	# Output that an interrupted run did not show.
	[ ! -f "$scratch/waits.log" ] || cat "$scratch/waits.log"
	if [ -d "$beside" ]; then
		say "ending the node that ran beside the tests"
		"$(target_dir)/debug/minik8s" down --state-dir "$beside/state" >/dev/null || say "it did not end cleanly"
		docker rmi minik8s-sample/busybox:1 >/dev/null 2>&1
		rm -rf "$beside"
	fi
	# Only while no other test run uses them (tests/harness/image.rs holds the lock).
	local tests=${TMPDIR:-/tmp}/minik8s-tests
	if [ -e "$tests/images.lock" ]; then
		flock --nonblock "$tests/images.lock" \
			docker rmi minik8s-e2e/busybox:1 minik8s-e2e/busybox:2 >/dev/null 2>&1
		if [ -f "$tests/python.made" ]; then
			flock --nonblock "$tests/images.lock" sh -c 'xargs docker rmi < "$1" && rm "$1"' - "$tests/python.made" \
				>/dev/null 2>&1
		fi
	fi
	if [ -f "$scratch/dockerd.pid" ]; then
		local pid
		pid=$(cat "$scratch/dockerd.pid")
		say "ending the Docker that this script started"
		kill "$pid" 2>/dev/null
		for _ in $(seq 1 100); do
			kill -0 "$pid" 2>/dev/null || break
			sleep 0.1
		done
	fi
	rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Clippy and rustfmt, which minimal installations of Rust lack.
install_rust_tools() {
	cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return 0
	if command -v rustup >/dev/null; then
		rustup component add rustfmt clippy
	elif has_candidate rustfmt-web; then
		apt-get install -y -qq --no-install-recommends rustfmt-web rust-web-clippy >/dev/null
	else
		apt-get install -y -qq --no-install-recommends rustfmt rust-clippy >/dev/null
	fi
}

# stage NAME COMMAND...: runs the command, shows its output, and adds up its tests: the counts of test
# programs, else the command as one test.
stage() {
	local name=$1 log="$scratch/$1.log" start=$SECONDS status good bad
	shift
	case " $stages " in *" $name "*) ;; *) return 0 ;; esac
	say "$name: $*"
	"$@" 2>&1 | tee "$log"
	status=${PIPESTATUS[0]}
	good=$(sed -n 's/^test result: .* \([0-9]*\) passed; .*/\1/p' "$log" | paste -sd+ - | bc_or_zero)
	bad=$(sed -n 's/^test result: .* \([0-9]*\) failed; .*/\1/p' "$log" | paste -sd+ - | bc_or_zero)
	if [ "$((good + bad))" = 0 ]; then
		if [ "$status" = 0 ]; then good=1; else bad=1; fi
	elif [ "$status" != 0 ] && [ "$bad" = 0 ]; then
		bad=1 # it did not build, or died before it could count
	fi
	passed=$((passed + good))
	failed=$((failed + bad))
	if [ "$bad" != 0 ]; then
		failures+=("$name")
		# Failed tests and reasons, repeated at the end, where the logs of the daemons don't hide them.
		grep -nE '^(Error:|thread .* panicked|test .* FAILED|error(\[|:))' -A 2 "$log" | head -40 | cut -c 1-1000 >>"$scratch/why"
	fi
	say "$name: $good passed, $bad failed, $((SECONDS - start)) s"
}

# Adds up `1+2+3`; 0 for no input.
bc_or_zero() {
	local sum
	read -r sum
	echo $((${sum:-0}))
}

# Compiles with clippy's driver, so that one build serves lints and tests.
build() {
	local driver
	driver=$(command -v clippy-driver || echo "$(rustc --print sysroot)/bin/clippy-driver")
	RUSTC_WORKSPACE_WRAPPER=$driver cargo "$@"
}

# Repeats the warnings of the existing build, and fails if there are any.
lint() {
	local log="$scratch/warnings.log"
	build build "${all[@]}" --all-targets 2>&1 | tee "$log" | grep -v '^ *Compiling'
	! grep -qE '^(warning|error)' "$log"
}

# Runs rustdoc's lints on our four libraries, reusing the build's artifacts: `cargo doc` would check all dependencies
# again, and render pages (`just lint` does, and lints the two main.rs, too). There are no doc tests, but to run them
# cargo calls rustdoc with all its arguments, whatever `doctest` in a Cargo.toml says; the wrapper makes it lint instead.
# `--check` needs RUSTC_BOOTSTRAP; set for cargo itself, it would rebuild everything.
documents() {
	cat >"$scratch/rustdoc" <<-'END'
		#!/bin/bash
		args=()
		while [ $# -gt 0 ]; do
			case $1 in
			--test) ;;
			--test-run-directory) shift ;;
			*) args+=("$1") ;;
			esac
			shift
		done
		RUSTC_BOOTSTRAP=1 exec rustdoc "${args[@]}" --check --document-private-items -Z unstable-options -D warnings
	END
	chmod +x "$scratch/rustdoc"
	RUSTDOC=$scratch/rustdoc build test "${all[@]}" --no-fail-fast --doc --quiet
}

# All test programs except the end-to-end one, in two parallel runs: the tests within the crates, most of which compute,
# and those that wait for Docker and etcd. The election (all that `e[!2]*` is) runs alone: it asserts a bound with half a
# second to spare. Doc comments hold no code to run.
unit() {
	local status=0 waits
	(build test "${all[@]}" --no-fail-fast --quiet --test '[!e]*') >"$scratch/waits.log" 2>&1 &
	waits=$!
	build test "${all[@]}" --no-fail-fast --quiet --lib --bins || status=$?
	wait "$waits" || status=$?
	cat "$scratch/waits.log"
	rm "$scratch/waits.log"
	build test "${all[@]}" --no-fail-fast --quiet --test 'e[!2]*' || status=$?
	return "$status"
}

# A node like the quickstart's runs alongside the tests: neither may disturb the other.
run_beside() {
	if "$(target_dir)/debug/minik8s" status >/dev/null 2>&1; then
		say "a node runs here already"
		return 0
	fi
	make_busybox_image minik8s-sample/busybox:1
	mkdir -p "$beside/sample"
	cp -R "$here/sample-repo/." "$beside/sample/"
	git -C "$beside/sample" init -q --initial-branch=main &&
		git -C "$beside/sample" add -A &&
		git -C "$beside/sample" -c user.name=tests -c user.email=tests@localhost commit -q -m "Sample manifests"
	"$(target_dir)/debug/minik8s" up --detach --state-dir "$beside/state" --repo "$beside/sample" --branch main
}

# The end-to-end tests hold a cluster each, and mostly wait for leases and grace periods: four in parallel leave two
# cores idle for a tenth of the time. They run in order of name, and the longest have names that come early: a_long,
# autoscales, functions, jobs.
end_to_end() {
	MINIK8S_BIN_DIR=$(target_dir)/debug build test "${all[@]}" --test e2e -- --test-threads=4
}

# Checks the node beside the tests after they end, and calls its function, which is asleep by then.
still_healthy() {
	[ -d "$beside" ] || return 0
	export MINIK8S_SERVER=unix://$beside/state/run/api.sock
	"$(target_dir)/debug/minik8s" status | tee "$scratch/status" && grep -q '7/7 ready' "$scratch/status" &&
		"$(target_dir)/debug/minik8s" invoke hello -d '{"name": "Ada"}' --gateway http://127.0.0.1:8081 |
		tee "$scratch/answer" &&
		grep -q 'Ada' "$scratch/answer"
}

target_dir() { cargo metadata --format-version 1 --no-deps --offline | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'; }

require_root_and_apt
want_build_and_node
want_tests
install_wanted
want_browser
install_wanted
install_rust
install_rust_tools
ensure_docker "$scratch/dockerd.pid" "$scratch/dockerd.log"

export CARGO_TERM_COLOR=never RUST_BACKTRACE=0
# A clean build is faster, and takes half the disk, without the data that the next build could reuse.
# Debug line numbers are not needed: no backtrace is printed.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
# The same selection everywhere, so that no dependency is built twice with different features.
all=(--locked --workspace --all-features)
stage format cargo fmt --all --check
stage build build build "${all[@]}" --all-targets --quiet
stage lint lint
stage docs documents
stage beside run_beside
stage unit unit
stage e2e end_to_end
stage beside_still still_healthy
if cargo deny --version >/dev/null 2>&1; then
	stage licences cargo deny --offline check licenses bans sources
else
	say "licences: not looked at, cargo-deny is not installed"
fi

why=$(cat "$scratch/why" 2>/dev/null)
trap - EXIT
finish
[ ${#failures[@]} = 0 ] || say "failed: ${failures[*]}"
[ -z "$why" ] || echo "$why"
say "$((SECONDS - began)) s in all"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
