{{- define "ingero.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ingero.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "ingero.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "ingero.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ingero.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ingero.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ingero.agentLabels" -}}
{{ include "ingero.selectorLabels" . }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "ingero.dashboardLabels" -}}
{{ include "ingero.selectorLabels" . }}
app.kubernetes.io/component: dashboard
{{- end -}}

{{- define "ingero.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "ingero.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "ingero.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ingero.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "ingero.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* What values together cannot mean; the message says what to set. */}}
{{- define "ingero.refuse" -}}
{{- $values := .Values -}}
{{- if and $values.otlp.enabled (not $values.otlp.endpoint) -}}
{{- fail "otlp.enabled needs otlp.endpoint: HOST:PORT of the receiver" -}}
{{- end -}}
{{- if and $values.otlp.enabled $values.otlp.insecure (not $values.hostNetwork) -}}
{{- fail "otlp.insecure pushes to the node itself only, which needs hostNetwork: true" -}}
{{- end -}}
{{- if $values.dashboard.enabled -}}
{{- if not (or $values.dashboard.tokenSecret.name $values.dashboard.clientCaSecret.name) -}}
{{- fail "dashboard.enabled needs dashboard.tokenSecret.name, or dashboard.clientCaSecret.name for clients with certificates" -}}
{{- end -}}
{{- if not $values.storage.hostPath -}}
{{- fail "dashboard.enabled needs storage.hostPath: its pod finds the recording there" -}}
{{- end -}}
{{- if not $values.trace.record -}}
{{- fail "dashboard.enabled shows the recording, which trace.record: false does not make" -}}
{{- end -}}
{{- end -}}
{{- if and (or $values.prometheus.serviceMonitor.enabled $values.prometheus.podMonitor.enabled) (not $values.prometheus.enabled) -}}
{{- fail "a monitor finds nothing to scrape without prometheus.enabled: true" -}}
{{- end -}}
{{- if and $values.prometheus.serviceMonitor.enabled $values.prometheus.podMonitor.enabled -}}
{{- fail "serviceMonitor and podMonitor together would scrape each pod twice: enable one" -}}
{{- end -}}
{{- if not (or $values.trace.record $values.prometheus.enabled $values.otlp.enabled) -}}
{{- fail "trace.record: false without prometheus.enabled or otlp.enabled would trace for nobody" -}}
{{- end -}}
{{- end -}}

{{- define "ingero.lastSecond" -}}
exec:
  command: [ingero, check, --recording, --db={{ .Values.trace.dbPath }}]
{{- end -}}

{{/* Which nodes, and what the scheduler and the kubelet need to know. */}}
{{- define "ingero.placement" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
