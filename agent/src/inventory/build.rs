//! Readings and policy → [`Inventory`].

use super::health::HealthHistory;
use super::mig;
use super::{Card, DriverLimits, Front, Health, Inventory, Stranger};
use crate::fence;
use crate::gpu::{ComputeMode, DriverBranch, GpuUuid, MigStrategy};
use crate::nvml::{Device, Driver, Identity, Observation, Process, Reading, Xid};
use crate::resource::Resource;
use api::gpu_node::{self, GpuNodeSpec, GpuPolicy};
use api::units::Fence;
use api::{Mib, Mode};
use cdi::hook::Backend;
use proto::mps::LimitProbed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// More than this in use on a card and held by no listed process is a hidden holder's: the
/// driver itself spends some on contexts that it lists under no process.
const UNLISTED: Mib = Mib(512);
/// Number of consecutive readings that must find it: memory and process lists are not read at the
/// same moment.
const UNLISTED_LOOKS: usize = 5;
/// The name under which its holder is shown.
const UNLISTED_NAME: &str = "in no list of the driver";
/// The first branch of the driver whose cards are worth a probe: those before know no memory limits
/// per cgroup.
const DRIVER_LIMITS: DriverBranch = DriverBranch(615);

/// What does not change while the agent runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Kept of every card for the MPS server's own context.
    pub mps_reserve: Mib,
    /// Containers that may hold a share of one card.
    pub client_slots: u32,
    /// Of a fraction, where the policy says nothing.
    pub context_allowance: Mib,
    /// How slices of cards in MIG mode are offered.
    pub mig_strategy: MigStrategy,
}

/// Everything that was seen of the cards.
#[derive(Clone, Debug)]
pub struct InventoryBuilder {
    settings: Settings,
    driver: Driver,
    /// By UUID; the reading is the last good one.
    seen: BTreeMap<GpuUuid, (Device, Reading)>,
    health: HealthHistory,
    /// Processes by card at the last look and at the one before, each with whether it was
    /// gone when it was looked up. Of a card that did not answer then, those of its last
    /// reading.
    looks: [BTreeMap<GpuUuid, BTreeMap<u32, bool>>; 2],
    /// Cards that answered at the last look.
    answered: BTreeSet<GpuUuid>,
    /// By card, at the last readings: memory in use that is listed with no process.
    unlisted: BTreeMap<GpuUuid, VecDeque<Mib>>,
    /// The last answer of the probe, by card.
    probed: BTreeMap<GpuUuid, LimitProbed>,
    /// The cards that had limits and lost them since this process started.
    lost: BTreeSet<GpuUuid>,
}

