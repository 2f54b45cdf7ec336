//! Volumes that somebody made by hand, and the claims that wait for one of them. Pure.
//!
//! Who gets which is by Kubernetes' rules: class, size, modes, selector, the node, and the
//! smallest that will do. A volume that was decided on counts as taken from then on, though
//! the API server does not show it yet.

use super::{quantity, rules};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use kube::core::{Selector, SelectorExt as _};
use scheduler_core::ids::DecisionId;
use scheduler_core::model::{Node, NodeTerm};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Namespace and name.
pub(super) type ClaimName = (String, String);
/// As the shell has them.
pub(super) type Nodes = BTreeMap<String, Node>;

/// What claim and volume must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    class: String,
    /// Thousandths of a byte; `None`: not to be read, so nothing fits.
    size: Option<u64>,
    modes: BTreeSet<String>,
    block: bool,
    attributes: String,
}

/// What a claim asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Want {
    pub(super) name: ClaimName,
    pub(super) uid: String,
    shape: Shape,
    selector: Option<LabelSelector>,
}

impl Want {
    pub(super) fn of(claim: &PersistentVolumeClaim, class: Option<&str>) -> Self {
        let spec = claim.spec.clone().unwrap_or_default();
        let requests = spec.resources.and_then(|resources| resources.requests);
        let size = requests.as_ref().and_then(|all| all.get("storage"));
        Self {
            name: (claim.namespace().unwrap_or_default(), claim.name_any()),
            uid: claim.uid().unwrap_or_default(),
            shape: Shape {
                class: class.unwrap_or_default().to_owned(),
                size: size.map_or(Some(0), quantity::milli_up),
                modes: spec.access_modes.into_iter().flatten().collect(),
                block: spec.volume_mode.as_deref() == Some("Block"),
                attributes: spec.volume_attributes_class_name.unwrap_or_default(),
            },
            selector: spec.selector,
        }
    }

    pub(super) fn class(&self) -> &str {
        &self.shape.class
    }

    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let Some(selector) = self.selector.clone() else {
            return true;
        };
        Selector::try_from(selector).is_ok_and(|selector| selector.matches(labels))
    }
}

/// A volume, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
struct Volume {
    shape: Shape,
    labels: BTreeMap<String, String>,
    /// The claim that it is kept for, and its UID, which may be left open.
    kept_for: Option<(ClaimName, String)>,
    phase: String,
    leaving: bool,
    /// Where it can be used; `None`: everywhere.
    terms: Option<Vec<NodeTerm>>,
}

impl Volume {
    fn of(volume: &PersistentVolume) -> Self {
        let spec = volume.spec.clone().unwrap_or_default();
        let capacity = spec.capacity.as_ref().and_then(|all| all.get("storage"));
        let required = spec.node_affinity.and_then(|affinity| affinity.required);
        let status = volume.status.as_ref();
        Self {
            shape: Shape {
                class: spec.storage_class_name.unwrap_or_default(),
                size: capacity.and_then(quantity::milli_down),
                modes: spec.access_modes.into_iter().flatten().collect(),
                block: spec.volume_mode.as_deref() == Some("Block"),
                attributes: spec.volume_attributes_class_name.unwrap_or_default(),
            },
            labels: volume.labels().clone(),
            kept_for: spec.claim_ref.map(|claim| {
                let name = (
                    claim.namespace.unwrap_or_default(),
                    claim.name.unwrap_or_default(),
                );
                (name, claim.uid.unwrap_or_default())
            }),
            phase: status
                .and_then(|status| status.phase.clone())
                .unwrap_or_default(),
            leaving: volume.metadata.deletion_timestamp.is_some(),
            terms: required.map(|selector| {
                let terms = selector.node_selector_terms.iter();
                terms.map(rules::term).collect()
            }),
        }
    }

    /// Some claim may still come to it.
    fn is_open(&self) -> bool {
        !self.leaving && self.phase != "Bound"
    }

