{{- define "headway.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "headway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headway.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "headway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "headway.account" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "headway.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "headway.secret" -}}
{{- default (include "headway.name" .) .Values.secret.existing }}
{{- end }}

{{/* Whether there is a Secret to read. */}}
{{- define "headway.hasSecret" -}}
{{- if or .Values.secret.existing .Values.secret.values }}yes{{ end }}
{{- end }}

{{/* Whether the gateway lists pods. */}}
{{- define "headway.discovers" -}}
{{- if kindIs "bool" .Values.rbac.create }}{{ if .Values.rbac.create }}yes{{ end }}{{ else if .Values.fleet.discovery }}yes{{ end }}
{{- end }}

{{/* The fleet file: what is given, and auth, store, state and server filled in where it is silent. */}}
{{- define "headway.fleet" -}}
{{- $fleet := deepCopy .Values.fleet }}
{{- range $section := list "instances" "discovery" }}
{{- if not (index $fleet $section) }}{{ $fleet = omit $fleet $section }}{{ end }}
{{- end }}
{{- $server := merge (default dict $fleet.server) (dict "host" "0.0.0.0" "port" 8080 "workers" .Values.workers) }}
{{- $auth := default dict $fleet.auth }}
{{- if not (hasKey $auth "required") }}{{ $auth = set $auth "required" true }}{{ end }}
{{- $store := default dict $fleet.store }}
{{- if and .Values.store.url (not $store.url) }}
{{- $store = merge $store (dict "url" .Values.store.url) }}
{{- if .Values.store.passwordEnv }}{{ $store = merge $store (dict "password_env" .Values.store.passwordEnv) }}{{ end }}
{{- end }}
{{- $store = merge $store (dict "spool_directory" "/var/lib/headway") }}
{{- $state := default dict $fleet.state }}
{{- if and .Values.state.url (not $state.url) }}
{{- $state = merge $state (dict "url" .Values.state.url "name" (include "headway.name" .)) }}
{{- if .Values.state.passwordEnv }}{{ $state = merge $state (dict "password_env" .Values.state.passwordEnv) }}{{ end }}
{{- end }}
{{- $fleet = merge (dict "server" $server "auth" $auth "store" $store) $fleet }}
{{- if $state }}{{ $fleet = merge (dict "state" $state) $fleet }}{{ end }}
{{- toYaml $fleet }}
{{- end }}
