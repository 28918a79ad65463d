{{- define "weir.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name of all objects. A Service needs a name of a-z, 0-9 and -, that begins with a letter. A release may be called 2.edge. */}}
{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else -}}
{{- $name := include "weir.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | lower -}}
{{- $full = regexReplaceAll "[^a-z0-9]+" $full "-" -}}
{{ regexReplaceAll "^([0-9])" $full "weir-${1}" | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ include "weir.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "weir.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest }}
{{- else -}}
{{ printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "weir.rulesName" -}}
{{ default (printf "%s-rules" (include "weir.fullname" .)) .Values.existingRules }}
{{- end }}

{{/* The service account of the pod: "" is the default one of the namespace. */}}
{{- define "weir.serviceAccount" -}}
{{ default (ternary (include "weir.fullname" .) "" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}
