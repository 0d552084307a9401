#!/bin/sh
# Makes the Python base of functions where no image is named: `sh base.sh OUT_DIR`, as root.
#
# Reads the package sources of this machine (Debian or Ubuntu, any architecture); changes nothing of
# the machine, and may run twice at once. Writes, both or neither:
#   OUT_DIR/runtime.tar  a root file system: python3, its whole standard library, CA certificates
#   OUT_DIR/pip.tar      a layer with pip, to be put on top of it in a build stage only
# The same package versions give the same bytes. The work happens in OUT_DIR/.base.*, which is removed
# at the end; one that a SIGKILL left behind may be deleted.
set -eu
umask 022
export LC_ALL=C

fail() {
    echo "$*" >&2
    exit 1
}
instead='or name an image in the Cluster object'\''s functions.pythonBase'

[ $# -eq 1 ] || fail 'usage: sh base.sh OUT_DIR'
command -v apt-get >/dev/null || fail "this machine has no apt-get: name an image in the Cluster object's functions.pythonBase"
[ "$(id -u)" -eq 0 ] || fail "the Python base is made with chroot: run this as root, $instead"

mkdir -p "$1"
out=$(cd "$1" && pwd)
# Seen: 252 MB on Debian 12, 429 MB on Ubuntu 24.04, whose package lists are longer.
free_kib=$(df -Pk "$out" | awk 'NR == 2 { print $4 }')
[ "$free_kib" -ge 614400 ] || fail "the Python base takes 600 MB while it is made and $out has $((free_kib / 1024)): make space, $instead"
tmp=$(mktemp -d "$out/.base.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
root=$tmp/root
mkdir -p "$root" "$tmp/state/lists" "$tmp/cache/archives"

# --- Packages: apt with a state of its own -------------------------------------------------------
# Starting from a copy of the machine's lists, an update mostly asks whether they are still current,
# and a mirror that answers no update may still have the packages. A file that vanishes is no harm.
machine_lists=
eval "$(apt-config shell machine_lists Dir::State::lists/d)"
find "$machine_lists" -maxdepth 1 -type f -name '*_*' -exec cp -p -t "$tmp/state/lists" {} + 2>/dev/null || true

# What the image does without, declared as installed: tools that only maintainer scripts call.
for name in awk debconf debianutils dpkg openssl perl-base tar; do
    printf 'Package: %s\nStatus: install ok installed\nVersion: 999:0\nArchitecture: all\n' "$name"
    printf 'Multi-Arch: foreign\nProvides: debconf-2.0\nMaintainer: none\nDescription: none\n\n'
done >"$tmp/status"

# The hooks of the machine (caches, desktop catalogues) are not for us, and some write to /var. As
# root instead of _apt, because that user can't enter a state directory that only root may read.
cat >"$tmp/apt.conf" <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
Dir::State "$tmp/state";
Dir::State::lists "lists/";
Dir::State::status "$tmp/status";
Dir::Cache "$tmp/cache";
Dir::Cache::archives "archives/";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Log "$tmp/log";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Keep-Downloaded-Packages "true";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
CONF

# A third party's source that is broken fails the update, but need not concern Python's packages:
# the download decides.
apt-get -c "$tmp/apt.conf" -q -y update >"$tmp/apt.log" 2>&1 || true

# Parts of the standard library that Debian packs apart; which of them exist depends on the version.
# libstdc++6 is what wheels with C++ in them rely on; dash serves subprocess(shell=True) and os.popen.
apt-cache -c "$tmp/apt.conf" pkgnames 2>>"$tmp/apt.log" |
    grep -Fx -e python3-distutils -e python3-lib2to3 -e python3-gdbm -e tzdata-legacy >"$tmp/optional" || true
# shellcheck disable=SC2046 # one word per package is meant
apt-get -c "$tmp/apt.conf" -q -y --download-only install python3 libpython3-stdlib python3-pip-whl \
    ca-certificates tzdata media-types netbase libc-bin libstdc++6 dash $(cat "$tmp/optional") >>"$tmp/apt.log" 2>&1 || {
    grep -E '^[EW]:' "$tmp/apt.log" | tail -n 4 >&2
    fail "the packages of Python can't be fetched from this machine's package sources: see that" \
        "'apt-get update' works here (network, proxy in /etc/apt/apt.conf.d, 'main' and on Ubuntu 'universe'" \
        "in /etc/apt/sources.list), $instead"
}

# --- The root file system: unpacked, then what maintainer scripts would have done ----------------
mkdir -p "$root/var/lib/dpkg/status.d"
for deb in "$tmp"/cache/archives/*.deb; do
    name=$(basename "$deb" | cut -d_ -f1)
    if [ "$name" = python3-pip-whl ]; then
        dpkg-deb -x "$deb" "$tmp/wheel"
    else
        dpkg-deb -x "$deb" "$root" || fail "$name could not be unpacked, $instead"
        # Where scanners for known vulnerabilities look in images that have no dpkg.
        dpkg-deb -f "$deb" >"$root/var/lib/dpkg/status.d/$name"
    fi
done
for dir in bin sbin lib lib32 lib64 libx32; do
    if [ -d "$root/$dir" ] && [ ! -L "$root/$dir" ]; then
        mkdir -p "$root/usr/$dir"
        cp -a "$root/$dir/." "$root/usr/$dir/"
        rm -rf "${root:?}/$dir"
    fi
    [ ! -d "$root/usr/$dir" ] || ln -sfn "usr/$dir" "$root/$dir"
done
find "$root/usr/share/doc" -mindepth 1 ! -type d ! -name copyright -delete
for dir in applications apport binfmts bug doc-base gdb gcc info lintian locale man menu pixmaps python3 \
    zoneinfo-icu zoneinfo/posix zoneinfo/right; do
    rm -rf "${root:?}/usr/share/$dir"
done
rm -rf "$root/usr/lib/valgrind" "$root/usr/lib/binfmt.d"
# Of libc's converters those of Unicode and Western Europe; Python brings its own codecs.
find "$root/usr/lib" -path '*/gconv/*.so' ! -name 'UTF-*' ! -name UNICODE.so ! -name 'ISO8859-1*.so' -delete
# Programs: Python, a shell, and what the library modules call (ctypes.util asks ldconfig).
find "$root/usr/bin" "$root/usr/sbin" ! -type d ! -name 'python*' ! -name sh ! -name dash ! -name ld.so \
    ! -name getent ! -name 'ldconfig*' -delete
[ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
ln -sfn python3 "$root/usr/bin/python"

mkdir -p "$root/dev" "$root/proc" "$root/sys" "$root/run" "$root/root" "$root/tmp" "$root/var/tmp" "$root/etc/ssl/certs"
chmod 1777 "$root/tmp" "$root/var/tmp"
cp -L /etc/os-release "$root/etc/os-release"
# The home of a function is the one place where it may write.
cat >"$root/etc/passwd" <<'PASSWD'
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
function:x:65532:65532:function:/tmp:/bin/sh
PASSWD
printf 'root:x:0:\nnogroup:x:65534:\nfunction:x:65532:\n' >"$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n' >"$root/etc/nsswitch.conf"
ln -sfn /usr/share/zoneinfo/Etc/UTC "$root/etc/localtime"
cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root/usr/share/ca-certificates"

# Programs of the new root run in it, with nothing of this machine's environment.
inside() {
    env -i PATH=/usr/bin:/usr/sbin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 chroot "$root" "$@"
}
inside ldconfig || fail "programs can't be run below $out: is it mounted noexec? Choose another state directory, $instead"
rm -rf "$root/var/cache" "$root/var/log"

# The place where this build of OpenSSL looks first. One file and not a folder of hashes: that takes
# a program to make, which not every machine has.
cafile=$(inside python3 -c 'import ssl; print(ssl.get_default_verify_paths().openssl_cafile)')
mkdir -p "$root$(dirname "$cafile")"
ln -sfn /etc/ssl/certs/ca-certificates.crt "$root$cafile"

# A function's root is read-only, so what isn't compiled here is compiled at every start. The hash is
# unchecked, because times of files don't survive in the tar.
compile() {
    inside python3 -m compileall -q -f --invalidation-mode unchecked-hash "$@" ||
        fail "Python's library could not be compiled, $instead"
}
stdlib=$(inside python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
rm -f "$root$stdlib/EXTERNALLY-MANAGED" # it isn't: there is no apt in the image
for dir in "$root"/usr/lib/python3.*; do # Ubuntu packs distutils for a second version, too
    [ "$dir" = "$root$stdlib" ] || rm -rf "$dir"
done
compile "$stdlib"
inside python3 -c 'import bz2, ctypes, curses, dbm.gnu, hashlib, lzma, readline, sqlite3, ssl, uuid, zlib, zoneinfo
zoneinfo.ZoneInfo("Europe/Berlin"); assert ssl.create_default_context().cert_store_stats()["x509_ca"] > 50' ||
    fail "the Python base that was made from this machine's packages is not complete, $instead"

# --- The two tars --------------------------------------------------------------------------------
# One time for all files, and not 1970: Python's zipfile refuses what is older than 1980.
pack() {
    tar --create --file "$tmp/$1" --format gnu --sort name --mtime @946684800 --numeric-owner --owner 0 --group 0 \
        --directory "$root" "$2" || fail "$1 could not be written: is there space left in $out?"
}
pack runtime.tar .

# pip is the one wheel that ensurepip would install, without the 30 packages that python3-pip takes.
site=usr/lib/python3/dist-packages
rm -rf "${root:?}/$site"
mkdir -p "$root/$site"
for wheel in "$tmp"/wheel/usr/share/python-wheels/pip-*.whl; do
    inside python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.stdin.buffer).extractall(sys.argv[1])' "/$site" <"$wheel"
done
compile "/$site"
inside python3 -m pip --version >/dev/null || fail "pip does not run in the Python base, $instead"
pack pip.tar "./$site"

mv "$tmp/pip.tar" "$tmp/runtime.tar" "$out/"
