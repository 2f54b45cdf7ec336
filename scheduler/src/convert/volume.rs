//! Claims, volumes and storage classes → where a pod's volumes let it go. Pure.
//!
//! A bound volume says on which nodes it can be used. A claim whose class waits for its
//! first consumer is bound where the pod goes: the class says which nodes that may be, and
//! once a node was selected, it is that node until the provisioner gives it up. Where nothing
//! provisions the class, it is one of the volumes that are there ([`super::supply`]), and
//! where these can be used. Everything else that is not bound lets the pod wait, and says so.

use super::rules;
use super::supply::{ClaimName, Nodes, Supply, Want};
use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolumeClaim, Pod as KubePod,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use scheduler_core::ids::DecisionId;
use scheduler_core::model::{NodeRules, NodeTerm};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Annotations of claims, and a provisioner that is none, as Kubernetes names them.
pub(crate) mod name {
    /// The node on which a claim's first consumer goes.
    pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
    /// Volume and claim agree.
    pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
    /// The claim was written on the volume by a program, which may take it away again.
    pub(crate) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
    /// A storage class, as it was named before there was a field.
    pub(super) const CLASS_OLD: &str = "volume.beta.kubernetes.io/storage-class";
    /// Volumes are made by hand.
    pub(super) const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
}

/// More alternatives than that are nobody's meaning: such a pod waits.
const MOST_TERMS: usize = 1_000;

const TOO_MANY: &str = "its volumes have too many rules about nodes";

/// What is to be done about a pod's volumes before it is bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volumes {
    /// Claims for which a volume is made where the pod goes.
    pub made: Vec<String>,
    /// Claims that get a volume that is there.
    pub given: Vec<Given>,
}

impl Volumes {
    /// Whether there is nothing to be done.
    pub fn is_empty(&self) -> bool {
        self.made.is_empty() && self.given.is_empty()
    }

    /// Names of the claims.
    pub fn claims(&self) -> Vec<&str> {
        let given = self.given.iter().map(|given| given.claim.as_str());
        self.made.iter().map(String::as_str).chain(given).collect()
    }
}

/// A claim and the volume that it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its name, in the pod's namespace.
    pub claim: String,
    /// Its UID.
    pub uid: String,
    /// The volume's name.
    pub volume: String,
}

/// A claim, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
struct Claim {
    volume: Option<String>,
    /// Volume and claim agree.
    bound: bool,
    class: Option<String>,
    selected: Option<String>,
    leaving: bool,
    /// UID of the pod that it was made for, where it was made for one.
    made_for: Option<String>,
    want: Want,
}

/// A storage class, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class {
    waits: bool,
    provisions: bool,
    terms: Option<Vec<NodeTerm>>,
}

/// What is known of storage.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// By namespace and name.
    claims: BTreeMap<ClaimName, Claim>,
    pub(super) supply: Supply,
    classes: BTreeMap<String, Class>,
}

/// What a pod's volumes say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Say {
    /// Each must hold: one of its terms.
    rules: Vec<Vec<NodeTerm>>,
    /// Why the pod cannot go anywhere yet.
    pub(super) against: Vec<Arc<str>>,
    /// Claims for which a volume is made where the pod goes.
    made: Vec<String>,
    /// Claims that get a volume that is there, by namespace and name.
    given: Vec<ClaimName>,
    /// Volumes that it uses, and classes of those that it waits for.
    uses: BTreeSet<String>,
    draws: BTreeSet<String>,
}

impl Say {
    /// Without what came of narrowing.
    pub(super) fn as_found(&self) -> Self {
        Self {
            against: self
                .against
                .iter()
                .filter(|why| ***why != *TOO_MANY)
                .cloned()
                .collect(),
            ..self.clone()
        }
    }

    /// Whether it may be another one now that this volume is, or those of these classes are.
    pub(super) fn depends(&self, volume: Option<&str>, classes: &BTreeSet<String>) -> bool {
        volume.is_some_and(|volume| self.uses.contains(volume)) || !self.draws.is_disjoint(classes)
    }

    /// Whether it depends on which nodes there are.
    pub(super) fn draws(&self) -> bool {
        !self.draws.is_empty()
    }

