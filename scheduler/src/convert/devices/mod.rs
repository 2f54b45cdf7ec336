//! Dynamic resource allocation: what drivers publish, what claims want and have, and what pods
//! wait for of it.
//!
//! - [`pools`]: `ResourceSlice`s; [`wants`]: what a claim's spec means; [`claims`]: claims, and
//!   which of them a pod has; [`filters`]: which devices selectors select.
//! - [`stand_in`]: the claim that stands in for whole GPUs in a pod's resources.
//! - [`strays`]: claims that lose their devices because their pods were not bound.
//! - here: the pods that have claims, looked at again when something about these has changed.

mod claims;
mod filters;
mod pools;
pub(crate) mod stand_in;
mod strays;
mod wants;

use super::{ListedObjects, World};
use crate::stored_pod::StoredPod;
use crate::watch::Seen;
use claims::{Claims, Named};
use filters::{FilterStatus, Filters, Wanted};
use k8s_openapi::api::core::v1::Pod as KubePod;
use k8s_openapi::api::resource::v1::{
    DeviceClass, DeviceClassConfiguration, ResourceClaim, ResourceSlice,
};
use kube::ResourceExt as _;
use pools::Pools;
pub use pools::Terms;
use scheduler_core::ids::{FilterName, PoolName};
use scheduler_core::model::{Ask, ContainerAsk, DeviceClaim, Phase, Pod};
use scheduler_core::units::{Quantity, Time};
use scheduler_core::{Bind, Event};
pub use stand_in::StandIn;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
pub use strays::Stray;
use wants::{Classes, No};

/// What a claim's status says of its devices beside what was decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimTerms {
    /// Of each of its devices.
    pub(crate) devices: Vec<Terms>,
    /// `config` of the classes that its requests name.
    pub(crate) config: BTreeMap<String, Vec<DeviceClassConfiguration>>,
    /// It stands in for GPUs in its pod's resources, and is made for the binding.
    pub(crate) stand_in: Option<StandIn>,
}

/// What a pod's claims say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Say {
    devices: Vec<DeviceClaim>,
    /// What has to come first.
    lacks: Vec<Arc<str>>,
    /// What nothing here follows.
    unsupported: Vec<Arc<str>>,
    /// A claim is not there yet, or has no devices.
    is_open: bool,
}

/// A pod with claims.
#[derive(Debug)]
struct User {
    pod: StoredPod,
    /// True if the pod has claims of its own.
    has_claims: bool,
    /// Namespace and name of each claim for which the pod is looked at again.
    claims: Vec<String>,
    /// It waits, and is ours.
    waits: bool,
    /// It asks for whole GPUs, for which a claim may stand in.
    asks: bool,
    queue: String,
    say: Say,
    filters: BTreeSet<FilterName>,
}

/// Of dynamic resource allocation.
#[derive(Debug, Default)]
pub(super) struct DeviceObjects {
    /// True if some of these kinds are not listed, so that no pod's claims keep it from a node.
    pub(super) unread: bool,
    slices: ListedObjects,
    claim_names: ListedObjects,
    class_names: ListedObjects,
    pools: Pools,
    classes: Classes,
    claims: Claims,
    filters: Filters,
    /// By UID.
    users: BTreeMap<String, User>,
    /// UIDs by the namespace and name of a claim.
    by_claim: BTreeMap<String, BTreeSet<String>>,
    /// Pools that are to be put together when all slices are listed.
    changed: BTreeSet<PoolName>,
    /// Bytes of the smallest card of our agents, as they were told last.
    share: Option<Quantity>,
    /// Claims that have devices and whose pods wait, and since when: what is written before a
    /// pod is bound, or was left by a process that ended in between.
    strays: BTreeMap<String, Time>,
}

