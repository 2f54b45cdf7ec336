//! Passes facts about groups to the grouper, and the grouper's decisions to the cycle.
//!
//! A group that is decided counts as existing, and a pod as its member, until the watch shows them.
//! What the watch shows of them before is older than the decision.

use super::groups::{Key, key};
use super::member::Membership;
use super::need::{is_alone, is_bound, is_in, is_over, is_ungrouped};
use super::shared::Shared;
use crate::watch::{Fact, Key as _, Seen};
use api::PodGroup;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Messages to the grouper.
#[derive(Clone, Debug)]
pub(super) enum GrouperEvent {
    /// A pod needs a group.
    Ungrouped(Box<Pod>),
    /// The pod with that UID names its group now.
    Member { uid: String, group: String },
    /// The pod with that UID was deleted, or has ended.
    Gone(String),
    /// The priority classes that exist.
    Classes(Arc<BTreeSet<String>>),
    /// A group does not exist; with a pod that waits in it, if there is one.
    NoGroup {
        namespace: String,
        name: String,
        pod: Option<String>,
    },
    /// All groups are being listed again: any may have been deleted.
    Groups,
}

/// What the grouper decided for one pod.
#[derive(Clone, Debug)]
pub(super) struct GroupDecision {
    /// As the grouper last saw it.
    pub(super) pod: Box<Pod>,
    pub(super) membership: Membership,
    /// The pod's group as it should be.
    pub(super) group: PodGroup,
    /// The group exists as it should be. Otherwise the decision counts only if no group of that
    /// name exists.
    pub(super) is_written: bool,
}

/// Passes facts on in order, and those about groups to the grouper.
#[derive(Debug)]
pub struct FactRelay {
    scheduler: String,
    shared: Shared,
    facts: channel::Receiver<Fact>,
    decided: channel::Receiver<GroupDecision>,
    onward: channel::Sender<Fact>,
    news: channel::Sender<GrouperEvent>,
    /// Names of the priority classes that exist.
    classes: BTreeSet<String>,
    /// UIDs of the pods that need a group.
    ungrouped: BTreeSet<String>,
    /// How each pod without a group was last passed on, by UID: its resource version, and the
    /// membership that was added to it.
    passed: HashMap<String, (String, Option<Arc<Membership>>)>,
    waiting: Waiting,
    /// Groups that did not exist when a bound pod was listed as their member, with that pod.
    unmade: BTreeMap<Key, String>,
    groups: BTreeSet<Key>,
    drafted: BTreeMap<Key, Drafted>,
    /// The drafted group of a pod, by UID.
    draft_of: HashMap<String, Key>,
    /// Groups have been listed at least once.
    are_listed: bool,
    /// Pods are being listed.
    listing: bool,
}

/// A group that was decided and does not exist yet.
#[derive(Debug)]
struct Drafted {
    group: PodGroup,
    /// UIDs of its pods. It is forgotten with the last of them.
    pods: BTreeSet<String>,
}

/// Pods that are not bound and name a group: for each group their names by UID.
#[derive(Debug, Default)]
struct Waiting {
    groups: BTreeMap<Key, BTreeMap<String, String>>,
    of: HashMap<String, Key>,
}

impl Waiting {
    /// Returns the group that the pod waited in.
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

    /// Returns the group that the pod no longer waits in, if it waited in one.
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

    /// The name of a pod that waits in it.
    fn one(&self, group: &Key) -> Option<String> {
        self.groups.get(group)?.values().next().cloned()
    }
}

/// The grouper's end of the relay: its input, and where its decisions go.
#[derive(Debug)]
pub struct GrouperChannels {
    pub(super) news: channel::Receiver<GrouperEvent>,
    pub(super) decided: channel::Sender<GroupDecision>,
}

