# agent: phase=pre-approval
# agent: timeoutSec=60
# The kubelet's way to the API servers. Also on a node whose update waits: without it nobody could approve anything.
{{- $all := default list .clusterMasterKubeAPIEndpoints }}
{{- $ca := dig "normal" "kubernetesCA" "" . }}
{{- if not $all }}
if [[ -e /etc/os-agent/api-proxy.toml ]]; then
  bb-log-error "the list of API servers is empty: the servers known so far stay"
  exit 1
fi
{{- else }}
{{- if not (contains "-----BEGIN CERTIFICATE-----" $ca) }}{{ fail "normal.kubernetesCA: expected the cluster's authority in PEM" }}{{ end }}
{{- range $all }}{{ if not (regexMatch "^(\\[[0-9a-fA-F:]+\\]|[A-Za-z0-9.-]+):[0-9]+$" .) }}{{ fail (printf "clusterMasterKubeAPIEndpoints: %q: expected host:port" .) }}{{ end }}{{ end }}
base64 -d <<<'{{ $ca | b64enc }}' | bb-sync-file /etc/os-agent/api-proxy-ca.crt -
bb-sync-file /etc/os-agent/api-proxy.toml - <<'END'
# Written by the standard bundle; read again by the running proxy.
upstreams = {{ toJson $all }}
ca_file = "/etc/os-agent/api-proxy-ca.crt"
server_name = {{ default "" .apiServerName | toJson }}
END
if ! systemctl is-enabled --quiet os-agent-api-proxy.service; then systemctl enable os-agent-api-proxy.service; fi
if ! systemctl is-active --quiet os-agent-api-proxy.service; then systemctl start os-agent-api-proxy.service; fi
{{- end }}
