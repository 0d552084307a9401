#!/usr/bin/env bash
# Turns a fresh Debian or Ubuntu machine into a healthy node on sample-repo/, as root. Running it again is harmless.
# `--with-slurm` also sets up a single-machine Slurm, and runs the sample's batch job on it.
# `--remove` removes everything it created (but not the packages).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/lib/prerequisites.sh
. "$here/deploy/lib/prerequisites.sh"
# shellcheck source=deploy/lib/slurm.sh
. "$here/deploy/lib/slurm.sh"

home=${MINIK8S_QUICKSTART_DIR:-/var/lib/minik8s-quickstart}
state=${MINIK8S_STATE_DIR:-/var/lib/minik8s}
slurm=$home/slurm
remote=$home/manifests.git
clone=$home/manifests
image=minik8s-sample/busybox:1
# Commands find the socket of the default state directory by themselves.
server=
if [ "$state" != /var/lib/minik8s ]; then
	server="unix://$state/run/api.sock"
	export MINIK8S_SERVER=$server
fi
built=$here/target/quickstart
bin=$built
# Services run programs that every user may run, wherever this repository is.
systemd=
if [ -d /run/systemd/system ] && [ "$state" = /var/lib/minik8s ]; then
	systemd=yes
	bin=/usr/local/bin
fi
times=()

# timed WHAT COMMAND...: runs the command and records its duration.
timed() {
	local what=$1 start=$SECONDS
	shift
	"$@"
	times+=("$(printf '%-12s %4d s' "$what" $((SECONDS - start)))")
}

remove() {
	if [ ! -d "$home" ] && [ ! -d "$state" ]; then
		say "nothing to remove"
		return 0
	fi
	if [ -x "$bin/minik8s" ]; then "$bin/minik8s" down; fi
	if [ -n "$systemd" ]; then
		rm -f "$bin/minik8s" "$bin/minik8s-agent"
		git config --file /etc/gitconfig --unset-all safe.directory "^$remote\$" || true
	fi
	stop_slurm "$slurm"
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
		# Whatever the umask: the reconciler of a service is not root.
		chmod 755 "$home"
		git init -q --bare --shared=0644 --initial-branch=main "$remote.new"
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
	(cd "$here" && cargo build --target-dir "$here/target" --profile quickstart --locked --bin minik8s --bin minik8s-agent) ||
		die "the build failed; see above"
	if [ -n "$systemd" ]; then install -m 755 "$built/minik8s" "$built/minik8s-agent" "$bin"; fi
}

next_steps() {
	cat <<TEXT

A node runs what $clone says. Try:

  export PATH=$bin:\$PATH${server:+ MINIK8S_SERVER=$server}
  curl http://localhost:8088/                      # the pod 'hello', through its hostPort
  cd $clone
  sed -i 's/Hello/Good morning/' apps/hello.yaml
  git commit -qam 'Say it differently' && git push -q
  minik8s wait --for healthy --commit \$(git rev-parse HEAD) && curl http://localhost:8088/
  minik8s describe pod/hello                       # which commit and line set it, and what it does
  minik8s logs hello
  minik8s history HEAD --timeline                  # where the time from the push to the pod went

All of it in a browser on this machine: minik8s ui   # prints the address
To take everything away again: $here/deploy/quickstart.sh --remove
TEXT
}

case "${1:-}" in
-h | --help)
	sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"
	exit 0
	;;
"" | --with-slurm | --remove) require_root_and_apt ;;
*) die "unknown option $1; use none, --with-slurm, --remove or --help" ;;
esac
case "${1:-}" in
--remove)
	remove
	exit 0
	;;
esac

packages() {
	want_build_and_node
	if [ -n "$with_slurm" ]; then
		want_slurm
		want_for ssh openssh-client
		want_file /usr/sbin/sshd openssh-server
	fi
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
	if [ -n "$systemd" ]; then
		# The repository is root's, and the reconciler another user.
		if ! git config --file /etc/gitconfig --get-all safe.directory | grep -qxF "$remote"; then
			git config --file /etc/gitconfig --add safe.directory "$remote"
		fi
		"$bin/minik8s" up --systemd --repo "$remote" --branch main
	else
		"$bin/minik8s" up --detach --repo "$remote" --branch main
	fi
}

