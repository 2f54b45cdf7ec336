//! Claims, volumes and storage classes → where a pod's volumes let it go. Pure.
//!
//! A bound volume says on which nodes it can be used. A claim whose class waits for its
//! first consumer is bound where the pod goes, which the core decides: the class says which
//! nodes that may be, and once a node was selected, it is that node until the provisioner
//! gives it up. Where nothing provisions the class, the claim gets one of the volumes that are
//! there ([`super::supply`]). Everything else that is not bound lets the pod wait, and says so.

use super::csi::{Csi, Provision};
use super::hindrance::Hindrance;
use super::{rules, supply};
use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim,
    Pod as KubePod,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use scheduler_core::Event;
use scheduler_core::ids::{ClaimUid, VolumeName};
use scheduler_core::model::{self, Attachment, ClaimRef, NodeRules, NodeTerm, Volume, Want};
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

/// The access mode of a claim that one pod uses at a time.
const EXCLUSIVE: &str = "ReadWriteOncePod";

/// More alternatives than that are invalid: such a pod waits.
const MOST_TERMS: usize = 1_000;

/// Namespace and name.
type ClaimName = (String, String);

/// No driver attaches as many to a node, and each is looked at on every node.
const MOST_CLAIMS: usize = 256;

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
    uid: String,
    want: Want,
}

/// A storage class, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class {
    waits: bool,
    provisions: bool,
    driver: String,
    terms: Option<Vec<NodeTerm>>,
}

/// What is known of storage.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// By namespace and name.
    claims: BTreeMap<ClaimName, Claim>,
    volumes: BTreeMap<String, PersistentVolume>,
    /// Claims that name a volume.
    named: BTreeMap<String, ClaimName>,
    /// Volumes that the core knows.
    told: BTreeMap<String, Volume>,
    classes: BTreeMap<String, Class>,
    pub(super) csi: Csi,
}

/// What a pod's volumes say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeTerms {
    /// Each must hold: one of its terms.
    rules: Vec<Vec<NodeTerm>>,
    /// Why the pod cannot go anywhere yet.
    pub(super) against: Vec<Arc<str>>,
    /// Claims that are bound where the pod goes, and those that one pod uses at a time.
    pub(super) claims: Vec<model::Claim>,
    /// Volumes that count where they are attached.
    pub(super) attachments: BTreeSet<Attachment>,
    /// What the driver has to provision, where it says how much it can.
    pub(super) provisions: Vec<Provision>,
    /// A claim does not exist or is not bound: the pod is converted again when that changes.
    pub(super) is_open: bool,
    /// Volumes that it uses.
    uses: BTreeSet<String>,
}

impl VolumeTerms {
    /// Without what came of narrowing.
    pub(super) fn as_found(&self) -> Self {
        let too_many = Hindrance::VolumeRules.to_string();
        Self {
            against: self
                .against
                .iter()
                .filter(|why| ***why != *too_many)
                .cloned()
                .collect(),
            ..self.clone()
        }
    }

    fn add(&mut self, claim: model::Claim) {
        if self.claims.iter().all(|known| known.uid != claim.uid) {
            self.claims.push(claim);
        }
    }

    /// Whether it is one of the volumes that the pod uses.
    pub(super) fn uses(&self, volume: &str) -> bool {
        self.uses.contains(volume)
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
                self.against
                    .push(Arc::from(Hindrance::VolumeRules.to_string()));
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
    /// False: nothing about it is new.
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
        let key = (claim.namespace().unwrap_or_default(), claim.name_any());
        let claim = Claim {
            bound: volume.is_some() && annotation(name::BIND_COMPLETED).is_some(),
            volume,
            want: supply::want(claim, class.as_deref()),
            class,
            selected: annotation(name::SELECTED_NODE).filter(|node| !node.is_empty()),
            leaving: claim.metadata.deletion_timestamp.is_some(),
            made_for: owner.map(|owner| owner.uid.clone()),
            uid: claim.uid().unwrap_or_default(),
        };
        if self.claims.get(&key) == Some(&claim) {
            return false;
        }
        self.claim_gone(&key.0, &key.1);
        if let Some(volume) = &claim.volume {
            self.named.insert(volume.clone(), key.clone());
        }
        self.claims.insert(key, claim);
        true
    }

    pub(super) fn claim_gone(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let known = self.claims.remove(&key);
        if let Some(volume) = known.and_then(|claim| claim.volume)
            && self.named.get(&volume) == Some(&key)
        {
            self.named.remove(&volume);
        }
    }