    /// Classes of the volumes that it waits for.
    pub(super) fn drawn(&self) -> &BTreeSet<String> {
        &self.draws
    }

    /// The pod's own rules, and these.
    pub(super) fn narrow(&mut self, nodes: &mut NodeRules) {
        for rule in &self.rules {
            let terms = match &nodes.terms {
                None => rule.clone(),
                Some(terms) => terms
                    .iter()
                    .flat_map(|own| rule.iter().map(move |more| both(own, more)))
                    .filter(|term| *term != NodeTerm::default())
                    .collect(),
            };
            if terms.len() > MOST_TERMS {
                self.against.push(Arc::from(TOO_MANY));
                return;
            }
            nodes.terms = Some(terms);
        }
    }
}

/// A term without requirements matches nothing, together with any other as well.
fn both(a: &NodeTerm, b: &NodeTerm) -> NodeTerm {
    if *a == NodeTerm::default() || *b == NodeTerm::default() {
        return NodeTerm::default();
    }
    let mut term = a.clone();
    term.labels.extend(b.labels.iter().cloned());
    term.name.extend(b.name.iter().cloned());
    term
}

/// Names of the claims that a pod uses, and whether each was made for this pod alone.
pub(super) fn claims(pod: &KubePod) -> Vec<(String, bool)> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| {
            if let Some(claim) = &volume.persistent_volume_claim {
                return Some((claim.claim_name.clone(), false));
            }
            let made = volume.ephemeral.is_some();
            made.then(|| (format!("{}-{}", pod.name_any(), volume.name), true))
        })
        .collect()
}