    fn suits(&self, want: &Want) -> bool {
        let (has, wants) = (&self.shape, &want.shape);
        has.class == wants.class
            && has.block == wants.block
            && has.attributes == wants.attributes
            && wants.modes.is_subset(&has.modes)
            && matches!((has.size, wants.size), (Some(has), Some(wants)) if has >= wants)
    }

    fn reaches(&self, node: &Node) -> bool {
        let terms = self.terms.as_ref();
        terms.is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
    }
}

/// A volume that bindings under way count on.
#[derive(Debug, Default)]
struct Promise {
    claim: ClaimName,
    by: BTreeSet<DecisionId>,
    /// One of them came about: it is taken, and will be seen to be.
    stands: bool,
}

/// All volumes.
#[derive(Debug, Default)]
pub(super) struct Supply {
    volumes: BTreeMap<String, Volume>,
    /// Those to which a claim may still come, by class.
    open: BTreeMap<String, BTreeSet<String>>,
    /// Nodes that can use one of these, where not every node can.
    reach: BTreeMap<String, BTreeSet<Arc<str>>>,
    promised: BTreeMap<String, Promise>,
}

impl Supply {
    /// The classes in which something changed; `None`: nothing that matters did.
    pub(super) fn volume(
        &mut self,
        object: &PersistentVolume,
        nodes: &Nodes,
    ) -> Option<BTreeSet<String>> {
        let name = object.name_any();
        let volume = Volume::of(object);
        if self.volumes.get(&name) == Some(&volume) {
            return None;
        }
        let mut classes: BTreeSet<String> = self.forget(&name).into_iter().collect();
        if volume.is_open() {
            let open = self.open.entry(volume.shape.class.clone()).or_default();
            open.insert(name.clone());
            if volume.terms.is_some() {
                let reached = nodes.values().filter(|node| volume.reaches(node));
                let reached = reached.map(|node| Arc::from(node.name.as_str()));
                self.reach.insert(name.clone(), reached.collect());
            }
        }
        classes.insert(volume.shape.class.clone());
        if volume.kept_for.is_some() {
            self.promised.remove(&name);
        }
        self.volumes.insert(name, volume);
        Some(classes)
    }

    /// Its class, if it was there.
    pub(super) fn volume_gone(&mut self, name: &str) -> Option<String> {
        self.promised.remove(name);
        self.forget(name)
    }

    fn forget(&mut self, name: &str) -> Option<String> {
        let class = self.volumes.remove(name)?.shape.class;
        if let Some(open) = self.open.get_mut(&class) {
            open.remove(name);
            if open.is_empty() {
                self.open.remove(&class);
            }
        }
        self.reach.remove(name);
        Some(class)
    }

    /// Whether it matters to any volume that may still be given.
    pub(super) fn node(&mut self, node: &Node) -> bool {
        let mut news = false;
        let name: Arc<str> = Arc::from(node.name.as_str());
        for (volume, reached) in &mut self.reach {
            let reaches = self.volumes.get(volume).is_some_and(|it| it.reaches(node));
            news |= if reaches {
                reached.insert(Arc::clone(&name))
            } else {
                reached.remove(&name)
            };
        }
        news
    }

    pub(super) fn node_gone(&mut self, name: &str) -> bool {
        let gone = |reached: &mut BTreeSet<Arc<str>>| reached.remove(name);
        self.reach
            .values_mut()
            .fold(false, |news, reached| gone(reached) | news)
    }

    /// Rules about nodes that a volume has, if it is there: one of each one's terms must hold.
    pub(super) fn rules(&self, volume: &str) -> Option<Vec<Vec<NodeTerm>>> {
        let volume = self.volumes.get(volume)?;
        Some(volume.terms.iter().cloned().collect())
    }