    /// The volume that a claim names.
    pub(super) fn volume_of(&self, namespace: &str, name: &str) -> Option<String> {
        let claim = self.claims.get(&(namespace.to_owned(), name.to_owned()))?;
        claim.volume.clone()
    }

    pub(super) fn volume(&mut self, volume: PersistentVolume) {
        self.volumes.insert(volume.name_any(), volume);
    }

    pub(super) fn volume_gone(&mut self, name: &str) {
        self.volumes.remove(name);
    }

    /// What the core is to be told of a volume, if that is another thing than before.
    pub(super) fn tell(&mut self, name: &str) -> Option<Event> {
        let by_claim = self.named.get(name).map(|key| ClaimRef {
            name: Arc::from(format!("{}/{}", key.0, key.1)),
            uid: self.claims.get(key).map(|claim| ClaimUid::new(&claim.uid)),
        });
        let volume = self.volumes.get(name);
        let Some(volume) = volume.and_then(|volume| supply::offered(volume, by_claim)) else {
            let known = self.told.remove(name);
            return known.map(|_| Event::VolumeGone(VolumeName::new(name)));
        };
        let known = self.told.insert(name.to_owned(), volume.clone());
        (known.as_ref() != Some(&volume)).then_some(Event::Volume(volume))
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
            driver: class.provisioner.clone(),
            // An empty list allows every node.
            terms: terms.filter(|terms| !terms.is_empty()),
        };
        let before = self.classes.insert(class.name_any(), read.clone());
        before.as_ref() != Some(&read)
    }

    pub(super) fn class_gone(&mut self, name: &str) {
        self.classes.remove(name);
    }

    /// What the volumes of a pod say.
    pub(super) fn of(&self, pod: &KubePod) -> VolumeTerms {
        let mut say = VolumeTerms::default();
        let namespace = pod.namespace().unwrap_or_default();
        let claims = claims(pod);
        if claims.len() > MOST_CLAIMS {
            let why = Hindrance::Claims(claims.len(), MOST_CLAIMS);
            say.against.push(Arc::from(why.to_string()));
        }
        for (claim_name, own) in claims.into_iter().take(MOST_CLAIMS) {
            let found = self.claims.get(&(namespace.clone(), claim_name.clone()));
            if let Err(why) = self.add(&mut say, &claim_name, found, own, pod) {
                say.against.push(Arc::from(why.to_string()));
            }
        }
        say
    }

    fn add(
        &self,
        say: &mut VolumeTerms,
        name: &str,
        claim: Option<&Claim>,
        own: bool,
        pod: &KubePod,
    ) -> Result<(), Hindrance> {
        say.is_open |= claim.is_none_or(|claim| !claim.bound);
        let Some(claim) = claim else {
            let name = name.to_owned();
            return Err(if own {
                Hindrance::EphemeralClaim(name)
            } else {
                Hindrance::ClaimNotFound(name)
            });
        };
        if claim.leaving {
            return Err(Hindrance::ClaimDeleted(name.to_owned()));
        }
        if own && claim.made_for.as_deref() != pod.metadata.uid.as_deref() {
            return Err(Hindrance::ClaimOfAnother(name.to_owned()));
        }
        let namespace = pod.namespace().unwrap_or_default();
        let full_name: Arc<str> = Arc::from(format!("{namespace}/{name}"));
        let class = claim.class.as_ref().and_then(|name| self.classes.get(name));
        let bound = claim.volume.as_deref().filter(|_| claim.bound);
        let volume = bound.and_then(|volume| self.volumes.get(volume));
        let by_volume = volume.and_then(|volume| Some(&volume.spec.as_ref()?.csi.as_ref()?.driver));
        // What is not provisioned yet will be the class's; a volume says for itself.
        let by_class = class
            .filter(|_| volume.is_none())
            .map(|class| &class.driver);
        if let Some(driver) = by_volume
            .or(by_class)
            .filter(|one| self.csi.is_limited(one))
        {
            say.attachments.insert(Attachment {
                driver: Arc::from(driver.as_str()),
                claim: Arc::clone(&full_name),
            });
        }
        let of_core = |wants: Option<Want>| model::Claim {
            uid: ClaimUid::new(&claim.uid),
            name: Arc::clone(&full_name),
            wants,
            exclusive: claim.want.shape.modes.contains(EXCLUSIVE),
            bound: claim.bound,
        };
        if let Some(bound) = bound {
            say.uses.insert(bound.to_owned());
            say.is_open |= volume.is_none();
            let found = volume.ok_or_else(|| Hindrance::VolumeNotFound {
                volume: bound.to_owned(),
                claim: name.to_owned(),
            })?;
            say.rules.extend(supply::terms(found));
            let of_core = of_core(None);
            if of_core.exclusive {
                say.add(of_core);
            }
            return Ok(());
        }
        let Some(class) = class.filter(|class| class.waits && claim.volume.is_none()) else {
            return Err(Hindrance::ClaimNotBound(name.to_owned()));
        };
        say.add(of_core((!class.provisions).then(|| claim.want.clone())));
        if class.provisions {
            say.rules.extend(class.terms.clone());
            if let Some(node) = &claim.selected {
                say.rules.push(vec![rules::on([node.as_str().into()])]);
            }
            let wants = Provision {
                class: claim.class.clone().unwrap_or_default(),
                size: claim.want.shape.size.0,
            };
            let rooms = self.csi.rooms(&class.driver, &wants);
            say.provisions.push(wants);
            match rooms {
                Some(rooms) if rooms.is_empty() => {
                    return Err(Hindrance::Storage(name.to_owned()));
                }
                rooms => say.rules.extend(rooms),
            }
        }
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
        storage.of(pod).against.join(", ")
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
        storage.volume(volume);
        let say = storage.of(&pod);
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
        storage.volume(serde_json::from_value(volume).unwrap());
        let mut say = storage.of(&uses("c"));
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
        let say = storage.of(&uses("c"));
        assert_eq!(
            (&*say.claims[0].name, &say.claims[0].wants),
            ("ns/c", &None)
        );
        assert!(
            matches!(&say.rules[0][0].labels[0].operator, Operator::In(zones) if zones.len() == 2)
        );
        let selected = json!({"metadata": {"annotations": {name::SELECTED_NODE: "n1"}}});
        storage.claim(&claim("c", selected));
        assert_eq!(
            storage.of(&uses("c")).rules,
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
        assert_eq!(&*storage.of(&pod).claims[0].name, "ns/p-v");
    }

    #[test]
    fn a_claim_of_volumes_made_by_hand_says_what_it_wants() {
        let mut storage = storage();
        let hand = json!({"metadata": {"uid": "u"}, "spec": {"storageClassName": "hand"}});
        storage.claim(&claim("c", hand));
        let twice = pod(
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "w", "persistentVolumeClaim": {"claimName": "c"}}]),
        );
        let say = storage.of(&twice);
        assert!(say.against.is_empty() && say.rules.is_empty(), "{say:?}");
        let [claim] = say.claims.as_slice() else {
            panic!("{say:?}");
        };
        assert_eq!((claim.uid.as_str(), &*claim.name), ("u", "ns/c"));
        assert_eq!(&*claim.wants.as_ref().unwrap().shape.class, "hand");
    }

    #[test]
    fn a_volume_that_a_claim_names_is_kept_for_it_though_the_volume_does_not_say_so() {
        let mut storage = storage();
        let volume = json!({"metadata": {"name": "pv"}, "status": {"phase": "Available"},
            "spec": {"capacity": {"storage": "1Gi"}}});
        storage.volume(serde_json::from_value(volume).unwrap());
        let kept = |event: Option<Event>| match event {
            Some(Event::Volume(volume)) => volume.kept_for.map(|claim| claim.name),
            other => panic!("{other:?}"),
        };
        assert_eq!(kept(storage.tell("pv")), None);
        storage.claim(&claim("c", json!({"spec": {"volumeName": "pv"}})));
        assert_eq!(kept(storage.tell("pv")).as_deref(), Some("ns/c"));
        assert_eq!(storage.tell("pv"), None, "told twice");
        storage.claim_gone("ns", "c");
        assert_eq!(kept(storage.tell("pv")), None);
        storage.volume_gone("pv");
        assert!(matches!(storage.tell("pv"), Some(Event::VolumeGone(_))));
        assert_eq!(storage.tell("pv"), None);
    }

    #[test]
    fn what_does_not_matter_is_no_news() {
        let mut storage = storage();
        assert!(storage.claim(&claim("c", json!({}))));
        assert!(!storage.claim(&claim("c", json!({"metadata": {"labels": {"a": "b"}}}))));
    }
}