impl InventoryBuilder {
    /// Nothing seen yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            driver: Driver::default(),
            seen: BTreeMap::new(),
            health: HealthHistory::default(),
            looks: [BTreeMap::new(), BTreeMap::new()],
            answered: BTreeSet::new(),
            unlisted: BTreeMap::new(),
            probed: BTreeMap::new(),
            lost: BTreeSet::new(),
        }
    }

    /// Applies one reading.
    pub fn observe(&mut self, observation: &Observation, now: Instant) {
        self.health.observe(observation, now);
        self.driver.clone_from(&observation.driver);
        if matches!(observation.driver, Driver::Late { .. }) {
            // The last observation of the cards stays in use while the driver is late.
            return;
        }
        for device in &observation.devices {
            let uuid = &device.identity.uuid;
            let reading = match (&device.reading, self.seen.get(uuid)) {
                // A card that has reported memory has memory, whatever one call says.
                (Ok(reading), Some((_, last))) if reading.unified && last.total > Mib(0) => {
                    last.clone()
                }
                (Ok(reading), _) => reading.clone(),
                (Err(_), Some((_, last))) => last.clone(),
                // Never read: nothing can be reported or granted.
                (Err(_), None) => Reading::default(),
            };
            if device.reading.is_ok() {
                let looks = self.unlisted.entry(uuid.clone()).or_default();
                looks.truncate(UNLISTED_LOOKS - 1);
                looks.push_front(unlisted(&reading));
            }
            self.seen.insert(uuid.clone(), (device.clone(), reading));
        }
        if matches!(observation.driver, Driver::Up { .. }) {
            let listed = |uuid: &GpuUuid| {
                let mut devices = observation.devices.iter();
                devices.any(|device| device.identity.uuid == *uuid)
            };
            self.seen
                .retain(|uuid, (device, _)| device.identity.slice.is_none() || listed(uuid));
        }
        let answered = observation.devices.iter().filter(|d| d.reading.is_ok());
        self.answered = answered
            .map(|device| device.identity.uuid.clone())
            .collect();
        let look = self.seen.iter().map(|(uuid, (_, reading))| {
            let processes = reading.processes.iter();
            let by_pid = processes.map(|process| (process.pid, is_vague(process)));
            (uuid.clone(), by_pid.collect())
        });
        let look = look.collect();
        self.looks = [look, std::mem::take(&mut self.looks[0])];
    }

    /// Whether an unexplained process is now a stranger. A process that is ending, or whose server
    /// or container has not been reported yet, is not; one that is still there at the next reading
    /// is. At the first reading of a card there is no such delay.
    fn is_settled(&self, uuid: &GpuUuid, process: &Process) -> bool {
        let before = self.looks[1].get(uuid);
        match before.map(|look| look.get(&process.pid)) {
            None => !is_vague(process),
            Some(None) => false,
            Some(Some(was_vague)) => !is_vague(process) || *was_vague,
        }
    }

    /// The memory that all of the last readings found in use and listed with no process, if it is
    /// more than the driver's own.
    fn unlisted(&self, uuid: &GpuUuid) -> Option<Mib> {
        let looks = self.unlisted.get(uuid)?;
        let least = looks.iter().min().copied()?;
        (looks.len() == UNLISTED_LOOKS && least > UNLISTED).then_some(least)
    }

    /// Applies a fault.
    pub fn fault(&mut self, xid: &Xid, now: Instant) {
        self.health.fault(xid, now);
    }

    /// Whether NVML answers.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Whether the state of a card is from the last reading.
    pub fn answers(&self, uuid: &GpuUuid) -> bool {
        self.answered.contains(uuid)
    }

    /// Whether a card may have slices that are not known.
    pub fn hides_slices(&self, uuid: &GpuUuid) -> bool {
        let seen = self.seen.get(uuid);
        seen.is_some_and(|(_, reading)| reading.slices_unknown)
    }

    /// Returns what the last look said of a card. `None`: the card did not answer it.
    pub fn reading(&self, uuid: &GpuUuid) -> Option<&Reading> {
        let (_, reading) = self.seen.get(uuid)?;
        self.answers(uuid).then_some(reading)
    }

    /// Processes on a card at the last good look.
    pub fn processes(&self, uuid: &GpuUuid) -> &[Process] {
        self.seen
            .get(uuid)
            .map_or(&[], |(_, reading)| &reading.processes)
    }

    /// The cards under this policy. `explained` says whether a process on a card is
    /// accounted for.
    pub fn inventory(
        &self,
        policy: &GpuNodeSpec,
        explained: impl Fn(&GpuUuid, &Process) -> bool,
        now: Instant,
    ) -> Inventory {
        let mut cards: Vec<Card> = self
            .seen
            .values()
            .map(|(device, reading)| self.card(device, reading, policy, &explained, now))
            .collect();
        cards.sort_by_key(|card| {
            let slice = card.slice.as_ref();
            let slice = slice.map(|slice| (slice.gpu_instance, slice.compute_instance));
            (card.index, slice)
        });
        mig::offer(&mut cards, self.settings.mig_strategy);
        Inventory {
            driver_version: self.driver.version().unwrap_or_default().to_owned(),
            cards,
        }
    }

    /// Applies what the supervisor's probes found, and returns the answers about cards that have
    /// just lost their limits. A supervisor that has just started has found nothing yet, and the
    /// earlier answers stay.
    pub fn probed<'a>(&mut self, answers: &'a [LimitProbed]) -> Vec<&'a LimitProbed> {
        let mut lost = Vec::new();
        for answer in answers {
            let uuid = GpuUuid::from(answer.uuid.as_str());
            let before = self.probed.insert(uuid.clone(), answer.clone());
            if answer.backend.is_empty() && before.is_some_and(|one| !one.backend.is_empty()) {
                self.lost.insert(uuid);
                lost.push(answer);
            }
        }
        lost
    }

    /// Returns whether the driver that runs now limits cgroups on a card, as its probe found.
    fn driver_limits(&self, identity: &Identity, reading: &Reading) -> DriverLimits {
        let version = self.driver.version().unwrap_or_default();
        let is_worth = DriverBranch::of(version).is_some_and(|branch| branch >= DRIVER_LIMITS);
        if !is_worth || reading.mig || identity.slice.is_some() {
            return DriverLimits::None;
        }
        let answer = self.probed.get(&identity.uuid);
        match answer.filter(|answer| answer.driver_version == version) {
            None => DriverLimits::Unknown,
            Some(answer) => match Backend::parse(&answer.backend) {
                Some(backend) => DriverLimits::Kept(backend),
                None if self.lost.contains(&identity.uuid) => {
                    DriverLimits::Lost(answer.missing.clone())
                }
                None => DriverLimits::Missing(answer.missing.clone()),
            },
        }
    }

    /// Processes on a card that no grant explains, and what is held by none that is listed.
    fn strangers(
        &self,
        uuid: &GpuUuid,
        reading: &Reading,
        explained: impl Fn(&GpuUuid, &Process) -> bool,
    ) -> Vec<Stranger> {
        let unlisted = self.unlisted(uuid).map(|memory| Stranger {
            pid: 0,
            command: UNLISTED_NAME.to_owned(),
            pod_uid: None,
            container_id: None,
            memory,
        });
        reading
            .processes
            .iter()
            .filter(|process| !explained(uuid, process))
            .filter(|process| self.is_settled(uuid, process))
            .map(|process| Stranger {
                pid: process.pid,
                command: process.origin.command.clone(),
                pod_uid: process.origin.pod_uid.clone(),
                container_id: process.origin.container_id.clone(),
                memory: process.memory.unwrap_or_default(),
            })
            .chain(unlisted)
            .collect()
    }

    /// That of its card, where it is a slice of one that does not work, else its own.
    fn health_of(&self, identity: &Identity, reading: &Reading, now: Instant) -> Health {
        let parent = identity.slice.as_ref().map(|slice| &slice.parent);
        let parent = parent.map(|parent| self.health.health(parent, now));
        if let Some(health) = parent.filter(|health| !health.is_healthy()) {
            return health;
        }
        match self.health.health(&identity.uuid, now) {
            Health::Healthy if reading.compute_mode == ComputeMode::Prohibited => {
                Health::Unhealthy {
                    reason: "the card's compute mode is PROHIBITED".to_owned(),
                    // With shares on the card the mode is restored; running containers keep
                    // running.
                    lasting: false,
                }
            }
            health => health,
        }
    }

    fn card(
        &self,
        device: &Device,
        reading: &Reading,
        policy: &GpuNodeSpec,
        explained: impl Fn(&GpuUuid, &Process) -> bool,
        now: Instant,
    ) -> Card {
        let identity = &device.identity;
        // The admin's policy is for cards, and holds for their slices.
        let card = identity.slice.as_ref().map(|slice| &slice.parent);
        let card = card.unwrap_or(&identity.uuid);
        let own = policy.gpus.iter().find(|gpu| gpu.uuid == card.as_str());
        let default = GpuPolicy::default();
        let own = own.unwrap_or(&default);
        // A slice is not shared: it has no server, and nothing is kept for one.
        let kept = [
            self.settings.mps_reserve,
            policy.reserve_mib.unwrap_or_default(),
        ];
        let kept = kept.into_iter().filter(|_| identity.slice.is_none());
        let reserved = [reading.reserved]
            .into_iter()
            .chain(kept)
            .fold(Mib(0), |sum, part| Mib(sum.0.saturating_add(part.0)));
        let reserved = reserved.min(reading.total);
        let strangers = self.strangers(&identity.uuid, reading, explained);
        let driver_limits = self.driver_limits(identity, reading);
        let taken = strangers
            .iter()
            .fold(Mib(0), |sum, one| Mib(sum.0.saturating_add(one.memory.0)));
        Card {
            uuid: identity.uuid.clone(),
            index: identity.index,
            minor: identity.minor,
            product: identity.product.clone(),
            total: reading.total,
            reserved,
            used: reading.used,
            // Nothing is granted of a card in MIG mode; what it has is its slices'.
            grantable: if reading.mig {
                Mib(0)
            } else {
                reading.total.saturating_sub(reserved).saturating_sub(taken)
            },
            strangers,
            health: self.health_of(identity, reading, now),
            compute_mode: reading.compute_mode,
            mig: reading.mig,
            slice: identity.slice.clone(),
            resource: Resource::Whole,
            cordoned: own.cordoned,
            hidden_from_other_plugins: own.hidden_from_other_plugins,
            only_mode: own.mode,
            only_front: only_front(own.front.or(policy.default_front))
                .filter(|_| identity.slice.is_none()),
            switchable: match &identity.slice {
                Some(_) => vec![Mode::Exclusive],
                None => {
                    let mut modes = switchable(
                        reading.mig,
                        own.mode,
                        policy.minimum_fence,
                        driver_limits.backend().is_some(),
                    );
                    // No share of the machine's memory can be enforced.
                    modes.retain(|mode| !reading.unified || *mode == Mode::Exclusive);
                    // One server serves the users of all tenants.
                    let version = self.driver.version().and_then(DriverBranch::of);
                    let serves = version.is_none_or(DriverBranch::serves_several_users);
                    modes.retain(|mode| serves || !matches!(mode, Mode::Mps | Mode::MpsIsolated));
                    modes
                }
            },
            driver_limits,
            minimum_fence: policy.minimum_fence,
            compute_capability: identity.compute_capability.clone(),
            pci: identity.pci.clone(),
            numa: identity.numa,
            nvlink_peers: identity.nvlink_peers.clone(),
            server_reserve: self.settings.mps_reserve,
            client_slots: match &identity.slice {
                Some(_) => 0,
                None => self.settings.client_slots,
            },
            context_allowance: policy
                .context_allowance_mib
                .unwrap_or(self.settings.context_allowance),
        }
    }
}

