//! What concerns groups, taken from the facts on their way to the cycle.

use super::draft::Classes;
use super::need::{is_ungrouped, waits_in};
use crate::watch::{Fact, Seen};
use api::PodGroup;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::mpsc;

/// One thing for the desk.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// A pod wants a group.
    Ungrouped(Box<Pod>),
    /// It has one, or is gone; by UID.
    Settled(String),
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

/// Passes facts on in their order, and leaves a note of what concerns groups.
#[derive(Debug)]
pub struct Tee {
    scheduler: String,
    facts: mpsc::UnboundedReceiver<Fact>,
    onward: mpsc::UnboundedSender<Fact>,
    news: mpsc::UnboundedSender<News>,
    classes: Roll,
    ungrouped: Roll,
    waiting: Waiting,
    groups: Roll<Group>,
    /// Groups were listed once.
    are_listed: bool,
}

/// Namespace and name.
type Group = (String, String);

/// Pods that wait in a group, by the group; their names, by UID.
#[derive(Debug, Default)]
struct Waiting {
    groups: BTreeMap<Group, BTreeMap<String, String>>,
    of: HashMap<String, Group>,
}

impl Waiting {
    fn forget(&mut self, uid: &str) {
        if let Some(key) = self.of.remove(uid)
            && let Some(pods) = self.groups.get_mut(&key)
        {
            pods.remove(uid);
            if pods.is_empty() {
                self.groups.remove(&key);
            }
        }
    }

    fn set(&mut self, pod: &Pod, group: Option<String>) {
        let uid = pod.uid().unwrap_or_default();
        self.forget(&uid);
        if let Some(group) = group {
            let key = (pod.namespace().unwrap_or_default(), group);
            let pods = self.groups.entry(key.clone()).or_default();
            pods.insert(uid.clone(), pod.name_any());
            self.of.insert(uid, key);
        }
    }

    /// One of those that wait in it.
    fn one(&self, group: &Group) -> Option<String> {
        self.groups.get(group)?.values().next().cloned()
    }
}

/// What the desk is told.
#[derive(Debug)]
pub struct Told(pub(super) mpsc::UnboundedReceiver<News>);

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
        facts: mpsc::UnboundedReceiver<Fact>,
    ) -> (Self, mpsc::UnboundedReceiver<Fact>, Told) {
        let (onward, facts_out) = mpsc::unbounded_channel();
        let (news, told) = mpsc::unbounded_channel();
        let tee = Self {
            scheduler: scheduler.to_owned(),
            facts,
            onward,
            news,
            classes: Roll::default(),
            ungrouped: Roll::default(),
            waiting: Waiting::default(),
            groups: Roll::default(),
            are_listed: false,
        };
        (tee, facts_out, Told(told))
    }

    /// Until there are no more facts, or nobody takes them.
    pub async fn run(mut self) {
        while let Some(fact) = self.facts.recv().await {
            self.note(&fact);
            if self.onward.send(fact).is_err() {
                return;
            }
        }
    }

    fn note(&mut self, fact: &Fact) {
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
        let key = |group: &PodGroup| (group.namespace().unwrap_or_default(), group.name_any());
        match seen {
            Seen::Listing => {
                self.groups.begin();
                self.say(News::Groups);
            }
            Seen::There(group) => {
                self.groups.there(key(group));
            }
            Seen::Gone(group) => {
                let group = key(group);
                self.groups.gone(&group);
                self.say_gone(group);
            }
            Seen::Listed => {
                self.groups.end();
                self.are_listed = true;
                self.say_missing();
            }
        }
    }

    /// Groups that went unseen: before this process began, or behind a watch that broke. One
    /// of which the watch of groups is late is looked for in vain, which does no harm.
    fn say_missing(&self) {
        if !self.are_listed {
            return;
        }
        let waited_for = self.waiting.groups.keys();
        for group in waited_for.filter(|group| !self.groups.names.contains(*group)) {
            self.say_gone(group.clone());
        }
    }

    fn say_gone(&self, group: Group) {
        let pod = self.waiting.one(&group);
        let (namespace, name) = group;
        self.say(News::NoGroup {
            namespace,
            name,
            pod,
        });
    }

    fn pod(&mut self, seen: &Seen<Pod>) {
        match seen {
            Seen::Listing => {
                self.ungrouped.begin();
                self.waiting = Waiting::default();
            }
            Seen::There(pod) => {
                self.waiting.set(pod, waits_in(pod, &self.scheduler));
                let uid = pod.uid().unwrap_or_default();
                if is_ungrouped(pod, &self.scheduler) {
                    self.ungrouped.there(uid);
                    self.say(News::Ungrouped(pod.clone()));
                } else if self.ungrouped.gone(&uid) {
                    self.say(News::Settled(uid));
                }
            }
            Seen::Gone(pod) => {
                let uid = pod.uid().unwrap_or_default();
                self.waiting.forget(&uid);
                if self.ungrouped.gone(&uid) {
                    self.say(News::Settled(uid));
                }
            }
            Seen::Listed => {
                for uid in self.ungrouped.end() {
                    self.say(News::Settled(uid));
                }
                self.say_missing();
            }
        }
    }

    fn say_classes(&self) {
        self.say(News::Classes(Arc::new(self.classes.names.clone())));
    }

    fn say(&self, news: News) {
        // The desk is gone only when everything ends.
        let _ = self.news.send(news);
    }
}
