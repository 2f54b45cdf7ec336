//! Everything of one run: the API server's store, the network, machines, replicas, and the
//! one queue of what happens next. Nothing here reads a clock or chance but the seed's.

use crate::event::WorldEvent;
use crate::machines::Autoscaler;
use crate::node::Node;
use crate::replica::{Process, Ran};
use crate::request::{Eviction, InFlight, Watch};
use crate::server::Asked;
use crate::store::{Key, Store};
use crate::time::{Ms, Stamp};
use crate::trace::Trace;
use scheduler::Config;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Interval at which replicas run if nothing happens.
const LOOK: Ms = 100;

/// One replica of the scheduler.
#[derive(Debug)]
pub struct Replica {
    /// Its pod's name, which a new process of it has too.
    pub name: String,
    /// Its process, while there is one.
    pub process: Option<Process>,
    /// Which process this is.
    pub start: u64,
    /// It is suspended until then.
    pub stalled: Option<Ms>,
    /// How far its wall clock is ahead, in milliseconds.
    pub ahead: Arc<AtomicI64>,
}

/// The run.
#[derive(Debug)]
pub struct World {
    /// Of which seed.
    pub seed: u64,
    /// Milliseconds since the beginning.
    pub now: Ms,
    /// All chance.
    pub rng: fastrand::Rng,
    /// What the API server has.
    pub store: Store,
    /// Its minor version.
    pub minor: u32,
    /// How the schedulers are set.
    pub config: Config,
    /// Replicas.
    pub replicas: Vec<Replica>,
    /// Machines.
    pub nodes: Vec<Node>,
    /// Requests under way.
    pub in_flight: BTreeMap<u64, InFlight>,
    /// Watches that are open.
    pub watches: BTreeMap<u64, Watch>,
    /// Whether the network is bad.
    pub bad: bool,
    /// Which faults this run's network has: their shares of a thousand requests.
    pub rates: BTreeMap<&'static str, u32>,
    /// Where pods were bound, by UID.
    pub bound: BTreeMap<String, String>,
    /// Pods that an agent refused permanently: it no longer accepts their grants.
    pub disowned: BTreeSet<String>,
    /// Bindings under way: pod UID → node, by replica and start.
    pub binding: BTreeMap<(usize, u64, String), (String, Ms)>,
    /// From then on nothing goes wrong, and what went wrong before is known.
    pub calm: Ms,
    /// Evictions that were decided.
    pub evictions: Vec<Eviction>,
    /// How often which fault happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// What happened.
    pub trace: Trace,
    /// Violated conditions.
    pub violations: Vec<String>,
    /// Makes and removes machines, where a run has one.
    pub autoscaler: Option<Autoscaler>,
    /// When pods were made, by name; written where there is an autoscaler.
    pub arrived: BTreeMap<String, Ms>,
    /// Pods of nodes that were deleted, as they were then; taken where controllers make others.
    pub left: Vec<(Key, Value)>,
    /// Names of evicted pods in whose place their controller has made another.
    pub made_again: BTreeSet<String>,
    /// Names that were given out.
    pub names: u64,
    agenda: BTreeMap<(Ms, u64), WorldEvent>,
    numbers: u64,
}

impl World {
    /// An empty one.
    pub fn new(seed: u64, config: Config, replicas: usize, keep: bool) -> Self {
        let replica = |at: usize| Replica {
            name: format!("r{at}"),
            process: None,
            start: 0,
            stalled: None,
            ahead: Arc::new(AtomicI64::new(0)),
        };
        Self {
            seed,
            now: 0,
            rng: fastrand::Rng::with_seed(seed),
            store: Store::default(),
            minor: 36,
            config,
            replicas: (0..replicas).map(replica).collect(),
            nodes: Vec::new(),
            in_flight: BTreeMap::new(),
            watches: BTreeMap::new(),
            bad: false,
            rates: BTreeMap::new(),
            bound: BTreeMap::new(),
            disowned: BTreeSet::new(),
            binding: BTreeMap::new(),
            calm: Ms::MAX,
            evictions: Vec::new(),
            faults: BTreeMap::new(),
            trace: Trace::new(keep),
            violations: Vec::new(),
            autoscaler: None,
            arrived: BTreeMap::new(),
            left: Vec::new(),
            made_again: BTreeSet::new(),
            names: 0,
            agenda: BTreeMap::new(),
            numbers: 0,
        }
    }

    /// The true date.
    pub fn stamp(&self) -> Stamp {
        Stamp::at(self.now)
    }

    /// A number that nothing else has.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// It happens this many milliseconds from now.
    pub fn soon(&mut self, pause: Ms, what: WorldEvent) {
        let number = self.number();
        self.agenda.insert((self.now + pause, number), what);
    }

    /// A fault happened.
    pub fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    /// Violated conditions.
    pub fn violated(&mut self, what: String) {
        self.say(|| format!("VIOLATED: {what}"));
        self.violations.push(what);
    }

