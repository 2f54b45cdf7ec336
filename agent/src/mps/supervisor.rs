//! All daemons of a node: the task that owns them.
//!
//! In: plans, requests to break off clients, the daemons' reports. Out: an [`Observation`] on a
//! watch. A plan is complete: servers that it does not name are ended, once they have no clients.
//! Before the first plan nothing is started and nothing ends.

use super::card::{self, DesiredCardState};
use super::daemon::{Daemon, Order, Report, Spec, Terminate, Tools};
use super::machine::{Desired, Limits};
use super::phase;
use super::place::Place;
use super::probe;
use api::Mib;
use proto::mps::{CardState, LimitProbe, LimitProbed, Observation, Plan, ServerPhase, ServerState};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// For idle daemons to end when the supervisor does.
const LEAVE: Duration = Duration::from_secs(15);

/// A plan that cannot be carried out, whatever the node does. Nothing of it was begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server {server:?}: {what}")]
pub struct PlanError {
    /// Which.
    pub server: String,
    /// Its error.
    pub what: &'static str,
}

/// Requests to the supervisor.
#[derive(Debug)]
pub enum Request {
    /// Make the node so. Answered when it was accepted, not when it is done.
    Ensure(Plan, oneshot::Sender<Result<(), PlanError>>),
    /// Break off clients of a server. Dropped when there is no such server.
    Terminate(String, Terminate),
}

/// The daemons of a node.
#[derive(Debug)]
pub struct Supervisor {
    tools: Arc<Tools>,
    daemons: BTreeMap<String, Handle>,
    tasks: JoinSet<String>,
    reports: (mpsc::Sender<Report>, mpsc::Receiver<Report>),
    cards: BTreeMap<String, CardHandle>,
    card_tasks: JoinSet<String>,
    card_reports: (mpsc::Sender<CardState>, mpsc::Receiver<CardState>),
    probes: watch::Sender<Vec<LimitProbe>>,
    /// The answers of the probes.
    limits: watch::Sender<Vec<LimitProbed>>,
    /// With the time of our start, and rising steps.
    view: watch::Sender<Observation>,
    generation: u64,
}

/// One daemon, as the supervisor sees it.
#[derive(Debug)]
struct Handle {
    orders: watch::Sender<Order>,
    requests: mpsc::Sender<Terminate>,
    /// By a plan; a daemon that was found may turn out to be another than it seemed.
    spec: Option<Spec>,
    state: ServerState,
}

/// One card without a server, as the supervisor sees it.
#[derive(Debug)]
struct CardHandle {
    orders: watch::Sender<DesiredCardState>,
    state: CardState,
}

impl Supervisor {
    /// With every daemon that is found running, and what others left behind.
    pub fn new(tools: Tools) -> Self {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let started = started.unwrap_or_default().as_nanos();
        let view = Observation {
            supervisor_started: u64::try_from(started).unwrap_or(u64::MAX),
            ..Observation::default()
        };
        let mut supervisor = Self {
            tools: Arc::new(tools),
            daemons: BTreeMap::new(),
            tasks: JoinSet::new(),
            reports: mpsc::channel(64),
            cards: BTreeMap::new(),
            card_tasks: JoinSet::new(),
            card_reports: mpsc::channel(16),
            probes: watch::Sender::default(),
            limits: watch::Sender::default(),
            view: watch::Sender::new(view),
            generation: 0,
        };
        for name in Place::all(&supervisor.tools.base) {
            let Some(place) = Place::new(&supervisor.tools.base, &name) else {
                continue;
            };
            // In mode `mps` a server is named by its card.
            let gpu_uuids = Some(name.clone()).filter(|name| name.starts_with("GPU-"));
            let spec = Spec {
                exclusive: gpu_uuids.is_some(),
                gpu_uuids: gpu_uuids.into_iter().collect(),
                multiuser: true,
            };
            let daemon = Daemon::found(&name, spec, place, Arc::clone(&supervisor.tools));
            let order = Order {
                generation: 0,
                spec: None,
                desired: Desired::Unknown,
                mode_faults: 0,
            };
            supervisor.start(&name, daemon, order, None);
        }
        supervisor.publish();
        supervisor
    }

