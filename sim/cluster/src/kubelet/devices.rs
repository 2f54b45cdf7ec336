//! The device manager's books: what plugins offer, what containers hold.
//!
//! Pure: no RPC and no disk; the time comes in. The order of choices is the real one's
//! (`devicesToAllocate`): reused IDs, then what the plugin prefers, then any. Kept bug
//! included: [`Devices::release`] forgets reservations that are still in flight, so that
//! an ID can be given twice. Never decides which ID is better.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A set of device IDs.
pub(super) type Ids = BTreeSet<String>;

/// Which container holds something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) pod_uid: String,
    pub(super) container: String,
    pub(super) resource: String,
}

/// What a container holds of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) ids: Ids,
    /// The marshalled `ContainerAllocateResponse`, replayed at every start.
    pub(super) response: Vec<u8>,
}

/// A device as its plugin lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) id: String,
    pub(super) healthy: bool,
    pub(super) numa: Vec<i64>,
}

#[derive(Debug, Default)]
struct Resource {
    healthy: Ids,
    unhealthy: Ids,
    numa: BTreeMap<String, Vec<i64>>,
    /// Set when the stream ended.
    stopped: Option<Instant>,
}

/// The books.
#[derive(Debug, Default)]
pub(super) struct Devices {
    resources: BTreeMap<String, Resource>,
    held: BTreeMap<Owner, Held>,
    /// By resource: held, and reserved while an RPC runs.
    allocated: BTreeMap<String, Ids>,
}

/// How far a choice got without the plugin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The container has its devices.
    Nothing,
    /// Enough reused IDs.
    Done(Ids),
    /// The plugin is called, then [`Devices::choose`] continues.
    Ask(PreferredAllocationCall),
}

/// `GetPreferredAllocation`'s arguments, and what is reserved already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PreferredAllocationCall {
    pub(super) available: Ids,
    pub(super) reserved: Ids,
    pub(super) size: usize,
}

impl Devices {
    /// A plugin's list replaces the previous one of its resource.
    pub(super) fn update(&mut self, resource: &str, list: Vec<Listed>) {
        let known = self.resources.entry(resource.to_owned()).or_default();
        *known = Resource::default();
        for device in list {
            if device.healthy {
                known.healthy.insert(device.id.clone());
            } else {
                known.unhealthy.insert(device.id.clone());
            }
            known.numa.insert(device.id, device.numa);
        }
    }

    /// A plugin has registered: its last list counts again only once it sends one.
    pub(super) fn registered(&mut self, resource: &str) {
        self.resources
            .entry(resource.to_owned())
            .or_default()
            .stopped = None;
    }

    /// A plugin's stream ended: all its devices are unhealthy.
    pub(super) fn disconnected(&mut self, resource: &str, now: Instant) {
        if let Some(known) = self.resources.get_mut(resource) {
            let healthy = std::mem::take(&mut known.healthy);
            known.unhealthy.extend(healthy);
            known.stopped = Some(now);
        }
    }

    /// Whether a plugin ever spoke of this resource.
    pub(super) fn knows(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
            || self.held.keys().any(|owner| owner.resource == resource)
    }

    /// Whether a plugin listed devices since this kubelet started.
    pub(super) fn listed_here(&self, resource: &str) -> bool {
        self.resources
            .get(resource)
            .is_some_and(|known| !known.healthy.is_empty() || !known.unhealthy.is_empty())
    }

    /// What a container holds.
    pub(super) fn held(&self, owner: &Owner) -> Option<&Held> {
        self.held.get(owner)
    }

    /// Everything that is held.
    pub(super) fn all_held(&self) -> impl Iterator<Item = (&Owner, &Held)> {
        self.held.iter()
    }

    /// The healthy IDs of each resource.
    pub(super) fn healthy(&self) -> impl Iterator<Item = (&String, &Ids)> {
        self.resources
            .iter()
            .map(|(name, known)| (name, &known.healthy))
    }

    /// Whether a listed ID is healthy; a vanished one counts as such, as in the real one.
    pub(super) fn is_healthy(&self, resource: &str, id: &str) -> bool {
        self.resources
            .get(resource)
            .is_none_or(|known| !known.unhealthy.contains(id))
    }

    /// NUMA nodes of an ID.
    pub(super) fn numa(&self, resource: &str, id: &str) -> &[i64] {
        self.resources
            .get(resource)
            .and_then(|known| known.numa.get(id))
            .map_or(&[], Vec::as_slice)
    }