# Brings the clone up to date with the repository, to which others may have pushed; commits that are only here go on top.
update_clone() {
	local branch
	branch=$(git -C "$clone" symbolic-ref -q --short HEAD) || branch="no branch"
	[ "$branch" = main ] || die "$clone is on $branch instead of main; run: git -C $clone checkout main"
	git -C "$clone" fetch -q origin main || die "could not fetch from $remote into $clone; see above"
	if git -C "$clone" rebase -q --autostash FETCH_HEAD; then
		# Edits that are not committed are put back last.
		[ -z "$(git -C "$clone" ls-files -u)" ] || die "your edits in $clone conflict with what others pushed; resolve them"
		return 0
	fi
	git -C "$clone" rebase --abort || true
	not_pushed "could not put on top of what others pushed"
}

# Pushes the commits that are only in the clone, if any.
push_clone() {
	git -C "$clone" push -q origin main || not_pushed "could not push"
}

# not_pushed WHY: ends the script with the commits that are only in the clone, and how to push them.
not_pushed() {
	git -C "$clone" log --oneline origin/main..main >&2
	die "$1 the commits above, which are only in $clone; run:" \
		"git -C $clone pull --rebase origin main && git -C $clone push origin main, and then this script again"
}

# Gives the sample's job the login of that Slurm, and stores the key as a secret of the cluster.
add_job() {
	local me=("$bin/minik8s" secrets --dir "$clone" --identity "$home/age-identity.txt") manifest=$clone/jobs/matrix.yaml
	local key node recipient
	update_clone
	if ! grep -qx 'jobs/' "$clone/.minik8signore"; then
		say "the job of the sample is in the repository already"
		push_clone
		return 0
	fi
	recipient=$(sed -n 's/^# public key: //p' "$state/agent/age-identity.txt")
	node=$("$bin/minik8s" get nodes -o name)
	if [ ! -e "$clone/secrets/.identity/cluster.age" ]; then
		"${me[@]}" init --node "${node#node/}=$recipient"
	fi
	{
		echo 'id_ed25519: |'
		sed 's/^/  /' "$slurm/user_key"
	} | "${me[@]}" seal slurm --shared --from -
	key=$(cut -d' ' -f1,2 "$slurm/host_key.pub")
	sed -i -e "s|^    host: .*|    host: 127.0.0.1\n    port: $SLURM_PORT\n    hostKeys: [$key]|" \
		-e 's/^    username: .*/    username: root/' -e "s|^  files: .*|&\n  workDir: $slurm/jobs|" "$manifest"
	sed -i '/^jobs\/$/d' "$clone/.minik8signore"
	git -C "$clone" add secrets jobs .minik8signore
	git -C "$clone" commit -q -m "Run the batch job on a Slurm of this machine"
	push_clone
	"$bin/minik8s" wait --for synced --commit "$(git -C "$clone" rev-parse HEAD)" --timeout 60s
}

job_has_succeeded() { "$bin/minik8s" get jobs matrix --no-headers | grep -q Succeeded; }

run_job() {
	start_slurm "$slurm"
	add_job
	say "waiting for the job matrix"
	slurm_wait "the job matrix has not succeeded" "'minik8s describe job/matrix'" job_has_succeeded
	"$bin/minik8s" get jobs
	"$bin/minik8s" logs job/matrix
}

with_slurm=
if [ "${1:-}" = --with-slurm ]; then with_slurm=yes; fi
timed packages packages
timed docker start_docker
timed build build
timed node start_node
if [ -n "$with_slurm" ]; then timed slurm run_job; fi
echo
"$bin/minik8s" status
"$bin/minik8s" get pods
echo
printf '%s\n' "${times[@]}"
printf '%-12s %4d s\n' "in all" "$SECONDS"
next_steps
