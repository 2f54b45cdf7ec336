//! What concerns groups, taken from the facts on their way to the cycle.

use super::draft::Classes;
use super::need::{is_ungrouped, waits_in};
use crate::watch::{Fact, Seen};
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
    /// A group is gone; the pod that waits in it, if one does.
    GroupGone {
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
}

/// Owned pods that wait in a group, by namespace and group; their names, by UID.
#[derive(Debug, Default)]
struct Waiting {
    groups: BTreeMap<(String, String), BTreeMap<String, String>>,
    of: HashMap<String, (String, String)>,
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
    fn one(&self, namespace: String, group: String) -> Option<String> {
        let pods = self.groups.get(&(namespace, group))?;
        pods.values().next().cloned()
    }
}

/// What the desk is told.
#[derive(Debug)]
pub struct Told(pub(super) mpsc::UnboundedReceiver<News>);

/// Names that are there; after a new listing, those that it did not name are gone.
#[derive(Debug, Default)]
struct Roll {
    names: Classes,
    unnamed: Option<BTreeSet<String>>,
}

impl Roll {
    fn begin(&mut self) {
        self.unnamed = Some(self.names.clone());
    }

    /// Whether it is news.
    fn there(&mut self, name: String) -> bool {
        if let Some(unnamed) = &mut self.unnamed {
            unnamed.remove(&name);
        }
        self.names.insert(name)
    }

    /// Whether it was there.
    fn gone(&mut self, name: &str) -> bool {
        if let Some(unnamed) = &mut self.unnamed {
            unnamed.remove(name);
        }
        self.names.remove(name)
    }

    /// Who was not named.
    fn end(&mut self) -> BTreeSet<String> {
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
            Fact::Group(Seen::Gone(group)) => {
                let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
                let pod = self.waiting.one(namespace.clone(), name.clone());
                self.say(News::GroupGone {
                    namespace,
                    name,
                    pod,
                });
            }
            Fact::Group(Seen::Listing) => self.say(News::Groups),
            _ => {}
        }
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
