//! Volumes to which a claim may still come, and what a claim wants of one. Pure.
//!
//! The core decides which of them a claim gets. A volume that is bound, being deleted or not
//! available yet is left out.

use super::rules;
use api::quantity;
use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use scheduler_core::ids::{ClaimUid, VolumeName};
use scheduler_core::model::{ClaimRef, NodeTerm, Operator, Requirement, Shape, Volume, Want};
use scheduler_core::units::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

fn text(text: Option<String>) -> Arc<str> {
    Arc::from(text.unwrap_or_default())
}

fn modes(modes: Option<Vec<String>>) -> BTreeSet<Arc<str>> {
    modes.into_iter().flatten().map(Arc::from).collect()
}

/// Where a volume can be used; `None`: everywhere.
pub(super) fn terms(volume: &PersistentVolume) -> Option<Vec<NodeTerm>> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    let terms = affinity.required.as_ref()?.node_selector_terms.iter();
    Some(terms.map(rules::term).collect())
}

/// The volume, if a claim may still come to it. `claim`: the one that names it.
pub(super) fn offered(object: &PersistentVolume, claim: Option<ClaimRef>) -> Option<Volume> {
    let spec = object.spec.clone().unwrap_or_default();
    let phase = object.status.as_ref()?.phase.as_deref()?;
    let kept_for = spec.claim_ref.map(|claim| {
        let namespace = claim.namespace.unwrap_or_default();
        let uid = claim.uid.filter(|uid| !uid.is_empty());
        ClaimRef {
            name: Arc::from(format!("{namespace}/{}", claim.name.unwrap_or_default())),
            uid: uid.map(ClaimUid::from),
        }
    });
    let kept_for = kept_for.or(claim);
    let is_open = phase == "Available" || kept_for.is_some() && phase != "Bound";
    if !is_open || object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let capacity = spec.capacity.as_ref()?.get("storage")?;
    Some(Volume {
        name: VolumeName::from(object.name_any()),
        shape: Shape {
            class: text(spec.storage_class_name),
            size: Bytes(quantity::down(capacity)?),
            modes: modes(spec.access_modes),
            block: spec.volume_mode.as_deref() == Some("Block"),
            attributes: text(spec.volume_attributes_class_name),
        },
        labels: rules::labels(Some(object.labels())),
        kept_for,
        nodes: terms(object),
    })
}

/// What a claim of that class wants of a volume. A request that cannot be read is met by none.
pub(super) fn want(claim: &PersistentVolumeClaim, class: Option<&str>) -> Want {
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|resources| resources.requests);
    let size = requests.as_ref().and_then(|all| all.get("storage"));
    let size = size.map_or(Some(0), quantity::up);
    Want {
        shape: Shape {
            class: Arc::from(class.unwrap_or_default()),
            size: Bytes(size.unwrap_or(u64::MAX)),
            modes: modes(spec.access_modes),
            block: spec.volume_mode.as_deref() == Some("Block"),
            attributes: text(spec.volume_attributes_class_name),
        },
        selector: spec.selector.map(requirements).unwrap_or_default(),
    }
}

/// Labels are selected as nodes' are. A selector that cannot be read selects nothing.
pub(super) fn requirements(selector: LabelSelector) -> Vec<Requirement> {
    let labels = selector.match_labels.into_iter().flatten();
    let labels = labels.map(|(key, value)| NodeSelectorRequirement {
        key,
        operator: "In".to_owned(),
        values: Some(vec![value]),
    });
    let rest = selector.match_expressions.into_iter().flatten();
    let rest = rest.map(|one| NodeSelectorRequirement {
        key: one.key,
        operator: one.operator,
        values: one.values,
    });
    let all: Vec<NodeSelectorRequirement> = labels.chain(rest).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let read = rules::term(&NodeSelectorTerm {
        match_expressions: Some(all),
        match_fields: None,
    });
    if read == NodeTerm::default() {
        return vec![Requirement {
            key: Arc::from(""),
            operator: Operator::In(Vec::new()),
        }];
    }
    read.labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(more: Value) -> PersistentVolume {
        let mut volume = json!({"metadata": {"name": "v", "labels": {"disk": "fast"}},
            "spec": {"storageClassName": "local", "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"]},
            "status": {"phase": "Available"}});
        json_patch::merge(&mut volume, &more);
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn a_volume_to_which_no_claim_may_come_is_not_offered() {
        let kept = json!({"namespace": "ns", "name": "c"});
        for (more, is_offered) in [
            (json!({}), true),
            (json!({"spec": {"capacity": {"storage": "much"}}}), false),
            (json!({"spec": {"capacity": null}}), false),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
                false,
            ),
            (json!({"status": {"phase": "Released"}}), false),
            (json!({"status": {"phase": "Pending"}}), false),
            (json!({"status": null}), false),
            (json!({"spec": {"claimRef": kept}}), true),
            (
                json!({"spec": {"claimRef": kept}, "status": {"phase": "Pending"}}),
                true,
            ),
            (
                json!({"spec": {"claimRef": kept}, "status": {"phase": "Bound"}}),
                false,
            ),
        ] {
            let object = volume(more);
            assert_eq!(offered(&object, None).is_some(), is_offered, "{object:?}");
        }
    }

    #[test]
    fn who_a_volume_is_kept_for_is_said_by_either_of_them() {
        let by_claim = ClaimRef {
            name: "ns/other".into(),
            uid: Some("u".into()),
        };
        let kept = |object: &PersistentVolume| {
            let offered = offered(object, Some(by_claim.clone()));
            offered.unwrap().kept_for.unwrap()
        };
        assert_eq!(kept(&volume(json!({}))), by_claim);
        let of = json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": ""}}});
        let own = ClaimRef {
            name: "ns/c".into(),
            uid: None,
        };
        assert_eq!(kept(&volume(of)), own);
    }

    #[test]
    fn sizes_round_against_the_claim_and_selectors_are_read_or_select_nothing() {
        let wants = |more: Value| {
            let mut claim = json!({"metadata": {"name": "c"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1500m"}}}});
            json_patch::merge(&mut claim, &more);
            want(&serde_json::from_value(claim).unwrap(), Some("local"))
        };
        let plain = wants(json!({}));
        assert_eq!((plain.shape.size, plain.selector.len()), (Bytes(2), 0));
        let much = json!({"spec": {"resources": {"requests": {"storage": "much"}}}});
        assert_eq!(wants(much).shape.size, Bytes(u64::MAX));
        let small = volume(json!({"spec": {"capacity": {"storage": "1999m"}}}));
        assert_eq!(offered(&small, None).unwrap().shape.size, Bytes(1));
        let selects = |selector: Value| wants(json!({"spec": {"selector": selector}})).selector;
        let one = selects(json!({"matchLabels": {"disk": "fast"},
            "matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}));
        assert_eq!(one.len(), 2);
        let odd = selects(json!({"matchExpressions": [{"key": "zone", "operator": "Like"}]}));
        assert_eq!(odd[0].operator, Operator::In(Vec::new()));
    }
}
