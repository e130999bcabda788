# agent: timeoutSec=300
{{- $all := default list .clusterMasterKubeAPIEndpoints }}
{{- $ca := dig "normal" "kubernetesCA" "" . }}
{{- $k := default dict .kubelet }}
{{- if not $all }}
# No cluster is named: this node joins none.
exit 0
{{- else }}
{{- if not (contains "-----BEGIN CERTIFICATE-----" $ca) }}{{ fail "normal.kubernetesCA: expected the cluster's authority in PEM" }}{{ end }}
{{- $token := default "" .bootstrapToken }}
{{- if not (regexMatch "^([a-z0-9]{6}\\.[a-z0-9]{16})?$" $token) }}{{ fail "bootstrapToken: expected xxxxxx.xxxxxxxxxxxxxxxx" }}{{ end }}
{{- $name := default "" .apiServerName }}
{{- if not (regexMatch "^[A-Za-z0-9.-]*$" $name) }}{{ fail (printf "apiServerName: %q" $name) }}{{ end }}
bb-event-on kubelet-changed _restart
_restart() { systemctl daemon-reload; systemctl enable kubelet.service; systemctl restart kubelet.service; }
bin=$(PATH=/opt/bin:$PATH type -P kubelet) || { bb-log-error "kubelet is not here: it comes with the image or as a package"; exit 1; }
mkdir -p /etc/kubernetes/{pki,manifests} /var/lib/kubelet
[[ $(stat -c %a /etc/kubernetes/manifests) == 700 ]] || chmod 0700 /etc/kubernetes/manifests
base64 -d <<<'{{ $ca | b64enc }}' | bb-sync-file /etc/kubernetes/pki/ca.crt - kubelet-changed
# Joining: the token is good for one certificate; then kubelet.conf is there and the token goes.
{{- if $token }}
if [[ ! -s /etc/kubernetes/kubelet.conf ]]; then
  (umask 077; : >>/etc/kubernetes/bootstrap-kubelet.conf)
  bb-sync-file /etc/kubernetes/bootstrap-kubelet.conf - kubelet-changed <<'END'
apiVersion: v1
kind: Config
clusters:
- name: cluster
  cluster:
    server: https://127.0.0.1:6445
    certificate-authority: /etc/kubernetes/pki/ca.crt
{{- if $name }}
    tls-server-name: {{ $name }}
{{- end }}
users:
- name: bootstrap
  user:
    token: {{ $token }}
contexts:
- name: bootstrap
  context:
    cluster: cluster
    user: bootstrap
current-context: bootstrap
END
fi
{{- end }}
if [[ -s /etc/kubernetes/kubelet.conf && -e /etc/kubernetes/bootstrap-kubelet.conf ]]; then
  rm -f /etc/kubernetes/bootstrap-kubelet.conf
  bb-changed /etc/kubernetes/bootstrap-kubelet.conf
fi
bb-sync-file /var/lib/kubelet/config.yaml - kubelet-changed <<'END'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
cgroupDriver: systemd
{{- if dig "normal" "clusterDNSAddress" "" . }}
clusterDNS: [{{ .normal.clusterDNSAddress | toJson }}]
{{- end }}
clusterDomain: {{ dig "normal" "clusterDomain" "cluster.local" . | toJson }}
{{- if semverCompare ">=1.27" (default "1.31" .kubernetesVersion) }}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
{{- end }}
maxPods: {{ int (default 110 $k.maxPods) }}
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
failSwapOn: false
{{- if $k.resolvConf }}
resolvConf: {{ $k.resolvConf | toJson }}
{{- end }}
nodeStatusUpdateFrequency: {{ int (default 10 .nodeStatusUpdateFrequency) }}s
END
{{- $args := list }}
{{- range $key, $value := $k.labels }}
{{- if not (regexMatch "^[A-Za-z0-9./_-]+$" $key) }}{{ fail (printf "kubelet.labels: %q" $key) }}{{ end }}
{{- if not (regexMatch "^[A-Za-z0-9._-]*$" $value) }}{{ fail (printf "kubelet.labels: %s: %q" $key $value) }}{{ end }}
{{- $args = append $args (printf "%s=%s" $key $value) }}
{{- end }}
bb-sync-file /etc/systemd/system/kubelet.service.d/20-slipway.conf - kubelet-changed <<END
[Unit]
Wants=os-agent-api-proxy.service
After=os-agent-api-proxy.service containerd.service

[Service]
Environment=PATH=/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
ExecStart=
ExecStart=$bin --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --cert-dir=/var/lib/kubelet/pki --hostname-override=$(bb-d8-node-name)
{{- if not (semverCompare ">=1.27" (default "1.31" .kubernetesVersion)) }} --container-runtime-endpoint=unix:///run/containerd/containerd.sock{{ end }}
{{- if $args }} --node-labels={{ join "," $args }}{{ end }}
END
if [[ ! -e /usr/lib/systemd/system/kubelet.service && ! -e /lib/systemd/system/kubelet.service ]]; then
  bb-sync-file /etc/systemd/system/kubelet.service - kubelet-changed <<'END'
[Unit]
Description=kubelet
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Restart=always
RestartSec=10
Slice=system.slice

[Install]
WantedBy=multi-user.target
END
fi
{{- end }}
