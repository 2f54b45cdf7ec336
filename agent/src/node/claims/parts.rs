//! What a claim was allocated, and which containers take what of it. Pure.
//!
//! A container gets a claim's devices by one edit, so all that it takes of a claim is one share,
//! a *part* of the claim: usually all of it. Containers that take the same have that share in
//! common; what they take must be the same or have nothing in common.

use crate::gpu::GpuUuid;
use crate::ledger::AllocId;
use crate::pods::PodView;
use api::gpu_node::Reaction;
use api::units::Fence;
use api::{Mib, Mode};
use std::collections::{BTreeMap, BTreeSet};

/// What a claim was allocated of this driver, as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// The claim's UID.
    pub uid: String,
    /// The same as the name of an allocation.
    pub alloc: AllocId,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Never empty.
    pub devices: Vec<Device>,
    /// The pods that it is reserved for: by UID their names.
    pub reserved: BTreeMap<String, String>,
}

/// One device of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name of the request, without that of a subrequest.
    pub request: String,
    /// The pool: a node's name.
    pub pool: String,
    /// The device: [`device_name`] of a card.
    pub device: String,
    /// Of several shares of one device, which.
    pub share_id: Option<String>,
    /// Of the card; `None`: the allocation says nothing of memory.
    pub memory: Option<Mib>,
    /// By `adminAccess`: the card is seen, and nothing of it is taken.
    pub observes: bool,
    /// By the class and the claim.
    pub config: Config,
}

/// Other requests of class and claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The mode of the cards.
    pub mode: Option<Mode>,
    /// No weaker fence.
    pub minimum_fence: Option<Fence>,
    /// Compute ceiling, 1 to 100 per cent.
    pub compute_percent: Option<u8>,
    /// What happens to its containers where they hold more than the share, by the class.
    pub on_violation: Option<Reaction>,
    /// The same by the claim, which can only be stricter.
    pub at_least: Option<Reaction>,
}

/// The device of a card: its UUID as a DNS label, `gpu-...`.
pub fn device_name(card: &GpuUuid) -> String {
    card.as_str().to_ascii_lowercase()
}

