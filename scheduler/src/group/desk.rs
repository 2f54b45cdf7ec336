//! Groups one pod after the other, many at once, and again where it failed.
//!
//! One task, while leading. A pod's work is its own: what one waits for holds up nobody
//! else, but for the few that are at work at the same time.

use super::draft::{Classes, Draft};
use super::groups::{GroupError, Groups};
use super::lull::Lull;
use super::need::{is_ungrouped, must_wait, waits_in};
use super::object::{Object, Packed};
use super::owners::{OwnerError, Owners};
use super::rules::{self, RuleError, Scene};
use super::tee::{News, Told};
use super::{voice, write};
use crate::act::answer::{self, Answer};
use crate::clock::Wall;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// After a first failure; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// At most so long.
const LAST_PAUSE: Duration = Duration::from_mins(1);
/// Of the seats, one in so many is for pods that do not wait for their group: they are placed
/// meanwhile, and bindings go first.
const LATER: usize = 8;
/// A deleted group is made anew so long after, if its pods are there still: most often they
/// go with it.
const MOURNING: Duration = Duration::from_secs(2);
/// A failure is said from the second one on: the first is often an owner that is not ready.
const SAID_FROM: u32 = 2;

/// Settings of this part.
#[derive(Clone, Debug)]
pub struct Settings {
    /// In the specs of our pods, and in events.
    pub scheduler_name: String,
    /// Of this process, in events.
    pub identity: String,
    /// Pods that are at work at once.
    pub at_once: usize,
    /// Bindings take most of the API server's time: who does not wait for its group comes
    /// later.
    pub busy: watch::Receiver<bool>,
    /// Key of the label that names a workload's queue.
    pub queue_label: String,
    /// For stamps.
    pub wall: Wall,
}

/// Why a pod is in no group yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum GroupingError {
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error("its pod group cannot be written on it: {0}")]
    Pod(String),
}

/// A pod that wants a group.
#[derive(Debug)]
struct Entry {
    pod: Packed,
    /// When it was seen, or tried again: its owners are not older.
    since: Instant,
    failures: u32,
    /// It is not placed before.
    waits: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In `ready` or `later`.
    Ready,
    /// A task has it.
    AtWork,
    /// In the agenda.
    Until(Instant),
    /// Grouped by us; the watch has not shown it yet.
    Done,
}

/// What all pods' tasks share.
#[derive(Clone)]
struct Tools {
    client: Client,
    owners: Arc<Owners>,
    groups: Arc<Groups>,
    voice: voice::Voice,
    queue_label: Arc<str>,
}

struct Desk {
    settings: Settings,
    tools: Tools,
    classes: Arc<Classes>,
    pods: HashMap<String, Entry>,
    /// Those that wait.
    ready: VecDeque<String>,
    /// Those that do not.
    later: VecDeque<String>,
    agenda: BTreeSet<(Instant, String)>,
    tasks: JoinSet<Result<(), GroupingError>>,
    /// Groups that are made anew.
    mends: JoinSet<()>,
    /// With whether it waits.
    at_work: HashMap<Id, (String, bool)>,
}

/// Groups the pods that it is told of until `stop`, while `leading`.
pub async fn run(
    settings: Settings,
    client: Client,
    told: Told,
    leading: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    let (voice, speaking) = voice::channel(
        client.clone(),
        settings.scheduler_name.clone(),
        settings.identity.clone(),
        settings.wall.clone(),
    );
    let desk = Desk {
        tools: Tools {
            owners: Arc::new(Owners::new(client.clone())),
            groups: Arc::new(Groups::new(client.clone())),
            client,
            voice,
            queue_label: Arc::from(settings.queue_label.as_str()),
        },
        settings,
        classes: Arc::default(),
        pods: HashMap::new(),
        ready: VecDeque::new(),
        later: VecDeque::new(),
        agenda: BTreeSet::new(),
        tasks: JoinSet::new(),
        mends: JoinSet::new(),
        at_work: HashMap::new(),
    };
    tokio::select! {
        biased;
        () = desk.run(told, leading) => {}
        () = speaking => {}
        () = stop.cancelled() => {}
    }
}