    /// Begins a choice; its devices are reserved.
    pub(super) fn begin(
        &mut self,
        owner: &Owner,
        required: usize,
        reusable: &Ids,
    ) -> Result<Choice, String> {
        let resource = &owner.resource;
        let devices = self.held.get(owner).map(|held| held.ids.clone());
        let had = devices.as_ref().map_or(0, Ids::len);
        if devices.is_some() && had != required {
            return Err(format!(
                "pod \"{}\" container \"{}\" changed request for resource \"{resource}\" from {had} to {required}",
                owner.pod_uid, owner.container
            ));
        }
        let healthy = match self.resources.get(resource) {
            None => return Err(format!("cannot allocate unregistered device {resource}")),
            Some(known) => known.healthy.clone(),
        };
        if healthy.is_empty() {
            return Err(format!(
                "no healthy devices present; cannot allocate unhealthy devices {resource}"
            ));
        }
        if devices.is_some_and(|devices| !healthy.is_superset(&devices)) {
            return Err(format!(
                "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            ));
        }
        let needed = required - had;
        if needed == 0 {
            return Ok(Choice::Nothing);
        }
        let reserved: Ids = reusable.iter().take(needed).cloned().collect();
        self.reserve(resource, &reserved);
        if reserved.len() == needed {
            return Ok(Choice::Done(reserved));
        }
        let in_use = self.allocated.entry(resource.clone()).or_default();
        let free: Ids = healthy.difference(in_use).cloned().collect();
        if free.len() < needed - reserved.len() {
            let found = free.len();
            self.rebuild();
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {found}"
            ));
        }
        Ok(Choice::Ask(PreferredAllocationCall {
            available: free.union(&reserved).cloned().collect(),
            reserved,
            size: required,
        }))
    }

    /// Ends a choice with what the plugin prefers; what it did not name is topped up.
    pub(super) fn choose(
        &mut self,
        owner: &Owner,
        question: &PreferredAllocationCall,
        preferred: &Ids,
    ) -> Ids {
        let mut chosen = question.reserved.clone();
        let free = |id: &&String| !question.reserved.contains(*id);
        let first = preferred
            .intersection(&question.available)
            .filter(free)
            .cloned()
            .collect::<Vec<_>>();
        let rest = question.available.iter().filter(free).cloned();
        for id in first.into_iter().chain(rest) {
            if chosen.len() == question.size {
                break;
            }
            chosen.insert(id);
        }
        self.reserve(&owner.resource, &chosen);
        chosen
    }

    fn reserve(&mut self, resource: &str, ids: &Ids) {
        self.allocated
            .entry(resource.to_owned())
            .or_default()
            .extend(ids.iter().cloned());
    }

    /// An allocation is done.
    pub(super) fn insert(&mut self, owner: Owner, held: Held) {
        self.reserve(&owner.resource.clone(), &held.ids);
        self.held.insert(owner, held);
    }

    /// An allocation failed.
    pub(super) fn abort(&mut self) {
        self.rebuild();
    }

    /// Takes back what pods hold that are no longer active. As in the real one, a
    /// reservation whose RPC still runs is lost on the way. True when something was freed.
    pub(super) fn release(&mut self, active: &BTreeSet<String>) -> bool {
        let before = self.held.len();
        self.held.retain(|owner, _| active.contains(&owner.pod_uid));
        let freed = self.held.len() != before;
        if freed {
            self.rebuild();
        }
        freed
    }

    fn rebuild(&mut self) {
        self.allocated.clear();
        for (owner, held) in &self.held {
            self.allocated
                .entry(owner.resource.clone())
                .or_default()
                .extend(held.ids.iter().cloned());
        }
    }

    /// Capacity and allocatable of every resource; one whose plugin has been missing for longer
    /// than `grace` has none and is forgotten.
    pub(super) fn counts(
        &mut self,
        now: Instant,
        grace: Duration,
    ) -> BTreeMap<String, (usize, usize)> {
        let mut counts = BTreeMap::new();
        self.resources.retain(|name, known| {
            let over = known
                .stopped
                .is_some_and(|since| now.duration_since(since) >= grace);
            let capacity = if over {
                0
            } else {
                known.healthy.len() + known.unhealthy.len()
            };
            counts.insert(name.clone(), (capacity, known.healthy.len()));
            !over
        });
        counts
    }

