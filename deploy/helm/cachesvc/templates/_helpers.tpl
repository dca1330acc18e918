{{- define "cachesvc.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "cachesvc.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cachesvc.labels" -}}
{{ include "cachesvc.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* "true", or empty. Refuses what does not go together. */}}
{{- define "cachesvc.embedded" -}}
{{- $database := .Values.database.existingSecret }}{{ $bucket := .Values.bucket.name }}
{{- if and $database (not $bucket) }}
{{- fail "database.existingSecret is set, and bucket.name is not: replicas need both. Embedded has neither." }}
{{- else if and $bucket (not $database) }}
{{- fail "bucket.name is set, and database.existingSecret is not: replicas need both. Embedded has neither." }}
{{- else if $database }}
{{- if not .Values.firstToken.existingSecret }}
{{- fail "firstToken.existingSecret is not set. Make it: kubectl create secret generic cachesvc-first-token --from-literal=token=csv_$(openssl rand -hex 24)" }}
{{- end }}
{{- else }}
{{- if gt (int (default 1 .Values.replicas)) 1 }}
{{- fail (printf "replicas: %d, and embedded there is one: its index is SQLite in a volume. Set database and bucket, or replicas: 1." (int .Values.replicas)) }}
{{- end -}}
true
{{- end }}
{{- end }}

{{- define "cachesvc.replicas" -}}
{{- if kindIs "invalid" .Values.replicas }}{{ ternary 1 2 (eq (include "cachesvc.embedded" .) "true") }}
{{- else }}{{ .Values.replicas }}{{ end }}
{{- end }}

{{- define "cachesvc.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "cachesvc.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "cachesvc.fullname" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "cachesvc.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "cachesvc.containerSecurity" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where the index is; the migration job needs no more. */}}
{{- define "cachesvc.databaseEnv" -}}
- name: CACHESVC_SERVER_DATABASE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end }}

{{/* Settings of the server, and of `admin --local` beside it. */}}
{{- define "cachesvc.env" -}}
{{- if not (include "cachesvc.embedded" .) }}
{{- include "cachesvc.databaseEnv" . }}
- name: CACHESVC_SERVER_BUCKET
  value: {{ .Values.bucket.name | quote }}
{{- with .Values.bucket.prefix }}
- name: CACHESVC_SERVER_BUCKET_PREFIX
  value: {{ . | quote }}
{{- end }}
{{- with .Values.bucket.endpoint }}
- name: CACHESVC_SERVER_BUCKET_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.bucket.publicEndpoint }}
- name: CACHESVC_SERVER_BUCKET_PUBLIC_ENDPOINT
  value: {{ . | quote }}
{{- end }}
- name: AWS_DEFAULT_REGION
  value: {{ .Values.bucket.region | quote }}
{{- if .Values.bucket.existingSecret }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $.Values.bucket.existingSecret }}
      key: {{ . }}
{{- end }}
{{- end }}
{{- if .Values.redis.existingSecret }}
- name: CACHESVC_SERVER_REDIS
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.existingSecret }}
      key: {{ .Values.redis.key }}
{{- end }}
- name: CACHESVC_SERVER_GC_SECONDS
  value: "0"
{{- end }}
{{- if .Values.firstToken.existingSecret }}
- name: CACHESVC_SERVER_FIRST_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .Values.firstToken.existingSecret }}
      key: {{ .Values.firstToken.key }}
{{- end }}
{{- if .Values.onlineKey.existingSecret }}
- name: CACHESVC_SERVER_ONLINE_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .Values.onlineKey.existingSecret }}
      key: {{ .Values.onlineKey.key }}
{{- end }}
{{- if .Values.oidcClientSecret.existingSecret }}
- name: CACHESVC_SERVER_OIDC_CLIENT_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ .Values.oidcClientSecret.existingSecret }}
      key: {{ .Values.oidcClientSecret.key }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: CACHESVC_SERVER_{{ upper $name }}
  value: {{ if kindIs "map" $value }}{{ toJson $value | quote }}{{ else }}{{ ternary (printf "%.0f" (float64 (default 0 $value))) (toString $value) (kindIs "float64" $value) | quote }}{{ end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "cachesvc.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "cachesvc.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.tls.existingSecret "") }}
{{- end }}
