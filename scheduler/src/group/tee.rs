//! What concerns groups, taken from the facts on their way to the cycle; and what the desk
//! decided, put among them before the API server shows it.
//!
//! A group that is decided counts as there, and a pod as its member, until the watch shows
//! both. What the watch shows of them meanwhile is older than what was decided.

use super::draft::Classes;
use super::groups::{Key, key};
use super::member::Membership;
use super::need::{is_alone, is_bound, is_in, is_over, is_ungrouped};
use super::shared::Shared;
use crate::watch::{Fact, Seen};
use api::PodGroup;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use proto::names::kai;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::mpsc;

/// One thing for the desk.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// A pod wants a group.
    Ungrouped(Box<Pod>),
    /// It carries that group now; by UID.
    Member { uid: String, group: String },
    /// It is gone, or over; by UID.
    Gone(String),
    /// The priority classes that exist.
    Classes(Arc<Classes>),
    /// A group is not there; the pod that waits in it, if one does.
    NoGroup {
        namespace: String,
        name: String,
        pod: Option<String>,
    },
    /// All groups are listed anew: any may be gone.
    Groups,
}

/// What the desk decided of one pod.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    /// As the desk was told of it last.
    pub(super) pod: Box<Pod>,
    pub(super) membership: Membership,
    /// The pod's group as it should be.
    pub(super) group: PodGroup,
    /// It is there as it should be; else it counts only where no group of its name is there.
    pub(super) is_written: bool,
}

/// Passes facts on in their order, and leaves a note of what concerns groups.
#[derive(Debug)]
pub struct Tee {
    scheduler: String,
    shared: Shared,
    facts: mpsc::UnboundedReceiver<Fact>,
    decided: mpsc::UnboundedReceiver<Decided>,
    onward: mpsc::UnboundedSender<Fact>,
    news: mpsc::UnboundedSender<News>,
    classes: Roll,
    ungrouped: Roll,
    /// How pods without a group were last passed on, by UID: the resource version, and the
    /// membership that was laid over it.
    passed: HashMap<String, (String, Option<Arc<Membership>>)>,
    waiting: Waiting,
    /// Of groups that were not there when a pod that is bound was listed in them: that pod.
    unmade: BTreeMap<Key, String>,
    groups: Roll<Key>,
    drafted: BTreeMap<Key, Drafted>,
    /// Groups were listed once.
    are_listed: bool,
    /// Pods are being listed.
    listing: bool,
}

/// A group that was decided and is not there yet.
#[derive(Debug)]
struct Drafted {
    group: PodGroup,
    /// Its pods, by UID: with the last of them it is forgotten.
    pods: BTreeSet<String>,
}

/// Pods that wait in a group, by the group; their names, by UID.
#[derive(Debug, Default)]
struct Waiting {
    groups: BTreeMap<Key, BTreeMap<String, String>>,
    of: HashMap<String, Key>,
}

impl Waiting {
    /// Returns the group that it waited in.
    fn forget(&mut self, uid: &str) -> Option<Key> {
        let key = self.of.remove(uid)?;
        if let Some(pods) = self.groups.get_mut(&key) {
            pods.remove(uid);
            if pods.is_empty() {
                self.groups.remove(&key);
            }
        }
        Some(key)
    }

    /// Returns the group that it waits in no longer.
    fn set(&mut self, pod: &Pod, group: Option<String>) -> Option<Key> {
        let uid = pod.uid().unwrap_or_default();
        let before = self.forget(&uid);
        let group = group.map(|group| (pod.namespace().unwrap_or_default(), group));
        if let Some(key) = &group {
            let pods = self.groups.entry(key.clone()).or_default();
            pods.insert(uid.clone(), pod.name_any());
            self.of.insert(uid, key.clone());
        }
        before.filter(|before| Some(before) != group.as_ref())
    }

    /// One of those that wait in it.
    fn one(&self, group: &Key) -> Option<String> {
        self.groups.get(group)?.values().next().cloned()
    }
}

