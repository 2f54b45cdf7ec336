//! What is known of devices and claims, and the pods that have claims: they are looked at again when
//! something about these has changed.

use super::claims::{self, Claims, Named};
use super::filters::{FilterStatus, Filters, Wanted};
use super::pools::{Pools, Terms};
use super::stand_in::{self, StandIn};
use super::wants::{self, Classes, No};
use crate::convert::listing::{Listing, ListingState};
use crate::convert::recheck::Due;
use crate::stored_pod::StoredPod;
use crate::watch::{Key as _, Seen};
use k8s_openapi::api::core::v1::Pod as KubePod;
use k8s_openapi::api::resource::v1::{
    DeviceClass, DeviceClassConfiguration, ResourceClaim, ResourceSlice,
};
use kube::ResourceExt as _;
use scheduler_core::ids::{FilterName, PoolName};
use scheduler_core::model::{Ask, ContainerAsk, DeviceClaim, Phase, Pod};
use scheduler_core::units::{Quantity, Time};
use scheduler_core::{Bind, Event};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a claim's status says of its devices beside what was decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimTerms {
    /// The terms of each of the claim's devices.
    pub(crate) devices: Vec<Terms>,
    /// `config` of the classes that its requests name.
    pub(crate) config: BTreeMap<String, Vec<DeviceClassConfiguration>>,
    /// The claim, if it stands in for GPUs in its pod's resources and is made for the binding.
    pub(crate) stand_in: Option<StandIn>,
}

/// The devices that a pod's claims ask for, and what the pod waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Say {
    pub(super) devices: Vec<DeviceClaim>,
    /// What the pod waits for.
    pub(super) lacks: Vec<Arc<str>>,
    /// The parts of the claims for which this scheduler has no rule.
    unsupported: Vec<Arc<str>>,
    /// A claim is not there yet, or has no devices.
    pub(super) is_open: bool,
}

/// A pod with claims.
#[derive(Debug)]
pub(super) struct User {
    pub(super) pod: StoredPod,
    /// True if the pod has claims of its own.
    pub(super) has_claims: bool,
    /// Namespace and name of each claim for which the pod is looked at again.
    pub(super) claims: Vec<String>,
    /// True if the pod waits and is this scheduler's.
    pub(super) waits: bool,
    /// True if the pod requests whole GPUs, for which a claim may stand in.
    pub(super) asks: bool,
    queue: String,
    pub(super) say: Say,
    filters: BTreeSet<FilterName>,
}

/// The objects of dynamic resource allocation, and the pods that have claims.
#[derive(Debug, Default)]
pub(in crate::convert) struct DeviceObjects {
    /// True if some of these kinds are not listed, so that no pod's claims keep it from a node.
    pub(in crate::convert) unread: bool,
    slices: Listing,
    claim_names: Listing,
    class_names: Listing,
    pools: Pools,
    pub(super) classes: Classes,
    pub(super) claims: Claims,
    filters: Filters,
    /// The pods that have claims, by UID.
    pub(super) users: BTreeMap<String, User>,
    /// UIDs by the namespace and name of a claim.
    pub(super) by_claim: BTreeMap<String, BTreeSet<String>>,
    /// Pools that are to be put together when all slices are listed.
    changed: BTreeSet<PoolName>,
    /// Bytes of the smallest card of our agents, as they were told last.
    share: Option<Quantity>,
    /// Claims that have devices and whose pods wait, and since when: what is written before a
    /// pod is bound, or was left by a process that ended in between.
    pub(super) strays: BTreeMap<String, Time>,
}