impl Desk {
    async fn run(mut self, mut told: Told, mut leading: watch::Receiver<bool>) {
        let mut lull = Lull::new(self.settings.busy.clone());
        loop {
            let leads = *leading.borrow_and_update();
            let now = Instant::now();
            if leads {
                self.wake(now);
                if self.start(lull.at() <= now) || self.later.is_empty() {
                    lull.taken();
                }
            }
            let rest = (!self.later.is_empty())
                .then(|| lull.at())
                .filter(|at| *at > now);
            let due = self.agenda.first().map(|(at, _)| *at);
            let next = due.into_iter().chain(rest).min().filter(|_| leads);
            let wake = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = leading.changed() => match changed {
                    Ok(()) => lull.begin(),
                    Err(_) => return,
                },
                Some(done) = self.tasks.join_next_with_id() => self.settle(done),
                Some(done) = self.mends.join_next() => if let Err(error) = done {
                    tracing::error!(%error, "a group's making anew broke");
                },
                news = told.0.recv() => match news {
                    Some(news) => self.hear(news, leads),
                    None => return,
                },
                () = lull.changed() => {}
                () = wake => {}
            }
        }
    }

    fn hear(&mut self, news: News, leads: bool) {
        match news {
            News::Ungrouped(pod) => self.want(&pod),
            News::Settled(uid) => {
                if let Some(entry) = self.pods.remove(&uid)
                    && let State::Until(at) = entry.state
                {
                    self.agenda.remove(&(at, uid));
                }
            }
            News::Classes(classes) => self.classes = classes,
            News::NoGroup {
                namespace,
                name,
                pod,
            } => {
                self.tools.groups.forget(&namespace, &name);
                if let Some(pod) = pod.filter(|_| leads) {
                    let tools = self.tools.clone();
                    let (classes, settings) = (self.classes.clone(), self.settings.clone());
                    self.mends.spawn(async move {
                        tokio::time::sleep(MOURNING).await;
                        let scheduler = &settings.scheduler_name;
                        let done = tools.mend(&namespace, &name, &pod, scheduler, &classes);
                        if let Err(error) = done.await {
                            tracing::warn!(group = %format!("{namespace}/{name}"), %error, "a deleted group is not made anew");
                        }
                    });
                }
            }
            News::Groups => self.tools.groups.forget_all(),
        }
    }

    fn want(&mut self, pod: &Pod) {
        debug_assert!(is_ungrouped(pod, &self.settings.scheduler_name));
        let object = Object::of_pod(pod);
        let uid = object.uid().to_owned();
        let object = object.pack();
        let waits = must_wait(pod, &self.settings.scheduler_name);
        if let Some(entry) = self.pods.get_mut(&uid) {
            // A pod that lost its group again, by a person's hand, is like a new one.
            let anew = entry.state == State::Done && entry.pod != object;
            entry.pod = object;
            entry.waits = waits;
            if anew {
                self.line_up(uid, Instant::now());
            }
            return;
        }
        let now = Instant::now();
        let entry = Entry {
            pod: object,
            since: now,
            failures: 0,
            waits,
            state: State::Ready,
        };
        self.pods.insert(uid.clone(), entry);
        self.line_up(uid, now);
    }

    /// Its turn comes; its owners are read from now on.
    fn line_up(&mut self, uid: String, now: Instant) {
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        entry.state = State::Ready;
        entry.since = now;
        if entry.waits {
            self.ready.push_back(uid);
        } else {
            self.later.push_back(uid);
        }
    }

    /// Whose pause is over is ready.
    fn wake(&mut self, now: Instant) {
        while let Some((at, uid)) = self.agenda.first().cloned() {
            if at > now {
                return;
            }
            self.agenda.remove(&(at, uid.clone()));
            self.line_up(uid, now);
        }
    }

    /// `later`: also those that do not wait. Whether one of these has begun.
    fn start(&mut self, later: bool) -> bool {
        let seats = self.settings.at_once.max(1);
        let mut begun = false;
        while self.at_work.len() < seats {
            let idle = self.at_work.values().filter(|(_, waits)| !waits).count();
            let next = self.ready.pop_front().or_else(|| {
                let seat = later && idle < (seats / LATER).max(1);
                if seat { self.later.pop_front() } else { None }
            });
            let Some(uid) = next else {
                return begun;
            };
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            if entry.state != State::Ready {
                continue;
            }
            entry.state = State::AtWork;
            let tools = self.tools.clone();
            let (pod, classes) = (entry.pod.unpack(), self.classes.clone());
            let (since, waits) = (entry.since, entry.waits);
            let name = format!("{}/{}", pod.namespace(), pod.name());
            let span =
                tracing::info_span!(target: trace::TARGET, "group", pod = name, uid = pod.uid());
            trace::of_pod(&span, pod.uid());
            let grouping = async move { tools.group(&pod, &classes, since).await };
            let task = self.tasks.spawn(grouping.instrument(span));
            self.at_work.insert(task.id(), (uid, waits));
            begun |= !waits;
        }
        begun
    }

    fn settle(&mut self, done: Result<(Id, Result<(), GroupingError>), tokio::task::JoinError>) {
        let (id, result) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a pod's grouping broke");
                (error.id(), Err(GroupingError::Pod("its task broke".into())))
            }
        };
        let Some((uid, _)) = self.at_work.remove(&id) else {
            return;
        };
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        match result {
            Ok(()) => {
                entry.failures = 0;
                entry.state = State::Done;
            }
            Err(error) => {
                let pause = FIRST_PAUSE
                    .saturating_mul(1 << entry.failures.min(16))
                    .min(LAST_PAUSE);
                entry.failures += 1;
                let object = entry.pod.unpack();
                let pod = format!("{}/{}", object.namespace(), object.name());
                tracing::warn!(pod, %error, ?pause, "a pod is in no group yet");
                if entry.failures >= SAID_FROM {
                    self.tools.voice.say(&object, &error.to_string());
                }
                let at = Instant::now() + pause;
                entry.state = State::Until(at);
                self.agenda.insert((at, uid));
            }
        }
    }
}