/// The desk's end: what it is told, and where it says what it decided.
#[derive(Debug)]
pub struct Told {
    pub(super) news: mpsc::UnboundedReceiver<News>,
    pub(super) decided: mpsc::UnboundedSender<Decided>,
}

/// Names that are there; after a new listing, those that it did not name are gone.
#[derive(Debug)]
struct Roll<N = String> {
    names: BTreeSet<N>,
    unnamed: Option<BTreeSet<N>>,
}

impl<N> Default for Roll<N> {
    fn default() -> Self {
        Self {
            names: BTreeSet::new(),
            unnamed: None,
        }
    }
}

impl<N: Clone + Ord> Roll<N> {
    fn begin(&mut self) {
        self.unnamed = Some(self.names.clone());
    }

    /// Whether it is news.
    fn there(&mut self, name: N) -> bool {
        if let Some(unnamed) = &mut self.unnamed {
            unnamed.remove(&name);
        }
        self.names.insert(name)
    }

    /// Whether it was there.
    fn gone(&mut self, name: &N) -> bool {
        if let Some(unnamed) = &mut self.unnamed {
            unnamed.remove(name);
        }
        self.names.remove(name)
    }

    /// Who was not named.
    fn end(&mut self) -> BTreeSet<N> {
        let gone = self.unnamed.take().unwrap_or_default();
        self.names.retain(|name| !gone.contains(name));
        gone
    }
}

impl Tee {
    /// Between the watches and the cycle: facts come in here and go out at the second.
    pub fn new(
        scheduler: &str,
        shared: Shared,
        facts: mpsc::UnboundedReceiver<Fact>,
    ) -> (Self, mpsc::UnboundedReceiver<Fact>, Told) {
        let (onward, facts_out) = mpsc::unbounded_channel();
        let (news_out, news) = mpsc::unbounded_channel();
        let (decided_out, decided) = mpsc::unbounded_channel();
        let tee = Self {
            scheduler: scheduler.to_owned(),
            shared,
            facts,
            decided,
            onward,
            news: news_out,
            classes: Roll::default(),
            ungrouped: Roll::default(),
            passed: HashMap::new(),
            waiting: Waiting::default(),
            unmade: BTreeMap::new(),
            groups: Roll::default(),
            drafted: BTreeMap::new(),
            are_listed: false,
            listing: false,
        };
        let told = Told {
            news,
            decided: decided_out,
        };
        (tee, facts_out, told)
    }

    /// Until there are no more facts, or nobody takes them.
    pub async fn run(mut self) {
        loop {
            let passed = tokio::select! {
                fact = self.facts.recv() => match fact {
                    Some(mut fact) => {
                        self.note(&mut fact);
                        self.pass(fact)
                    }
                    None => return,
                },
                // The desk ends first when everything ends.
                Some(decided) = self.decided.recv() => self.decide(decided),
            };
            if passed.is_none() {
                return;
            }
        }
    }

    /// `None`: nobody takes it.
    fn pass(&self, fact: Fact) -> Option<()> {
        self.onward.send(fact).ok()
    }

    /// The pod is placed as a member of its group from now on.
    fn decide(&mut self, decided: Decided) -> Option<()> {
        let Decided {
            mut pod,
            membership,
            group,
            is_written,
        } = decided;
        let uid = pod.uid().unwrap_or_default();
        if !self.ungrouped.names.contains(&uid) {
            return Some(());
        }
        let key = key(&group);
        let is_there = self.groups.names.contains(&key);
        let drafted = self.drafted.get(&key);
        let same = drafted.is_some_and(|drafted| drafted.group.spec == group.spec);
        let is_new = self.are_listed && !is_there && (same || drafted.is_none());
        if !is_written && !is_new {
            // It is changed first.
            return Some(());
        }
        if !is_there {
            if !same {
                self.pass(Fact::Group(Seen::There(Box::new(group.clone()))))?;
            }
            let pods = BTreeSet::new();
            let drafted = self.drafted.entry(key).or_insert(Drafted {
                group: group.clone(),
                pods,
            });
            drafted.group = group;
            drafted.pods.insert(uid.clone());
        }
        let membership = Arc::new(membership);
        self.shared.memberships.put(&uid, Arc::clone(&membership));
        let version = pod.metadata.resource_version.clone().unwrap_or_default();
        let passed = self.passed.get(&uid);
        let is_news = passed.is_some_and(|(passed, laid)| {
            // Of another version the desk is being told, and decides again then.
            *passed == version && laid.as_ref() != Some(&membership)
        });
        if is_news {
            membership.lay_over(&mut pod);
            self.passed.insert(uid, (version, Some(membership)));
            self.pass(Fact::Pod(Seen::There(pod)))?;
        }
        Some(())
    }