    /// What is.
    pub fn view(&self) -> watch::Receiver<Observation> {
        self.view.subscribe()
    }

    /// Until `stop`: then daemons without clients end, and those with clients are left to the
    /// next supervisor.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Request>, stop: CancellationToken) {
        let (smi, cgroup) = (self.tools.smi.clone(), self.tools.cgroups.for_probes());
        let (probes, mut limits) = (self.probes.subscribe(), self.limits.subscribe());
        let probing = tokio::spawn(probe::run(smi, cgroup, probes, self.limits.clone()));
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(request) = requests.recv() => self.answer(request),
                Some(report) = self.reports.1.recv() => self.take(report),
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                Some(state) = self.card_reports.1.recv() => self.take_card(state),
                Some(ended) = self.card_tasks.join_next() => self.card_ended(ended),
                Ok(()) = limits.changed() => self.publish(),
            }
        }
        probing.abort();
        self.leave().await;
    }

    /// Never waits: a daemon's task that is busy may be waiting for us to take its report.
    fn answer(&mut self, request: Request) {
        match request {
            Request::Ensure(plan, reply) => {
                let answer = self.ensure(&plan);
                if let Err(error) = &answer {
                    error!(%error, "plan refused");
                }
                // The caller may have given up; the plan still applies.
                let _ = reply.send(answer);
            }
            Request::Terminate(server, request) => {
                if let Some(handle) = self.daemons.get(&server) {
                    // A task that has ended or has too many of them drops it, and with it the
                    // reply: it cannot be asked.
                    let _ = handle.requests.try_send(request);
                }
            }
        }
    }

    fn ensure(&mut self, plan: &Plan) -> Result<(), PlanError> {
        let wanted = self.check(plan)?;
        self.generation += 1;
        let generation = self.generation;
        for (name, (place, spec, limits)) in &wanted {
            let mut servers = plan.servers.iter();
            let faults = servers.find(|server| server.name == *name);
            let order = Order {
                generation,
                spec: Some(spec.clone()),
                desired: Desired::Wanted(*limits),
                mode_faults: faults.map_or(0, |server| server.compute_mode_faults),
            };
            if let Some(handle) = self.daemons.get_mut(name) {
                if handle.orders.borrow().desired != order.desired {
                    info!(server = name, ?limits, "MPS server wanted");
                    // Whatever its state, it does not match the plan until its task has processed
                    // the order.
                    handle.state.set_phase(ServerPhase::Starting);
                }
                handle.spec = Some(spec.clone());
                handle.orders.send_replace(order);
            } else {
                info!(server = name, ?limits, "MPS server wanted");
                let tools = Arc::clone(&self.tools);
                let daemon = Daemon::absent(name, spec.clone(), place.clone(), tools);
                self.start(name, daemon, order, Some(spec.clone()));
            }
        }
        for (name, handle) in &mut self.daemons {
            if !wanted.contains_key(name) {
                handle.orders.send_replace(Order {
                    generation,
                    spec: None,
                    desired: Desired::Unwanted,
                    mode_faults: 0,
                });
            }
        }
        self.ensure_cards(plan);
        self.probes.send_if_modified(|probes| {
            let changed = *probes != plan.probes;
            probes.clone_from(&plan.probes);
            changed
        });
        self.publish();
        Ok(())
    }

    fn ensure_cards(&mut self, plan: &Plan) {
        for card in &plan.cards {
            let wanted = DesiredCardState::Sliced(card.time_slice, card.compute_mode_faults);
            if let Some(handle) = self.cards.get_mut(&card.uuid) {
                let changed = handle.orders.send_if_modified(|old| {
                    let changed = *old != wanted;
                    *old = wanted;
                    changed
                });
                handle.state.ready &= !changed;
            } else {
                self.start_card(&card.uuid, wanted);
            }
        }
        for (uuid, handle) in &mut self.cards {
            if !plan.cards.iter().any(|card| card.uuid == *uuid) {
                handle.orders.send_if_modified(|old| {
                    let changed = *old != DesiredCardState::Nothing;
                    *old = DesiredCardState::Nothing;
                    changed
                });
            }
        }
    }

    fn start_card(&mut self, uuid: &str, wanted: DesiredCardState) {
        let (orders, orders_in) = watch::channel(wanted);
        let reports = self.card_reports.0.clone();
        let smi = self.tools.smi.clone();
        self.card_tasks
            .spawn(card::run(uuid.to_owned(), smi, orders_in, reports));
        let state = CardState {
            uuid: uuid.to_owned(),
            ..CardState::default()
        };
        self.cards
            .insert(uuid.to_owned(), CardHandle { orders, state });
    }

    fn take_card(&mut self, state: CardState) {
        if let Some(handle) = self.cards.get_mut(&state.uuid) {
            handle.state = state;
            self.publish();
        }
    }

    fn card_ended(&mut self, ended: Result<String, tokio::task::JoinError>) {
        match ended {
            Ok(uuid) => {
                let wanted = self.cards.remove(&uuid).map(|h| *h.orders.borrow());
                // It was wanted again while it ended.
                if let Some(wanted @ DesiredCardState::Sliced(..)) = wanted {
                    self.start_card(&uuid, wanted);
                }
                self.publish();
            }
            Err(error) => warn!(%error, "a card's task ended"),
        }
    }

    fn check(&self, plan: &Plan) -> Result<BTreeMap<String, (Place, Spec, Limits)>, PlanError> {
        let mut wanted = BTreeMap::new();
        for server in &plan.servers {
            let refuse = |what| PlanError {
                server: server.name.clone(),
                what,
            };
            let place = Place::new(&self.tools.base, &server.name)
                .ok_or_else(|| refuse("the name cannot be a directory's"))?;
            let thread_percent = u8::try_from(server.default_thread_percent)
                .ok()
                .filter(|percent| (1..=100).contains(percent))
                .ok_or_else(|| refuse("the thread percentage is not between 1 and 100"))?;
            if server.gpu_uuids.is_empty() {
                return Err(refuse("it has no cards"));
            }
            let spec = Spec {
                gpu_uuids: server.gpu_uuids.clone(),
                multiuser: server.multiuser,
                exclusive: server.exclusive,
            };
            let known = self.daemons.get(&server.name).and_then(|h| h.spec.as_ref());
            if known.is_some_and(|known| *known != spec) {
                return Err(refuse(
                    "it exists with other cards or another kind of server",
                ));
            }
            let limits = Limits {
                memory: Mib(server.default_memory_mib),
                thread_percent,
            };
            let other_kind = |(name, (_, other, _)): (&String, &(Place, Spec, Limits))| {
                let together = spec
                    .gpu_uuids
                    .iter()
                    .any(|card| other.gpu_uuids.contains(card));
                *name != server.name && together && (spec.exclusive || other.exclusive)
            };
            if wanted.iter().any(other_kind) {
                return Err(refuse("its card is another server's alone"));
            }
            let twice = wanted.insert(server.name.clone(), (place, spec, limits));
            if twice.is_some() {
                return Err(refuse("it is named twice"));
            }
        }
        for card in &plan.cards {
            let refuse = |what| PlanError {
                server: card.uuid.clone(),
                what,
            };
            if card.time_slice.is_some_and(|slice| slice > 3) {
                return Err(refuse("there is no such time slice"));
            }
            let served = |(_, spec, _): &(Place, Spec, Limits)| spec.gpu_uuids.contains(&card.uuid);
            if wanted.values().any(served) {
                return Err(refuse("it is a server's and used without one"));
            }
        }
        Ok(wanted)
    }

    fn start(&mut self, name: &str, daemon: Daemon, order: Order, spec: Option<Spec>) {
        let (orders, orders_in) = watch::channel(order);
        let (requests, requests_in) = mpsc::channel(4);
        self.tasks
            .spawn(daemon.run(orders_in, requests_in, self.reports.0.clone()));
        let state = ServerState {
            name: name.to_owned(),
            phase: ServerPhase::Starting.into(),
            ..ServerState::default()
        };
        let handle = Handle {
            orders,
            requests,
            spec,
            state,
        };
        self.daemons.insert(name.to_owned(), handle);
    }

    fn take(&mut self, report: Report) {
        let Some(handle) = self.daemons.get_mut(&report.state.name) else {
            return;
        };
        if report.generation < handle.orders.borrow().generation {
            // Sent before the daemon's task saw the current order.
            return;
        }
        let (from, to) = (handle.state.phase(), report.state.phase());
        if from != to {
            info!(
                server = report.state.name,
                from = phase::word(from),
                to = phase::word(to),
                reason = report.state.reason,
                "MPS server"
            );
        }
        handle.state = report.state;
        self.publish();
    }

    fn ended(&mut self, ended: Result<String, tokio::task::JoinError>) {
        let name = match ended {
            Ok(name) => name,
            Err(error) => {
                // Only a panic, and a release build aborts on that.
                warn!(%error, "a daemon's task ended");
                return;
            }
        };
        let Some(handle) = self.daemons.remove(&name) else {
            return;
        };
        let order = handle.orders.borrow().clone();
        // It was wanted again while it ended.
        if let (Desired::Wanted(_), Some(spec), Some(place)) = (
            order.desired,
            handle.spec,
            Place::new(&self.tools.base, &name),
        ) {
            let tools = Arc::clone(&self.tools);
            let daemon = Daemon::absent(&name, spec.clone(), place, tools);
            self.start(&name, daemon, order, Some(spec));
        }
        self.publish();
    }

    fn publish(&self) {
        let servers = self.daemons.values().map(|h| h.state.clone());
        let servers: Vec<_> = servers.map(phase::written).collect();
        let cards: Vec<_> = self.cards.values().map(|h| h.state.clone()).collect();
        let limits = self.limits.borrow().clone();
        self.view.send_if_modified(|view| {
            let changed = view.servers != servers || view.cards != cards || view.limits != limits;
            if changed {
                view.servers = servers;
                view.cards = cards;
                view.limits = limits;
                view.step += 1;
            }
            changed
        });
    }

    async fn leave(mut self) {
        self.generation += 1;
        for handle in self.daemons.values() {
            handle.orders.send_replace(Order {
                generation: self.generation,
                spec: None,
                desired: Desired::Leave,
                mode_faults: 0,
            });
        }
        let all_ended = async {
            loop {
                tokio::select! {
                    ended = self.tasks.join_next() => if ended.is_none() { break },
                    // Their reports must not stop them.
                    _ = self.reports.1.recv() => {}
                }
            }
        };
        if tokio::time::timeout(LEAVE, all_ended).await.is_err() {
            warn!("some MPS daemons did not end; the next supervisor adopts them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_takes_no_requests_holds_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let mut supervisor = Supervisor::new(super::super::daemon::tests::tools(folder.path()));
        let order = Order {
            generation: 1,
            spec: None,
            desired: Desired::Unknown,
            mode_faults: 0,
        };
        let (requests, busy) = mpsc::channel(4);
        let handle = Handle {
            orders: watch::Sender::new(order),
            requests,
            spec: None,
            state: ServerState::default(),
        };
        supervisor.daemons.insert("GPU-0".into(), handle);
        let mut replies: Vec<_> = (0..6)
            .map(|_| {
                let (reply, answer) = oneshot::channel();
                let terminate = Terminate {
                    pids: vec![1],
                    reply,
                };
                supervisor.answer(Request::Terminate("GPU-0".into(), terminate));
                answer
            })
            .collect();
        let waits = |answer: &mut oneshot::Receiver<Vec<u32>>| {
            answer.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        };
        let waiting: Vec<bool> = replies.iter_mut().map(waits).collect();
        assert_eq!(waiting, [true, true, true, true, false, false]);
        drop(busy);
    }
}
