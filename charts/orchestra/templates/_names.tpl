{{/* There is one operator a cluster, so its objects have fixed names, whatever the release is called. */}}
{{- define "orchestra.name" -}}orchestra-operator{{- end }}

{{- define "orchestra.sharedQueues" -}}orchestra-queues{{- end }}

{{/* By which the pods are selected: never changes. */}}
{{- define "orchestra.selector" -}}
app.kubernetes.io/name: orchestra
app.kubernetes.io/component: operator
{{- end }}

{{- define "orchestra.helmLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "orchestra.labels" -}}
{{ include "orchestra.selector" . }}
{{ include "orchestra.helmLabels" . }}
{{- end }}

{{- define "orchestra.subjects" -}}
- kind: ServiceAccount
  name: {{ include "orchestra.name" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