    fn note(&mut self, fact: &mut Fact) {
        match fact {
            Fact::Pod(seen) => self.pod(seen),
            Fact::Class(seen) => match seen {
                Seen::Listing => self.classes.begin(),
                Seen::There(class) => {
                    if self.classes.there(class.name_any()) {
                        self.say_classes();
                    }
                }
                Seen::Gone(class) => {
                    if self.classes.gone(&class.name_any()) {
                        self.say_classes();
                    }
                }
                Seen::Listed => {
                    if !self.classes.end().is_empty() {
                        self.say_classes();
                    }
                }
            },
            Fact::Group(seen) => self.group(seen),
            _ => {}
        }
    }

    fn group(&mut self, seen: &Seen<PodGroup>) {
        match seen {
            Seen::Listing => {
                self.groups.begin();
                self.say(News::Groups);
            }
            Seen::There(group) => {
                let group = key(group);
                self.drafted.remove(&group);
                self.unmade.remove(&group);
                self.groups.there(group);
            }
            Seen::Gone(group) => {
                let group = key(group);
                self.groups.gone(&group);
                self.say_gone(group);
            }
            Seen::Listed => {
                // Not there yet is not gone.
                for drafted in self.drafted.values() {
                    let group = Box::new(drafted.group.clone());
                    let _ = self.pass(Fact::Group(Seen::There(group)));
                }
                self.groups.end();
                self.are_listed = true;
                self.say_missing();
            }
        }
    }

    /// Groups that are not there: deleted before this process began or behind a watch that
    /// broke, or never made by who bound their pods. One of which the watch of groups is late
    /// is looked for in vain, which does no harm.
    fn say_missing(&mut self) {
        if !self.are_listed {
            return;
        }
        let waited_for = self.waiting.groups.keys();
        for group in waited_for.filter(|group| !self.groups.names.contains(*group)) {
            self.say_gone(group.clone());
        }
        for ((namespace, name), pod) in std::mem::take(&mut self.unmade) {
            let pod = Some(pod);
            self.say(News::NoGroup {
                namespace,
                name,
                pod,
            });
        }
    }

    /// A pod waits in that group no longer. If the group is missing and others wait in it, it is
    /// said again: the desk may have been told of that pod alone.
    fn say_left(&self, group: Key) {
        let is_there = self.groups.names.contains(&group) || self.drafted.contains_key(&group);
        if self.are_listed && !is_there && self.waiting.groups.contains_key(&group) {
            self.say_gone(group);
        }
    }

    fn say_gone(&self, group: Key) {
        let pod = self.waiting.one(&group);
        let (namespace, name) = group;
        self.say(News::NoGroup {
            namespace,
            name,
            pod,
        });
    }