    /// A line of the trace.
    pub fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.line(self.now, &line());
    }

    /// Lets everything happen until then, or until something must not be.
    pub fn run(&mut self, until: Ms) {
        while self.violations.is_empty() && self.now < until {
            let next = self.agenda.keys().next().map_or(until, |(at, _)| *at);
            let target = next.min(until).min(self.now + LOOK).max(self.now);
            self.run_replicas(target);
            if let Some((at, number)) = self.agenda.keys().next().copied()
                && at <= self.now
                && let Some(what) = self.agenda.remove(&(at, number))
            {
                self.happen(what);
            }
        }
    }

    /// All replicas come to that moment, or to the earliest at which a request of one of them has
    /// an effect.
    fn run_replicas(&mut self, target: Ms) {
        let mut target = target;
        for at in 0..self.replicas.len() {
            if let Some(until) = self.replicas[at].stalled {
                if until > target {
                    continue;
                }
                self.replicas[at].stalled = None;
                if let Some(process) = &mut self.replicas[at].process {
                    process.skip(until.max(process.now));
                }
                self.say(|| format!("replica {at} goes on"));
            }
            while let Some(process) = &mut self.replicas[at].process
                && process.now <= target
            {
                match process.run(target) {
                    Ran::Reached => break,
                    Ran::Sent(sent) => {
                        let moment = process.now.max(self.now);
                        let sooner = self.depart(at, moment, *sent);
                        target = target.min(sooner.max(self.now));
                    }
                    Ran::Ended(ended) => self.ended(at, &ended),
                }
            }
        }
        self.now = self.now.max(target);
    }

    fn ended(&mut self, at: usize, ended: &Result<(), scheduler::RunError>) {
        let why = ended.as_ref().err().map(ToString::to_string);
        if let Err(scheduler::RunError::Failed(error)) = ended {
            self.violated(format!("replica {at} broke: {error}"));
        }
        self.say(|| format!("replica {at} ended: {why:?}"));
        self.kill(at);
        let pause = 500 + self.rng.u64(0..3000);
        self.soon(pause, WorldEvent::Start(at));
    }

    /// The process ends at once, with its connections.
    pub fn kill(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        replica.process = None;
        replica.stalled = None;
        self.watches.retain(|_, watch| watch.replica != at);
        self.binding.retain(|(of, ..), _| *of != at);
        for node in &mut self.nodes {
            node.links.remove(&at);
        }
    }

    fn start(&mut self, at: usize) {
        if self.replicas[at].process.is_some() {
            return;
        }
        let replica = &mut self.replicas[at];
        replica.start += 1;
        let config = Config {
            identity: Some(replica.name.clone()),
            ..self.config.clone()
        };
        let process = Process::start(config, self.now, Arc::clone(&replica.ahead));
        replica.process = Some(process);
        self.say(|| format!("replica {at} starts"));
        for node in 0..self.nodes.len() {
            let pause = 50 + self.rng.u64(0..500);
            self.soon(pause, WorldEvent::Connect(node));
        }
    }

    /// A replica's wall clock jumps.
    pub fn step_clock(&mut self, at: usize, by: i64) {
        self.replicas[at].ahead.fetch_add(by, Ordering::Relaxed);
    }

    fn happen(&mut self, what: WorldEvent) {
        match what {
            WorldEvent::Arrive(request) => self.arrive(request),
            WorldEvent::Answer(request) => self.reply(request),
            WorldEvent::Break(request) => {
                self.in_flight.remove(&request);
            }
            WorldEvent::Feed(watch) => self.feed(watch),
            WorldEvent::Kubelet(node, key, uid, task) => self.kubelet(node, &key, &uid, task),
            WorldEvent::Agent(node) => self.agent(node),
            WorldEvent::Tell(node) => self.tell(node),
            WorldEvent::Connect(node) => self.connect(node),
            WorldEvent::Start(replica) => self.start(replica),
            WorldEvent::Kill(replica, start) => {
                if self.replicas[replica].start == start {
                    self.kill(replica);
                    self.soon(100, WorldEvent::Start(replica));
                }
            }
            WorldEvent::Job(job) => self.job(&job),
            WorldEvent::Volumes => self.volumes(),
            WorldEvent::Collect => self.collect(),
            WorldEvent::Autoscale => self.autoscale(),
            WorldEvent::Machine(node, turn) => self.machine(node, turn),
        }
        self.announce();
    }

    /// The lease's holder, by the API server.
    pub fn holder(&self) -> Option<String> {
        let key = Key::new(
            "leases",
            proto::names::NAMESPACE,
            proto::names::object::LEASE,
        );
        let lease = self.store.get(&key)?;
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        (!holder.is_empty()).then(|| holder.to_owned())
    }

    /// A replica writes what only the leader may: is it the leader?
    pub fn check_leader(&mut self, at: usize, asked: &Asked) {
        let holder = self.holder();
        if holder.as_deref() != Some(self.replicas[at].name.as_str()) {
            self.violated(format!(
                "replica {at} writes ({}) and {holder:?} holds the lease",
                asked.line()
            ));
        }
    }
}