impl DeviceObjects {
    pub(super) fn rolls(&self) -> [(&ListedObjects, &'static str); 3] {
        [
            (&self.slices, "resourceslices"),
            (&self.class_names, "deviceclasses"),
            (&self.claim_names, "resourceclaims"),
        ]
    }

    /// All there is was told.
    pub(super) fn all_listed(&mut self) {
        for roll in [
            &mut self.slices,
            &mut self.class_names,
            &mut self.claim_names,
        ] {
            roll.listed = true;
        }
    }

    pub(super) fn listing(&mut self) -> &mut ListedObjects {
        &mut self.claim_names
    }

    pub(super) fn is_behind(&self) -> bool {
        self.claim_names.behind != super::ListingState::No
    }

    fn is_listed(&self) -> bool {
        self.rolls().iter().all(|(roll, _)| roll.listed)
    }

    pub(super) fn is_due(&self) -> bool {
        self.filters.is_due()
    }

    /// What the claims of a pod say now, and the filters that they name.
    fn say(&self, pod: &KubePod, waits: bool, asks: bool, queue: &str) -> (Say, Vec<Wanted>) {
        let (mut say, mut filters) = (Say::default(), Vec::new());
        let uid = pod.uid().unwrap_or_default();
        let mut seen = BTreeSet::new();
        for named in claims::named(pod) {
            let result = match named {
                Ok(named) if seen.contains(&named.claim) => continue,
                Ok(named) => {
                    seen.insert(named.claim.clone());
                    let one = self.claim(&named, &uid, waits, queue, &mut filters);
                    one.map_err(|no| match no {
                        No::Lacks(what) => {
                            No::Lacks(format!("resource claim {}: {what}", named.claim))
                        }
                        No::Unknown(what) => {
                            No::Unknown(format!("resource claim {}: {what}", named.claim))
                        }
                    })
                }
                Err(name) => Err(No::Lacks(format!(
                    "resource claim {name} is not created yet"
                ))),
            };
            match result {
                Ok(claim) => {
                    say.is_open |= claim.own && waits;
                    say.devices.push(claim);
                }
                Err(_) if self.unread => {}
                Err(No::Lacks(what)) => {
                    say.is_open = true;
                    let what = format!("DynamicResources: {what}");
                    say.lacks.push(Arc::from(what));
                }
                Err(No::Unknown(what)) => say.unsupported.push(Arc::from(what)),
            }
        }
        if asks {
            self.say_stand_in(pod, waits, &mut say, &mut filters);
        }
        (say, filters)
    }

    fn claim(
        &self,
        named: &Named,
        pod: &str,
        waits: bool,
        queue: &str,
        filters: &mut Vec<Wanted>,
    ) -> Result<DeviceClaim, No> {
        let lacks = |what: &str| Err(No::Lacks(what.to_owned()));
        let Some(claim) = self.claims.get(&named.claim) else {
            return lacks("not found");
        };
        if named.own && claim.made_for.as_deref() != Some(pod) {
            return lacks("it was not created for the pod");
        }
        if waits && claim.leaving {
            return lacks("it is being deleted");
        }
        if waits && claim.is_full(pod) {
            return lacks("in use by as many pods as can use it");
        }
        let wants = match wants::of(&claim.spec, &self.classes, self.whole_for(claim)) {
            Ok(wants) => wants,
            Err(no) if waits && !claim.is_allocated() => return Err(no),
            // It has its devices.
            Err(_) => wants::Wants::default(),
        };
        // KAI counts a claim that pods share in the queue that it names.
        let counts = wants
            .wants
            .requests
            .iter()
            .flat_map(|one| &one.alternatives);
        let counts = counts.map(|one| one.nano).max().unwrap_or(0) > 0;
        if waits && !named.own && counts && claim.queue.as_deref() != Some(queue) {
            return lacks(&format!(
                "its label kai.scheduler/queue does not name the pod's queue {queue}"
            ));
        }
        if waits && !claim.is_allocated() {
            filters.extend(wants.filters);
        }
        Ok(DeviceClaim {
            uid: claim.uid.clone(),
            name: Arc::from(named.claim.as_str()),
            own: named.own && !(waits && claim.is_allocated()),
            stands_in: false,
            wants: Arc::new(wants.wants),
        })
    }

    /// Bytes that count as one GPU: of the card that it has, else of the smallest.
    fn whole_for(&self, claim: &claims::Claim) -> Option<Quantity> {
        let mut own = claim.devices().iter().filter_map(|one| {
            let (pool, name) = one.device.split()?;
            self.pools.card_memory(&pool, name)
        });
        own.next().or(self.share)
    }

    /// Adds what is known of its filters.
    fn answers(&self, filters: &BTreeSet<FilterName>, say: &mut Say) {
        for filter in filters {
            match self.filters.known(filter, &self.pools) {
                FilterStatus::Yes => {}
                FilterStatus::NotYet => say.lacks.push(Arc::from(
                    "DynamicResources: the selectors of its claims are being evaluated",
                )),
                FilterStatus::Never(why) => say.unsupported.push(Arc::from(why)),
            }
        }
        say.lacks.dedup();
    }

    /// The pod, if its claims say something else than when it was looked at last.
    pub(super) fn changed(&self, uid: &str) -> Option<KubePod> {
        let user = self.users.get(uid)?;
        let pod = user.pod.load();
        let (mut say, wanted) = self.say(&pod, user.waits, user.asks, &user.queue);
        let filters: BTreeSet<FilterName> = wanted.iter().map(Wanted::name).collect();
        self.answers(&filters, &mut say);
        (say != user.say || filters != user.filters).then_some(pod)
    }

    fn forget(&mut self, uid: &str) {
        let Some(user) = self.users.remove(uid) else {
            return;
        };
        self.filters.unused(user.filters.iter(), uid);
        for name in &user.claims {
            if let Some(users) = self.by_claim.get_mut(name) {
                users.remove(uid);
                if users.is_empty() {
                    self.by_claim.remove(name);
                }
            }
        }
    }

    /// Pools that have changed, put together; and the pods for which that may be news.
    fn put_together(&mut self) -> (Vec<Event>, BTreeSet<String>) {
        let (mut events, mut users) = (Vec::new(), BTreeSet::new());
        for name in std::mem::take(&mut self.changed) {
            if self.pools.put_together(&name) {
                self.filters.pool_changed(&name, &mut self.pools);
                events.extend(self.told(&name));
            } else {
                self.filters.pool_gone(&name);
                events.push(Event::DevicesGone(name));
            }
        }
        let share = self.pools.smallest_card();
        if share != self.share {
            self.share = share;
            users.extend(self.users.keys().cloned());
        }
        (events, users)
    }

    fn told(&mut self, pool: &PoolName) -> Option<Event> {
        let row = self.pools.rows.get_mut(pool)?;
        row.news().map(Event::Devices)
    }
}

fn has_claims(pod: &KubePod) -> bool {
    let claims = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resource_claims.as_ref());
    claims.is_some_and(|claims| !claims.is_empty())
}