impl Storage {
    pub(super) fn claim(&mut self, claim: &PersistentVolumeClaim) -> bool {
        let spec = claim.spec.as_ref();
        let annotation = |key: &str| claim.annotations().get(key).cloned();
        let volume = spec
            .and_then(|spec| spec.volume_name.clone())
            .filter(|name| !name.is_empty());
        let owner = claim
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true) && owner.kind == "Pod");
        let class = spec
            .and_then(|spec| spec.storage_class_name.clone())
            .or_else(|| annotation(name::CLASS_OLD));
        let want = Want::of(claim, class.as_deref());
        let key = want.name.clone();
        let claim = Claim {
            bound: volume.is_some() && annotation(name::BIND_COMPLETED).is_some(),
            volume,
            class,
            selected: annotation(name::SELECTED_NODE).filter(|node| !node.is_empty()),
            leaving: claim.metadata.deletion_timestamp.is_some(),
            made_for: owner.map(|owner| owner.uid.clone()),
            want,
        };
        let before = self.claims.insert(key, claim.clone());
        before.as_ref() != Some(&claim)
    }

    pub(super) fn claim_gone(&mut self, namespace: &str, name: &str) {
        self.claims.remove(&(namespace.to_owned(), name.to_owned()));
    }

    pub(super) fn class(&mut self, class: &StorageClass) -> bool {
        let terms = class.allowed_topologies.as_ref().map(|topologies| {
            let read = topologies.iter().map(|topology| {
                let labels = topology.match_label_expressions.iter().flatten();
                let labels = labels.map(|label| NodeSelectorRequirement {
                    key: label.key.clone(),
                    operator: "In".to_owned(),
                    values: Some(label.values.clone()),
                });
                rules::term(&NodeSelectorTerm {
                    match_expressions: Some(labels.collect()),
                    match_fields: None,
                })
            });
            read.collect::<Vec<_>>()
        });
        let read = Class {
            waits: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            provisions: class.provisioner != name::NO_PROVISIONER,
            // An empty list allows every node.
            terms: terms.filter(|terms| !terms.is_empty()),
        };
        let before = self.classes.insert(class.name_any(), read.clone());
        before.as_ref() != Some(&read)
    }

    pub(super) fn class_gone(&mut self, name: &str) {
        self.classes.remove(name);
    }

    /// What the volumes of a pod say, on these nodes.
    pub(super) fn of(&self, pod: &KubePod, nodes: &Nodes) -> Say {
        let mut say = Say::default();
        let namespace = pod.namespace().unwrap_or_default();
        for (claim_name, own) in claims(pod) {
            let found = self.claims.get(&(namespace.clone(), claim_name.clone()));
            if let Err(why) = self.add(&mut say, &claim_name, found, own, pod) {
                say.against.push(Arc::from(why));
            }
        }
        if !say.given.is_empty() {
            match self.supply.nodes(&self.wants(&say), nodes) {
                Ok(Some(names)) => say.rules.push(vec![rules::on(names)]),
                Ok(None) => {}
                Err(why) => say.against.push(Arc::from(why)),
            }
        }
        say
    }

    fn wants(&self, say: &Say) -> Vec<&Want> {
        let claims = say.given.iter().filter_map(|name| self.claims.get(name));
        claims.map(|claim| &claim.want).collect()
    }

    /// Gives the pod its volumes on that node, as far as is known here. The error says why
    /// it cannot go there.
    pub(super) fn give(
        &mut self,
        say: &Say,
        decision: DecisionId,
        node: &str,
    ) -> Result<Volumes, String> {
        let wants = self.wants(say);
        let Some(volumes) = self.supply.pick(&wants, node) else {
            let names: Vec<&str> = wants.iter().map(|want| want.name.1.as_str()).collect();
            return Err(format!(
                "persistentvolumeclaim \"{}\": others were given the persistentvolumes on node {node}",
                names.join("\", \"")
            ));
        };
        let given = wants.iter().zip(volumes).map(|(want, volume)| Given {
            claim: want.name.1.clone(),
            uid: want.uid.clone(),
            volume,
        });
        let given: Vec<Given> = given.collect();
        for (name, given) in say.given.iter().zip(&given) {
            self.supply.promise(decision, name, &given.volume);
        }
        Ok(Volumes {
            made: say.made.clone(),
            given,
        })
    }

    fn add(
        &self,
        say: &mut Say,
        name: &str,
        claim: Option<&Claim>,
        own: bool,
        pod: &KubePod,
    ) -> Result<(), String> {
        let Some(claim) = claim else {
            return Err(if own {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                )
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            });
        };
        if claim.leaving {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        if own && claim.made_for.as_deref() != pod.metadata.uid.as_deref() {
            return Err(format!(
                "persistentvolumeclaim \"{name}\" was not created for the pod"
            ));
        }
        if claim.bound {
            let volume = claim.volume.as_deref().unwrap_or_default();
            say.uses.insert(volume.to_owned());
            let Some(rules) = self.supply.rules(volume) else {
                return Err(format!(
                    "persistentvolume \"{volume}\" of persistentvolumeclaim \"{name}\" not found"
                ));
            };
            say.rules.extend(rules);
            return Ok(());
        }
        let class = claim.class.as_ref().and_then(|name| self.classes.get(name));
        let Some(class) = class.filter(|class| class.waits && claim.volume.is_none()) else {
            return Err(format!("persistentvolumeclaim \"{name}\" is not bound yet"));
        };
        if !class.provisions {
            say.draws.insert(claim.want.class().to_owned());
            if !say.given.contains(&claim.want.name) {
                say.given.push(claim.want.name.clone());
            }
            return Ok(());
        }
        say.rules.extend(class.terms.clone());
        if let Some(node) = &claim.selected {
            say.rules.push(vec![rules::on([node.as_str().into()])]);
        }
        say.made.push(name.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::model::Operator;
    use serde_json::{Value, json};

    fn pod(volumes: Value) -> KubePod {
        serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "volumes": volumes}}),
        )
        .unwrap()
    }

    fn uses(claim: &str) -> KubePod {
        pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]))
    }

    fn claim(name: &str, more: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": name, "namespace": "ns"},
            "spec": {"storageClassName": "late"}});
        json_patch::merge(&mut claim, &more);
        serde_json::from_value(claim).unwrap()
    }

    fn storage() -> Storage {
        let mut storage = Storage::default();
        for class in [
            json!({"metadata": {"name": "late"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}),
            json!({"metadata": {"name": "zoned"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]}),
            json!({"metadata": {"name": "soon"}, "provisioner": "x", "volumeBindingMode": "Immediate"}),
            json!({"metadata": {"name": "hand"}, "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer"}),
        ] {
            storage.class(&serde_json::from_value(class).unwrap());
        }
        storage
    }

    fn against(storage: &Storage, pod: &KubePod) -> String {
        storage.of(pod, &Nodes::new()).against.join(", ")
    }

    #[test]
    fn what_is_not_bound_and_will_not_be_by_us_is_named() {
        let mut storage = storage();
        let pod = uses("c");
        assert_eq!(
            against(&storage, &pod),
            "persistentvolumeclaim \"c\" not found"
        );
        for (more, words) in [
            (
                json!({"spec": {"storageClassName": "soon"}}),
                "is not bound yet",
            ),
            (
                json!({"spec": {"storageClassName": "gone"}}),
                "is not bound yet",
            ),
            (json!({"spec": {"volumeName": "pv"}}), "is not bound yet"),
            (
                json!({"spec": {"storageClassName": "hand"}}),
                "waits for a volume: no free persistentvolume of storage class \"hand\" fits it",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
                "is being deleted",
            ),
        ] {
            assert!(storage.claim(&claim("c", more.clone())));
            let said = against(&storage, &pod);
            assert!(said.contains(words), "{more}: {said}");
        }
        let bound = json!({"metadata": {"annotations": {name::BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "pv"}});
        storage.claim(&claim("c", bound));
        assert!(against(&storage, &pod).contains("persistentvolume \"pv\""));
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}})).unwrap();
        storage.supply.volume(&volume, &Nodes::new());
        let say = storage.of(&pod, &Nodes::new());
        assert!(say.against.is_empty() && say.rules.is_empty(), "{say:?}");
    }

    #[test]
    fn a_volume_and_the_pod_itself_must_both_agree_on_the_node() {
        let mut storage = storage();
        let bound = json!({"metadata": {"annotations": {name::BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "pv"}});
        storage.claim(&claim("c", bound));
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
            {"matchExpressions": []}]}}}});
        storage
            .supply
            .volume(&serde_json::from_value(volume).unwrap(), &Nodes::new());
        let mut say = storage.of(&uses("c"), &Nodes::new());
        let mut free = NodeRules::default();
        say.narrow(&mut free);
        assert_eq!(free.terms.as_ref().unwrap().len(), 2);
        let mut bound = NodeRules {
            terms: Some(vec![rules::on(["n1".into()]), NodeTerm::default()]),
            ..NodeRules::default()
        };
        say.narrow(&mut bound);
        let terms = bound.terms.unwrap();
        assert_eq!(
            terms.len(),
            1,
            "a term that matches nothing came to match: {terms:?}"
        );
        assert_eq!((terms[0].labels.len(), terms[0].name.len()), (1, 1));
    }

    #[test]
    fn a_claim_that_waits_is_bound_where_the_pod_goes_and_stays_where_it_was_selected() {
        let mut storage = storage();
        storage.claim(&claim("c", json!({"spec": {"storageClassName": "zoned"}})));
        let say = storage.of(&uses("c"), &Nodes::new());
        assert_eq!(say.made, ["c"]);
        assert!(
            matches!(&say.rules[0][0].labels[0].operator, Operator::In(zones) if zones.len() == 2)
        );
        let selected = json!({"metadata": {"annotations": {name::SELECTED_NODE: "n1"}}});
        storage.claim(&claim("c", selected));
        assert_eq!(
            storage.of(&uses("c"), &Nodes::new()).rules,
            [vec![rules::on(["n1".into()])]]
        );
    }

    #[test]
    fn an_ephemeral_claim_is_the_pods_own_or_nobodys() {
        let mut storage = storage();
        let pod = pod(json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]));
        assert!(against(&storage, &pod).contains("ephemeral volume controller"));
        storage.claim(&claim("p-v", json!({})));
        assert!(against(&storage, &pod).contains("not created for the pod"));
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]);
        storage.claim(&claim(
            "p-v",
            json!({"metadata": {"ownerReferences": owner}}),
        ));
        assert_eq!(storage.of(&pod, &Nodes::new()).made, ["p-v"]);
    }

    #[test]
    fn what_does_not_matter_is_no_news() {
        let mut storage = storage();
        assert!(storage.claim(&claim("c", json!({}))));
        assert!(!storage.claim(&claim("c", json!({"metadata": {"labels": {"a": "b"}}}))));
    }
}
