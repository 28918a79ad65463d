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

{{/* Probes: Weir listens when its rules are loaded. Readiness may depend on Redis, start and life may not. */}}
{{- define "weir.probes" -}}
startupProbe:
  httpGet: { path: /livez, port: weir-http }
  periodSeconds: 1
  failureThreshold: 30
readinessProbe:
  httpGet: { path: /readyz, port: weir-http }
  periodSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: { path: /livez, port: weir-http }
  periodSeconds: 10
  timeoutSeconds: 2
  failureThreshold: 3
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}