fn only_front(policy: Option<gpu_node::Front>) -> Option<Front> {
    match policy? {
        gpu_node::Front::Auto => None,
        gpu_node::Front::Dra => Some(Front::Dra),
        gpu_node::Front::Plugin => Some(Front::Plugin),
    }
}

/// Modes that this agent can put an idle card into: all, less those that the admin does not
/// want, by name or for the fence that they have.
fn switchable(
    mig: bool,
    only: Option<Mode>,
    minimum: Option<Fence>,
    driver_limits: bool,
) -> Vec<Mode> {
    let able = [
        Mode::Exclusive,
        Mode::Mps,
        Mode::MpsIsolated,
        Mode::TimeSlicing,
    ];
    let wanted = |mode: &Mode| {
        // Strongest first.
        let best = fence::best(*mode, driver_limits);
        let strong = minimum.is_none_or(|least| best.is_none_or(|best| best <= least));
        !mig && only.is_none_or(|only| only == *mode) && strong
    };
    able.into_iter().filter(wanted).collect()
}

/// Memory in use that is listed with no process. The processes of a card in MIG mode are its
/// slices'.
fn unlisted(reading: &Reading) -> Mib {
    if reading.mig {
        return Mib(0);
    }
    let listed = reading.processes.iter().filter_map(|p| p.memory);
    listed.fold(reading.used, Mib::saturating_sub)
}

/// Nothing is known of it: it is gone, or of another pid namespace.
fn is_vague(process: &Process) -> bool {
    *process.origin == crate::attribute::Origin::default()
}

#[cfg(test)]
mod tests;
