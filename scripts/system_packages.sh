#!/usr/bin/env bash
# Brings in the Debian packages that `make demo` or `make test` use and this machine lacks.
#   system_packages.sh demo|test|ci
# As root with apt-get it installs them. Otherwise it says what is missing and how to get it, and succeeds:
# perfscope works with what is there and names what it can't record.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin  # a plain user has tools there, too

have() { command -v "$1" >/dev/null 2>&1; }
library() { ldconfig -p 2>/dev/null | grep -q "$1" || /sbin/ldconfig -p 2>/dev/null | grep -q "$1"; }
file() { [ -e "$1" ]; }

missing=()
# want WHAT-FOR PACKAGE CHECK...: notes the package when the check fails.
want() {
  local reason=$1 package=$2
  shift 2
  "$@" || missing+=("$package|$reason")
}

want "virtualenvs" python3-venv "${PYTHON:-python3}" -c 'import ensurepip, venv'
want "kernel events (scheduler, disk, futex)" libbpf1 library libbpf.so.1
want "the Java gateway and Java profiles" default-jdk-headless have javac
if [ "${1:-demo}" != demo ]; then
  want "rebuilding the BPF objects" clang have clang
  want "rebuilding the BPF objects" llvm have llvm-strip
  want "rebuilding the BPF objects" libbpf-dev file /usr/include/bpf/bpf_helpers.h
  want "the bcc backend" python3-bpfcc file /usr/lib/python3/dist-packages/bcc/__init__.py
  want "the bcc backend and the DRM test" linux-headers-amd64 compgen -G '/usr/src/linux-headers-*-amd64' >/dev/null
  want "tests in a browser" chromium have chromium
  want "scheduler load for tests" linux-perf have perf
  want "the DRM test" qemu-system-x86 have qemu-system-x86_64
  want "the DRM test" busybox-static file /bin/busybox
  want "the DRM test" cpio have cpio
  want "the DRM test" kmod have modprobe
  want "the DRM test" xz-utils have xz
  want "disk tests" e2fsprogs have mkfs.ext4
  want "test programs" gcc have gcc
fi
[ ${#missing[@]} -eq 0 ] && exit 0

packages=("${missing[@]%%|*}")
if [ "$(id -u)" -eq 0 ] && have apt-get; then
  echo "installing: ${packages[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >"$log" 2>&1 </dev/null || {
    cat "$log" >&2
    echo "apt-get failed; its output is above" >&2
    exit 1
  }
else
  echo "not on this machine:" >&2
  printf '  %s\n' "${missing[@]/|/  for }" >&2
  echo "  to get it all (Debian): sudo apt-get install ${packages[*]}" >&2
fi
