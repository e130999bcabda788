# Sourced by tests/run, tests/long, tests/demo and tests/bench: what must be installed, and installing it.
# Usage: slipway_setup [--yes] PACKAGE...
SLIPWAY_BUILD_PACKAGES=(gcc libc6-dev make pkg-config ca-certificates curl git)
SLIPWAY_IMAGE_PACKAGES=(mmdebstrap dnf rpm createrepo-c gnupg gdisk mtools dosfstools e2fsprogs qemu-utils zstd gzip cpio attr
  libcap2-bin openssl)
SLIPWAY_BOOT_PACKAGES=(qemu-system-x86 qemu-utils ovmf)

export LC_ALL=C.UTF-8
export PATH="$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin"

slipway_setup() {
  local yes=${CI:+1} missing=() p rust=
  if [ "${1-}" = --yes ]; then yes=1; shift; fi
  for p in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
  done
  command -v cargo >/dev/null || rust="the Rust toolchain (by rustup from https://sh.rustup.rs, into $HOME/.cargo)"
  [ ${#missing[@]} -gt 0 ] || [ -n "$rust" ] || return 0
  echo "To be installed:"
  [ ${#missing[@]} -eq 0 ] || echo "  Debian packages: ${missing[*]}"
  [ -z "$rust" ] || echo "  $rust"
  if [ -z "$yes" ]; then
    read -r -p "Install? [y/N] " answer || answer=
    case $answer in [yY]*) ;; *) echo "Nothing was installed." >&2; return 1 ;; esac
  fi
  if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then echo "Installing packages needs root: apt-get install ${missing[*]}" >&2; return 1; fi
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -q -y update && apt-get -q -y install --no-install-recommends "${missing[@]}"; } </dev/null || return 1
  fi
  if [ -n "$rust" ]; then
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal -c rustfmt -c clippy || return 1
  fi
}