    /// Volumes that this claim may get, the smallest first.
    fn candidates(&self, want: &Want) -> Vec<&str> {
        let mut free = Vec::new();
        for name in self.open.get(want.class()).into_iter().flatten() {
            let Some(volume) = self.volumes.get(name).filter(|volume| volume.suits(want)) else {
                continue;
            };
            // Kept for somebody, it is the only one for him and none for others.
            let only = match (&volume.kept_for, self.promised.get(name)) {
                (Some((claim, uid)), _) => {
                    *claim == want.name && (uid.is_empty() || *uid == want.uid)
                }
                (None, Some(promise)) => promise.claim == want.name,
                (None, None) => {
                    if volume.phase == "Available" && want.selects(&volume.labels) {
                        free.push((volume.shape.size, name.as_str()));
                    }
                    false
                }
            };
            if only {
                return vec![name];
            }
        }
        free.sort_unstable();
        free.into_iter().map(|(_, name)| name).collect()
    }

    fn can_use(&self, node: &str, volume: &str) -> bool {
        let reached = self.reach.get(volume);
        reached.is_none_or(|reached| reached.contains(node))
    }

    /// Nodes that can use a volume of its own for each of these claims; `None`: all can.
    /// The error says what is wanting.
    pub(super) fn nodes(
        &self,
        wants: &[&Want],
        nodes: &Nodes,
    ) -> Result<Option<Vec<Arc<str>>>, String> {
        let options: Vec<Vec<&str>> = wants.iter().map(|want| self.candidates(want)).collect();
        for (want, options) in wants.iter().zip(&options) {
            if options.is_empty() {
                return Err(format!(
                    "persistentvolumeclaim \"{}\" waits for a volume: no free persistentvolume of storage class \"{}\" fits it",
                    want.name.1,
                    want.class()
                ));
            }
        }
        let mut candidates: BTreeSet<Arc<str>> = BTreeSet::new();
        for volume in options.iter().flatten() {
            match self.reach.get(*volume) {
                Some(reached) => candidates.extend(reached.iter().cloned()),
                None if options.len() == 1 => return Ok(None),
                None => candidates.extend(nodes.keys().map(|name| Arc::from(name.as_str()))),
            }
        }
        let all = candidates.len();
        let usable = |node: &Arc<str>| {
            let here = options.iter().map(|volumes| {
                let usable = volumes.iter().filter(|volume| self.can_use(node, volume));
                usable.copied().collect()
            });
            matched(&here.collect::<Vec<Vec<&str>>>()).is_some()
        };
        // One claim can go wherever one of its volumes can.
        let usable: Vec<Arc<str>> = if options.len() == 1 {
            candidates.into_iter().collect()
        } else {
            candidates.into_iter().filter(usable).collect()
        };
        if usable.is_empty() {
            let names: Vec<String> = wants.iter().map(|w| format!("\"{}\"", w.name.1)).collect();
            let what = match all {
                0 => "no node can use one that fits it".to_owned(),
                _ => {
                    format!("none of the {all} nodes that can use one that fits has enough of them")
                }
            };
            return Err(format!(
                "persistentvolumeclaim {} waits for a volume: {what}",
                names.join(", ")
            ));
        }
        Ok(Some(usable))
    }

    /// A volume for each of these claims on that node.
    pub(super) fn pick(&self, wants: &[&Want], node: &str) -> Option<Vec<String>> {
        let options = wants.iter().map(|want| {
            let mut volumes = self.candidates(want);
            volumes.retain(|volume| self.can_use(node, volume));
            volumes
        });
        let picked = matched(&options.collect::<Vec<_>>())?;
        Some(picked.into_iter().map(str::to_owned).collect())
    }

    /// From now on the volume is that claim's.
    pub(super) fn promise(&mut self, decision: DecisionId, claim: &ClaimName, volume: &str) {
        let promise = self.promised.entry(volume.to_owned()).or_default();
        promise.claim.clone_from(claim);
        promise.by.insert(decision);
    }

    /// A binding ended; the classes of volumes that are free again.
    pub(super) fn ended(&mut self, decision: DecisionId, confirmed: bool) -> BTreeSet<String> {
        let mut free = BTreeSet::new();
        self.promised.retain(|volume, promise| {
            if !promise.by.remove(&decision) {
                return true;
            }
            promise.stands |= confirmed;
            let kept = promise.stands || !promise.by.is_empty();
            if !kept && let Some(volume) = self.volumes.get(volume) {
                free.insert(volume.shape.class.clone());
            }
            kept
        });
        free
    }
}

