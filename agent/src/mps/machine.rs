//! One control daemon's life, as a pure function of what happened.
//!
//! In: [`Event`]s, time as a value. Out: the one next [`Action`], and the [`View`] that
//! others see. Must never: do anything, or end a server that still has clients.
//!
//! ```text
//! Absent → SetMode → Spawn → Reach → Configure → Warm → Ready ⇄ Fault
//!    ↑        ↑                                           │ not wanted, no clients
//!    │       Dead ←── the daemon ended at any time        ↓
//!    └────────┴────────── CleanUp ←───────────────────── Ending
//! ```
//! An adopted daemon comes in at Reach, what a dead one left behind at Dead.

mod types;

pub use types::{Action, Desired, Event, Limits, ProbeResult, ReadBack, ServerStatus, View};

use super::backoff::backoff;
use backon::BackoffBuilder as _;
use proto::mps::ServerPhase;
use std::time::Duration;

/// Since the supervisor's start.
pub type Time = Duration;

/// Time between two checks of a server.
const LOOK: Duration = Duration::from_millis(750);
/// Time between two checks while something is about to change.
const LOOK_SOON: Duration = Duration::from_millis(20);
/// Between two checks that a daemon's process lives.
const TICK: Duration = Duration::from_millis(200);
/// For a daemon to answer after its start.
const REACH: Duration = Duration::from_secs(10);
/// Time for a server to become ACTIVE after it was requested; then it is requested again.
const WARM: Duration = Duration::from_secs(10);
/// For a daemon to end after `quit` was answered.
const END: Duration = Duration::from_secs(5);
/// Shortest and longest pause between two starts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_mins(1));
/// Between two comparisons of the limits with those that were set.
const VERIFY: Duration = Duration::from_secs(5);
/// For clients that are just ending when the supervisor does.
const LEAVE: Duration = Duration::from_secs(1);
/// A daemon that was Ready for this long has left its failures behind.
const STEADY: Duration = Duration::from_mins(1);
/// Consecutive unanswered checks after which no new client is sent to the daemon.
const DEAF: u32 = 3;
/// And after which one without clients is ended: half a minute, since a node that is starting
/// containers is slow. The daemon cannot report clients that came since its last answer, so a
/// process that sees its directory keeps it alive,
const HUNG: u32 = 10;
/// for this many checks, two minutes: no client can start on it either.
const DOOMED: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Absent,
    SetMode,
    Spawn,
    Reach { until: Time },
    Configure { not_before: Time },
    Warm { until: Time, asked: bool },
    Ready { since: Time },
    Fault,
    Ending { until: Time },
    Killing,
    Dead { not_before: Time },
    CleanUp { not_before: Time },
    Finished,
}

/// One daemon's life.
#[derive(Clone, Debug)]
pub struct Machine {
    desired: Desired,
    /// When a daemon that still has clients is left to them.
    leave_at: Time,
    phase: Phase,
    reason: String,
    /// Read back equal to what was wanted then.
    applied: Option<Limits>,
    observed: ReadBack,
    mode_set: bool,
    /// Its clients are known: we started it, or it told us once.
    known: bool,
    sight: ProbeResult,
    looked: Option<Time>,
    deaf: u32,
    /// It is to be ended unless a process sees its directory.
    hung: bool,
    failures: u32,
    starts: u32,
    verified: Option<Time>,
    blamed: u32,
    losses: u32,
    /// Its daemon ended while a server of it was up; whether that lives is not known yet.
    orphaned: bool,
    tampered: String,
}

impl Machine {
    /// A daemon that does not run.
    pub fn absent() -> Self {
        Self::at(Phase::Absent)
    }

    /// A daemon that was found running; its limits are not known.
    pub fn adopted(now: Time) -> Self {
        let mut machine = Self::at(Phase::Reach { until: now + REACH });
        machine.starts = 1;
        machine.known = false;
        machine
    }

    /// What a daemon left that ended while no supervisor watched.
    pub fn leftover() -> Self {
        let mut machine = Self::at(Phase::Dead {
            not_before: Time::ZERO,
        });
        "the control daemon ended".clone_into(&mut machine.reason);
        machine.known = false;
        machine
    }

