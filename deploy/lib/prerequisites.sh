# Functions shared by deploy/quickstart.sh and tests/run.sh: install missing packages, start Docker
# if it does not run. To be sourced; changes nothing by itself.
# shellcheck shell=bash

MINIMUM_RUST=88 # the minor version of `rust-version` in Cargo.toml

say() { printf '%s %s\n' "==>" "$*"; }
die() {
	printf 'minik8s: %s\n' "$*" >&2
	exit 1
}

require_root_and_apt() {
	[ "$(id -u)" = 0 ] || die "cannot install packages and run containers: not root; run 'sudo $0'"
	command -v apt-get >/dev/null || die "cannot install packages: no apt-get here; on Debian or Ubuntu it is there, elsewhere install what docs/quickstart.md lists and run $0 again"
}

# want_for COMMAND PACKAGE...: adds the packages to the wanted ones if the command is missing.
WANTED_PACKAGES=()
want_for() {
	local command=$1
	shift
	command -v "$command" >/dev/null || WANTED_PACKAGES+=("$@")
}

# want_file FILE PACKAGE...: like want_for, for a missing file.
want_file() {
	local file=$1
	shift
	[ -e "$file" ] || WANTED_PACKAGES+=("$@")
}

has_candidate() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [0-9]'; }

install_wanted() {
	[ ${#WANTED_PACKAGES[@]} -gt 0 ] || return 0
	say "installing ${WANTED_PACKAGES[*]}"
	apt-get update -qq || die "cannot read the package lists: 'apt-get update' failed; see above"
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${WANTED_PACKAGES[@]}" >/dev/null ||
		die "cannot install ${WANTED_PACKAGES[*]}: 'apt-get install' failed; see above"
	case " ${WANTED_PACKAGES[*]} " in *" prometheus "*) stop_prometheus ;; esac
	WANTED_PACKAGES=()
}

# Ends the service that the package starts: only its programs are wanted.
stop_prometheus() {
	if [ -d /run/systemd/system ]; then
		systemctl --quiet disable --now prometheus
	else
		service prometheus stop
	fi >/dev/null 2>&1 || true
}

# Packages for a build and a single node.
want_build_and_node() {
	want_for cc gcc libc6-dev
	want_for pkg-config pkg-config
	want_for protoc protobuf-compiler libprotobuf-dev
	want_for git git
	want_for curl curl
	want_for make make
	want_file /etc/ssl/certs/ca-certificates.crt ca-certificates
	if ! pkg-config --exists openssl 2>/dev/null; then WANTED_PACKAGES+=(libssl-dev); fi
	want_for dockerd docker.io
	want_for iptables iptables
	want_for nft nftables
	want_for ip iproute2
	want_for conntrack conntrack
	want_for etcd etcd-server
	want_for etcdctl etcd-client
	want_for ps procps
	want_for setsid util-linux
	want_file /bin/busybox busybox-static
}

# Further packages for the tests: a separate SSH server, programs that sign commits, an image
# registry with logins, DNS clients, and a mail server.
want_tests() {
	want_for tar tar
	want_file /usr/sbin/sshd openssh-server
	want_for ssh-keygen openssh-client
	want_for gpg gnupg
	want_for docker-registry docker-registry
	want_for age age
	want_for htpasswd apache2-utils
	want_for dig bind9-dnsutils
	want_for dnsperf dnsperf
	want_for python3 python3
	want_file /usr/lib/python3/dist-packages/aiosmtpd python3-aiosmtpd
	want_for curl curl
	# 3 MB: judges the units in deploy/systemd, and makes users from deploy/systemd/minik8s-sysusers.conf.
	want_for systemd-analyze systemd
	# Scrapes nodes; promtool judges the alerts.
	want_for promtool prometheus
	# Gives one agent a wrong clock.
	want_for faketime faketime
	want_for openssl openssl
	# Records what crosses the links between nodes.
	want_for tcpdump tcpdump
	want_slurm
}

# The browser that opens the page. Ubuntu has it as a snap only; there the story says that it was not run. To be called
# once the package lists are read.
want_browser() {
	command -v chromedriver >/dev/null && return 0
	! has_candidate chromium-driver || WANTED_PACKAGES+=(chromium chromium-driver fonts-dejavu-core)
}

# A single-machine Slurm with accounting: takes about a minute to install, most of it for MariaDB.
want_slurm() {
	want_for slurmctld slurmctld slurmd slurm-client
	want_for slurmdbd slurmdbd
	want_for mariadbd mariadb-server
	want_for munged munge
}

# Programs that the benches compare with.
want_bench() {
	want_for wrk wrk
	want_for nginx nginx-light
	want_for iperf3 iperf3
}

rust_minor() { rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p'; }

# Rust from Debian if it is missing or too old: rustup if packaged, else the newest rustc.
install_rust() {
	[ -d "$HOME/.cargo/bin" ] && PATH=$HOME/.cargo/bin:$PATH
	export PATH
	local minor
	minor=$(rust_minor)
	if [ -n "$minor" ] && [ "$minor" -ge "$MINIMUM_RUST" ]; then return 0; fi
	[ -z "$minor" ] || die "Rust 1.$minor is too old; 1.$MINIMUM_RUST or newer is needed: 'rustup update', or remove the old package and run $0 again"
	apt-get update -qq || die "cannot read the package lists: 'apt-get update' failed; see above"
	local packages
	if has_candidate rustc-web; then
		packages=(rustc-web cargo-web)
	elif has_candidate rustup; then
		packages=(rustup)
	else
		packages=(rustc cargo)
	fi
	say "installing ${packages[*]}"
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null ||
		die "cannot install Rust: 'apt-get install ${packages[*]}' failed; see above"
	if [ "${packages[0]}" = rustup ]; then
		rustup toolchain install stable --profile minimal --component rustfmt,clippy ||
			die "cannot install Rust: 'rustup toolchain install stable' failed; see above"
	fi
	minor=$(rust_minor)
	[ -n "$minor" ] && [ "$minor" -ge "$MINIMUM_RUST" ] ||
		die "this system's packages have no Rust 1.$MINIMUM_RUST or newer; install it with rustup and run $0 again"
}

# ensure_docker PIDFILE LOG: starts Docker if it does not answer. Without a service manager it is started
# directly, and its process id is written to PIDFILE, so that the caller can stop it.
ensure_docker() {
	local pidfile=$1 log=$2
	docker info >/dev/null 2>&1 && return 0
	say "starting Docker"
	if [ -d /run/systemd/system ]; then
		systemctl start docker || die "cannot start Docker: 'systemctl start docker' failed; see 'journalctl -u docker'"
	else
		rm -f /var/run/docker.pid
		setsid dockerd --live-restore >"$log" 2>&1 </dev/null &
		echo $! >"$pidfile"
	fi
	local try
	for try in $(seq 1 120); do
		docker info >/dev/null 2>&1 && return 0
		sleep 0.5
	done
	die "Docker does not answer 60 s after its start (try $try); see $log"
}

# make_busybox_image TAG: builds an image with a static busybox and a link per applet from Debian's package.
make_busybox_image() {
	local tag=$1 root
	docker image inspect "$tag" >/dev/null 2>&1 && return 0
	root=$(mktemp -d)
	mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,tmp,etc,dev,proc,sys,root}
	chmod 1777 "$root/tmp"
	cp "$(command -v busybox)" "$root/bin/busybox"
	local applet
	for applet in $("$root/bin/busybox" --list); do
		[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
	done
	printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$root/etc/passwd"
	printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
	tar -C "$root" --sort=name --owner=0 --group=0 -c . |
		docker import -c 'CMD ["/bin/sh"]' -c 'ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin' - "$tag" >/dev/null
	local status=$?
	rm -rf "$root"
	[ $status = 0 ] || die "cannot make the image $tag; see above"
}