/// One option for each, none twice, the first ones where that can be.
fn matched<'a>(options: &[Vec<&'a str>]) -> Option<Vec<&'a str>> {
    let mut taken = BTreeMap::new();
    for want in 0..options.len() {
        if !seat(options, want, &mut taken, &mut BTreeSet::new()) {
            return None;
        }
    }
    let mut picked = vec![""; options.len()];
    for (option, want) in taken {
        if let Some(place) = picked.get_mut(want) {
            *place = option;
        }
    }
    Some(picked)
}

/// Finds one for `want`, and another one for whoever had that.
fn seat<'a>(
    options: &[Vec<&'a str>],
    want: usize,
    taken: &mut BTreeMap<&'a str, usize>,
    tried: &mut BTreeSet<&'a str>,
) -> bool {
    for option in options.get(want).into_iter().flatten() {
        if !tried.insert(option) {
            continue;
        }
        let holder = taken.get(option).copied();
        if holder.is_none_or(|holder| seat(options, holder, taken, tried)) {
            taken.insert(option, want);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(name: &str, more: Value) -> PersistentVolume {
        let mut volume = json!({"metadata": {"name": name},
            "spec": {"storageClassName": "local", "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"]},
            "status": {"phase": "Available"}});
        json_patch::merge(&mut volume, &more);
        serde_json::from_value(volume).unwrap()
    }

    fn on(node: &str) -> Value {
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}}})
    }

    fn want(name: &str, more: Value) -> Want {
        let mut claim = json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}}});
        json_patch::merge(&mut claim, &more);
        Want::of(&serde_json::from_value(claim).unwrap(), Some("local"))
    }

    fn nodes() -> Nodes {
        let node = |name: &str| {
            let mut node = Node::named(name);
            node.labels
                .insert("kubernetes.io/hostname".into(), name.into());
            (name.to_owned(), node)
        };
        ["n1", "n2"].map(node).into()
    }

    fn supply(volumes: &[PersistentVolume]) -> Supply {
        let mut supply = Supply::default();
        for volume in volumes {
            supply.volume(volume, &nodes());
        }
        supply
    }

    fn names(found: Result<Option<Vec<Arc<str>>>, String>) -> Vec<String> {
        let found = found.unwrap().expect("not everywhere");
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_volume_that_does_not_suit_the_claim_or_is_not_free_is_none() {
        let asks = want(
            "c",
            json!({"spec": {"selector": {"matchLabels": {"disk": "fast"}}}}),
        );
        let fast = json!({"metadata": {"labels": {"disk": "fast"}}});
        let with = |more: Value| {
            let mut all = fast.clone();
            json_patch::merge(&mut all, &more);
            volume("v", all)
        };
        for (more, fits) in [
            (json!({}), true),
            (json!({"spec": {"capacity": {"storage": "5Gi"}}}), true),
            (json!({"spec": {"capacity": {"storage": "4Gi"}}}), false),
            (json!({"spec": {"capacity": {"storage": "much"}}}), false),
            (json!({"spec": {"storageClassName": "other"}}), false),
            (
                json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}}),
                true,
            ),
            (json!({"spec": {"accessModes": ["ReadOnlyMany"]}}), false),
            (json!({"spec": {"volumeMode": "Filesystem"}}), true),
            (json!({"spec": {"volumeMode": "Block"}}), false),
            (
                json!({"spec": {"volumeAttributesClassName": "gold"}}),
                false,
            ),
            (json!({"metadata": {"labels": {"disk": "slow"}}}), false),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
                false,
            ),
            (json!({"status": {"phase": "Released"}}), false),
            (json!({"status": {"phase": "Pending"}}), false),
            (
                json!({"spec": {"claimRef": {"namespace": "ns", "name": "other"}}}),
                false,
            ),
            (
                json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "older"}}}),
                false,
            ),
            (
                json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "c"}}}),
                true,
            ),
            (
                json!({"spec": {"claimRef": {"namespace": "ns", "name": "c"}}}),
                true,
            ),
        ] {
            let offer = with(more);
            let found = supply(std::slice::from_ref(&offer)).nodes(&[&asks], &nodes());
            assert_eq!(found.is_ok(), fits, "{offer:?}: {found:?}");
        }
    }

    #[test]
    fn the_smallest_that_will_do_is_taken_on_the_node_alone() {
        let sized = |name: &str, size: &str, node: &str| {
            let mut more = on(node);
            more["spec"]["capacity"] = json!({"storage": size});
            volume(name, more)
        };
        let supply = supply(&[
            sized("a", "30Gi", "n1"),
            sized("b", "20Gi", "n1"),
            sized("c", "6Gi", "n2"),
        ]);
        let one = want("one", json!({}));
        assert_eq!(names(supply.nodes(&[&one], &nodes())), ["n1", "n2"]);
        assert_eq!(supply.pick(&[&one], "n1").unwrap(), ["b"]);
        // The second takes what the first leaves, though the first could do with either.
        let large = want(
            "large",
            json!({"spec": {"resources": {"requests": {"storage": "25Gi"}}}}),
        );
        assert_eq!(names(supply.nodes(&[&one, &large], &nodes())), ["n1"]);
        assert_eq!(supply.pick(&[&one, &large], "n1").unwrap(), ["b", "a"]);
        assert_eq!(supply.pick(&[&large, &large], "n1"), None);
        let three = [&one, &want("two", json!({})), &want("three", json!({}))];
        let why = supply.nodes(&three, &nodes()).unwrap_err();
        assert!(why.contains("\"one\", \"two\", \"three\" waits"), "{why}");
    }

    #[test]
    fn what_was_promised_is_taken_until_the_binding_failed() {
        let mut supply = supply(&[volume("v", on("n1"))]);
        let (mine, other) = (want("mine", json!({})), want("other", json!({})));
        let decision = |sequence| DecisionId { epoch: 1, sequence };
        supply.promise(decision(1), &mine.name, "v");
        // Another pod with the same claim goes there too.
        supply.promise(decision(2), &mine.name, "v");
        assert_eq!(names(supply.nodes(&[&mine], &nodes())), ["n1"]);
        let why = supply.nodes(&[&other], &nodes()).unwrap_err();
        assert!(why.contains("\"other\" waits for a volume"), "{why}");
        assert!(supply.ended(decision(1), false).is_empty());
        assert!(supply.nodes(&[&other], &nodes()).is_err());
        assert_eq!(
            supply.ended(decision(2), false),
            ["local".to_owned()].into()
        );
        assert_eq!(names(supply.nodes(&[&other], &nodes())), ["n1"]);
        // One that came about is taken though the watch is late.
        supply.promise(decision(3), &mine.name, "v");
        assert!(supply.ended(decision(3), true).is_empty());
        assert!(supply.nodes(&[&other], &nodes()).is_err());
    }

    #[test]
    fn a_node_that_comes_changes_or_goes_is_counted() {
        let mut supply = supply(&[
            volume("v", on("n3")),
            volume("everywhere", json!({"spec": {"storageClassName": "nfs"}})),
        ]);
        let mine = want("mine", json!({}));
        assert!(supply.nodes(&[&mine], &nodes()).is_err());
        let mut node = Node::named("renamed");
        assert!(!supply.node(&node));
        node.labels
            .insert("kubernetes.io/hostname".into(), "n3".into());
        assert!(supply.node(&node) && !supply.node(&node));
        assert_eq!(names(supply.nodes(&[&mine], &nodes())), ["renamed"]);
        assert!(supply.node_gone("renamed") && !supply.node_gone("renamed"));
        let mut nfs = mine;
        nfs.shape.class = "nfs".into();
        assert_eq!(supply.nodes(&[&nfs], &nodes()), Ok(None));
    }
}
