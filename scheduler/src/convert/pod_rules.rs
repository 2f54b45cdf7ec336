//! A pod's affinity to other pods, its spread and its host ports.
//!
//! Read as kube-scheduler reads them: a term that names no namespace speaks of the pod's own;
//! `matchLabelKeys` and `mismatchLabelKeys` add the pod's own values to the selector. The API
//! server adds those of affinity itself, which makes no difference.

use super::hindrance::Hindrance;
use k8s_openapi::api::core::v1::{
    Affinity, Container, PodAffinityTerm, PodSpec, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use scheduler_core::model::{
    HostPort, Labels, Operator, Pod, PodRules, PodSelector, PodTerm, PreferredTerm, Requirement,
    Spread,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most rules about other pods that one pod may have and be placed: each is asked about at every
/// node, and manifests have a handful.
const MOST: usize = 64;

fn count(rules: &PodRules) -> usize {
    rules.affinity.len() + rules.anti_affinity.len() + rules.preferred.len() + rules.spread.len()
}

/// The rules of a pod whose namespace and labels are known already; of one that is not ours
/// only what its terms do to others. What cannot be read is `unsupported`.
pub(super) fn read(spec: &PodSpec, pod: &mut Pod) {
    pod.ports = ports(spec);
    let rules = rules(spec, pod);
    match rules {
        // It waits, and keeps the pods that it avoids away from its nominated node.
        Ok(rules) if count(&rules) > MOST => {
            if pod.ours {
                let what = Hindrance::PodRules(MOST).to_string();
                pod.unsupported.push(what.into());
            }
            pod.pods.anti_affinity = rules.anti_affinity;
        }
        Ok(rules) => pod.pods = rules,
        Err(what) => pod.unsupported.push(what.to_string().into()),
    }
}

fn rules(spec: &PodSpec, pod: &Pod) -> Result<PodRules, Hindrance> {
    let none = Affinity::default();
    let affinity = spec.affinity.as_ref().unwrap_or(&none);
    let near = affinity.pod_affinity.clone().unwrap_or_default();
    let away = affinity.pod_anti_affinity.clone().unwrap_or_default();
    let terms = |terms: Option<Vec<PodAffinityTerm>>| -> Result<Vec<PodTerm>, Hindrance> {
        let terms = terms.into_iter().flatten();
        terms.map(|one| term(&one, pod)).collect()
    };
    let anti_affinity = terms(away.required_during_scheduling_ignored_during_execution)?;
    let preferred = near.preferred_during_scheduling_ignored_during_execution;
    let preferred = preferred.into_iter().flatten().map(|one| (1, one));
    let unwanted = away.preferred_during_scheduling_ignored_during_execution;
    let unwanted = unwanted.into_iter().flatten().map(|one| (-1, one));
    let preferred = preferred.chain(unwanted).map(|(sign, one)| {
        Ok(PreferredTerm {
            weight: sign * one.weight,
            term: term(&one.pod_affinity_term, pod)?,
        })
    });
    let preferred = preferred.collect::<Result<_, Hindrance>>()?;
    if !pod.ours {
        return Ok(PodRules {
            anti_affinity,
            preferred,
            ..PodRules::default()
        });
    }
    let spread = spec.topology_spread_constraints.iter().flatten();
    Ok(PodRules {
        affinity: terms(near.required_during_scheduling_ignored_during_execution)?,
        anti_affinity,
        preferred,
        spread: spread
            .map(|one| self::spread(one, pod))
            .collect::<Result<_, _>>()?,
    })
}

fn term(term: &PodAffinityTerm, pod: &Pod) -> Result<PodTerm, Hindrance> {
    let named = term.namespaces.iter().flatten();
    let mut namespaces: BTreeSet<Arc<str>> = named.map(|name| Arc::from(name.as_str())).collect();
    let by_labels = term.namespace_selector.as_ref();
    if namespaces.is_empty() && by_labels.is_none() {
        namespaces.insert(Arc::clone(&pod.namespace));
    }
    let mut labels = term.label_selector.as_ref().map(selector).transpose()?;
    if let Some(labels) = &mut labels {
        let own = |keys: &Option<Vec<String>>| own(keys.as_ref(), &pod.labels);
        labels.extend(own(&term.match_label_keys).map(|(key, value)| Requirement {
            key,
            operator: Operator::In(vec![value]),
        }));
        let not = own(&term.mismatch_label_keys).map(|(key, value)| Requirement {
            key,
            operator: Operator::NotIn(vec![value]),
        });
        labels.extend(not);
    }
    Ok(PodTerm {
        pods: PodSelector {
            namespaces,
            namespace_labels: by_labels.map(selector).transpose()?,
            labels: labels.map(in_order),
        },
        topology_key: Arc::from(term.topology_key.as_str()),
    })
}

fn spread(constraint: &TopologySpreadConstraint, pod: &Pod) -> Result<Spread, Hindrance> {
    let labels = constraint.label_selector.as_ref().map(selector);
    let mut labels = labels.transpose()?;
    if let Some(labels) = &mut labels {
        labels.extend(own(constraint.match_label_keys.as_ref(), &pod.labels).map(
            |(key, value)| Requirement {
                key,
                operator: Operator::In(vec![value]),
            },
        ));
    }
    let honors = |policy: &Option<String>, default: bool| {
        policy
            .as_deref()
            .map_or(default, |policy| policy == "Honor")
    };
    Ok(Spread {
        term: PodTerm {
            pods: PodSelector {
                namespaces: [Arc::clone(&pod.namespace)].into(),
                namespace_labels: None,
                // An empty selector counts no pods there (kube-scheduler's
                // `countPodsMatchSelector`), where elsewhere it means all pods.
                labels: labels.map(in_order).filter(|all| !all.is_empty()),
            },
            topology_key: Arc::from(constraint.topology_key.as_str()),
        },
        max_skew: u32::try_from(constraint.max_skew).unwrap_or(1).max(1),
        min_domains: constraint
            .min_domains
            .and_then(|least| u32::try_from(least).ok()),
        honors_affinity: honors(&constraint.node_affinity_policy, true),
        honors_taints: honors(&constraint.node_taints_policy, false),
        required: constraint.when_unsatisfiable == "DoNotSchedule",
    })
}

/// The pod's own values of these labels, where it has them.
fn own(
    keys: Option<&Vec<String>>,
    labels: &Labels,
) -> impl Iterator<Item = (Arc<str>, Arc<str>)> + use<> {
    let keys = keys.into_iter().flatten();
    let pairs: Vec<_> = keys
        .filter_map(|key| labels.get_key_value(key.as_str()))
        .map(|(key, value)| (Arc::clone(key), Arc::clone(value)))
        .collect();
    pairs.into_iter()
}

fn selector(selector: &LabelSelector) -> Result<Vec<Requirement>, Hindrance> {
    let equal = selector.match_labels.iter().flatten();
    let equal = equal.map(|(key, value)| {
        Ok(Requirement {
            key: Arc::from(key.as_str()),
            operator: Operator::In(vec![Arc::from(value.as_str())]),
        })
    });
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.map(|one| {
        let values = || {
            one.values
                .iter()
                .flatten()
                .map(|value| Arc::from(value.as_str()))
        };
        let operator = match one.operator.as_str() {
            "In" => Operator::In(values().collect()),
            "NotIn" => Operator::NotIn(values().collect()),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            other => return Err(Hindrance::SelectorOperator(other.to_owned())),
        };
        Ok(Requirement {
            key: Arc::from(one.key.as_str()),
            operator,
        })
    });
    let all: Result<Vec<Requirement>, Hindrance> = equal.chain(expressions).collect();
    all.map(in_order)
}

/// Two selectors that say the same are one, in whatever order they say it.
fn in_order(mut all: Vec<Requirement>) -> Vec<Requirement> {
    for one in &mut all {
        if let Operator::In(values) | Operator::NotIn(values) = &mut one.operator {
            values.sort();
            values.dedup();
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Ports of the node that containers take; of init containers those that go on running.
fn ports(spec: &PodSpec) -> Vec<HostPort> {
    let stays = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let inits = spec.init_containers.iter().flatten().filter(stays);
    let of = |container: &Container| -> Vec<HostPort> {
        let ports = container.ports.iter().flatten();
        let taken = ports.filter_map(|port| {
            let number = port.host_port.and_then(|number| u16::try_from(number).ok());
            let address = port
                .host_ip
                .as_deref()
                .filter(|address| !address.is_empty());
            Some(HostPort {
                protocol: Arc::from(port.protocol.as_deref().unwrap_or("TCP")),
                port: number.filter(|number| *number > 0)?,
                address: Arc::from(address.unwrap_or(HostPort::ANY_ADDRESS)),
            })
        });
        taken.collect()
    };
    let all: BTreeSet<HostPort> = inits.chain(&spec.containers).flat_map(of).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(rest: serde_json::Value) -> Pod {
        let mut spec = json!({"containers": []});
        for (key, value) in rest.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let mut pod = Pod::named("p");
        pod.namespace = Arc::from("team");
        let label = |key: &str, value: &str| (Arc::from(key), Arc::from(value));
        pod.labels = [label("app", "web"), label("hash", "1")].into();
        read(&spec, &mut pod);
        pod
    }

    fn requirements(selector: &PodSelector) -> Vec<String> {
        let all = selector.labels.iter().flatten();
        all.map(|one| format!("{} {:?}", one.key, one.operator))
            .collect()
    }

    #[test]
    fn a_term_speaks_of_its_own_namespace_unless_it_names_others() {
        let with = |more: serde_json::Value| {
            let mut term =
                json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}});
            for (key, value) in more.as_object().unwrap() {
                term[key] = value.clone();
            }
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
            pod(json!({"affinity": {"podAntiAffinity": required}}))
                .pods
                .anti_affinity[0]
                .clone()
        };
        let own = with(json!({})).pods;
        assert_eq!(own.namespaces, [Arc::from("team")].into());
        assert_eq!(own.namespace_labels, None);
        let named = with(json!({"namespaces": ["a", "b"]})).pods;
        assert_eq!(named.namespaces.len(), 2);
        let all = with(json!({"namespaceSelector": {}})).pods;
        assert!(all.namespaces.is_empty());
        assert_eq!(all.namespace_labels, Some(Vec::new()));
        // The same twice, as from a server that has added the keys itself.
        let keys = with(json!({
            "matchLabelKeys": ["hash", "absent"],
            "mismatchLabelKeys": ["app"],
            "labelSelector": {"matchExpressions": [{"key": "hash", "operator": "In", "values": ["1"]}]},
        }));
        assert_eq!(
            requirements(&keys.pods),
            [r#"app NotIn(["web"])"#, r#"hash In(["1"])"#]
        );
    }

    #[test]
    fn a_spread_is_read_with_kubernetes_defaults() {
        let spread = |selector: serde_json::Value| {
            let mut one =
                json!({"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"});
            if !selector.is_null() {
                one["labelSelector"] = selector;
            }
            pod(json!({"topologySpreadConstraints": [one]})).pods.spread[0].clone()
        };
        assert_eq!(spread(json!(null)).term.pods.labels, None);
        // In a spread constraint an empty one counts no pods, as in kube-scheduler.
        assert_eq!(spread(json!({})).term.pods.labels, None);
        let one = spread(json!({"matchLabels": {"app": "web"}}));
        assert_eq!(one.term.pods.labels.unwrap().len(), 1);
        let read = spread(json!({}));
        assert!(!read.required && read.honors_affinity && !read.honors_taints);
        assert_eq!((read.max_skew, read.min_domains), (2, None));
    }

    #[test]
    fn what_cannot_be_read_keeps_the_pod_waiting() {
        let required = json!([{"topologyKey": "zone", "labelSelector": {
            "matchExpressions": [{"key": "a", "operator": "Near"}]}}]);
        let read = pod(json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required}}}));
        assert_eq!(*read.unsupported[0], *"a label selector with operator Near");
    }

    #[test]
    fn a_pod_with_more_rules_than_anybody_means_waits_and_says_so() {
        let with = |count: usize| {
            let zone = |at: usize| json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": at.to_string()}}});
            let terms: Vec<_> = (0..count).map(zone).collect();
            pod(json!({"affinity": {"podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": terms}}}))
        };
        assert!(with(MOST).unsupported.is_empty());
        let read = with(MOST + 1);
        assert_eq!(*read.unsupported[0], *"more than 64 rules about other pods");
        assert!(read.pods.is_empty());
    }

    #[test]
    fn ports_of_init_containers_count_where_they_go_on() {
        let port = |port: u16| json!([{"containerPort": 80, "hostPort": port}]);
        let read = pod(json!({
            "containers": [{"name": "c", "ports": [
                {"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "UDP"},
                {"containerPort": 81},
            ]}],
            "initContainers": [
                {"name": "once", "ports": port(1)},
                {"name": "sidecar", "restartPolicy": "Always", "ports": port(2)},
            ],
        }));
        let ports: Vec<String> = read
            .ports
            .iter()
            .map(|port| format!("{} {} {}", port.protocol, port.port, port.address))
            .collect();
        assert_eq!(ports, ["TCP 2 0.0.0.0", "UDP 8080 10.0.0.1"]);
    }
}
