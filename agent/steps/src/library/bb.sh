# The helper library that every step is sourced after. Written from the table of names and meanings in our own
# specification; what a name does beyond that table is ours.
#
# From the runner: BB_WORKSPACE, BB_FLAGS, BB_UNHANDLED, BB_TMP (made when needed, removed by the runner), BB_REPORT (lines for
# the runner), BB_STEP, BB_DISRUPTION, BB_CHECK. Names that begin with _bb are not for steps.

declare -A _bb_handlers=()
declare -a _bb_delayed=() _bb_mine=()
_bb_leave=

_bb-report() { printf '%s\n' "$*" >>"$BB_REPORT"; }
_bb-changed() { _bb-report "changed $*"; }
# Ours: tells that the step changed something that no other helper did.
bb-changed() { _bb-changed "$@"; }
_bb-checking() { [[ -n ${BB_CHECK-} ]]; }

# --- log -------------------------------------------------------------------------------------------------------------
_bb-log() {
  local want=1 have=1
  case ${BB_LOG_LEVEL:-INFO} in DEBUG) want=0 ;; WARNING) want=2 ;; ERROR) want=3 ;; esac
  case $1 in DEBUG) have=0 ;; WARNING) have=2 ;; ERROR) have=3 ;; esac
  ((have < want)) || printf 'bashible %s %s\n' "$1" "${*:2}" >&2
}
bb-log-debug() { _bb-log DEBUG "$@"; }
bb-log-info() { _bb-log INFO "$@"; }
bb-log-warning() { _bb-log WARNING "$@"; }
bb-log-warn() { _bb-log WARNING "$@"; }
bb-log-error() { _bb-log ERROR "$@"; }
bb-log-deprecated() { _bb-log WARNING "deprecated: $*"; }
bb-log-stream-dhctl() { _bb-log INFO "$@"; }

