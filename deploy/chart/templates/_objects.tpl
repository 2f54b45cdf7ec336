{{- /* Each document of a file as {"items": [...]}, comments aside. */}}
{{- define "aliquot.documents" -}}
{{- $items := list -}}
{{- range $text := regexSplit "(?m)^---$" . -1 -}}
  {{- $object := fromYaml $text -}}
  {{- if $object.kind }}{{ $items = append $items $object }}{{ end -}}
{{- end -}}
{{- dict "items" $items | toYaml -}}
{{- end }}

{{- define "aliquot.image" -}}
{{- $registry := trimSuffix "/" .Values.global.registry -}}
{{- $repository := .Values.image.repository | default (ternary (printf "%s/aliquot" $registry) "aliquot" (ne $registry "")) -}}
{{- $tag := .Values.image.tag | default .Values.global.tag -}}
{{- $pinned := ternary (printf "@%s" .Values.image.digest) "" (and (eq $tag "") (ne .Values.image.digest "")) -}}
{{- printf "%s:%s%s" $repository ($tag | default .Chart.AppVersion) $pinned -}}
{{- end }}

{{- /* What all three workloads have alike. In: {root, object}; the object is changed. */}}
{{- define "aliquot.workload" -}}
{{- $values := .root.Values -}}
{{- $spec := .object.spec.template.spec -}}
{{- $container := first $spec.containers -}}
{{- $_ := set $container "image" (include "aliquot.image" .root) -}}
{{- with $values.global.imagePullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- with $values.global.imagePullSecrets -}}
  {{- $secrets := list -}}
  {{- range . }}{{ $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}{{ end -}}
  {{- $_ := set $spec "imagePullSecrets" $secrets -}}
{{- end -}}
{{- end }}

{{- /* KAI's default SchedulingShard, where its values say anything of one. In: the root. */}}
{{- define "aliquot.shard" -}}
{{- $spec := dict -}}
{{- if kindIs "map" .Values.scheduler.args -}}
  {{- $args := dict -}}
  {{- range $name, $value := .Values.scheduler.args }}{{ $_ := set $args $name (toString $value) }}{{ end -}}
  {{- $_ := set $spec "args" $args -}}
{{- end -}}
{{- with .Values.scheduler.plugins }}{{ $_ := set $spec "plugins" . }}{{ end -}}
{{- with .Values.scheduler.actions }}{{ $_ := set $spec "actions" . }}{{ end -}}
{{- if or $spec.args $spec.plugins $spec.actions -}}
{{- dict "apiVersion" "kai.scheduler/v1" "kind" "SchedulingShard" "metadata" (dict "name" "default") "spec" $spec | toYaml -}}
{{- end -}}
{{- end }}

{{- /* A SchedulingShard of that name that does not belong to the release is not changed. In: the root; out: "yes" if there is one. */}}
{{- define "aliquot.foreignShard" -}}
{{- $there := lookup "kai.scheduler/v1" "SchedulingShard" "" "default" -}}
{{- $release := (($there.metadata | default dict).annotations | default dict) | dig "meta.helm.sh/release-name" "" -}}
{{- if and $there (ne $release .Release.Name) }}yes{{ end -}}
{{- end }}

{{- /* A default queue by KAI's values. In: {root, object}; the object is changed. */}}
{{- define "aliquot.queue" -}}
{{- $queue := .root.Values.defaultQueue -}}
{{- $object := .object -}}
{{- $resources := ternary $queue.childResources $queue.parentResources (hasKey $object.spec "parentQueue") -}}
{{- if hasKey $object.spec "parentQueue" -}}
  {{- $_ := set $object.metadata "name" $queue.childName -}}
  {{- $_ := set $object.spec "parentQueue" $queue.parentName -}}
{{- else -}}
  {{- $_ := set $object.metadata "name" $queue.parentName -}}
{{- end -}}
{{- range $name, $of := $resources -}}
  {{- $_ := set $object.spec.resources $name (merge (deepCopy $of) (get $object.spec.resources $name | default dict)) -}}
{{- end -}}
{{- end }}

{{- /* Scheduler and admission alike: whose pods are theirs, where they run. In: {root, object}. */}}
{{- define "aliquot.deployment" -}}
{{- $values := .root.Values -}}
{{- $spec := .object.spec.template.spec -}}
{{- $container := first $spec.containers -}}
{{- $args := $container.args -}}
{{- with $values.scheduler.name }}{{ $args = append $args (printf "--scheduler-name=%s" .) }}{{ end -}}
{{- with $values.podgrouper.queueLabelKey -}}
  {{- if ne . "kai.scheduler/queue" }}{{ $args = append $args (printf "--queue-label-key=%s" .) }}{{ end -}}
{{- end -}}
{{- with $values.global.nodePoolLabelKey }}{{ $args = append $args (printf "--node-pool-label-key=%s" .) }}{{ end -}}
{{- if kindIs "slice" $values.scheduler.args }}{{ $args = concat $args $values.scheduler.args }}{{ end -}}
{{- $_ := set $container "args" $args -}}
{{- with $values.global.priorityClassName }}{{ $_ := set $spec "priorityClassName" . }}{{ end -}}
{{- with $values.global.nodeSelector }}{{ $_ := set $spec "nodeSelector" (merge (deepCopy .) $spec.nodeSelector) }}{{ end -}}
{{- with $values.global.affinity }}{{ $_ := set $spec "affinity" . }}{{ end -}}
{{- with $values.global.tolerations }}{{ $_ := set $spec "tolerations" . }}{{ end -}}
{{- with $values.global.securityContext }}{{ $_ := set $spec "securityContext" . }}{{ end -}}
{{- $mine := ternary $values.admission $values.scheduler (eq .object.metadata.name "aliquot-admission") -}}
{{- with $mine.resources }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- with $mine.topologySpreadConstraints }}{{ $_ := set $spec "topologySpreadConstraints" . }}{{ end -}}
{{- if gt (int $mine.replicas) 0 }}{{ $_ := set .object.spec "replicas" (int $mine.replicas) }}{{ end -}}
{{- end }}