impl Allocated {
    /// `namespace/name`.
    pub fn claim(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The requests that devices were allocated for.
    pub fn requests(&self) -> BTreeSet<String> {
        let requests = self.devices.iter().map(|device| device.request.clone());
        requests.collect()
    }

    /// Name of the allocation of a part.
    pub fn part(&self, requests: &BTreeSet<String>) -> AllocId {
        if *requests == self.requests() {
            self.alloc
        } else {
            self.alloc.of_part(requests.iter().map(String::as_str))
        }
    }
}

/// By the requests that they take, the containers of a pod.
pub type Takes = BTreeMap<BTreeSet<String>, Vec<String>>;

/// What the containers of a pod take of a claim's devices, which are of these requests.
///
/// # Errors One sentence: no container takes any, or what they take cannot be served by one edit
/// each.
pub fn takes(pod: &PodView, claim: &str, requests: &BTreeSet<String>) -> Result<Takes, String> {
    let mut takes = Takes::new();
    for container in &pod.containers {
        let of_this: Vec<Option<&str>> = (container.claims.iter())
            .filter(|take| take.claim == claim)
            .map(|take| take.request.as_deref())
            .collect();
        let all = of_this.contains(&None);
        let taken: BTreeSet<String> = (requests.iter())
            .filter(|request| all || of_this.contains(&Some(request.as_str())))
            .cloned()
            .collect();
        let Some(first) = taken.first() else {
            continue;
        };
        // The kubelet hands the edit over once for each time that its device is named.
        let handed = (of_this.iter()).filter(|take| take.is_none_or(|request| request == first));
        if handed.count() > 1 {
            return Err(format!(
                "container {} of pod {} names claim {claim} twice",
                container.name, pod.identity
            ));
        }
        takes.entry(taken).or_default().push(container.name.clone());
    }
    if takes.is_empty() {
        return Err(format!(
            "no container of pod {} takes anything of claim {claim}",
            pod.identity
        ));
    }
    Ok(takes)
}

/// Whether a part is compatible with these: it is one of them, or has nothing in common with any.
pub fn goes_with<'a>(
    part: &BTreeSet<String>,
    mut others: impl Iterator<Item = &'a BTreeSet<String>>,
) -> bool {
    others.all(|other| part == other || part.is_disjoint(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::{ClaimUse, ContainerKind, ContainerView};
    use api::grant::PodIdentity;

    /// A pod whose containers take these requests of claim `c`; `*`: all.
    fn pod(containers: &[(&str, &[&str])]) -> PodView {
        let take = |request: &&str| ClaimUse {
            claim: "c".into(),
            request: (*request != "*").then(|| (*request).to_owned()),
        };
        let container = |(name, takes): &(&str, &[&str])| ContainerView {
            name: (*name).to_owned(),
            kind: ContainerKind::App,
            tokens: 0,
            whole: 0,
            claims: takes.iter().map(take).collect(),
            running: None,
        };
        PodView {
            identity: PodIdentity {
                uid: "u".into(),
                namespace: "ns".into(),
                name: "p".into(),
            },
            mirror_uid: None,
            grant: None,
            admitted: true,
            finished: false,
            deleting: false,
            grace: std::time::Duration::ZERO,
            runtime_class: None,
            way_around: None,
            containers: containers.iter().map(container).collect(),
        }
    }

    fn set(requests: &[&str]) -> BTreeSet<String> {
        requests
            .iter()
            .map(|request| (*request).to_owned())
            .collect()
    }

    #[test]
    fn containers_that_take_the_same_have_it_in_common() {
        let all = set(&["a", "b"]);
        for (containers, expected) in [
            (
                vec![("m", &["*"] as &[&str]), ("s", &["a", "b"]), ("other", &[])],
                vec![(set(&["a", "b"]), vec!["m", "s"])],
            ),
            (
                vec![("m", &["a"]), ("s", &["b"])],
                vec![(set(&["a"]), vec!["m"]), (set(&["b"]), vec!["s"])],
            ),
            // Of another driver's request nothing is ours.
            (vec![("m", &["a", "nic"])], vec![(set(&["a"]), vec!["m"])]),
        ] {
            let found = takes(&pod(&containers), "c", &all).unwrap();
            let found: Vec<(BTreeSet<String>, Vec<&str>)> = found
                .iter()
                .map(|(part, names)| (part.clone(), names.iter().map(String::as_str).collect()))
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_does_not_go_with_one_edit_for_each_container_is_told() {
        let all = set(&["a", "b"]);
        for (containers, words) in [
            (vec![("m", &["*", "*"] as &[&str])], "twice"),
            (vec![("m", &["*", "a"])], "twice"),
            (vec![("m", &["nic"])], "no container"),
            (vec![], "no container"),
        ] {
            let why = takes(&pod(&containers), "c", &all).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        // The edit is the first request's.
        assert!(takes(&pod(&[("m", &["*", "b"])]), "c", &all).is_ok());
        let parts = [set(&["a"]), set(&["b"])];
        assert!(goes_with(&set(&["a"]), parts.iter()));
        assert!(!goes_with(&all, parts.iter()));
    }

    #[test]
    fn all_of_a_claim_has_the_claims_own_name() {
        let device = |request: &str| Device {
            request: request.into(),
            pool: "n1".into(),
            device: "gpu-0".into(),
            share_id: None,
            memory: None,
            observes: false,
            config: Config::default(),
        };
        let allocated = Allocated {
            uid: "u".into(),
            alloc: AllocId::new(7),
            namespace: "ns".into(),
            name: "c".into(),
            devices: vec![device("a"), device("b"), device("b")],
            reserved: BTreeMap::new(),
        };
        assert_eq!(allocated.part(&set(&["a", "b"])), AllocId::new(7));
        assert_eq!(allocated.part(&set(&["b"])), AllocId::new(7).of_part(["b"]));
    }
}