# --- ends and assertions ----------------------------------------------------------------------------------------------
bb-error?() { (($? != 0)); }
bb-exit() {
  local code=${1:-0}
  shift || true
  if (($#)); then if ((code)); then bb-log-error "$@"; else bb-log-info "$@"; fi; fi
  exit "$code"
}
bb-exit-on-error() {
  local code=$?
  ((code == 0)) || bb-exit "$code" "$@"
}
bb-assert() {
  if ! eval "$1"; then bb-exit 10 "${2:-assertion failed: $1}"; fi
}
bb-assert-root() { bb-assert '((EUID == 0))' "this step needs root"; }
bb-assert-file() { bb-assert "[[ -f ${1@Q} ]]" "${2:-$1: no such file}"; }
bb-assert-dir() { bb-assert "[[ -d ${1@Q} ]]" "${2:-$1: no such directory}"; }
bb-assert-var() { bb-assert "[[ -n \${$1-} ]]" "${2:-$1 is not set}"; }
bb-exe?() { type -P -- "$1" >/dev/null; }
bb-var() { [[ -v $1 ]] || printf -v "$1" %s "${2-}"; }
bb-wait() {
  local left=${2:-60}
  until eval "$1"; do
    ((left-- > 0)) || return 1
    sleep 1
  done
}

# --- temporaries: below a directory that the runner removes, however the step ends ------------------------------------
_bb-tmp() { [[ -d $BB_TMP ]] || mkdir -p -m 0700 "$BB_TMP"; }
bb-tmp-file() { _bb-tmp; mktemp "$BB_TMP/XXXXXXXX"; }
bb-tmp-dir() { _bb-tmp; mktemp -d "$BB_TMP/XXXXXXXX"; }

# --- flags: empty files that survive steps and runs -------------------------------------------------------------------
bb-flag?() { [[ -e $BB_FLAGS/$1 ]]; }
bb-flag-set() {
  if _bb-checking; then _bb-report "would set flag $1"; return 0; fi
  [[ -e $BB_FLAGS/$1 ]] || { : >"$BB_FLAGS/$1"; _bb-report "flag $1"; }
}
bb-flag-unset() {
  if _bb-checking; then _bb-report "would unset flag $1"; return 0; fi
  [[ ! -e $BB_FLAGS/$1 ]] || rm -f -- "$BB_FLAGS/$1"
}

# --- events: they live for one step -----------------------------------------------------------------------------------
bb-event-on() {
  local have=${_bb_handlers[$1]-}
  [[ $'\n'$have$'\n' == *$'\n'"$2"$'\n'* ]] || _bb_handlers[$1]=${have:+$have$'\n'}$2
}
bb-event-off() {
  local line keep=
  while IFS= read -r line; do
    [[ -z $line || $line == "$2" ]] || keep+=${keep:+$'\n'}$line
  done <<<"${_bb_handlers[$1]-}"
  _bb_handlers[$1]=$keep
}
# One word is a function or program and gets the arguments; anything longer is shell text, with them as $1 …
_bb-handle() {
  local text=$1
  shift
  if [[ $text != *[[:space:]\;\&\|\(\)\<\>\$]* ]]; then "$text" "$@"; else
    # A function made of the text, not an eval of it: bash 5.2 complains when errexit ends a function within an eval.
    eval "_bb_text() {"$'\n'"$text"$'\n'"}"
    _bb_text "$@"
  fi
}
bb-event-fire() {
  local event=$1 all=() handler
  [[ -n ${_bb_handlers[$event]-} ]] || return 0
  shift
  mapfile -t all <<<"${_bb_handlers[$event]}"
  for handler in "${all[@]}"; do _bb-handle "$handler" "$@"; done
}
bb-event-delay() {
  local call
  printf -v call '%s\037' "$@"
  _bb-delay "$call"
}
_bb-delay() {
  local have
  for have in "${_bb_delayed[@]}"; do [[ $have != "$1" ]] || return 0; done
  _bb_delayed+=("$1")
  _bb-subshell delayed "$1"
}
# A pipe or $( ) has copies of our arrays; what happens there is told to the step itself through a file.
_bb-subshell() {
  if ((BASH_SUBSHELL)); then
    _bb-tmp
    printf '%s\0' "$2" >>"$BB_TMP/.$1"
  fi
}

# The end of a step that succeeded: delayed events until none is left, then the changes of this step count as handled. A
# failed step fires nothing; its changes stay unhandled and count as changed when it is tried again. The runner calls this
# after the step; `exit` in the middle of one comes here first.
_bb-finish() {
  local depth=0 call mark more=() words=()
  [[ -z $_bb_leave ]] || return 0
  if [[ -s $BB_TMP/.delayed ]]; then
    mapfile -t -d '' more <"$BB_TMP/.delayed"
    rm -f -- "$BB_TMP/.delayed"
    for call in "${more[@]}"; do _bb-delay "$call"; done
  fi
  while ((${#_bb_delayed[@]})); do
    if ((++depth > 1000)); then bb-log-error "events fire events without end"; builtin exit 12; fi
    call=${_bb_delayed[0]}
    _bb_delayed=("${_bb_delayed[@]:1}")
    mapfile -t -d $'\037' words <<<"$call"
    unset 'words[-1]'
    bb-event-fire "${words[@]}"
  done
  if [[ -s $BB_TMP/.mine ]]; then
    mapfile -t -d '' more <"$BB_TMP/.mine"
    _bb_mine+=("${more[@]}")
  fi
  for mark in "${_bb_mine[@]}"; do rm -f -- "$BB_UNHANDLED/$mark"; done
  _bb_leave=1
}
exit() {
  local code=${1-$?}
  if [[ $code == 0 ]] && ((BASH_SUBSHELL == 0)); then _bb-finish; fi
  builtin exit "$code"
}
# --- changes that were not followed by their events yet ---------------------------------------------------------------
_bb-mark() {
  local mark=${1//%/%25}
  mark=${mark//\//%2F}
  _bb_mine+=("$mark")
  _bb-subshell mine "$mark"
  [[ -e $BB_UNHANDLED/$mark ]] || : >"$BB_UNHANDLED/$mark"
}
_bb-marked() {
  local mark=${1//%/%25}
  [[ -e $BB_UNHANDLED/${mark//\//%2F} ]]
}

# --- files ------------------------------------------------------------------------------------------------------------
# bb-sync-file DST SRC|- [EVENT ARG…]
bb-sync-file() {
  local dst=$1 src=$2 new dir
  shift 2
  dir=$(dirname -- "$dst")
  if [[ $src == - ]]; then
    src=$(bb-tmp-file)
    cat >"$src"
  fi
  if [[ -f $dst ]] && cmp -s -- "$src" "$dst"; then
    _bb-marked "$dst" || return 0
  elif _bb-checking; then
    _bb-report "would write $dst"
    return 0
  else
    mkdir -p -- "$dir"
    new=$(mktemp "$dir/.bb-XXXXXXXX")
    if ! cat -- "$src" >"$new" || ! sync -- "$new"; then rm -f -- "$new"; return 1; fi
    if [[ -e $dst ]]; then
      chmod --reference="$dst" -- "$new"
      chown --reference="$dst" -- "$new" 2>/dev/null || true
    else
      chmod 0644 -- "$new"
    fi
    # Before the rename: whoever is killed between the two writes again, and the events are not lost.
    _bb-mark "$dst"
    mv -fT -- "$new" "$dst"
    _bb-changed "$dst"
  fi
  _bb-mark "$dst"
  bb-event-fire bb-sync-file-changed "$dst"
  if (($#)); then bb-event-delay "$@"; fi
}
# bb-sync-dir DST SRC [EVENT ARG…]
bb-sync-dir() {
  local dst=$1 src=$2 file
  shift 2
  while IFS= read -r -d '' file; do
    bb-sync-file "$dst/${file#"$src"/}" "$file" "$@"
  done < <(find "$src" -type f -print0 | sort -z)
}

# --- what this node is ------------------------------------------------------------------------------------------------
_bb-found() {
  local file=$HOME/$1
  if [[ ! -s $file ]]; then bb-log-error "$file: not discovered yet"; return 1; fi
  printf '%s\n' "$(<"$file")"
}
bb-d8-node-name() { if [[ -s $HOME/discovered-node-name ]]; then _bb-found discovered-node-name; else printf '%s\n' "$D8_NODE_HOSTNAME"; fi; }
bb-d8-node-ip() { _bb-found discovered-node-ip; }
bb-d8-machine-name() { _bb-found machine-name; }
bb-dvp-nesting-level() { printf '%s\n' "${BB_DVP_NESTING_LEVEL:-0}"; }

_bb-os() {
  local ID= ID_LIKE= VERSION_ID=
  [[ ! -r ${BB_OS_RELEASE:-/etc/os-release} ]] || . "${BB_OS_RELEASE:-/etc/os-release}"
  case $1 in id) printf '%s' "$ID" ;; like) printf '%s' "$ID $ID_LIKE" ;; version) printf '%s' "$VERSION_ID" ;; esac
}
_bb-bundle() {
  local id
  id=$(_bb-os id)
  case $id in
    ubuntu) echo ubuntu-lts ;;
    altlinux | alt) echo altlinux ;;
    opensuse* | sles) echo opensuse ;;
    debian | astra | redos | rosa) echo "$id" ;;
    centos | rhel | rocky | almalinux | ol | fedora | openEuler) echo centos ;;
    *) echo "$id" ;;
  esac
}
bb-is-bundle() {
  local have want
  have=$(_bb-bundle)
  for want; do [[ $have != "$want" ]] || return 0; done
  return 1
}
bb-is-distro-like?() { [[ " $(_bb-os like) " == *" $1 "* ]]; }
bb-is-family() {
  case $1 in
    redhat | rhel) bb-is-distro-like? rhel || bb-is-distro-like? fedora || bb-is-bundle centos redos rosa ;;
    *) bb-is-distro-like? "$1" ;;
  esac
}
_bb-version() { [[ $(_bb-bundle) == "$1" && $(_bb-os version) == "$2"* ]]; }
bb-is-ubuntu-version?() { _bb-version ubuntu-lts "$1"; }
bb-is-debian-version?() { _bb-version debian "$1"; }
bb-is-centos-version?() { _bb-version centos "$1"; }
bb-is-redos-version?() { _bb-version redos "$1"; }
bb-is-rosa-version?() { _bb-version rosa "$1"; }
bb-is-astra-version?() { _bb-version astra "$1"; }
bb-is-altlinux-version?() { _bb-version altlinux "$1"; }
bb-is-opensuse-version?() { _bb-version opensuse "$1"; }
bb-pkg-mgr() {
  local m
  if bb-exe? apt-get; then
    if bb-exe? rpm && ! bb-exe? dpkg; then echo apt-rpm; else echo apt; fi
    return 0
  fi
  for m in dnf yum zypper; do if bb-exe? "$m"; then echo "$m"; return 0; fi; done
  return 1
}

# --- packages of the distribution -------------------------------------------------------------------------------------
_bb-rpm?() { rpm -q --quiet -- "$1" 2>/dev/null; }
bb-dnf-package?() { _bb-rpm? "$1"; }
bb-yum-package?() { _bb-rpm? "$1"; }
bb-zypper-package?() { _bb-rpm? "$1"; }
bb-apt-rpm-package?() { _bb-rpm? "$1"; }
bb-apt-package?() { [[ $(dpkg-query -W -f '${db:Status-Status}' -- "$1" 2>/dev/null) == installed ]]; }
_bb-install() {
  local mgr=$1 p need=()
  shift
  for p; do "bb-$mgr-package?" "$p" || need+=("$p"); done
  if ((${#need[@]})); then
    if _bb-checking; then for p in "${need[@]}"; do _bb-report "would install $p"; done; return 0; fi
    if [[ ! -w /usr ]]; then
      for p in "${need[@]}"; do _bb-report "needs-image $p"; done
      bb-log-error "the root is read-only: ${need[*]} must come with the image"
      return 1
    fi
    case $mgr in
      # A lock that somebody holds is waited for, but not for ever.
      apt) DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 install "${need[@]}" ;;
      apt-rpm) apt-get -q -y install "${need[@]}" ;;
      dnf | yum) "$mgr" -q -y install "${need[@]}" ;;
      zypper) zypper -q -n install "${need[@]}" ;;
    esac
    for p in "${need[@]}"; do _bb-changed "package $p"; done
  fi
  for p; do
    if ((${#need[@]})) && [[ " ${need[*]} " == *" $p "* ]]; then
      _bb-mark "package:$p"
      bb-event-fire bb-package-installed "$p"
    elif _bb-marked "package:$p"; then
      _bb-mark "package:$p"
      bb-event-fire bb-package-installed "$p"
    fi
  done
}
_bb-erase() {
  local mgr=$1 p have=()
  shift
  for p; do if "bb-$mgr-package?" "$p"; then have+=("$p"); fi; done
  ((${#have[@]})) || return 0
  if _bb-checking; then for p in "${have[@]}"; do _bb-report "would remove $p"; done; return 0; fi
  case $mgr in
    apt) DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 remove "${have[@]}" ;;
    apt-rpm) apt-get -q -y remove "${have[@]}" ;;
    dnf | yum) "$mgr" -q -y remove "${have[@]}" ;;
    zypper) zypper -q -n remove "${have[@]}" ;;
  esac
  for p in "${have[@]}"; do _bb-changed "package $p"; bb-event-fire bb-package-removed "$p"; done
}
bb-apt-install() { _bb-install apt "$@"; }
bb-apt-rpm-install() { _bb-install apt-rpm "$@"; }
bb-dnf-install() { _bb-install dnf "$@"; }
bb-yum-install() { _bb-install yum "$@"; }
bb-zypper-install() { _bb-install zypper "$@"; }
bb-apt-remove() { _bb-erase apt "$@"; }
bb-apt-rpm-remove() { _bb-erase apt-rpm "$@"; }
bb-dnf-remove() { _bb-erase dnf "$@"; }
bb-yum-remove() { _bb-erase yum "$@"; }
bb-zypper-remove() { _bb-erase zypper "$@"; }
bb-apt-update() {
  if ! bb-flag? apt-updated; then apt-get -q -o DPkg::Lock::Timeout=120 update; bb-flag-set apt-updated; fi
}
bb-dnf-update() { if ! bb-flag? dnf-updated; then dnf -q makecache; bb-flag-set dnf-updated; fi; }
bb-yum-update() { if ! bb-flag? yum-updated; then yum -q makecache; bb-flag-set yum-updated; fi; }
# bb-pkg ACTION NAME…
bb-pkg() {
  local action=$1 mgr
  shift
  mgr=$(bb-pkg-mgr)
  case $action in
    install) _bb-install "$mgr" "$@" ;;
    remove) _bb-erase "$mgr" "$@" ;;
    package?) "bb-$mgr-package?" "$@" ;;
    update) "bb-$mgr-update" ;;
    *) bb-log-error "bb-pkg: unknown action $action"; return 2 ;;
  esac
}