    fn at(phase: Phase) -> Self {
        Self {
            desired: Desired::Unknown,
            leave_at: Time::ZERO,
            phase,
            reason: String::new(),
            applied: None,
            observed: ReadBack::default(),
            mode_set: false,
            known: true,
            sight: ProbeResult::default(),
            looked: None,
            deaf: 0,
            hung: false,
            failures: 0,
            starts: 0,
            verified: None,
            blamed: 0,
            losses: 0,
            orphaned: false,
            tampered: String::new(),
        }
    }

    /// What others see.
    pub fn view(&self) -> View {
        let draining = matches!(self.desired, Desired::Unwanted | Desired::Leave);
        let phase = match self.phase {
            Phase::Absent | Phase::Finished => ServerPhase::Absent,
            Phase::Dead { .. } => ServerPhase::Dead,
            Phase::Fault => ServerPhase::ServerFault,
            Phase::Ready { .. } if self.deaf >= DEAF => ServerPhase::ServerFault,
            Phase::CleanUp { .. } => ServerPhase::Draining,
            Phase::Ending { .. } | Phase::Killing | Phase::Ready { .. } if draining => {
                ServerPhase::Draining
            }
            Phase::Ready { .. } if self.up_to_date() => ServerPhase::Ready,
            _ => ServerPhase::Starting,
        };
        let clients = self.sight.clients.len();
        let reason = match phase {
            ServerPhase::Dead if clients > 0 => {
                format!("{}; waits for {clients} clients of it", self.reason)
            }
            ServerPhase::Draining if clients > 0 => format!("waits for {clients} clients to end"),
            _ => self.reason.clone(),
        };
        let broken = matches!(phase, ServerPhase::ServerFault | ServerPhase::Dead);
        View {
            phase,
            reason,
            observed: self.observed,
            clients: self.sight.clients.clone(),
            servers: self.servers(),
            restarts: self.starts.saturating_sub(1),
            blamed: if broken { self.blamed } else { 0 },
            losses: self.losses,
            tampered: self.tampered.clone(),
        }
    }

    /// Whether the limits are those of the plan, or no plan came yet.
    fn up_to_date(&self) -> bool {
        match self.desired {
            Desired::Wanted(limits) => self.applied == Some(limits) && self.mode_set,
            _ => true,
        }
    }

    /// The one next thing to do.
    pub fn next(&self, now: Time) -> Action {
        let wanted = match self.desired {
            Desired::Wanted(limits) => Some(limits),
            _ => None,
        };
        match self.phase {
            Phase::Finished => Action::Finish,
            Phase::Absent => match self.desired {
                Desired::Wanted(_) => Action::Prepare,
                Desired::Unknown => Action::Wait(TICK),
                Desired::Unwanted | Desired::Leave => Action::Finish,
            },
            Phase::SetMode => Action::SetMode,
            Phase::Spawn => Action::Spawn,
            Phase::Reach { .. } if self.hung => Action::FindLeftovers(None),
            Phase::Reach { .. } => self.soon(now, Action::Reach),
            Phase::Configure { not_before } => match wanted {
                Some(_) if now < not_before => {
                    Action::Wait(TICK.min(not_before.saturating_sub(now)))
                }
                Some(_) if !self.mode_set => Action::SetMode,
                Some(limits) => Action::Configure(limits, self.servers()),
                None => Action::Look,
            },
            Phase::Warm { asked: false, .. } if wanted.is_some() => Action::StartServer,
            Phase::Warm { .. } => self.soon(now, Action::Look),
            Phase::Ready { .. } | Phase::Fault => self.next_while_up(now),
            Phase::Ending { until } if now >= until => Action::Kill,
            Phase::Ending { .. } => Action::Wait(LOOK_SOON),
            Phase::Killing => Action::Kill,
            Phase::Dead { not_before } => self.next_while_dead(now, not_before),
            Phase::CleanUp { not_before } if now < not_before => {
                Action::Wait(TICK.min(not_before.saturating_sub(now)))
            }
            Phase::CleanUp { .. } => Action::CleanUp,
        }
    }

