//! Placeholder pods: what an autoscaler sees of a node that is needed.
//!
//! A placeholder names a scheduler that does not exist, so that it never runs; its
//! `PodScheduled=False` with reason `Unschedulable` is what the cluster autoscaler and Karpenter
//! act on. It asks for whole `nvidia.com/gpu`, for CPU and for memory as the pods do that the
//! node is for, and goes where they may go.

use k8s_openapi::api::core::v1::{Affinity, Pod, Toleration};
use kube::ResourceExt;
use proto::names::{resource, scale_up as names};
use scheduler_core::scale_up::{NewNode, NodeTemplate};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

/// Which nodes will do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rules {
    pub(super) selector: BTreeMap<String, String>,
    pub(super) affinity: Option<Affinity>,
    pub(super) tolerations: Vec<Toleration>,
}

impl Rules {
    /// Nodes of the group.
    pub(super) fn of(template: &NodeTemplate) -> Self {
        let labels = template.known_by.iter();
        let taints = template.node.taints.iter();
        Self {
            selector: labels
                .map(|(k, v)| (k.to_string(), v.to_string()))
                .collect(),
            affinity: None,
            tolerations: taints
                .map(|taint| Toleration {
                    key: Some(taint.key.to_string()),
                    operator: Some("Exists".to_owned()),
                    ..Toleration::default()
                })
                .collect(),
        }
    }

    /// The nodes that the pod may go to. Rules about other pods do not restrict nodes, and are left
    /// out.
    pub(super) fn like(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else {
            return Self::default();
        };
        let node_affinity = (spec.affinity.as_ref()).and_then(|all| all.node_affinity.clone());
        Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: node_affinity.map(|node_affinity| Affinity {
                node_affinity: Some(node_affinity),
                ..Affinity::default()
            }),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
        }
    }

    fn digest(&self) -> String {
        let mut hasher = DefaultHasher::new();
        let text = json!([self.selector, self.affinity, self.tolerations]);
        text.to_string().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

/// What one node is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size {
    pub(super) cards: u32,
    pub(super) cpu: u64,
    pub(super) memory: u64,
}

impl Size {
    pub(super) fn of(node: &NewNode) -> Self {
        Self {
            cards: node.cards,
            cpu: node.cpu.0,
            memory: node.memory.0,
        }
    }

    /// A placeholder of this size does for `other`.
    fn covers(self, other: Self) -> bool {
        self.cards == other.cards && self.cpu >= other.cpu && self.memory >= other.memory
    }
}

/// One node that is needed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Need {
    /// Of the group, for people.
    pub(super) group: Arc<str>,
    pub(super) rules: Rules,
    pub(super) size: Size,
}

/// The writes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Change {
    pub(super) create: Vec<Pod>,
    pub(super) delete: Vec<String>,
    /// Placeholders that no autoscaler sees yet.
    pub(super) mark: Vec<String>,
}

/// The fewest writes after which there is one placeholder for each need. One that is larger than
/// needed stays: a smaller one in its place would be another pod for the autoscaler.
pub(super) fn change(pool: &str, needs: &[Need], there: &[Pod]) -> Change {
    let mut free: Vec<(String, Size, &Pod)> = there.iter().filter_map(known).collect();
    free.sort_by_key(|(.., size, pod)| (*size, pod.name_any()));
    let mut change = Change::default();
    let mut names: BTreeSet<String> = there.iter().map(ResourceExt::name_any).collect();
    let mut needs: Vec<&Need> = needs.iter().collect();
    needs.sort_by_key(|need| Reverse(need.size));
    for need in needs {
        let digest = need.rules.digest();
        let fits =
            |(other, size, _): &(String, Size, &Pod)| *other == digest && size.covers(need.size);
        if let Some(at) = free.iter().position(fits) {
            let (.., pod) = free.remove(at);
            if !is_marked(pod) {
                change.mark.push(pod.name_any());
            }
            continue;
        }
        let numbers = 0..=there.len() + change.create.len();
        let mut candidates = numbers.map(|number| format!("{}-{number}", &digest[..10]));
        let Some(name) = candidates.find(|name| names.insert(name.clone())) else {
            continue;
        };
        change.mark.push(name.clone());
        change.create.push(pod(&name, pool, &digest, need));
    }
    let known: BTreeSet<String> = free.iter().map(|(.., pod)| pod.name_any()).collect();
    let broken = there.iter().filter(|pod| self::known(pod).is_none());
    change.delete.extend(known);
    change.delete.extend(broken.map(ResourceExt::name_any));
    change
}

/// Its rules' digest and its size. `None`: a person has changed it.
fn known(pod: &Pod) -> Option<(String, Size, &Pod)> {
    let digest = pod.labels().get(names::RULES)?.clone();
    let number = |key: &str| pod.annotations().get(key)?.parse::<u64>().ok();
    let size = Size {
        cards: u32::try_from(number(names::CARDS)?).ok()?,
        cpu: number(names::CPU)?,
        memory: number(names::BYTES)?,
    };
    Some((digest, size, pod))
}

