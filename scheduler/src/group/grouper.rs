//! Finds and creates the groups of pods: many pods at once, with a retry after a failure.
//!
//! One task, and only while this replica leads. Pods are handled independently: a pod whose owner
//! cannot be read delays no other, except that the number of pods at work at once is limited.

use super::draft::{Classes, name_of_pod_alone};
use super::entry::{Done, Entry, Lane, State, Step};
use super::groups::Groups;
use super::member::Membership;
use super::missing::{Missing, MissingGroups};
use super::need::{is_ungrouped, must_wait};
use super::object::Object;
use super::owners::Owners;
use super::quiet_period::QuietPeriod;
use super::relay::{GroupDecision, GrouperChannels, GrouperEvent};
use super::shared::Shared;
use super::steps::{GroupingError, Steps};
use super::types::{self, Types, TypesAt};
use super::{backoff, failures, write};
use crate::clock::Wall;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// From the decision until the group is created. Most often its first pod is being bound by
/// then, and the annotation with its start time is written in the same request.
const GROUP_AFTER: Duration = Duration::from_millis(200);
/// From the decision until the pod is annotated with its group. A pod that is bound before gets
/// the annotation from its Binding.
const POD_AFTER: Duration = Duration::from_secs(1);
/// Missing groups that are created at the same time.
const MENDS: usize = 16;
/// Failures are reported from the second on: the first is often an owner that is not ready.
const SAID_FROM: u32 = 2;

/// Settings of this part.
#[derive(Clone, Debug)]
pub struct Settings {
    /// In the specs of our pods, and in events.
    pub scheduler_name: String,
    /// Of this process, in events.
    pub identity: String,
    /// Pods that are worked on at the same time.
    pub at_once: usize,
    /// Whether most of the binder's requests are in use. Pods that need not wait for their group
    /// then wait for the bindings.
    pub busy: watch::Receiver<bool>,
    /// Key of the label that names a workload's queue.
    pub queue_label: String,
    /// Where the defaults of types of workloads are, if anywhere.
    pub types: Option<TypesAt>,
    /// Pods without an owner wait for their group, too: their type may have a default.
    pub alone_wait: bool,
    /// Whether the pods of a Deployment share one group.
    pub deployment_gangs: bool,
    /// For timestamps.
    pub wall: Wall,
    /// Counts what waits in the grouper's channels.
    pub lengths: channel::Lengths,
}

struct Grouper {
    settings: Settings,
    steps: Steps,
    failures: failures::FailureReporter,
    groups: Arc<Groups>,
    decided: channel::Sender<GroupDecision>,
    classes: Arc<Classes>,
    pods: HashMap<String, Entry>,
    /// Pods that are ready, by lane.
    lanes: [VecDeque<String>; 3],
    agenda: BTreeSet<(Instant, String)>,
    tasks: JoinSet<Result<Done, GroupingError>>,
    /// Groups to be created again, and the tasks that create them, with the error if one fails.
    missing: MissingGroups,
    mends: JoinSet<Result<(), (Missing, GroupingError)>>,
    at_work: HashMap<Id, (String, Lane)>,
}

/// Groups the pods that the relay passes on, while `leading`, until `stop`.
pub async fn run(
    settings: Settings,
    client: Client,
    shared: Shared,
    told: GrouperChannels,
    leading: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    let (failures, speaking) = failures::channel(
        client.clone(),
        settings.scheduler_name.clone(),
        settings.identity.clone(),
        settings.wall.clone(),
    );
    let GrouperChannels { news, decided } = told;
    let (types_out, types) = watch::channel(settings.types.is_none().then(Arc::default));
    let following = {
        let (client, at) = (client.clone(), settings.types.clone());
        async move {
            if let Some(at) = at {
                types::follow(client, at, &types_out).await;
            }
            std::future::pending::<()>().await;
            drop(types_out);
        }
    };
    let grouper = Grouper {
        steps: Steps {
            owners: Arc::new(Owners::new(client.clone())),
            groups: Arc::clone(&shared.groups),
            known: shared.known,
            client,
            queue_label: Arc::from(settings.queue_label.as_str()),
            deployment_gangs: settings.deployment_gangs,
        },
        failures,
        groups: shared.groups,
        decided,
        settings,
        classes: Arc::default(),
        pods: HashMap::new(),
        lanes: Default::default(),
        agenda: BTreeSet::new(),
        tasks: JoinSet::new(),
        missing: MissingGroups::default(),
        mends: JoinSet::new(),
        at_work: HashMap::new(),
    };
    tokio::select! {
        biased;
        () = grouper.run(news, leading, types) => {}
        () = speaking => {}
        () = following => {}
        () = stop.cancelled() => {}
    }
}

