# agent: timeoutSec=300
{{- $cri := default "ContainerdV2" .cri }}
{{- if not (has $cri (list "Containerd" "ContainerdV2" "NotManaged")) }}{{ fail (printf "cri: %q: expected Containerd, ContainerdV2 or NotManaged" $cri) }}{{ end }}
{{- if eq $cri "NotManaged" }}
# The container runtime is somebody else's.
exit 0
{{- else }}
{{- $image := dig "containerd" "sandboxImage" "" . }}
{{- if not (regexMatch "^[A-Za-z0-9._:/@-]*$" $image) }}{{ fail (printf "containerd.sandboxImage: %q" $image) }}{{ end }}
bb-event-on containerd-changed _restart
_restart() { systemctl daemon-reload; systemctl enable containerd.service; systemctl restart containerd.service; }
bin=$(PATH=/opt/bin:$PATH type -P containerd) || { bb-log-error "containerd is not here: it comes with the image or as a package"; exit 1; }
# Each registry's own directory is read at every pull, so a change of it needs no restart.
{{- range $host, $r := dig "registry" "hosts" (dict) . }}
{{- if not (regexMatch "^[A-Za-z0-9.-]+(:[0-9]+)?$" $host) }}{{ fail (printf "registry.hosts: %q is no host" $host) }}{{ end }}
{{- $r = default dict $r }}
{{- $auth := default dict $r.auth }}
{{- $urls := default (list (printf "https://%s" $host)) $r.mirrors }}
{{- if $r.ca }}
base64 -d <<<'{{ $r.ca | b64enc }}' | bb-sync-file '/etc/containerd/registry.d/{{ $host }}/ca.crt' -
{{- end }}
(umask 077; mkdir -p '/etc/containerd/registry.d/{{ $host }}')
bb-sync-file '/etc/containerd/registry.d/{{ $host }}/hosts.toml' - <<'END'
server = "https://{{ $host }}"
{{- range $urls }}
{{- if not (regexMatch "^https?://[A-Za-z0-9.:/_-]+$" .) }}{{ fail (printf "registry.hosts: %q is no URL" .) }}{{ end }}

[host."{{ . }}"]
  capabilities = ["pull", "resolve"]
{{- if $r.ca }}
  ca = ["/etc/containerd/registry.d/{{ $host }}/ca.crt"]
{{- end }}
{{- if $auth.username }}
  [host."{{ . }}".header]
    authorization = "Basic {{ printf "%s:%s" $auth.username $auth.password | b64enc }}"
{{- end }}
{{- end }}
END
[[ $(stat -c %a '/etc/containerd/registry.d/{{ $host }}/hosts.toml') == 600 ]] || chmod 0600 '/etc/containerd/registry.d/{{ $host }}/hosts.toml'
{{- end }}
bb-sync-file /etc/containerd/config.toml - containerd-changed <<'END'
{{- if eq $cri "Containerd" }}
version = 2

[plugins."io.containerd.grpc.v1.cri"]
{{- if $image }}
  sandbox_image = "{{ $image }}"
{{- end }}
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/registry.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
{{- else }}
version = 3

[plugins."io.containerd.cri.v1.images"]
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/registry.d"
{{- if $image }}
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{{ $image }}"
{{- end }}

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    SystemdCgroup = true
{{- end }}
END
# The image's own unit, where it has one.
if [[ ! -e /usr/lib/systemd/system/containerd.service && ! -e /lib/systemd/system/containerd.service ]]; then
  bb-sync-file /etc/systemd/system/containerd.service - containerd-changed <<END
[Unit]
Description=containerd
After=network.target local-fs.target

[Service]
Type=notify
ExecStart=$bin
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNOFILE=1048576
OOMScoreAdjust=-999
Environment=PATH=/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin

[Install]
WantedBy=multi-user.target
END
fi
{{- end }}