fn is_marked(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("Unschedulable")
    })
}

fn pod(name: &str, pool: &str, digest: &str, need: &Need) -> Pod {
    let size = need.size;
    let mut resources = json!({"cpu": format!("{}m", size.cpu), "memory": size.memory.to_string()});
    if size.cards > 0 {
        resources[resource::GPU] = json!(size.cards.to_string());
    }
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": names::NAMESPACE,
            "labels": {
                "app.kubernetes.io/name": names::APP,
                names::RULES: digest,
                names::POOL: pool,
            },
            "annotations": {
                names::GROUP: &*need.group,
                names::CARDS: size.cards.to_string(),
                names::CPU: size.cpu.to_string(),
                names::BYTES: size.memory.to_string(),
            },
        },
        "spec": {
            "schedulerName": names::SCHEDULER,
            "priorityClassName": names::PRIORITY_CLASS,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": need.rules.selector,
            "affinity": need.rules.affinity,
            "tolerations": need.rules.tolerations,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "placeholder",
                "image": "registry.k8s.io/pause:3.10",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "resources": {"requests": resources, "limits": resources},
            }],
        },
    });
    serde_json::from_value(pod).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(group: &str, cards: u32, cpu: u64) -> Need {
        Need {
            group: group.into(),
            rules: Rules {
                selector: [("pool".to_owned(), group.to_owned())].into(),
                ..Rules::default()
            },
            size: Size {
                cards,
                cpu,
                memory: 1 << 30,
            },
        }
    }

    /// As the API server has it after the writes.
    fn after(mut there: Vec<Pod>, change: Change) -> Vec<Pod> {
        there.retain(|pod| !change.delete.contains(&pod.name_any()));
        there.extend(change.create);
        for pod in &mut there {
            if change.mark.contains(&pod.name_any()) {
                let status = json!({"conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
                pod.status = serde_json::from_value(status).unwrap();
            }
        }
        there
    }

    #[test]
    fn a_node_costs_two_writes_once_and_one_when_it_is_there() {
        let needs = [need("a", 1, 1000), need("a", 1, 1000), need("b", 8, 4000)];
        let first = change("", &needs, &[]);
        assert_eq!((first.create.len(), first.mark.len()), (3, 3));
        assert_eq!(first.delete.len(), 0);
        let there = after(Vec::new(), first);
        assert_eq!(change("", &needs, &there), Change::default());
        let last = change("", &needs[1..], &there);
        assert_eq!(
            (last.create.len(), last.mark.len(), last.delete.len()),
            (0, 0, 1)
        );
        let there = after(there, last);
        let groups: Vec<_> = there
            .iter()
            .map(|pod| pod.annotations()[names::GROUP].clone())
            .collect();
        assert_eq!(groups, ["b", "a"]);
    }

    #[test]
    fn one_that_is_larger_than_needed_stays_and_one_that_is_too_small_goes() {
        let there = after(Vec::new(), change("", &[need("a", 1, 4000)], &[]));
        assert_eq!(change("", &[need("a", 1, 1000)], &there), Change::default());
        let grown = change("", &[need("a", 1, 8000)], &there);
        assert_eq!((grown.create.len(), grown.delete.len()), (1, 1));
        assert_ne!(grown.create[0].name_any(), grown.delete[0]);
    }

    #[test]
    fn a_node_of_one_group_does_not_do_for_another() {
        let there = after(Vec::new(), change("", &[need("a", 1, 1000)], &[]));
        let other = change("", &[need("b", 1, 1000)], &there);
        assert_eq!((other.create.len(), other.delete.len()), (1, 1));
    }

    #[test]
    fn what_a_crash_left_unmarked_is_marked_and_what_a_person_changed_goes() {
        let mut left = change("", &[need("a", 1, 1000)], &[]).create;
        let again = change("", &[need("a", 1, 1000)], &left);
        assert_eq!((again.create.len(), again.mark.len()), (0, 1));
        left[0].annotations_mut().remove(names::CARDS);
        let other = change("", &[need("a", 1, 1000)], &left);
        assert_eq!((other.create.len(), other.delete.len()), (1, 1));
    }

    #[test]
    fn an_autoscaler_sees_whole_cards_and_where_the_node_is_to_be() {
        let pod = change("pool-1", &[need("a", 2, 1500)], &[])
            .create
            .remove(0);
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(spec.scheduler_name.as_deref(), Some(names::SCHEDULER));
        assert_eq!(spec.node_selector.as_ref().unwrap()["pool"], "a");
        let requests = spec.containers[0]
            .resources
            .as_ref()
            .unwrap()
            .requests
            .as_ref()
            .unwrap();
        assert_eq!(requests[resource::GPU].0, "2");
        assert_eq!(requests["cpu"].0, "1500m");
        assert_eq!(pod.labels()[names::POOL], "pool-1");
    }
}
