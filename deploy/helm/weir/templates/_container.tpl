{{/* The arguments about Redis, as items of a list. */}}
{{- define "weir.redisArgs" -}}
- --store=redis
{{- range .Values.redis.urls }}
- {{ printf "--redis-url=%s" . | quote }}
{{- end }}
{{- with .Values.redis }}
{{- if .existingSecret }}
- --redis-password-file=/etc/weir/redis/password
{{- end }}
{{- if .caSecret }}
- --redis-tls-ca=/etc/weir/redis-ca/ca.crt
{{- end }}
{{- if .prefix }}
- {{ printf "--redis-prefix=%s" .prefix | quote }}
{{- end }}
- --sharing={{ .sharing }}
- --on-store-error={{ .onStoreError }}
{{- if .fleetSize }}
- --fleet-size={{ int .fleetSize }}
{{- end }}
{{- end }}
{{- end }}

{{/* The number of pods to assume until Redis has counted them: the most that there can be. */}}
{{- define "weir.fleetSize" -}}
{{- if .Values.redis.fleetSize }}{{ int .Values.redis.fleetSize }}
{{- else if .Values.autoscaling.enabled }}{{ int .Values.autoscaling.maxReplicas }}
{{- else }}{{ int .Values.replicas }}
{{- end }}
{{- end }}

{{- define "weir.redisMounts" -}}
{{- if .Values.redis.existingSecret }}
- { name: weir-redis, mountPath: /etc/weir/redis, readOnly: true }
{{- end }}
{{- if .Values.redis.caSecret }}
- { name: weir-redis-ca, mountPath: /etc/weir/redis-ca, readOnly: true }
{{- end }}
{{- end }}

{{/* The volumes of weir.redisMounts. The pod's fsGroup may read the secrets. */}}
{{- define "weir.redisVolumes" -}}
{{- with .Values.redis }}
{{- if .existingSecret }}
- name: weir-redis
  secret:
    secretName: {{ .existingSecret | quote }}
    defaultMode: 0440
    items: [{ key: {{ .secretKey | quote }}, path: password }]
{{- end }}
{{- if .caSecret }}
- name: weir-redis-ca
  secret:
    secretName: {{ .caSecret | quote }}
    defaultMode: 0440
    items: [{ key: {{ .caSecretKey | quote }}, path: ca.crt }]
{{- end }}
{{- end }}
{{- end }}

{{/* The probes and the security context of a container. */}}
{{- define "weir.probes" -}}
{{- range $name := list "startupProbe" "readinessProbe" "livenessProbe" "securityContext" }}
{{- with get $.Values $name }}
{{ $name }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