impl FactRelay {
    /// Stands between the watches and the cycle: `facts` come in, and go out at the receiver that
    /// is returned.
    pub fn new(
        scheduler: &str,
        shared: Shared,
        facts: channel::Receiver<Fact>,
        lengths: &channel::Lengths,
    ) -> (Self, channel::Receiver<Fact>, GrouperChannels) {
        let (onward, facts_out) = lengths.unbounded("facts_of_grouper");
        let (news_out, news) = lengths.unbounded("pods_to_group");
        let (decided_out, decided) = lengths.unbounded("grouped");
        let relay = Self {
            scheduler: scheduler.to_owned(),
            shared,
            facts,
            decided,
            onward,
            news: news_out,
            classes: BTreeSet::new(),
            ungrouped: BTreeSet::new(),
            passed: HashMap::new(),
            waiting: Waiting::default(),
            unmade: BTreeMap::new(),
            groups: BTreeSet::new(),
            drafted: BTreeMap::new(),
            draft_of: HashMap::new(),
            are_listed: false,
            listing: false,
        };
        let told = GrouperChannels {
            news,
            decided: decided_out,
        };
        (relay, facts_out, told)
    }

    /// Runs until there are no more facts, or their receiver is gone.
    pub async fn run(mut self) {
        loop {
            let passed = tokio::select! {
                biased;
                fact = self.facts.recv() => match fact {
                    Some(mut fact) => {
                        self.note(&mut fact);
                        self.pass(fact)
                    }
                    None => return,
                },
                // At the end of the process the grouper may end first.
                Some(decided) = self.decided.recv() => self.decide(decided),
            };
            if passed.is_none() {
                return;
            }
        }
    }

    /// `None`: the receiver is gone.
    fn pass(&self, fact: Fact) -> Option<()> {
        self.onward.send(fact).ok()
    }