    fn next_while_up(&self, now: Time) -> Action {
        if self.hung {
            return Action::FindLeftovers(None);
        }
        let idle = self.sight.clients.is_empty();
        let fresh = self.looked.is_some_and(|at| now < at + LOOK);
        match self.desired {
            Desired::Leave if !idle && now >= self.leave_at => Action::Finish,
            Desired::Leave if !idle => self.soon(now, Action::Look),
            // Only on a fresh look: a client may have come since.
            Desired::Unwanted | Desired::Leave if idle && fresh => Action::Quit,
            Desired::Wanted(limits) if !self.up_to_date() => {
                if self.mode_set {
                    Action::Configure(limits, self.servers())
                } else {
                    Action::SetMode
                }
            }
            Desired::Wanted(limits)
                if fresh
                    && matches!(self.phase, Phase::Ready { .. })
                    && self.verified.is_none_or(|at| now >= at + VERIFY) =>
            {
                Action::Verify(limits, self.servers())
            }
            _ if fresh => Action::Wait(TICK),
            _ => Action::Look,
        }
    }

    fn next_while_dead(&self, now: Time, not_before: Time) -> Action {
        let ProbeResult { servers, clients } = &self.sight;
        if self.desired == Desired::Leave && !clients.is_empty() && now >= self.leave_at {
            return Action::Finish;
        }
        match self.looked {
            Some(_) if clients.is_empty() && servers.is_empty() => {}
            Some(_) if clients.is_empty() => return Action::KillServers(self.servers()),
            Some(at) if now < at + TICK => return Action::Wait(TICK),
            _ => return Action::FindLeftovers(self.known.then(|| clients.clone())),
        }
        match self.desired {
            _ if now < not_before => Action::Wait(TICK.min(not_before.saturating_sub(now))),
            Desired::Wanted(_) => Action::Prepare,
            Desired::Unwanted | Desired::Leave => Action::CleanUp,
            Desired::Unknown => Action::Wait(TICK),
        }
    }

    /// An action that is repeated until something changes.
    fn soon(&self, now: Time, action: Action) -> Action {
        match self.looked {
            Some(at) if now < at + LOOK_SOON => Action::Wait(LOOK_SOON),
            _ => action,
        }
    }

    fn servers(&self) -> Vec<u32> {
        self.sight.servers.iter().map(|(pid, _)| *pid).collect()
    }

    /// Applies an event.
    pub fn on(&mut self, now: Time, event: Event) {
        match event {
            Event::Desired(desired) => {
                if desired == Desired::Leave && self.desired != desired {
                    self.leave_at = now + LEAVE;
                }
                self.desire(desired);
            }
            Event::Exited(reason) => self.died(now, reason),
            Event::Done => self.done(now),
            Event::Failed(reason) => self.failed(now, reason),
            Event::Configured(limits, read_back) => {
                self.applied = Some(limits);
                self.observed = read_back;
                self.verified = Some(now);
                self.reason.clear();
                if matches!(self.phase, Phase::Configure { .. }) {
                    self.phase = Phase::Warm {
                        until: now + WARM,
                        // An adopted daemon has its server: look before asking for one.
                        asked: !self.sight.servers.is_empty(),
                    };
                }
                self.looked = None;
            }
            Event::Seen(sight) => self.seen(now, sight),
            Event::Stirred => self.looked = None,
            Event::ModeLost => self.mode_set = false,
            Event::Verified(Ok(())) => {
                self.verified = Some(now);
                self.deaf = 0;
            }
            Event::Verified(Err(what)) | Event::Driven(what, true) => {
                // Corrected by the next step; clients that came in the meantime keep their limits.
                self.applied = None;
                self.observed = ReadBack::default();
                self.tampered = what;
            }
            Event::Driven(what, false) => self.tampered = what,
            Event::ClientFaulted(pid) => self.blamed = pid,
            Event::Leftovers(tenants, _) if std::mem::take(&mut self.hung) => {
                if tenants.is_empty() {
                    // No client loses anything, and no new one could start.
                    self.phase = Phase::Killing;
                } else if matches!(self.phase, Phase::Reach { .. }) {
                    self.phase = Phase::Reach { until: now + REACH };
                }
            }
            Event::Leftovers(clients, servers) => {
                if std::mem::take(&mut self.orphaned) && servers.is_empty() {
                    self.losses = self.losses.saturating_add(1);
                }
                self.sight.clients = clients;
                self.sight.servers = servers
                    .into_iter()
                    .map(|pid| (pid, ServerStatus::Fault))
                    .collect();
                self.looked = Some(now);
            }
        }
    }