/// Its claims by namespace and name, also that which may stand in for its GPUs.
fn names(pod: &KubePod, waits: bool, asks: bool) -> Vec<String> {
    let names = claims::named(pod).into_iter().flatten();
    let mut names: Vec<String> = names.map(|named| named.claim).collect();
    if asks {
        let placed = stand_in::of_placed(pod).filter(|_| !waits);
        let name = placed.map_or_else(|| stand_in::name_for(pod), str::to_owned);
        names.push(format!("{}/{name}", pod.namespace().unwrap_or_default()));
    }
    names
}

impl World {
    /// What is written of the devices of a pod's claims.
    pub(crate) fn claim_terms(&self, bind: &Bind) -> Vec<ClaimTerms> {
        let known = &self.devices;
        let of = |claim: &scheduler_core::DeviceBinding| {
            let devices = claim.devices.iter().map(|one| {
                let split = one.device.split();
                split.map_or_else(Terms::default, |(pool, name)| {
                    known.pools.terms(&pool, name)
                })
            });
            let stand_in = known.stand_in(bind, &claim.name);
            let spec = known.claims.get(&claim.name).map(|claim| &claim.spec);
            let spec = stand_in.as_ref().map(|made| &made.spec).or(spec);
            let classes = spec.into_iter().flat_map(wants::classes);
            let config = classes.filter_map(|name| {
                let spec = known.classes.get(name)?.spec.as_ref()?;
                Some((name.to_owned(), spec.config.clone()?))
            });
            ClaimTerms {
                devices: devices.collect(),
                config: config.collect(),
                stand_in,
            }
        };
        bind.devices.iter().map(of).collect()
    }