impl Grouper {
    async fn run(
        mut self,
        mut news: channel::Receiver<GrouperEvent>,
        mut leading: watch::Receiver<bool>,
        mut types: watch::Receiver<Option<Arc<Types>>>,
    ) {
        let mut led = false;
        let mut quiet_period = QuietPeriod::new(self.settings.busy.clone());
        loop {
            let known = types.borrow_and_update().clone();
            let leads = *leading.borrow_and_update() && known.is_some();
            if let Some(types) = known {
                Arc::make_mut(&mut self.classes).types = types;
            }
            let now = Instant::now();
            if leads && !led {
                self.restart(now);
            }
            led = leads;
            if leads {
                self.wake(now);
                self.mend(now);
                if self.start(quiet_period.at() <= now)
                    || self.lanes[Lane::Later as usize].is_empty()
                {
                    quiet_period.taken();
                }
            }
            let rest = (!self.lanes[Lane::Later as usize].is_empty())
                .then(|| quiet_period.at())
                .filter(|at| *at > now);
            let due = self.agenda.first().map(|(at, _)| *at);
            let mend = self.missing.next().filter(|_| self.mends.len() < MENDS);
            let next = due.into_iter().chain(rest).chain(mend).min();
            let next = next.filter(|_| leads);
            let wake = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = leading.changed() => match changed {
                    Ok(()) => quiet_period.begin(),
                    Err(_) => return,
                },
                changed = types.changed() => if changed.is_err() { return },
                Some(done) = self.tasks.join_next_with_id() => self.settle(done),
                Some(done) = self.mends.join_next() => self.mended(done),
                one = news.recv() => match one {
                    Some(one) => self.hear(one, leads),
                    None => return,
                },
                () = quiet_period.changed() => {}
                () = wake => {}
            }
        }
    }

    /// Starts all pods again: what was decided when this replica led before may be out of date.
    fn restart(&mut self, now: Instant) {
        self.agenda.clear();
        self.lanes = Default::default();
        let mut uids: Vec<String> = self.pods.keys().cloned().collect();
        uids.sort_unstable();
        for uid in uids {
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            unexpect(&self.groups, &uid, entry);
            (entry.step, entry.draft) = (Step::Draft, None);
            if entry.state != State::AtWork {
                self.line_up(uid, now);
            }
        }
    }

    fn hear(&mut self, news: GrouperEvent, leads: bool) {
        match news {
            GrouperEvent::Ungrouped(pod) => self.want(&pod),
            GrouperEvent::Member { uid, group } if leads => self.member(uid, group),
            // The leader creates its group.
            GrouperEvent::Member { uid, .. } => self.drop(&uid),
            GrouperEvent::Gone(uid) => self.drop(&uid),
            GrouperEvent::Classes(names) => Arc::make_mut(&mut self.classes).names = names,
            GrouperEvent::NoGroup {
                namespace,
                name: group,
                pod,
            } => {
                self.groups.forget(&namespace, &group);
                if let Some(pod) = pod.filter(|_| leads) {
                    self.missing.report(namespace, group, pod);
                }
            }
            GrouperEvent::Groups => self.groups.forget_all(),
        }
    }

    /// The pod names a group now. If it is the group that was decided here, it is still created.
    fn member(&mut self, uid: String, group: String) {
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        let ours = match &entry.draft {
            Some(draft) => draft.name == group,
            None => {
                let pod = entry.pod.unpack();
                !entry.waits && name_of_pod_alone(pod.name(), pod.uid()) == group
            }
        };
        if !ours || entry.step == Step::Pod {
            return self.drop(&uid);
        }
        if entry.draft.is_none() && entry.member_of.is_none() {
            let pod = entry.pod.unpack();
            self.groups.expect(pod.namespace(), &group, pod.uid());
        }
        entry.member_of = Some(group);
    }

    fn drop(&mut self, uid: &str) {
        let Some(entry) = self.pods.remove(uid) else {
            return;
        };
        unexpect(&self.groups, uid, &entry);
        if let State::Until(at) = entry.state {
            self.agenda.remove(&(at, uid.to_owned()));
        }
    }

    fn want(&mut self, pod: &Pod) {
        debug_assert!(is_ungrouped(pod, &self.settings.scheduler_name));
        let object = Object::of_pod(pod);
        let uid = object.uid().to_owned();
        let waits = must_wait(pod, &self.settings.scheduler_name, self.settings.alone_wait);
        let now = Instant::now();
        let Some(entry) = self.pods.get_mut(&uid) else {
            let entry = Entry {
                pod: object.pack(),
                since: now,
                failures: 0,
                waits,
                state: State::Ready,
                step: Step::Draft,
                draft: None,
                member_of: None,
                told: false,
                changed: false,
            };
            self.pods.insert(uid.clone(), entry);
            return self.line_up(uid, now);
        };
        let before = entry.pod.unpack();
        // A change of its status, for example, does not change its group.
        let same = before.wishes() == object.wishes();
        entry.pod = object.pack();
        entry.waits = waits;
        if entry.state == State::AtWork {
            entry.changed |= !same;
        }
        if entry.state == State::AtWork || (same && entry.state != State::Done) {
            // The decision was told for an older version of the pod.
            return self.tell(&uid);
        }
        // A pod that requests something else, or whose annotation a person removed, starts again.
        if before != object {
            self.again(uid, now);
        }
    }

    /// Starts a pod again with the first step.
    fn again(&mut self, uid: String, now: Instant) {
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        unexpect(&self.groups, &uid, entry);
        (entry.step, entry.draft, entry.member_of) = (Step::Draft, None, None);
        entry.changed = false;
        if let State::Until(at) = entry.state {
            self.agenda.remove(&(at, uid.clone()));
        }
        self.line_up(uid, now);
    }

    /// Informs the relay that the pod is a member of the group that was decided for it.
    fn tell(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid).filter(|entry| entry.waits) else {
            return;
        };
        let Some(draft) = &entry.draft else {
            return;
        };
        let object = entry.pod.unpack();
        let Some(pod) = object.pod() else {
            return;
        };
        let mut group = write::group(draft);
        let is_written = self.groups.is_written(&group);
        let may_be = is_written || self.groups.is_taken(&group);
        if !may_be && !entry.told {
            // A policy may reject the group: it has to be created first.
            return;
        }
        entry.told = true;
        // Until it is created, the group is as old as its first pod.
        let created = &pod.metadata.creation_timestamp;
        group.metadata.creation_timestamp.clone_from(created);
        // The relay ends only when the process ends.
        let _ = self.decided.send(GroupDecision {
            pod,
            membership: Membership::of(draft, &object, !may_be),
            group,
            is_written,
        });
    }

    /// Creates missing groups again that are due.
    fn mend(&mut self, now: Instant) {
        while self.mends.len() < MENDS
            && let Some(missing) = self.missing.pop(now)
        {
            let (steps, classes) = (self.steps.clone(), self.classes.clone());
            let scheduler = self.settings.scheduler_name.clone();
            self.mends.spawn(async move {
                let done = steps.mend(&missing, &scheduler, &classes).await;
                done.map_err(|error| (missing, error))
            });
        }
    }

    fn mended(&mut self, done: Result<Result<(), (Missing, GroupingError)>, JoinError>) {
        match done {
            Ok(Ok(())) => {}
            Ok(Err((missing, error))) => {
                let group = format!("{}/{}", missing.namespace, missing.group);
                let pause = self.missing.failed(missing);
                tracing::warn!(group, %error, ?pause, "a missing pod group is not created yet");
            }
            Err(error) => {
                tracing::error!(%error, "a task that creates a missing pod group panicked");
            }
        }
    }

    /// The pod is ready. Owners that were read before now do not count for it.
    fn line_up(&mut self, uid: String, now: Instant) {
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        entry.state = State::Ready;
        entry.since = now;
        self.lanes[entry.lane() as usize].push_back(uid);
    }

    /// Pods whose pause is over are ready.
    fn wake(&mut self, now: Instant) {
        while let Some((at, uid)) = self.agenda.first().cloned() {
            if at > now {
                return;
            }
            self.agenda.remove(&(at, uid.clone()));
            self.line_up(uid, now);
        }
    }

    /// Starts the next steps; those of [`Lane::Later`] only if `later`. Returns whether one of
    /// these was started.
    fn start(&mut self, later: bool) -> bool {
        let permits = self.settings.at_once.max(1);
        let mut begun = false;
        while self.at_work.len() < permits {
            let taken = |lane| self.at_work.values().filter(|(_, of)| *of == lane).count();
            let open = Lane::ALL.into_iter().find(|lane| {
                !self.lanes[*lane as usize].is_empty()
                    && taken(*lane) < lane.most(permits)
                    && (later || *lane != Lane::Later)
            });
            let Some(lane) = open else {
                return begun;
            };
            let Some(uid) = self.lanes[lane as usize].pop_front() else {
                return begun;
            };
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            if entry.state != State::Ready {
                continue;
            }
            entry.state = State::AtWork;
            let steps = self.steps.clone();
            let (pod, classes) = (entry.pod.unpack(), self.classes.clone());
            let (since, step, draft) = (entry.since, entry.step, entry.draft.clone());
            let name = format!("{}/{}", pod.namespace(), pod.name());
            let span =
                tracing::info_span!(target: trace::TARGET, "group", pod = name, uid = pod.uid());
            trace::of_pod(&span, pod.uid());
            let grouping = async move {
                match (step, draft) {
                    (Step::Group, Some(draft)) => steps.make(&draft).await.map(|()| Done::Made),
                    (Step::Pod, Some(draft)) => {
                        steps.write(&draft, &pod).await.map(|()| Done::Written)
                    }
                    (_, _) => {
                        let draft = steps.draft(&pod, &classes, since).await?;
                        Ok(Done::Drafted(Arc::new(draft)))
                    }
                }
            };
            let task = self.tasks.spawn(grouping.instrument(span));
            self.at_work.insert(task.id(), (uid, lane));
            begun |= lane == Lane::Later;
        }
        begun
    }

    fn settle(&mut self, done: Result<(Id, Result<Done, GroupingError>), JoinError>) {
        let (id, result) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a task that groups a pod panicked");
                (error.id(), Err(GroupingError::Pod("its task broke".into())))
            }
        };
        let Some((uid, _)) = self.at_work.remove(&id) else {
            return;
        };
        match result {
            Ok(done) => self.go_on(uid, done),
            Err(error) => self.pause(uid, &error),
        }
    }

    /// A step is done: goes on with the next one.
    fn go_on(&mut self, uid: String, done: Done) {
        let now = Instant::now();
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        entry.failures = 0;
        if std::mem::take(&mut entry.changed) {
            return self.again(uid, now);
        }
        let pauses = entry.waits;
        match done {
            Done::Drafted(draft) => {
                let member_of = entry.member_of.clone();
                if member_of.is_some_and(|group| group != draft.name) {
                    // A person has put it into another group.
                    return self.drop(&uid);
                }
                let group = write::group(&draft);
                let is_written = self.groups.is_written(&group);
                let waits = !is_written && !self.groups.is_taken(&group);
                if is_written && entry.member_of.is_some() {
                    return self.drop(&uid);
                }
                entry.step = if is_written { Step::Pod } else { Step::Group };
                if !is_written {
                    self.groups.expect(&draft.namespace, &draft.name, &uid);
                }
                entry.draft = Some(draft);
                self.tell(&uid);
                let pause = if is_written { POD_AFTER } else { GROUP_AFTER };
                let pauses = pauses && !waits;
                self.put_off(uid, now, if pauses { pause } else { Duration::ZERO });
            }
            Done::Made => {
                if entry.member_of.is_some() {
                    self.pods.remove(&uid);
                    return;
                }
                entry.step = Step::Pod;
                self.tell(&uid);
                let pause = POD_AFTER.saturating_sub(GROUP_AFTER);
                self.put_off(uid, now, if pauses { pause } else { Duration::ZERO });
            }
            Done::Written => entry.state = State::Done,
        }
    }

    fn put_off(&mut self, uid: String, now: Instant, pause: Duration) {
        if pause.is_zero() {
            return self.line_up(uid, now);
        }
        if let Some(entry) = self.pods.get_mut(&uid) {
            entry.state = State::Until(now + pause);
            self.agenda.insert((now + pause, uid));
        }
    }

    fn pause(&mut self, uid: String, error: &GroupingError) {
        // If a policy rejected the group, the pod must not be placed any more.
        self.tell(&uid);
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        let pause = backoff::after(entry.failures);
        entry.failures += 1;
        let object = entry.pod.unpack();
        let pod = format!("{}/{}", object.namespace(), object.name());
        tracing::warn!(pod, %error, ?pause, "a pod is in no group yet");
        if entry.failures >= SAID_FROM && entry.member_of.is_none() {
            self.failures.report(&object, &error.to_string());
        }
        self.put_off(uid, Instant::now(), pause);
    }
}

/// The pod's group will not be created for this pod. Calling it twice is harmless.
fn unexpect(groups: &Groups, uid: &str, entry: &Entry) {
    match (&entry.draft, &entry.member_of) {
        (Some(draft), _) => groups.unexpect(&draft.namespace, &draft.name, uid),
        (None, Some(group)) => groups.unexpect(entry.pod.unpack().namespace(), group, uid),
        (None, None) => {}
    }
}