impl Tools {
    /// Reads, decides, writes the group, then its name on the pod.
    async fn group(
        &self,
        pod: &Object,
        classes: &Classes,
        since: Instant,
    ) -> Result<(), GroupingError> {
        let draft = self.draft(pod, classes, since).await?;
        self.groups.ensure(&write::group(&draft)).await?;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), pod.namespace());
        let patch = Patch::Merge(write::pod(&draft, pod));
        let params = PatchParams::default();
        match answer::of(api.patch_metadata(pod.name(), &params, &patch)).await {
            Answer::Done(_) => {
                tracing::debug!(pod = pod.name(), group = draft.name, "grouped");
                Ok(())
            }
            // Gone: the watch says so.
            Answer::Refused(404, _) => Ok(()),
            // Also a conflict: the pod was made anew, which the watch says too, or others
            // wrote it too often meanwhile, of which no event tells.
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                Err(GroupingError::Pod(why))
            }
        }
    }

    /// Makes a group anew for a pod that waits in it still. One that a person made by hand
    /// is theirs to make: our rules give the pod another name.
    async fn mend(
        &self,
        namespace: &str,
        group: &str,
        pod: &str,
        scheduler: &str,
        classes: &Classes,
    ) -> Result<(), GroupingError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = match answer::of(api.get_opt(pod)).await {
            Answer::Done(Some(pod)) => pod,
            Answer::Done(None) => return Ok(()),
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                return Err(GroupingError::Pod(why));
            }
        };
        if waits_in(&pod, scheduler).as_deref() != Some(group) {
            return Ok(());
        }
        let pod = Object::of_pod(&pod);
        let draft = self.draft(&pod, classes, Instant::now()).await?;
        if draft.name == group {
            self.groups.ensure(&write::group(&draft)).await?;
        }
        Ok(())
    }

    async fn draft(
        &self,
        pod: &Object,
        classes: &Classes,
        since: Instant,
    ) -> Result<Draft, GroupingError> {
        let mut chain = self.owners.chain(pod, since).await?;
        let mut pod = pod.clone();
        for object in chain.iter_mut().chain([&mut pod]) {
            object.name_queue_by(&self.queue_label);
        }
        let pod = &pod;
        let mut scene = Scene {
            pod,
            chain: &chain,
            extra: None,
            classes,
        };
        let extra = match rules::want(scene) {
            Some(want) => self.owners.extra(pod.namespace(), &want).await?,
            None => None,
        };
        scene.extra = extra.as_ref();
        Ok(rules::draft(scene)?)
    }
}
