# agent: phase=pre-approval
# agent: timeoutSec=60
# People who may log in. Also on a node whose update waits for approval: somebody must be able to repair it.
_user() { # NAME UID HOME GROUPS SUDO HASH KEYS; the last two in base64
  local name=$1 uid=$2 home=$3 groups=$4 sudo=$5 hash keys new group
  hash=$(base64 -d <<<"$6") keys=$(base64 -d <<<"$7")
  if ! getent passwd "$name" >/dev/null; then
    mkdir -p -- "${home%/*}"
    useradd -M -U -u "$uid" -d "$home" -s /bin/bash -- "$name"
    bb-changed "user $name"
  elif [[ $(id -u -- "$name") != "$uid" ]]; then
    bb-log-error "user $name has the number $(id -u -- "$name"): expected $uid"
    return 1
  fi
  # A user who was taken from the list may come back.
  if [[ $(getent shadow "$name" | cut -d: -f8) == 1 ]]; then usermod -e '' -- "$name"; fi
  if [[ -n $hash && $(getent shadow "$name" | cut -d: -f2) != "$hash" ]]; then
    usermod -p "$hash" -- "$name"
    bb-changed "password of $name"
  fi
  for group in ${groups//,/ }; do
    if [[ " $(id -nG -- "$name") " != *" $group "* ]]; then usermod -aG "$group" -- "$name"; bb-changed "groups of $name"; fi
  done
  _own "$home" "$name" 755
  _own "$home/.ssh" "$name" 700
  bb-sync-file "$home/.ssh/authorized_keys" - <<<"$keys"
  _mode "$home/.ssh/authorized_keys" "$name" 600
  new=/etc/sudoers.d/50-slipway-$name
  if [[ $sudo == true ]]; then
    bb-sync-file "$new" - <<<"$name ALL=(ALL) NOPASSWD: ALL"
    _mode "$new" root 440
  elif [[ -e $new ]]; then
    rm -f -- "$new"
    bb-changed "$new"
  fi
}
_own() { [[ -d $1 ]] || mkdir -p -- "$1"; _mode "$@"; }
_mode() {
  [[ $(stat -c %U -- "$1") == "$2" ]] || chown -- "$2:" "$1"
  [[ $(stat -c %a -- "$1") == "$3" ]] || chmod "$3" -- "$1"
}
# Who is no longer listed keeps files and number, but cannot log in.
_former() {
  local name=$1 home
  home=$(getent passwd "$name" | cut -d: -f6) || return 0
  [[ $(getent shadow "$name" | cut -d: -f8) != 1 || -e $home/.ssh/authorized_keys || -e /etc/sudoers.d/50-slipway-$name ]] || return 0
  rm -f -- "/etc/sudoers.d/50-slipway-$name" "$home/.ssh/authorized_keys"
  usermod -L -e 1 -- "$name"
  bb-changed "user $name is locked"
}
now=()
{{- range .nodeUsers }}
{{- $s := default . .spec }}
{{- if not (regexMatch "^[a-z_][a-z0-9_-]{0,31}$" .name) }}{{ fail (printf "nodeUsers: %q is no user name" .name) }}{{ end }}
{{- $home := default (printf "/var/home/%s" .name) $s.home }}
{{- if not (regexMatch "^(/[A-Za-z0-9._-]+)+$" $home) }}{{ fail (printf "nodeUsers: %q is no home" $home) }}{{ end }}
{{- if lt (int $s.uid) 1001 }}{{ fail (printf "nodeUsers: %s: uid must be 1001 or more" .name) }}{{ end }}
{{- $groups := join "," (default list $s.extraGroups) }}
{{- if not (regexMatch "^[a-z0-9_,-]*$" $groups) }}{{ fail (printf "nodeUsers: %s: extraGroups: %q" .name $groups) }}{{ end }}
{{- $keys := default list $s.sshPublicKeys }}
{{- if $s.sshPublicKey }}{{ $keys = append $keys $s.sshPublicKey }}{{ end }}
now+=({{ .name }})
_user {{ .name }} {{ int $s.uid }} {{ $home }} "{{ $groups }}" {{ default false $s.isSudoer }} '{{ default "" $s.passwordHash | b64enc }}' '{{ join "\n" $keys | b64enc }}'
{{- end }}
if [[ -s $HOME/node-users ]]; then
  while read -r name; do
    [[ " ${now[*]} " == *" $name "* ]] || _former "$name"
    [[ " ${now[*]} " == *" $name "* ]] || now+=("$name")
  done <"$HOME/node-users"
fi
if ((${#now[@]})); then printf '%s\n' "${now[@]}" | sort -u | bb-sync-file "$HOME/node-users" -; fi