# --- packages of the registry -----------------------------------------------------------------------------------------
# rpp-get where the node has one. Else archives named by their digest, `<SHA-256 in hex>.tar.gz`, from the directory
# BB_PACKAGES_DIR or below BB_PACKAGES_URL; each holds `install` and `uninstall`.
_bb-rpp() {
  if _bb-checking; then _bb-report "would rpp-get $*"; return 0; fi
  if bb-exe? rpp-get; then rpp-get "$@"; return; fi
  local action=$1 one
  shift
  for one; do "_bb-archive-$action" "${one%%:*}" "${one#*:}" || return; done
}
_bb-archive-fetch() {
  local name=$1 hex=${2#sha256:} to=$BB_RP_INSTALLED_PACKAGES_STORE/fetched/$1/$2
  [[ ! -e $to ]] || return 0
  mkdir -p -- "${to%/*}"
  if [[ -n ${BB_PACKAGES_DIR-} && -e $BB_PACKAGES_DIR/$hex.tar.gz ]]; then
    cp -- "$BB_PACKAGES_DIR/$hex.tar.gz" "$to.part"
  elif [[ -n ${BB_PACKAGES_URL-} ]]; then
    _bb-curl -sS -f -L --connect-timeout 10 --max-time 600 -o "$to.part" "${BB_PACKAGES_URL%/}/$hex.tar.gz" || return
  else
    bb-log-error "package $name: there is no $hex.tar.gz in ${BB_PACKAGES_DIR:-any directory}, no BB_PACKAGES_URL and no rpp-get"
    return 1
  fi
  if ! sha256sum --quiet --status -c - <<<"$hex  $to.part"; then
    rm -f -- "$to.part"
    bb-log-error "package $name: the archive is not the one with SHA-256 $hex"
    return 1
  fi
  mv -fT -- "$to.part" "$to"
}
_bb-archive-install() {
  local name=$1 digest=$2 dir store=$BB_RP_INSTALLED_PACKAGES_STORE/$1
  _bb-archive-fetch "$name" "$digest" || return
  dir=$(bb-tmp-dir)
  tar -xzf "$BB_RP_INSTALLED_PACKAGES_STORE/fetched/$name/$digest" --no-same-owner -C "$dir" || return
  (cd -- "$dir" && bash ./install) || return
  mkdir -p -- "$store"
  [[ ! -e $dir/uninstall ]] || cp -- "$dir/uninstall" "$store/uninstall"
  # Last: without it the package counts as not installed.
  printf '%s\n' "$digest" >"$store/.digest"
  mv -fT -- "$store/.digest" "$store/digest"
  rm -rf -- "$BB_RP_INSTALLED_PACKAGES_STORE/fetched/$name" "$dir"
}
_bb-archive-uninstall() {
  local store=$BB_RP_INSTALLED_PACKAGES_STORE/$1
  if [[ -e $store/uninstall ]]; then (cd / && bash "$store/uninstall") || return; fi
  rm -rf -- "$store"
}
bb-package-install() {
  local one name digest
  for one; do
    name=${one%%:*} digest=${one#*:}
    if _bb-checking; then _bb-report "would install $one"; continue; fi
    if [[ $(cat -- "$BB_RP_INSTALLED_PACKAGES_STORE/$name/digest" 2>/dev/null || true) != "$digest" ]]; then
      _bb-rpp install "$one"
      _bb-mark "registry:$name"
      _bb-changed "package $name"
    fi
    if _bb-marked "registry:$name"; then
      _bb-mark "registry:$name"
      bb-event-fire bb-package-installed "$name"
    fi
  done
}
bb-package-module-install() { bb-package-install "$@"; }
bb-package-fetch() { _bb-rpp fetch "$@"; }
bb-package-remove() {
  local name
  for name; do
    [[ -e $BB_RP_INSTALLED_PACKAGES_STORE/$name ]] || continue
    _bb-rpp uninstall "$name"
    _bb-changed "package $name"
    bb-event-fire bb-package-removed "$name"
  done
}
# Waits for an archive that the prefetch unit is fetching; at once non-zero where nobody fetches.
bb-rpp-wait-fetched() {
  local left=600
  until [[ -e $BB_RP_INSTALLED_PACKAGES_STORE/fetched/$1/$2 || -e $BB_RP_INSTALLED_PACKAGES_STORE/$1/$2.tar.gz ]]; do
    systemctl is-active --quiet rpp-prefetch.service || return 1
    ((left-- > 0)) || return 1
    sleep 1
  done
}

# --- the cluster's API ------------------------------------------------------------------------------------------------
_bb-curl() { if bb-exe? d8-curl; then d8-curl "$@"; else curl "$@"; fi; }
_bb-kube-auth() {
  case ${BB_KUBE_AUTH_TYPE:-kubelet} in
    admin | super-admin) bb-curl-helper-extract-"$BB_KUBE_AUTH_TYPE"-certs ;;
    *)
      _bb_cert=${BB_KUBE_CERT:-/var/lib/kubelet/pki/kubelet-client-current.pem}
      _bb_key=${BB_KUBE_KEY:-$_bb_cert}
      _bb_ca=${BB_KUBE_CA:-/etc/kubernetes/pki/ca.crt}
      ;;
  esac
}
_bb-extract-certs() {
  local conf=/etc/kubernetes/$1.conf
  _bb_cert=$(bb-tmp-file) _bb_key=$(bb-tmp-file) _bb_ca=$(bb-tmp-file)
  yq -r '.users[0].user."client-certificate-data"' "$conf" | base64 -d >"$_bb_cert"
  yq -r '.users[0].user."client-key-data"' "$conf" | base64 -d >"$_bb_key"
  yq -r '.clusters[0].cluster."certificate-authority-data"' "$conf" | base64 -d >"$_bb_ca"
}
bb-curl-helper-extract-admin-certs() { _bb-extract-certs admin; }
bb-curl-helper-extract-super-admin-certs() { _bb-extract-certs super-admin; }
# The endpoint that answered last is asked first; a dead local proxy does not hide the servers behind it.
bb-curl-kube() {
  local path=$1 all=() one _bb_cert _bb_key _bb_ca code=7 last=$BB_WORKSPACE/kube-endpoint
  shift
  _bb-kube-auth
  [[ ! -s $last ]] || all+=("$(<"$last")")
  all+=("${BB_KUBE_APISERVER_URL:-https://127.0.0.1:6445}")
  for one in ${PACKAGES_PROXY_KUBE_APISERVER_ENDPOINTS-}; do all+=("https://${one#https://}"); done
  for one in "${all[@]}"; do
    code=0
    _bb-curl -sS -f --connect-timeout 10 --max-time 60 --cacert "$_bb_ca" --cert "$_bb_cert" --key "$_bb_key" \
      "$@" "$one/${path#/}" || code=$?
    # 22: the server answered with an error; another server would say the same.
    if ((code == 0 || code == 22)); then
      [[ $(cat -- "$last" 2>/dev/null || true) == "$one" ]] || printf '%s\n' "$one" >"$last"
      return "$code"
    fi
  done
  return "$code"
}
bb-curl-kube-healthz() { bb-curl-kube /healthz "$@"; }
_bb-json() {
  local s=$1
  s=${s//\\/\\\\} s=${s//\"/\\\"} s=${s//$'\n'/\\n} s=${s//$'\t'/\\t}
  printf '"%s"' "$s"
}
# bb-curl-helper-patch-node-metadata NODE labels|annotations [--resource-version=RV] k=v… k-…
bb-curl-helper-patch-node-metadata() {
  local node=$1 what=$2 rv= one pairs= key value
  shift 2
  for one; do
    case $one in
      --resource-version=*) rv=${one#*=} ;;
      *=*) key=$(_bb-json "${one%%=*}") value=$(_bb-json "${one#*=}"); pairs+=${pairs:+,}$key:$value ;;
      *-) key=$(_bb-json "${one%-}"); pairs+=${pairs:+,}$key:null ;;
      *) bb-log-error "bb-curl-helper-patch-node-metadata: $one: expected key=value or key-"; return 2 ;;
    esac
  done
  if _bb-checking; then _bb-report "would patch $what of $node"; return 0; fi
  [[ -z $rv ]] || rv="\"resourceVersion\":$(_bb-json "$rv"),"
  bb-curl-kube "/api/v1/nodes/$node" -o /dev/null -X PATCH -H 'Content-Type: application/strategic-merge-patch+json' \
    --data "{\"metadata\":{$rv\"$what\":{$pairs}}}"
}
bb-label-node-bashible-first-run-finished() {
  bb-curl-helper-patch-node-metadata "$(bb-d8-node-name)" labels node.deckhouse.io/bashible-first-run-finished=true
}
bb-node-has-bashible-uninitialized-taint() {
  bb-curl-kube "/api/v1/nodes/$(bb-d8-node-name)" |
    jq -e '[.spec.taints[]? | select(.key == "node.deckhouse.io/bashible-uninitialized")] | length > 0' >/dev/null
}
bb-kubectl() { kubectl --kubeconfig=/etc/kubernetes/kubelet.conf "$@"; }
bb-kubectl-exec() { bb-kubectl "$@"; }
export -f bb-curl-kube bb-curl-kube-healthz bb-curl-helper-patch-node-metadata bb-label-node-bashible-first-run-finished \
  bb-node-has-bashible-uninitialized-taint bb-d8-node-name bb-log-error bb-exe? _bb-log _bb-found _bb-curl _bb-kube-auth \
  _bb-json _bb-checking