    fn desire(&mut self, desired: Desired) {
        self.desired = desired;
        if matches!(self.phase, Phase::SetMode | Phase::Spawn)
            && !matches!(desired, Desired::Wanted(_))
        {
            // Nothing runs yet; created files are removed.
            self.phase = Phase::CleanUp {
                not_before: Time::ZERO,
            };
        }
    }

    fn died(&mut self, now: Time, reason: String) {
        let ending = matches!(self.phase, Phase::Ending { .. } | Phase::Killing);
        let asked_to_end = ending && matches!(self.desired, Desired::Unwanted | Desired::Leave);
        // Why we ended it says more than that it ended.
        let reason = if ending && !self.reason.is_empty() {
            self.reason.clone()
        } else {
            reason
        };
        if let Phase::Ready { since } = self.phase
            && now >= since + STEADY
        {
            self.failures = 0;
        }
        self.applied = None;
        self.observed = ReadBack::default();
        self.mode_set = false;
        self.looked = None;
        self.deaf = 0;
        self.hung = false;
        self.orphaned = !self.sight.servers.is_empty() && !matches!(self.phase, Phase::Fault);
        if asked_to_end {
            self.orphaned = false;
            self.sight = ProbeResult::default();
            self.reason.clear();
            self.phase = Phase::CleanUp {
                not_before: Time::ZERO,
            };
        } else {
            self.dead(now, reason);
        }
    }

    fn dead(&mut self, now: Time, reason: String) {
        self.reason = reason;
        self.phase = Phase::Dead {
            not_before: now + self.backoff(),
        };
        self.failures = self.failures.saturating_add(1);
    }

    /// Doubled with each failure in a row, within [`BACKOFF`].
    fn backoff(&self) -> Duration {
        let failures = usize::try_from(self.failures.min(16)).unwrap_or(0);
        let mut pauses = backoff(BACKOFF).build();
        pauses.nth(failures).unwrap_or(BACKOFF.1)
    }

    fn done(&mut self, now: Time) {
        self.deaf = 0;
        match self.phase {
            Phase::Absent => self.phase = Phase::SetMode,
            // Servers were killed: find out whether they are gone.
            Phase::Dead { .. } if !self.sight.servers.is_empty() => {
                self.sight.servers.clear();
                self.looked = None;
            }
            Phase::Dead { .. } => {
                self.phase = match self.desired {
                    Desired::Wanted(_) => Phase::SetMode,
                    _ => Phase::Finished,
                };
            }
            Phase::SetMode => {
                self.mode_set = true;
                self.phase = Phase::Spawn;
            }
            Phase::Spawn => {
                // Settings of the previous one ended with it.
                self.tampered.clear();
                self.starts = self.starts.saturating_add(1);
                self.known = true;
                self.looked = None;
                self.phase = Phase::Reach { until: now + REACH };
            }
            Phase::Reach { .. } => {
                self.looked = None;
                self.reason.clear();
                self.phase = Phase::Configure {
                    not_before: Time::ZERO,
                };
            }
            Phase::Configure { .. } => self.mode_set = true,
            Phase::Warm {
                until,
                asked: false,
            } => {
                self.looked = None;
                self.phase = Phase::Warm { until, asked: true };
            }
            Phase::Ready { .. } | Phase::Fault => {
                if matches!(self.desired, Desired::Wanted(_)) {
                    self.mode_set = true;
                } else {
                    self.phase = Phase::Ending { until: now + END };
                }
            }
            // Killed: its end is an event of its own.
            Phase::Ending { .. } | Phase::Killing => {
                self.phase = Phase::Ending { until: now + END };
            }
            Phase::CleanUp { .. } => {
                self.reason.clear();
                self.phase = match self.desired {
                    Desired::Unwanted | Desired::Leave => Phase::Finished,
                    _ => Phase::Absent,
                };
            }
            Phase::Warm { asked: true, .. } | Phase::Finished => {}
        }
    }