impl DeviceObjects {
    pub(in crate::convert) fn rolls(&self) -> [(&Listing, &'static str); 3] {
        [
            (&self.slices, "resourceslices"),
            (&self.class_names, "deviceclasses"),
            (&self.claim_names, "resourceclaims"),
        ]
    }

    /// Counts each of these kinds as listed.
    pub(in crate::convert) fn all_listed(&mut self) {
        for roll in [
            &mut self.slices,
            &mut self.class_names,
            &mut self.claim_names,
        ] {
            roll.listed = true;
        }
    }

    pub(in crate::convert) fn listing(&mut self) -> &mut Listing {
        &mut self.claim_names
    }

    pub(in crate::convert) fn is_behind(&self) -> bool {
        self.claim_names.behind != ListingState::No
    }

    pub(super) fn is_listed(&self) -> bool {
        self.rolls().iter().all(|(roll, _)| roll.listed)
    }

    pub(in crate::convert) fn is_due(&self) -> bool {
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
                    let one = self.claim_of(&named, &uid, waits, queue, &mut filters);
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

    fn claim_of(
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
    pub(in crate::convert) fn changed(&self, uid: &str) -> Option<KubePod> {
        let user = self.users.get(uid)?;
        let pod = user.pod.load();
        let (mut say, wanted) = self.say(&pod, user.waits, user.asks, &user.queue);
        let filters: BTreeSet<FilterName> = wanted.iter().map(Wanted::name).collect();
        self.answers(&filters, &mut say);
        (say != user.say || filters != user.filters).then_some(pod)
    }

    pub(super) fn forget(&mut self, uid: &str) {
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

impl DeviceObjects {
    /// What is written of the devices of a pod's claims.
    pub(in crate::convert) fn terms(&self, bind: &Bind) -> Vec<ClaimTerms> {
        let of = |claim: &scheduler_core::DeviceBinding| {
            let devices = claim.devices.iter().map(|one| {
                let split = one.device.split();
                split.map_or_else(Terms::default, |(pool, name)| self.pools.terms(&pool, name))
            });
            let stand_in = self.stand_in(bind, &claim.name);
            let spec = self.claims.get(&claim.name).map(|claim| &claim.spec);
            let spec = stand_in.as_ref().map(|made| &made.spec).or(spec);
            let classes = spec.into_iter().flat_map(wants::classes);
            let config = classes.filter_map(|name| {
                let spec = self.classes.get(name)?.spec.as_ref()?;
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
    pub(in crate::convert) fn of_pod(&mut self, pod: &KubePod, converted: &mut Pod, now: Time) {
        let uid = converted.uid.as_str();
        self.forget(uid);
        let ends = matches!(
            converted.phase,
            Phase::Releasing(None) | Phase::Succeeded | Phase::Failed
        );
        let waits = converted.phase == Phase::Pending;
        let whole = |ask: &ContainerAsk| matches!(ask.ask, Ask::Whole(_));
        // One pod has one front: with a share by annotation it is the plugin's.
        let asks = !converted.gpus.is_empty() && converted.gpus.iter().all(whole);
        let asks = asks
            && (stand_in::class(&self.classes).is_some()
                || !self.is_listed()
                || stand_in::of_placed(pod).is_some());
        if ends || !asks && !has_claims(pod) {
            return;
        }
        let queue = converted.queue.to_string();
        let (mut say, wanted) = self.say(pod, waits, asks, &queue);
        for one in &wanted {
            self.filters.used(one, uid, &self.pools);
        }
        let filters = wanted.iter().map(Wanted::name).collect();
        self.answers(&filters, &mut say);
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
                let users = self.by_claim.entry(name.clone()).or_default();
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
            self.users.insert(uid.to_owned(), user);
        }
        for name in names {
            self.judge_stray(&name, now);
        }
    }

    /// Whether the pod's end is to be waited for by those who want its claims' devices.
    pub(in crate::convert) fn pod_stands(&mut self, uid: &str, phase: &Phase) -> Vec<Event> {
        match phase {
            Phase::Succeeded | Phase::Failed => self.claims.pod_ended(uid),
            _ => self.claims.pod_there(uid),
        }
    }

    pub(in crate::convert) fn pod_gone(&mut self, uid: &str) -> Vec<Event> {
        self.forget(uid);
        self.claims.pod_ended(uid)
    }

    pub(in crate::convert) fn slice(&mut self, seen: Seen<ResourceSlice>) -> Due {
        self.slices.note(&seen);
        let (is_listing, is_over) = (matches!(seen, Seen::Listing), matches!(seen, Seen::Listed));
        let changed = match seen {
            Seen::There(slice) => self.pools.slice(&slice),
            Seen::Gone(name) => self.pools.gone(&name),
            Seen::Listing | Seen::Listed => Vec::new(),
        };
        self.changed.extend(changed);
        if is_listing || !self.slices.listed {
            return Due::default();
        }
        let (events, users) = self.put_together();
        let later = self.in_turn(users);
        let now = if is_over {
            self.all_users()
        } else {
            Vec::new()
        };
        Due { events, later, now }
    }

    pub(in crate::convert) fn class(&mut self, seen: Seen<DeviceClass>) -> Due {
        self.class_names.note(&seen);
        let is_news = match seen {
            Seen::There(class) => {
                let name = class.key();
                let old = self.classes.insert(name.clone(), class);
                old.is_none_or(|old| old.spec != self.classes[&name].spec)
            }
            Seen::Gone(name) => self.classes.remove(&name).is_some(),
            Seen::Listing => false,
            Seen::Listed => {
                return Due {
                    now: self.all_users(),
                    ..Due::default()
                };
            }
        };
        let users = self.users.keys().filter(|_| is_news).cloned().collect();
        Due {
            later: self.in_turn(users),
            ..Due::default()
        }
    }

    /// Takes in a claim. `label` is the key of the label that names a workload's queue.
    pub(in crate::convert) fn claim(
        &mut self,
        seen: Seen<ResourceClaim>,
        label: &str,
        now: Time,
    ) -> Due {
        self.claim_names.note(&seen);
        let (name, events) = match seen {
            Seen::There(claim) => {
                let name = claim.key();
                let Some(events) = self.claims.claim(&claim, label) else {
                    return Due::default();
                };
                self.judge_stray(&name, now);
                (name, events)
            }
            Seen::Gone(name) => {
                let events = self.claims.gone(&name);
                self.strays.remove(&name);
                (name, events)
            }
            Seen::Listing => return Due::default(),
            Seen::Listed => {
                return Due {
                    now: self.all_users(),
                    ..Due::default()
                };
            }
        };
        let users = self.by_claim.get(&name).cloned().unwrap_or_default();
        Due {
            events,
            later: self.in_turn(users),
            ..Due::default()
        }
    }

    /// Pods that are looked at again. Nothing is decided before all is listed, and the last
    /// listing looks at all of them.
    fn in_turn(&self, users: BTreeSet<String>) -> BTreeSet<String> {
        if self.is_listed() {
            users
        } else {
            BTreeSet::new()
        }
    }

    /// A listing is over: all who are another case now.
    fn all_users(&mut self) -> Vec<KubePod> {
        if !self.is_listed() {
            return Vec::new();
        }
        self.forget_plain();
        let users = self.users.keys();
        users.filter_map(|uid| self.changed(uid)).collect()
    }

    /// Selectors are evaluated for the devices whose turn it is.
    pub(in crate::convert) fn select(&mut self) -> Due {
        if !self.filters.is_due() {
            return Due::default();
        }
        self.filters.tidy();
        let (changed, users) = self.filters.look(&mut self.pools);
        let events = changed.iter().filter_map(|pool| self.told(pool)).collect();
        Due {
            events,
            later: users.into_iter().collect(),
            ..Due::default()
        }
    }
}
