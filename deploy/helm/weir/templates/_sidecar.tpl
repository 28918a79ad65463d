{{/*
weir.sidecar is Weir as a native sidecar container, for the initContainers of a pod in another chart:

  initContainers:
  {{- include "weir.sidecar" .Subcharts.weir | nindent 2 }}

The pod has the volumes that the values under sidecar name, and weir.sidecarVolumes. Its fsGroup lets Envoy use the socket.
*/}}
{{- define "weir.sidecar" -}}
- name: weir
  image: {{ include "weir.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args:
  - serve
  - --rules=/etc/weir/rules
  - --grpc-address=
  - {{ printf "--grpc-socket=%s" .Values.sidecar.socket | quote }}
  - --http-address=:8080
  - --http-json=off
  - --admin-address=127.0.0.1:8082
  - --log-format=json
  - --log-level={{ .Values.logLevel }}
  - --drain-timeout=10s
  {{- if .Values.sidecar.stateVolume }}
  - --state-dir=/var/lib/weir
  {{- end }}
  {{- if eq .Values.sidecar.store "redis" }}
  {{- include "weir.redisArgs" . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraEnv }}
  env:
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - { name: weir-http, containerPort: 8080 }
  {{- include "weir.probes" . | indent 2 }}
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  volumeMounts:
  - { name: {{ .Values.sidecar.rulesVolume | quote }}, mountPath: /etc/weir/rules, readOnly: true }
  - { name: {{ .Values.sidecar.socketVolume | quote }}, mountPath: {{ dir .Values.sidecar.socket | quote }} }
  {{- if .Values.sidecar.stateVolume }}
  - { name: {{ .Values.sidecar.stateVolume | quote }}, mountPath: /var/lib/weir }
  {{- end }}
  {{- if eq .Values.sidecar.store "redis" }}
  {{- include "weir.redisMounts" . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* weir.sidecarVolumes is the volumes with the secrets of weir.sidecar, and the extra ones. */}}
{{- define "weir.sidecarVolumes" -}}
{{- if eq .Values.sidecar.store "redis" }}
{{- include "weir.redisVolumes" . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