    fn failed(&mut self, now: Time, reason: String) {
        self.reason.clone_from(&reason);
        let pause = now + self.backoff();
        match self.phase {
            Phase::Absent | Phase::SetMode | Phase::Spawn | Phase::Dead { .. } => {
                self.looked = None;
                self.dead(now, reason);
            }
            Phase::Reach { until } => {
                self.looked = Some(now);
                // One that was found may have clients, whose daemon a tenant has cut off.
                if now >= until && self.known {
                    self.phase = Phase::Killing;
                } else if now >= until {
                    self.hung = true;
                }
            }
            Phase::Configure { .. } => {
                self.failures = self.failures.saturating_add(1);
                self.looked = None;
                self.phase = Phase::Configure { not_before: pause };
            }
            Phase::Warm { until, .. } => {
                self.looked = Some(now);
                if now >= until {
                    self.phase = Phase::Warm {
                        until: now + WARM,
                        asked: false,
                    };
                }
            }
            Phase::Ready { .. } | Phase::Fault => {
                self.looked = Some(now);
                self.deaf = self.deaf.saturating_add(1);
                if !self.up_to_date() {
                    self.failures = self.failures.saturating_add(1);
                    self.phase = Phase::Configure { not_before: pause };
                } else if self.deaf >= HUNG && self.sight.clients.is_empty() {
                    if self.deaf < DOOMED {
                        self.hung = true;
                    } else {
                        self.phase = Phase::Killing;
                    }
                }
            }
            Phase::CleanUp { .. } => {
                self.failures = self.failures.saturating_add(1);
                self.phase = Phase::CleanUp { not_before: pause };
            }
            Phase::Ending { .. } | Phase::Killing => {
                self.phase = Phase::Ending { until: now + END };
            }
            Phase::Finished => {}
        }
    }

    fn seen(&mut self, now: Time, sight: ProbeResult) {
        self.looked = Some(now);
        self.deaf = 0;
        let has = |wanted| sight.servers.iter().any(|(_, status)| *status == wanted);
        let (fault, active) = (has(ServerStatus::Fault), has(ServerStatus::Active));
        let was_up = |(pid, status): &(u32, ServerStatus)| {
            *status == ServerStatus::Active && !sight.servers.iter().any(|(now, _)| now == pid)
        };
        let ended = self.sight.servers.iter().any(was_up);
        let faulted = fault && !matches!(self.phase, Phase::Fault);
        if (ended || faulted) && matches!(self.desired, Desired::Wanted(_) | Desired::Unknown) {
            self.losses = self.losses.saturating_add(1);
        }
        if faulted && self.blamed == 0 {
            // The server did not name it: an only client is the one.
            self.blamed = match &self.sight.clients[..] {
                [only] if sight.clients.iter().all(|client| client == only) => only.pid,
                _ => 0,
            };
        }
        self.sight = sight;
        self.known = true;
        match self.phase {
            Phase::Configure { .. } | Phase::Warm { .. } | Phase::Ready { .. } | Phase::Fault => {}
            _ => return,
        }
        if fault {
            self.reason = match self.sight.clients.len() {
                0 => "the server faulted and is starting again".to_owned(),
                clients => format!("the server faulted; waits for {clients} clients to end"),
            };
            self.phase = Phase::Fault;
        } else if active {
            self.reason.clear();
            if !matches!(self.phase, Phase::Ready { .. }) {
                self.blamed = 0;
                self.phase = Phase::Ready { since: now };
            }
        } else if !matches!(self.desired, Desired::Wanted(_)) {
            self.phase = Phase::Ready { since: now };
        } else if let Phase::Warm { until, .. } = self.phase {
            if now >= until {
                "the MPS server does not start".clone_into(&mut self.reason);
                self.phase = Phase::Warm {
                    until: now + WARM,
                    asked: false,
                };
            }
        } else {
            // Its server ended: until there is one, the card is open to anyone.
            "the MPS server ended".clone_into(&mut self.reason);
            self.phase = Phase::Warm {
                until: now + WARM,
                asked: false,
            };
        }
    }
}

#[cfg(test)]
mod tests;
