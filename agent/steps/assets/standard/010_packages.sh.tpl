# agent: timeoutSec=900
# Archives named by their digest, from the node's own packages proxy, a directory or a web server; never from the internet.
{{- $p := default dict .packages }}
export BB_PACKAGES_DIR='{{ $p.dir | default "" }}' BB_PACKAGES_URL='{{ $p.url | default "" }}'
{{- if or (contains "'" ($p.dir | default "")) (contains "'" ($p.url | default "")) }}{{ fail "packages: a place with a quotation mark" }}{{ end }}
{{- range $name, $digest := $p.install }}
{{- if not (regexMatch "^[a-z0-9][a-z0-9._-]*$" $name) }}{{ fail (printf "packages: %q is no name" $name) }}{{ end }}
{{- if not (regexMatch "^(sha256:)?[0-9a-f]{64}$" $digest) }}{{ fail (printf "packages: %s: %q is no SHA-256" $name $digest) }}{{ end }}
bb-package-install '{{ $name }}:{{ $digest }}'
{{- end }}
{{- range $p.remove }}
{{- if not (regexMatch "^[a-z0-9][a-z0-9._-]*$" .) }}{{ fail (printf "packages: %q is no name" .) }}{{ end }}
bb-package-remove '{{ . }}'
{{- end }}
