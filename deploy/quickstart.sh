#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to one healthy node on sample-repo/, as root. Running it
# again is harmless. `--remove` takes away everything it made (but not the packages).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/lib/prerequisites.sh
. "$here/deploy/lib/prerequisites.sh"

home=${MINIK8S_QUICKSTART_DIR:-/var/lib/minik8s-quickstart}
remote=$home/manifests.git
clone=$home/manifests
image=minik8s-sample/busybox:1
bin=$here/target/quickstart
times=()

# timed WHAT COMMAND...: runs it and notes how long it took.
timed() {
	local what=$1 start=$SECONDS
	shift
	"$@"
	times+=("$(printf '%-12s %4d s' "$what" $((SECONDS - start)))")
}

remove() {
	if [ ! -d "$home" ] && [ ! -d /var/lib/minik8s ]; then
		say "nothing to remove"
		return 0
	fi
	if [ -x "$bin/minik8s" ]; then "$bin/minik8s" down; fi
	if [ -f "$home/dockerd.pid" ]; then
		say "ending the Docker that this script started"
		docker rmi "$image" >/dev/null 2>&1 || true
		kill "$(cat "$home/dockerd.pid")" 2>/dev/null || true
	else
		docker rmi "$image" >/dev/null 2>&1 || true
	fi
	rm -rf "$home"
	say "removed $home"
}

make_repository() {
	if [ ! -d "$remote" ]; then
		say "making the Git repository $remote from sample-repo/"
		git init -q --bare --initial-branch=main "$remote.new"
		rm -rf "$clone"
		git clone -q "$remote.new" "$clone" 2>/dev/null
		cp -R "$here/sample-repo/." "$clone/"
		git -C "$clone" checkout -q -B main
		git -C "$clone" config user.name "${GIT_AUTHOR_NAME:-quickstart}"
		git -C "$clone" config user.email "${GIT_AUTHOR_EMAIL:-quickstart@localhost}"
		git -C "$clone" add -A
		git -C "$clone" commit -q -m "Sample manifests"
		git -C "$clone" push -q origin main
		mv "$remote.new" "$remote"
		git -C "$clone" remote set-url origin "$remote"
	fi
}

build() {
	say "building (a few minutes the first time)"
	(cd "$here" && cargo build --profile quickstart --locked --bin minik8s --bin minik8s-agent) ||
		die "the build failed; see above"
}

next_steps() {
	cat <<TEXT

A node runs what $clone says. Try:

  export PATH=$bin:\$PATH
  curl http://localhost:8088/                      # the pod 'hello', through its hostPort
  cd $clone
  sed -i 's/Hello/Good morning/' apps/hello.yaml
  git commit -qam 'Say it differently' && git push -q
  minik8s wait --for healthy --commit \$(git rev-parse HEAD) && curl http://localhost:8088/
  minik8s describe pod/hello                       # which commit and line set it, and what it does
  minik8s logs hello

To take everything away again: $here/deploy/quickstart.sh --remove
TEXT
}

case "${1:-}" in
-h | --help)
	sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"
	exit 0
	;;
"" | --remove) require_root_and_apt ;;
*) die "unknown option $1; use none, --remove or --help" ;;
esac
case "${1:-}" in
--remove)
	remove
	exit 0
	;;
esac

packages() {
	want_build_and_node
	install_wanted
	install_rust
}

start_docker() {
	mkdir -p "$home"
	ensure_docker "$home/dockerd.pid" "$home/dockerd.log"
}

start_node() {
	make_busybox_image "$image"
	make_repository
	say "starting one node"
	"$bin/minik8s" up --detach --repo "$remote" --branch main
}

timed packages packages
timed docker start_docker
timed build build
timed node start_node
echo
"$bin/minik8s" status
"$bin/minik8s" get pods
echo
printf '%s\n' "${times[@]}"
printf '%-12s %4d s\n' "in all" "$SECONDS"
next_steps
