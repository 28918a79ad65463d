{{/* weir.check fails for values that contradict each other. The schema sees each value alone. */}}
{{- define "weir.check" -}}
{{- with .Values.autoscaling }}
{{- if and .enabled (eq $.Values.store "redis") }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "autoscaling.minReplicas is %d, must be at most autoscaling.maxReplicas, %d" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- if not (get $.Values.resources.requests "cpu") }}
{{- fail "autoscaling needs resources.requests.cpu, because autoscaling.targetCPU is per cent of this request" }}
{{- end }}
{{- end }}
{{- end }}
{{- range $key, $value := .Values.podLabels }}
{{- if hasKey (include "weir.selector" $ | fromYaml) $key }}
{{- fail (printf "podLabels has %s, by which the chart selects its pods" $key) }}
{{- end }}
{{- end }}
{{- range $object := list "serviceMonitor" "prometheusRule" "board" }}
{{- range $key, $value := (get $.Values $object).labels }}
{{- if hasKey (include "weir.labels" $ | fromYaml) $key }}
{{- fail (printf "%s.labels has %s, which the chart sets" $object $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.existingRules .Values.rules }}
{{- fail "rules and existingRules are both set: must be one of the two" }}
{{- end }}
{{- end }}