    /// The pod's claims on devices, if it waits or has a place.
    pub(super) fn claim_devices(&mut self, pod: &KubePod, converted: &mut Pod) {
        let uid = converted.uid.as_str();
        let known = &mut self.devices;
        known.forget(uid);
        let ends = matches!(
            converted.phase,
            Phase::Releasing(None) | Phase::Succeeded | Phase::Failed
        );
        let waits = converted.phase == Phase::Pending;
        let whole = |ask: &ContainerAsk| matches!(ask.ask, Ask::Whole(_));
        // One pod has one front: with a share by annotation it is the plugin's.
        let asks = !converted.gpus.is_empty() && converted.gpus.iter().all(whole);
        let asks = asks
            && (stand_in::class(&known.classes).is_some()
                || !known.is_listed()
                || stand_in::of_placed(pod).is_some());
        if ends || !asks && !has_claims(pod) {
            return;
        }
        let queue = converted.queue.to_string();
        let (mut say, wanted) = known.say(pod, waits, asks, &queue);
        for one in &wanted {
            known.filters.used(one, uid, &known.pools);
        }
        let filters = wanted.iter().map(Wanted::name).collect();
        known.answers(&filters, &mut say);
        converted.devices.clone_from(&say.devices);
        if waits {
            converted.lacks.extend(say.lacks.iter().cloned());
            converted
                .unsupported
                .extend(say.unsupported.iter().cloned());
        }
        let names = names(pod, waits, asks);
        if waits || say.is_open {
            for name in &names {
                let users = known.by_claim.entry(name.clone()).or_default();
                users.insert(uid.to_owned());
            }
            let user = User {
                pod: StoredPod::of(pod),
                has_claims: has_claims(pod),
                claims: names.clone(),
                waits,
                asks,
                queue,
                say,
                filters,
            };
            known.users.insert(uid.to_owned(), user);
        }
        for name in names {
            known.judge_stray(&name, self.now);
        }
    }

    /// Whether the pod's end is to be waited for by those who want its claims' devices.
    pub(super) fn devices_of_pod(&mut self, uid: &str, phase: &Phase) -> Vec<Event> {
        match phase {
            Phase::Succeeded | Phase::Failed => self.devices.claims.pod_ended(uid),
            _ => self.devices.claims.pod_there(uid),
        }
    }

    pub(super) fn forget_claims(&mut self, uid: &str) -> Vec<Event> {
        self.devices.forget(uid);
        self.devices.claims.pod_ended(uid)
    }

    pub(super) fn device_slice(&mut self, seen: Seen<ResourceSlice>) -> Vec<Event> {
        let known = &mut self.devices;
        let changed = match seen {
            Seen::Listing => {
                known.slices.begin();
                return Vec::new();
            }
            Seen::There(slice) => {
                known.slices.there(&slice.name_any());
                known.pools.slice(&slice)
            }
            Seen::Gone(slice) => {
                known.slices.names.remove(&slice.name_any());
                known.pools.gone(&slice.name_any())
            }
            Seen::Listed => {
                let gone = known.slices.end();
                let gone = gone.iter().flat_map(|name| known.pools.gone(name));
                let gone: Vec<PoolName> = gone.collect();
                known.changed.extend(gone);
                let (mut events, users) = known.put_together();
                self.device_users(users);
                events.extend(self.all_device_users());
                return events;
            }
        };
        known.changed.extend(changed);
        if !known.slices.listed {
            return Vec::new();
        }
        let (events, users) = known.put_together();
        self.device_users(users);
        events
    }

