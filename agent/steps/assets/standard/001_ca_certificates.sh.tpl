# agent: timeoutSec=120
# Authorities that the node trusts beside those of the image.
bb-event-on ca-changed _trust
_trust() {
  if bb-exe? update-ca-trust; then update-ca-trust extract
  elif bb-exe? update-ca-certificates; then update-ca-certificates
  else bb-log-error "neither update-ca-trust nor update-ca-certificates is here"; return 1
  fi
}
keep=/opt/deckhouse/share/ca-certificates
if bb-exe? update-ca-trust; then anchors=/etc/pki/ca-trust/source/anchors; else anchors=/usr/local/share/ca-certificates; fi
now=()
{{- range $name, $pem := .caCertificates }}
{{- if not (regexMatch "^[A-Za-z0-9][A-Za-z0-9._-]*$" $name) }}{{ fail (printf "caCertificates: %q is no file name" $name) }}{{ end }}
{{- if not (contains "-----BEGIN CERTIFICATE-----" $pem) }}{{ fail (printf "caCertificates: %s holds no certificate in PEM" $name) }}{{ end }}
now+=(slipway-{{ $name }}.crt)
base64 -d <<<'{{ $pem | b64enc }}' | bb-sync-file "$keep/{{ $name }}.crt" -
bb-sync-file "$anchors/slipway-{{ $name }}.crt" "$keep/{{ $name }}.crt" ca-changed
{{- end }}
for old in "$anchors"/slipway-*.crt; do
  if [[ -e $old && " ${now[*]} " != *" ${old##*/} "* ]]; then
    rm -f -- "$old" "$keep/$(name=${old##*/slipway-}; echo "$name")"
    bb-changed "$old"
    bb-event-delay ca-changed
  fi
done
