//! The cluster: its versions, what is installed, agents, guards, queues, other schedulers.

mod operator;
mod seen;

use super::finding::Finding;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use proto::names::{NAMESPACE, kai, node_condition, node_label, object, resource};
use seen::{GRANT, GUARD};
use std::collections::BTreeSet;

pub(super) use seen::Seen;

/// Kubernetes 1.31: the first with everything that is used.
const OLDEST: (u32, u32) = (1, 31);
/// The label by which nodes with GPUs are known.
const PRESENT: &str = "nvidia.com/gpu.present";

/// Every check.
pub(super) fn findings(seen: &Seen) -> Vec<Finding> {
    let mut findings = vec![
        version(seen),
        installed(seen),
        queues(seen),
        scheduler(seen),
        webhook(seen),
        guard(seen),
        other_scheduler(seen),
    ];
    findings.extend(operator::findings(seen));
    findings.extend(operator::fractioning(seen));
    findings.extend(agents(seen));
    findings.extend(cards(seen));
    findings.extend(runtimes(seen));
    findings.extend(old_pods(seen));
    findings
}

fn version(seen: &Seen) -> Finding {
    let check = "Kubernetes";
    match &seen.version {
        Some((major, minor, text)) if (*major, *minor) >= OLDEST => {
            Finding::fine(check, text.clone())
        }
        Some((_, _, text)) => Finding::broken(
            check,
            format!("{text} is older than 1.31"),
            "upgrade the cluster",
        ),
        None => Finding::unknown(check, "its version cannot be read", ""),
    }
}

fn installed(seen: &Seen) -> Finding {
    let check = "definitions";
    if seen.gpu_nodes.is_some() && seen.queues.is_some() {
        return Finding::fine(check, "GpuNode and Queue are known");
    }
    let missing: Vec<&str> = [
        (seen.gpu_nodes.is_none(), "gpunodes.aliquot.dev"),
        (seen.queues.is_none(), "queues.scheduling.run.ai"),
    ]
    .into_iter()
    .filter_map(|(missing, name)| missing.then_some(name))
    .collect();
    Finding::broken(
        check,
        format!("{} cannot be listed", missing.join(" and ")),
        "kubectl apply -k deploy, or grant your account the right to list them",
    )
}