    pub(super) fn device_class(&mut self, seen: Seen<DeviceClass>) -> Vec<Event> {
        let known = &mut self.devices;
        let name = match seen {
            Seen::Listing => {
                known.class_names.begin();
                return Vec::new();
            }
            Seen::There(class) => {
                let name = class.name_any();
                known.class_names.there(&name);
                let old = known.classes.insert(name.clone(), class);
                let is_same = old.is_some_and(|old| old.spec == known.classes[&name].spec);
                if is_same {
                    return Vec::new();
                }
                name
            }
            Seen::Gone(class) => {
                known.class_names.names.remove(&class.name_any());
                known.classes.remove(&class.name_any());
                class.name_any()
            }
            Seen::Listed => {
                for name in known.class_names.end() {
                    known.classes.remove(&name);
                }
                return self.all_device_users();
            }
        };
        drop(name);
        let users = known.users.keys().cloned().collect();
        self.device_users(users);
        Vec::new()
    }

    pub(super) fn device_claim(&mut self, seen: Seen<ResourceClaim>) -> Vec<Event> {
        let known = &mut self.devices;
        match seen {
            Seen::Listing => {
                known.claim_names.begin();
                Vec::new()
            }
            Seen::There(claim) => {
                let name = claims::name_of(&claim);
                known.claim_names.there(&name);
                let Some(events) = known.claims.claim(&claim, &self.queue_label) else {
                    return Vec::new();
                };
                known.judge_stray(&name, self.now);
                self.users_of_claims(&[name]);
                events
            }
            Seen::Gone(claim) => {
                let name = claims::name_of(&claim);
                known.claim_names.names.remove(&name);
                let events = known.claims.gone(&name);
                known.strays.remove(&name);
                self.users_of_claims(&[name]);
                events
            }
            Seen::Listed => {
                let gone = known.claim_names.end();
                let mut events: Vec<Event> = Vec::new();
                for name in &gone {
                    events.extend(known.claims.gone(name));
                }
                self.users_of_claims(&gone);
                events.extend(self.all_device_users());
                events
            }
        }
    }

    fn users_of_claims(&mut self, claims: &[String]) {
        let users = claims
            .iter()
            .filter_map(|name| self.devices.by_claim.get(name));
        let users: BTreeSet<String> = users.flatten().cloned().collect();
        self.device_users(users);
    }

    /// Pods that are looked at again. Nothing is decided before all is listed, and the last
    /// listing looks at all of them.
    fn device_users(&mut self, users: BTreeSet<String>) {
        if self.devices.is_listed() {
            self.again.add(users);
        }
    }

    /// A listing is over: all who are another case now.
    fn all_device_users(&mut self) -> Vec<Event> {
        if !self.devices.is_listed() {
            return Vec::new();
        }
        self.devices.forget_plain();
        let known = &self.devices;
        let due = known.users.keys().filter_map(|uid| known.changed(uid));
        let due: Vec<KubePod> = due.collect();
        due.into_iter()
            .flat_map(|pod| self.pod_there(pod))
            .collect()
    }

    /// Selectors are evaluated for the devices whose turn it is.
    pub(super) fn select_devices(&mut self) -> Vec<Event> {
        let known = &mut self.devices;
        if !known.filters.is_due() {
            return Vec::new();
        }
        known.filters.tidy();
        let (changed, users) = known.filters.look(&mut known.pools);
        let events = changed.iter().filter_map(|pool| known.told(pool)).collect();
        self.again.add(users);
        events
    }
}

#[cfg(test)]
mod tests;