    fn pod(&mut self, seen: &mut Seen<Pod>) {
        match seen {
            Seen::Listing => {
                self.ungrouped.begin();
                self.waiting = Waiting::default();
                self.listing = true;
            }
            Seen::There(pod) => self.pod_there(pod),
            Seen::Gone(pod) => {
                let uid = pod.uid().unwrap_or_default();
                if let Some(group) = self.waiting.forget(&uid) {
                    self.say_left(group);
                }
                self.end(&uid, pod);
            }
            Seen::Listed => {
                for uid in self.ungrouped.end() {
                    self.forget(&uid);
                    self.undraft(&uid);
                    // Who was told of it during the listing takes it for named.
                    let mut gone = Pod::default();
                    gone.metadata.uid = Some(uid.clone());
                    let _ = self.pass(Fact::Pod(Seen::Gone(Box::new(gone))));
                    self.say(News::Gone(uid));
                }
                self.listing = false;
                self.say_missing();
            }
        }
    }

    fn pod_there(&mut self, pod: &mut Pod) {
        let uid = pod.uid().unwrap_or_default();
        let group = is_in(pod, &self.scheduler);
        let bound = is_bound(pod);
        let waits_in = group.clone().filter(|_| !bound);
        if let Some(left) = self.waiting.set(pod, waits_in) {
            self.say_left(left);
        }
        if let Some(group) = group {
            let key = (pod.namespace().unwrap_or_default(), group.clone());
            if bound && self.listing && !self.groups.names.contains(&key) {
                self.unmade.insert(key, pod.name_any());
            }
            self.forget(&uid);
            if self.ungrouped.gone(&uid) {
                self.say(News::Member { uid, group });
            }
        } else if is_ungrouped(pod, &self.scheduler)
            && (self.shared.groups_lone_pods() || !is_alone(pod))
        {
            self.ungrouped.there(uid.clone());
            self.say(News::Ungrouped(Box::new(pod.clone())));
            let membership = self.shared.memberships.of(&uid);
            if let Some(membership) = &membership {
                membership.lay_over(pod);
            }
            let version = pod.metadata.resource_version.clone();
            let passed = (version.unwrap_or_default(), membership);
            self.passed.insert(uid, passed);
        } else if pod.metadata.deletion_timestamp.is_some() && !is_over(pod) {
            // On its way out it stays what it is.
            if self.ungrouped.gone(&uid) {
                self.say(News::Gone(uid.clone()));
            }
            if let Some(membership) = self.shared.memberships.of(&uid) {
                membership.lay_over(pod);
            }
        } else {
            self.end(&uid, pod);
        }
    }

    /// A pod is gone, or over.
    fn end(&mut self, uid: &str, pod: &Pod) {
        let membership = self.shared.memberships.of(uid);
        let group = membership.map(|one| one.group.clone());
        let group = group.or_else(|| pod.annotations().get(kai::POD_GROUP).cloned());
        self.forget(uid);
        if self.ungrouped.gone(&uid.to_owned()) {
            self.say(News::Gone(uid.to_owned()));
        }
        let Some(group) = group else {
            return;
        };
        let key = (pod.namespace().unwrap_or_default(), group);
        let Some(drafted) = self.drafted.get_mut(&key) else {
            return;
        };
        drafted.pods.remove(uid);
        if drafted.pods.is_empty()
            && let Some(drafted) = self.drafted.remove(&key)
        {
            let _ = self.pass(Fact::Group(Seen::Gone(Box::new(drafted.group))));
        }
    }

    /// A pod went unseen, of whatever group it was.
    fn undraft(&mut self, uid: &str) {
        let of = |drafted: &mut Drafted| drafted.pods.remove(uid) && drafted.pods.is_empty();
        for (_, drafted) in self.drafted.extract_if(.., |_, drafted| of(drafted)) {
            let gone = Fact::Group(Seen::Gone(Box::new(drafted.group)));
            let _ = self.onward.send(gone);
        }
    }

    /// The watch shows all that is known of its group.
    fn forget(&mut self, uid: &str) {
        self.shared.memberships.forget(uid);
        self.passed.remove(uid);
    }

    fn say_classes(&self) {
        self.say(News::Classes(Arc::new(self.classes.names.clone())));
    }

    fn say(&self, news: News) {
        // The desk is gone only when everything ends.
        let _ = self.news.send(news);
    }
}