    /// From now on the pod is placed as a member of its group.
    fn decide(&mut self, decided: GroupDecision) -> Option<()> {
        let GroupDecision {
            mut pod,
            membership,
            group,
            is_written,
        } = decided;
        let uid = pod.uid().unwrap_or_default();
        if !self.ungrouped.contains(&uid) {
            return Some(());
        }
        let key = key(&group);
        let is_there = self.groups.contains(&key);
        let drafted = self.drafted.get(&key);
        let same = drafted.is_some_and(|drafted| drafted.group.spec == group.spec);
        let is_new = self.are_listed && !is_there && (same || drafted.is_none());
        if !is_written && !is_new {
            // The existing group has to be updated first.
            return Some(());
        }
        if !is_there {
            if !same {
                self.pass(Fact::Group(Seen::There(Box::new(group.clone()))))?;
            }
            let pods = BTreeSet::new();
            let drafted = self.drafted.entry(key.clone()).or_insert(Drafted {
                group: group.clone(),
                pods,
            });
            drafted.group = group;
            drafted.pods.insert(uid.clone());
            self.draft_of.insert(uid.clone(), key);
        }
        let membership = Arc::new(membership);
        self.shared.memberships.put(&uid, Arc::clone(&membership));
        let version = pod.metadata.resource_version.clone().unwrap_or_default();
        let passed = self.passed.get(&uid);
        let is_news = passed.is_some_and(|(passed, laid)| {
            // The grouper is being told of another version, and will decide again.
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
            Fact::Class(seen) => {
                let is_changed = match seen {
                    Seen::There(class) => self.classes.insert(class.key()),
                    Seen::Gone(name) => self.classes.remove(name),
                    Seen::Listing | Seen::Listed => false,
                };
                if is_changed {
                    self.say_classes();
                }
            }
            Fact::Group(seen) => self.group(seen),
            _ => {}
        }
    }

    fn group(&mut self, seen: &Seen<PodGroup>) {
        match seen {
            Seen::Listing => self.say(GrouperEvent::Groups),
            Seen::There(group) => {
                let (of, group) = (group, key(group));
                self.shared.known.there(&group, of);
                self.forget_draft(&group);
                self.unmade.remove(&group);
                self.groups.insert(group);
            }
            Seen::Gone(name) => {
                let Some((namespace, name)) = name.split_once('/') else {
                    return;
                };
                let group = (namespace.to_owned(), name.to_owned());
                self.groups.remove(&group);
                self.shared.known.gone(&group);
                self.say_gone(group);
            }
            Seen::Listed => {
                self.shared.known.listed();
                self.are_listed = true;
                self.say_missing();
            }
        }
    }

    /// The group exists, or none of its pods does.
    fn forget_draft(&mut self, group: &Key) -> Option<Drafted> {
        let drafted = self.drafted.remove(group)?;
        for uid in &drafted.pods {
            self.draft_of.remove(uid);
        }
        Some(drafted)
    }

    /// Informs the grouper of groups that do not exist: they were deleted before this process
    /// started or while a watch was interrupted, or the replica that bound their pods never created
    /// them. If only the watch of groups is late, the grouper finds the group, which is harmless.
    fn say_missing(&mut self) {
        if !self.are_listed {
            return;
        }
        let waited_for = self.waiting.groups.keys();
        for group in waited_for.filter(|group| !self.groups.contains(*group)) {
            self.say_gone(group.clone());
        }
        for ((namespace, name), pod) in std::mem::take(&mut self.unmade) {
            let pod = Some(pod);
            self.say(GrouperEvent::NoGroup {
                namespace,
                name,
                pod,
            });
        }
    }

    /// A pod no longer waits in that group. If the group does not exist and other pods wait in it,
    /// the grouper is informed again: it may know of that one pod only.
    fn say_left(&self, group: Key) {
        let is_there = self.groups.contains(&group) || self.drafted.contains_key(&group);
        if self.are_listed && !is_there && self.waiting.groups.contains_key(&group) {
            self.say_gone(group);
        }
    }

    fn say_gone(&self, group: Key) {
        let pod = self.waiting.one(&group);
        let (namespace, name) = group;
        self.say(GrouperEvent::NoGroup {
            namespace,
            name,
            pod,
        });
    }

    fn pod(&mut self, seen: &mut Seen<Pod>) {
        match seen {
            Seen::Listing => self.listing = true,
            Seen::There(pod) => self.pod_there(pod),
            Seen::Gone(uid) => {
                if let Some(group) = self.waiting.forget(uid) {
                    self.say_left(group);
                }
                self.end(uid);
            }
            Seen::Listed => {
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
            if bound && self.listing && !self.groups.contains(&key) {
                self.unmade.insert(key, pod.name_any());
            }
            self.forget(&uid);
            if self.ungrouped.remove(&uid) {
                self.say(GrouperEvent::Member { uid, group });
            }
        } else if is_ungrouped(pod, &self.scheduler)
            && (self.shared.groups_lone_pods() || !is_alone(pod))
        {
            self.ungrouped.insert(uid.clone());
            self.say(GrouperEvent::Ungrouped(Box::new(pod.clone())));
            let membership = self.shared.memberships.of(&uid);
            if let Some(membership) = &membership {
                membership.lay_over(pod);
            }
            let version = pod.metadata.resource_version.clone();
            let passed = (version.unwrap_or_default(), membership);
            self.passed.insert(uid, passed);
        } else if pod.metadata.deletion_timestamp.is_some() && !is_over(pod) {
            // While it is being deleted it stays a member of its group.
            if self.ungrouped.remove(&uid) {
                self.say(GrouperEvent::Gone(uid.clone()));
            }
            if let Some(membership) = self.shared.memberships.of(&uid) {
                membership.lay_over(pod);
            }
        } else {
            self.end(&uid);
        }
    }

    /// A pod was deleted, or has ended.
    fn end(&mut self, uid: &str) {
        self.forget(uid);
        if self.ungrouped.remove(uid) {
            self.say(GrouperEvent::Gone(uid.to_owned()));
        }
        let Some(group) = self.draft_of.remove(uid) else {
            return;
        };
        let Some(drafted) = self.drafted.get_mut(&group) else {
            return;
        };
        drafted.pods.remove(uid);
        if drafted.pods.is_empty()
            && let Some(drafted) = self.forget_draft(&group)
        {
            let _ = self.pass(Fact::Group(Seen::Gone(drafted.group.key())));
        }
    }

    /// What was decided for the pod is no longer needed: the watch shows it, or the pod is gone.
    fn forget(&mut self, uid: &str) {
        self.shared.memberships.forget(uid);
        self.passed.remove(uid);
    }

    fn say_classes(&self) {
        self.say(GrouperEvent::Classes(Arc::new(self.classes.clone())));
    }

    fn say(&self, news: GrouperEvent) {
        // The grouper ends only when the process ends.
        let _ = self.news.send(news);
    }
}