{{- /* In: {root, object}. */}}
{{- define "aliquot.scheduler" -}}
{{- $values := .root.Values -}}
{{- $spec := .object.spec.template.spec -}}
{{- $container := first $spec.containers -}}
{{- $args := $container.args -}}
{{- with $values.scheduler.placementStrategy -}}
  {{- $args = concat $args (list (printf "--gpu-placement=%s" .) (printf "--cpu-placement=%s" .)) -}}
{{- end -}}
{{- range $name, $url := $values.scheduler.pageLinks }}{{ $args = append $args (printf "--page-link=%s=%s" $name $url) }}{{ end -}}
{{- with $values.podgrouper.args -}}
  {{- with .defaultPrioritiesConfigMapName }}{{ $args = append $args (printf "--default-priorities-configmap-name=%s" .) }}{{ end -}}
  {{- with .defaultPrioritiesConfigMapNamespace }}{{ $args = append $args (printf "--default-priorities-configmap-namespace=%s" .) }}{{ end -}}
  {{- if kindIs "bool" .gangScheduleDeployment }}{{ $args = append $args (printf "--deployment-gang-schedule=%t" .gangScheduleDeployment) }}{{ end -}}
{{- end -}}
{{- with include "aliquot.shard" .root }}{{ $args = append $args "--node-pool=" }}{{ end -}}
{{- $empties := kindIs "invalid" $values.scaleDown.delaySeconds | not -}}
{{- if and $empties (not $values.global.clusterAutoscaling) }}{{ fail "scaleDown.delaySeconds needs global.clusterAutoscaling=true" }}{{ end -}}
{{- if $values.global.clusterAutoscaling -}}
  {{- $args = append $args "--cluster-autoscaling" -}}
  {{- if $empties -}}
    {{- $args = concat $args (list (printf "--scale-down-delay-s=%d" (int $values.scaleDown.delaySeconds)) (printf "--max-scale-down-pods=%d" (int $values.scaleDown.maxPods))) -}}
  {{- end -}}
  {{- with $values.nodeTemplates -}}
    {{- $args = append $args "--node-templates=/etc/aliquot-nodes/templates.yaml" -}}
    {{- $_ := set $spec "volumes" (append ($spec.volumes | default list) (dict "name" "node-templates" "configMap" (dict "name" "aliquot-node-templates"))) -}}
    {{- $_ := set $container "volumeMounts" (append ($container.volumeMounts | default list) (dict "name" "node-templates" "mountPath" "/etc/aliquot-nodes" "readOnly" true)) -}}
    {{- /* The file is read at the start: another one makes other pods. */}}
    {{- $metadata := $.object.spec.template.metadata -}}
    {{- $_ := set $metadata "annotations" (merge (dict "aliquot.dev/node-templates" (toYaml . | sha256sum)) ($metadata.annotations | default dict)) -}}
  {{- end -}}
{{- end -}}
{{- $_ := set $container "args" $args -}}
{{- end }}

{{- /* Agent and MPS supervisor alike: where they run, where the driver is. In: {root, object}. */}}
{{- define "aliquot.node" -}}
{{- $values := .root.Values -}}
{{- $spec := .object.spec.template.spec -}}
{{- $container := first $spec.containers -}}
{{- with $values.nodeAgent.nodeSelector }}{{ $_ := set $spec "nodeSelector" . }}{{ end -}}
{{- with concat $values.global.daemonsetsTolerations $values.nodeAgent.tolerations }}{{ $_ := set $spec "tolerations" (concat $spec.tolerations .) }}{{ end -}}
{{- $host := eq $values.driver.root "host" -}}
{{- $root := ternary "/" "/run/nvidia/driver" $host -}}
{{- $here := ternary "/driver" "/run/nvidia/driver" $host -}}
{{- $args := list -}}
{{- range $arg := $container.args -}}
  {{- if hasPrefix "--driver-root=" $arg -}}
    {{- $args = append $args (printf "--driver-root=%s" $root) -}}
    {{- if $host }}{{ $args = append $args (printf "--driver-root-here=%s" $here) }}{{ end -}}
  {{- else -}}
    {{- $args = append $args $arg -}}
  {{- end -}}
{{- end -}}
{{- if and $values.driver.nvml (has "run" $args) }}{{ $args = append $args (printf "--nvml=%s/%s" $here $values.driver.nvml) }}{{ end -}}
{{- $_ := set $container "args" $args -}}
{{- if $host -}}
  {{- range $volume := $spec.volumes -}}
    {{- if eq $volume.name "driver" }}{{ $_ := set $volume "hostPath" (dict "path" "/" "type" "Directory") }}{{ end -}}
  {{- end -}}
  {{- range $mount := $container.volumeMounts -}}
    {{- if eq $mount.name "driver" }}{{ $_ := set $mount "mountPath" "/driver" }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- /* The agent as DRA driver. In: {root, object}. */}}
{{- define "aliquot.dra" -}}
{{- $container := first .object.spec.template.spec.containers -}}
{{- $_ := set $container "args" (append $container.args "--dra=true") -}}
{{- end }}