fn queues(seen: &Seen) -> Finding {
    let check = "queues";
    let Some(queues) = &seen.queues else {
        return Finding::unknown(check, "queues cannot be listed", GRANT);
    };
    let there = queues
        .iter()
        .any(|queue| queue.name_any() == kai::DEFAULT_QUEUE);
    let names: BTreeSet<String> = queues.iter().map(ResourceExt::name_any).collect();
    let orphan = queues.iter().find(|queue| {
        let parent = queue.spec.parent_queue.as_ref();
        parent.is_some_and(|parent| !parent.is_empty() && !names.contains(parent))
    });
    if let Some(orphan) = orphan {
        return Finding::broken(
            check,
            format!(
                "the parent of queue {} does not exist: nothing in it is placed",
                orphan.name_any()
            ),
            "create the parent, or correct spec.parentQueue",
        );
    }
    if there {
        Finding::fine(check, format!("{} of them", queues.len()))
    } else {
        Finding::warning(
            check,
            format!(
                "there is no {}: pods without a queue label wait",
                kai::DEFAULT_QUEUE
            ),
            "kubectl apply -f deploy/scheduler.yaml creates it",
        )
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn app(pod: &Pod) -> Option<&str> {
    pod.labels()
        .get("app.kubernetes.io/name")
        .map(String::as_str)
}

fn scheduler(seen: &Seen) -> Finding {
    let check = "scheduler";
    let Some(pods) = &seen.pods else {
        return Finding::unknown(check, "pods cannot be listed", GRANT);
    };
    let ours: Vec<&Pod> = pods
        .iter()
        .filter(|pod| pod.namespace().as_deref() == Some(NAMESPACE))
        .filter(|pod| app(pod) == Some("aliquot-scheduler"))
        .collect();
    let ready = ours.iter().filter(|pod| is_ready(pod)).count();
    if ready > 0 {
        return Finding::fine(check, format!("{ready} of {} replicas ready", ours.len()));
    }
    // It may run outside of a pod and place pods nevertheless.
    Finding::warning(
        check,
        if ours.is_empty() {
            format!("no pod aliquot-scheduler in {NAMESPACE}: it does not run, or not as a pod")
        } else {
            "no replica is ready".to_owned()
        },
        format!("kubectl -n {NAMESPACE} describe deployment aliquot-scheduler"),
    )
}

fn webhook(seen: &Seen) -> Finding {
    let check = "webhook";
    let Some(webhooks) = &seen.webhooks else {
        return Finding::unknown(check, "webhook configurations cannot be listed", GRANT);
    };
    let ours = webhooks
        .iter()
        .find(|w| w.name_any() == object::WEBHOOK_CONFIGURATION);
    let signed = ours.is_some_and(|configuration| {
        let hooks = configuration.webhooks.iter().flatten();
        hooks.clone().next().is_some()
            && hooks
                .clone()
                .all(|hook| hook.client_config.ca_bundle.is_some())
    });
    match (ours, signed) {
        (Some(_), true) => Finding::fine(check, "configured, with its authority"),
        (Some(_), false) => Finding::broken(
            check,
            "the configuration has no caBundle: pods that request a share are rejected",
            "the scheduler writes it within a minute of its start; look at its log",
        ),
        (None, _) => Finding::broken(
            check,
            "there is none: pods with a share get no token and are never placed",
            "kubectl apply -f deploy/scheduler.yaml, then recreate such pods",
        ),
    }
}

fn guard(seen: &Seen) -> Finding {
    let check = "guard";
    let Some(policies) = &seen.policies else {
        return Finding::unknown(check, "admission policies cannot be listed", GRANT);
    };
    let names: BTreeSet<String> = policies.iter().map(ResourceExt::name_any).collect();
    let missing: Vec<&str> = GUARD
        .into_iter()
        .filter(|name| !names.contains(*name))
        .collect();
    if missing.is_empty() {
        return Finding::fine(check, format!("all {} policies are there", GUARD.len()));
    }
    Finding::warning(
        check,
        format!(
            "without {}: a pod may reach GPUs that it was not granted",
            missing.join(", ")
        ),
        "kubectl apply -f deploy/scheduler.yaml",
    )
}

fn other_scheduler(seen: &Seen) -> Finding {
    let check = "other schedulers";
    let Some(pods) = &seen.pods else {
        return Finding::unknown(check, "pods cannot be listed", GRANT);
    };
    let image = |pod: &Pod| {
        let containers = pod.spec.as_ref().map(|spec| spec.containers.clone());
        let mut containers = containers.into_iter().flatten();
        containers.any(|container| {
            let image = container.image.unwrap_or_default();
            image.contains("kai-scheduler/scheduler") || image.contains("kai-scheduler/binder")
        })
    };
    let kai = pods
        .iter()
        .find(|pod| image(pod) && pod.metadata.deletion_timestamp.is_none());
    match kai {
        None => Finding::fine(check, "no KAI Scheduler"),
        Some(pod) => Finding::broken(
            check,
            format!(
                "the KAI Scheduler runs ({}/{}) and takes the same pods",
                pod.namespace().unwrap_or_default(),
                pod.name_any()
            ),
            "give one of them another scheduler name and node pool (docs/migration.md), or remove KAI",
        ),
    }
}

fn gpus(node: &Node) -> bool {
    let labelled = node
        .labels()
        .get(PRESENT)
        .is_some_and(|value| value == "true");
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let shown = allocatable
        .and_then(|all| all.get(resource::GPU))
        .is_some_and(|amount| amount.0 != "0");
    labelled || shown
}

fn agents(seen: &Seen) -> Vec<Finding> {
    let check = "agents";
    let (Some(gpu_nodes), Some(nodes)) = (&seen.gpu_nodes, &seen.nodes) else {
        return vec![Finding::unknown(
            check,
            "nodes or GpuNodes cannot be listed",
            GRANT,
        )];
    };
    let mut findings = Vec::new();
    let mut offering = 0;
    for node in gpu_nodes {
        let name = node.name_any();
        let conditions = node.status.iter().flat_map(|status| &status.conditions);
        match conditions
            .clone()
            .find(|condition| condition.type_ == node_condition::OFFERING)
        {
            Some(condition) if condition.status == "True" => offering += 1,
            Some(condition) => findings.push(Finding::broken(
                check,
                format!("{name} offers no shares: {}", condition.message),
                "run `aliquot doctor --node` there",
            )),
            None => findings.push(Finding::broken(
                check,
                format!("the agent of {name} has not reported"),
                format!("look at the log of the aliquot-agent pod on {name}"),
            )),
        }
        let limits = conditions
            .clone()
            .find(|one| one.type_ == node_condition::DRIVER_LIMITS);
        if let Some(limits) = limits.filter(|limits| limits.status != "True") {
            findings.push(Finding::warning(
                check,
                format!(
                    "the driver of {name} could limit memory and does not: {}",
                    limits.message
                ),
                "supply the named part; the agent probes again within a minute",
            ));
        }
        if !nodes.iter().any(|other| other.name_any() == name) {
            findings.push(Finding::warning(
                check,
                format!("the GpuNode {name} has no node"),
                format!("kubectl delete gpunode {name}"),
            ));
        }
    }
    let managed = |name: &str| gpu_nodes.iter().any(|node| node.name_any() == name);
    for node in nodes
        .iter()
        .filter(|node| gpus(node) && !managed(&node.name_any()))
    {
        findings.push(Finding::warning(
            check,
            format!(
                "{} has GPUs and no agent: whole GPUs only, by its own plugin",
                node.name_any()
            ),
            format!(
                "drain it, switch that plugin off there, then kubectl label node {} {}=true",
                node.name_any(),
                node_label::AGENT
            ),
        ));
    }
    if findings.is_empty() {
        findings.push(match offering {
            0 => Finding::broken(
                check,
                "no node has an agent",
                "kubectl apply -f deploy/daemonset.yaml",
            ),
            _ => Finding::fine(
                check,
                format!("{offering} of {offering} nodes offer shares"),
            ),
        });
    }
    findings
}

fn cards(seen: &Seen) -> Vec<Finding> {
    let nodes = seen.gpu_nodes.as_deref().unwrap_or_default();
    let mut findings = Vec::new();
    for (node, card) in crate::inventory::cards_of(nodes) {
        let which = format!("GPU {} of {node}", card.index);
        if card.health != "Healthy" {
            findings.push(Finding::broken(
                "cards",
                format!("{which} is unhealthy: {}", card.health_reason),
                format!(
                    "drain what runs on it (`aliquot shares {node}`), then reset or replace it"
                ),
            ));
        }
        if card.cordoned {
            findings.push(Finding::warning(
                "cards",
                format!("{which} is cordoned"),
                format!("aliquot uncordon {node}/{}", card.index),
            ));
        }
        for stranger in &card.strangers {
            findings.push(Finding::warning(
                "cards",
                format!(
                    "{which}: process {} ({}) holds {} MiB without a grant",
                    stranger.pid, stranger.command, stranger.memory_mib.0
                ),
                "end it, or keep its memory from shares with spec.reserveMib of the GpuNode",
            ));
        }
    }
    if findings.is_empty() && !nodes.is_empty() {
        let count = crate::inventory::cards_of(nodes).count();
        findings.push(Finding::fine(
            "cards",
            format!("{count} healthy, none cordoned, no strangers"),
        ));
    }
    findings
}

/// What the nodes' runtimes are known to do with CDI names.
fn runtimes(seen: &Seen) -> Vec<Finding> {
    let check = "runtimes";
    let Some(nodes) = &seen.nodes else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for node in nodes.iter().filter(|node| gpus(node)) {
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        let runtime = info.map(|info| info.container_runtime_version.as_str());
        let runtime = runtime.unwrap_or_default();
        let name = node.name_any();
        if runtime.starts_with("docker") || runtime.starts_with("containerd://1.6") {
            findings.push(Finding::broken(
                check,
                format!("{name} has {runtime}, which does not know CDI"),
                "use containerd 1.7 with enable_cdi, containerd 2, or CRI-O",
            ));
        } else if runtime.starts_with("containerd://1.7") {
            findings.push(Finding::warning(
                check,
                format!("{name} has {runtime}, in which CDI is off by default"),
                format!("run `aliquot doctor --node` on {name}"),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::fine(check, "no runtime that is known to lack CDI"));
    }
    findings
}

/// Pods that were made while there was no webhook.
fn old_pods(seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pod in seen.pods.iter().flatten() {
        let Some(spec) = &pod.spec else { continue };
        let waits = spec.node_name.is_none() && pod.metadata.deletion_timestamp.is_none();
        let ours = spec.scheduler_name.as_deref() == Some(kai::SCHEDULER_NAME);
        let asks = [
            proto::names::request::MEMORY,
            proto::names::request::FRACTION,
        ]
        .iter()
        .any(|key| pod.annotations().contains_key(*key));
        let init = spec.init_containers.iter().flatten();
        let token = spec.containers.iter().chain(init).any(|container| {
            let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
            limits.is_some_and(|limits| limits.contains_key(resource::SHARE))
        });
        if waits && ours && asks && !token {
            findings.push(Finding::broken(
                "pods",
                format!(
                    "{}/{} was created before the webhook was installed and is never placed",
                    pod.namespace().unwrap_or_default(),
                    pod.name_any()
                ),
                "delete it and create it again",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests;