# --- proxy ------------------------------------------------------------------------------------------------------------
bb-set-proxy() {
  if [[ -n ${BB_HTTP_PROXY-} ]]; then export HTTP_PROXY=$BB_HTTP_PROXY http_proxy=$BB_HTTP_PROXY; fi
  if [[ -n ${BB_HTTPS_PROXY-} ]]; then export HTTPS_PROXY=$BB_HTTPS_PROXY https_proxy=$BB_HTTPS_PROXY; fi
  if [[ -n ${BB_NO_PROXY-} ]]; then export NO_PROXY=$BB_NO_PROXY no_proxy=$BB_NO_PROXY; fi
}
bb-unset-proxy() { unset HTTP_PROXY http_proxy HTTPS_PROXY https_proxy NO_PROXY no_proxy; }

# --- containerd -------------------------------------------------------------------------------------------------------
_bb-toml-has() {
  [[ -e $1 ]] || return 1
  local found
  found=$(yq -p toml -o json "$2" "$1" 2>/dev/null) || return 1
  [[ -n $found && $found != null && $found != '{}' ]]
}
bb-ctrd-v1-has-registry-fields() {
  _bb-toml-has "$1" '.plugins."io.containerd.grpc.v1.cri".registry | del(.config_path)'
}
bb-ctrd-v2-has-registry-fields() {
  _bb-toml-has "$1" '.plugins."io.containerd.cri.v1.images".registry | del(.config_path)'
}