{{- /* How the agent offers slices. In: {root, object}. */}}
{{- define "aliquot.mig" -}}
{{- $container := first .object.spec.template.spec.containers -}}
{{- $_ := set $container "args" (append $container.args (printf "--mig-strategy=%s" .root.Values.mig.strategy)) -}}
{{- end }}

{{- /* How hard the guard is, and where it does not look. In: {root, object}. */}}
{{- define "aliquot.binding" -}}
{{- $guard := .root.Values.guard -}}
{{- if ne $guard.action "Deny" }}{{ $_ := set .object.spec "validationActions" (list $guard.action "Audit") }}{{ end -}}
{{- $resources := .object.spec.matchResources | default dict -}}
{{- range $expression := ($resources.namespaceSelector | default dict).matchExpressions -}}
  {{- if eq $expression.key "kubernetes.io/metadata.name" }}{{ $_ := set $expression "values" (concat $expression.values $guard.exemptNamespaces) }}{{ end -}}
{{- end -}}
{{- end }}

{{- /* What the guard must know of this cluster. In: {root, object}. */}}
{{- define "aliquot.policy" -}}
{{- $values := .root.Values -}}
{{- range $condition := .object.spec.matchConditions -}}
  {{- if $values.scheduler.name }}{{ $_ := set $condition "expression" (replace "'kai-scheduler'" (printf "'%s'" $values.scheduler.name) $condition.expression) }}{{ end -}}
{{- end -}}
{{- range $variable := .object.spec.variables -}}
  {{- if and (eq $variable.name "schedulers") $values.scheduler.name -}}
    {{- $_ := set $variable "expression" (printf "['%s']" $values.scheduler.name) -}}
  {{- else if and (eq $variable.name "classes") $values.guard.runtimeClasses -}}
    {{- $_ := set $variable "expression" (printf "['%s']" (join "', '" $values.guard.runtimeClasses)) -}}
  {{- else if and (eq $variable.name "queueKey") $values.podgrouper.queueLabelKey -}}
    {{- $_ := set $variable "expression" (printf "'%s'" $values.podgrouper.queueLabelKey) -}}
  {{- else if and (eq $variable.name "poolKey") $values.global.nodePoolLabelKey -}}
    {{- $_ := set $variable "expression" (printf "'%s'" $values.global.nodePoolLabelKey) -}}
  {{- else if and (eq $variable.name "exemptNames") $values.guard.exemptNamespaces -}}
    {{- $_ := set $variable "expression" (printf "%s, '%s']" (trimSuffix "]" $variable.expression) (join "', '" $values.guard.exemptNamespaces)) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- /* Whose pods go through the webhook. In: {root, object}. */}}
{{- define "aliquot.webhook" -}}
{{- $name := .root.Values.scheduler.name | default "kai-scheduler" -}}
{{- range $webhook := .object.webhooks -}}
  {{- range $condition := $webhook.matchConditions -}}
    {{- $_ := set $condition "expression" (replace "'kai-scheduler'" (printf "'%s'" $name) $condition.expression) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- /* From where metrics and the page are read. In: {root, object}. */}}
{{- define "aliquot.network" -}}
{{- with .root.Values.networkPolicy.monitoringFrom -}}
  {{- $from := . -}}
  {{- range $rule := $.object.spec.ingress -}}
    {{- if eq (first $rule.ports).port "metrics" }}{{ $_ := set $rule "from" $from }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- /* Kept at an uninstall, and made only where it is missing. In: {root, object}; out: "yes" to render. */}}
{{- define "aliquot.shared" -}}
{{- $object := .object -}}
{{- $there := lookup $object.apiVersion $object.kind ($object.metadata.namespace | default "") $object.metadata.name -}}
{{- $ours := eq ((($there.metadata | default dict).annotations | default dict) | dig "meta.helm.sh/release-name" "") .root.Release.Name -}}
{{- if or (not $there) $ours -}}
  {{- $_ := set $object.metadata "annotations" (dict "helm.sh/resource-policy" "keep") -}}
yes
{{- end -}}
{{- end }}
