# Sourced by tests/run, tests/long, tests/demo and tests/bench: what must be installed, and installing it.
# Usage: slipway_setup [--yes] PACKAGE...
SLIPWAY_BUILD_PACKAGES=(gcc libc6-dev make pkg-config ca-certificates curl git)
SLIPWAY_IMAGE_PACKAGES=(mmdebstrap dnf rpm createrepo-c gnupg gdisk mtools dosfstools e2fsprogs qemu-utils zstd gzip cpio attr
  libcap2-bin openssl)
SLIPWAY_BOOT_PACKAGES=(qemu-system-x86 qemu-utils ovmf grub-common)
# kube-apiserver, etcd and kubectl are built from Go modules (tests/kube), which needs Go 1.26: no Debian package has it.
SLIPWAY_CLUSTER_PACKAGES=(openssl curl jq)

export LC_ALL=C.UTF-8
export PATH="$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin"

slipway_setup() {
  local yes=${CI:+1} missing=() p
  if [ "${1-}" = --yes ]; then yes=1; shift; fi
  if ! command -v cargo >/dev/null; then
    echo "cargo is not on PATH: install Rust (stable, with rustfmt and clippy) by rustup first" >&2
    return 1
  fi
  for p in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "To be installed: ${missing[*]}"
  if [ -z "$yes" ]; then
    read -r -p "Install? [y/N] " answer || answer=
    case $answer in [yY]*) ;; *) echo "Nothing was installed." >&2; return 1 ;; esac
  fi
  if [ "$(id -u)" != 0 ]; then echo "Installing packages needs root: apt-get install ${missing[*]}" >&2; return 1; fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get -q -y update </dev/null && apt-get -q -y install --no-install-recommends "${missing[@]}" </dev/null
}