    /// After a restart: allocations are known, resources have no devices until their
    /// plugins register again.
    pub(super) fn restore(
        &mut self,
        held: Vec<(Owner, Held)>,
        resources: Vec<String>,
        now: Instant,
    ) {
        for name in resources {
            self.resources.entry(name).or_default().stopped = Some(now);
        }
        self.held.extend(held);
        self.rebuild();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: &str = "aliquot.dev/gpu-share";

    fn owner(pod: &str, container: &str) -> Owner {
        Owner {
            pod_uid: pod.into(),
            container: container.into(),
            resource: SHARE.into(),
        }
    }

    fn ids(list: &[&str]) -> Ids {
        list.iter().map(ToString::to_string).collect()
    }

    fn with(list: &[&str]) -> Devices {
        let mut devices = Devices::default();
        devices.registered(SHARE);
        let listed = |id: &&str| Listed {
            id: (*id).to_owned(),
            healthy: true,
            numa: vec![],
        };
        devices.update(SHARE, list.iter().map(listed).collect());
        devices
    }

    fn hold(devices: &mut Devices, owner: Owner, list: &[&str]) {
        let held = Held {
            ids: ids(list),
            response: vec![],
        };
        devices.insert(owner, held);
    }

    #[test]
    fn what_the_plugin_prefers_is_taken_and_topped_up_with_what_is_free() {
        let mut devices = with(&["a", "b", "c", "d"]);
        hold(&mut devices, owner("p0", "m"), &["a"]);
        let Choice::Ask(question) = devices.begin(&owner("p1", "m"), 2, &Ids::new()).unwrap()
        else {
            panic!("the plugin is asked");
        };
        assert_eq!(question.available, ids(&["b", "c", "d"]));
        assert_eq!(
            devices.choose(&owner("p1", "m"), &question, &ids(&["d", "a", "unknown"])),
            ids(&["b", "d"])
        );
        let error = devices
            .begin(&owner("p2", "m"), 2, &Ids::new())
            .unwrap_err();
        assert!(error.contains("Requested: 2, Available: "), "{error}");
    }

    #[test]
    fn an_init_containers_ids_are_reused_before_any_other() {
        let mut devices = with(&["a", "b"]);
        hold(&mut devices, owner("p", "init"), &["b"]);
        let choice = devices.begin(&owner("p", "app"), 1, &ids(&["b"])).unwrap();
        assert_eq!(choice, Choice::Done(ids(&["b"])));
    }

    #[test]
    fn a_release_during_an_rpc_loses_the_reservation() {
        let mut devices = with(&["a", "b"]);
        hold(&mut devices, owner("gone", "m"), &["b"]);
        let Choice::Ask(question) = devices.begin(&owner("p1", "m"), 1, &Ids::new()).unwrap()
        else {
            panic!("the plugin is asked");
        };
        assert_eq!(
            devices.choose(&owner("p1", "m"), &question, &Ids::new()),
            ids(&["a"])
        );
        assert!(devices.release(&BTreeSet::from(["p1".to_owned()])));
        let Choice::Ask(second) = devices.begin(&owner("p2", "m"), 1, &Ids::new()).unwrap() else {
            panic!("the plugin is asked");
        };
        assert!(second.available.contains("a"), "the same ID again");
    }

    #[test]
    fn a_lost_plugin_keeps_its_capacity_for_the_grace_and_then_counts_zero_once() {
        let mut devices = with(&["a", "b"]);
        let (start, grace) = (Instant::now(), Duration::from_mins(5));
        devices.disconnected(SHARE, start);
        assert_eq!(devices.counts(start, grace)[SHARE], (2, 0));
        let error = devices.begin(&owner("p", "m"), 1, &Ids::new()).unwrap_err();
        assert!(error.starts_with("no healthy devices present"), "{error}");
        assert_eq!(devices.counts(start + grace, grace)[SHARE], (0, 0));
        assert!(devices.counts(start + grace, grace).is_empty());
    }

    #[test]
    fn an_id_that_turned_unhealthy_while_held_fails_the_next_admission() {
        let mut devices = with(&["a", "b"]);
        hold(&mut devices, owner("p", "m"), &["a"]);
        let listed = |id: &str, healthy| Listed {
            id: id.to_owned(),
            healthy,
            numa: vec![],
        };
        devices.update(SHARE, vec![listed("a", false), listed("b", true)]);
        let error = devices.begin(&owner("p", "m"), 1, &Ids::new()).unwrap_err();
        assert!(error.starts_with("previously allocated devices are no longer healthy"));
    }
}