# --- approvals and reboots: asked for, never waited for ---------------------------------------------------------------
bb-deckhouse-get-disruptive-update-approval() {
  if [[ $FIRST_BASHIBLE_RUN == yes ]] || bb-flag? disruption; then return 0; fi
  if [[ $BB_DISRUPTION == approved ]]; then
    bb-flag-set disruption
    return 0
  fi
  if [[ $BB_DISRUPTION == rolling ]]; then _bb-report rolling-update; else _bb-report wait-disruption; fi
  _bb_leave=1
  exit 0
}
# Ours: ends the step here; the node reboots when it may, and the bundle goes on after the boot.
bb-reboot-and-resume() {
  _bb-report "reboot-now ${*:-step $BB_STEP}"
  _bb_leave=1
  exit 0
}
bb-event-create() { _bb-report "event $*"; }
# Conditions of the Instance, told apart by name alone: bb-waiting-approval-…, bb-disruption-approval-…, bb-bashible-ready-…
_bb-condition() { _bb-report "condition $*"; }
command_not_found_handle() {
  case $1 in
    bb-waiting-approval-* | bb-disruption-approval-* | bb-bashible-ready-*) _bb-condition "$@" ;;
    bb-*) bb-log-error "$1: this library has no such function"; return 127 ;;
    *) printf '%s: command not found\n' "$1" >&2; return 127 ;;
  esac
}

if _bb-checking; then
  systemctl() { _bb-report "would systemctl $*"; }
  rpp-get() { _bb-report "would rpp-get $*"; }
fi
