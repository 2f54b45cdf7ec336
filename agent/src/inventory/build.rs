//! Readings and policy → [`Inventory`].

use super::health::HealthHistory;
use super::{Card, ComputeMode, DriverBranch, GpuUuid, Health, Inventory, Stranger};
use crate::fence;
use crate::ledger::Front;
use crate::nvml::{Device, Driver, Observation, Process, Reading, Xid};
use api::gpu_node::{self, GpuNodeSpec, GpuPolicy};
use api::units::Fence;
use api::{Mib, Mode};
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
/// The first branch of the driver that keeps memory limits per cgroup.
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
    /// The node has cgroup v2, which the driver's own limits need.
    pub cgroup_v2: bool,
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
        }
    }

    /// Applies one reading.
    pub fn observe(&mut self, observation: &Observation, now: Instant) {
        self.health.observe(observation, now);
        self.driver.clone_from(&observation.driver);
        for device in &observation.devices {
            let uuid = &device.identity.uuid;
            let reading = match (&device.reading, self.seen.get(uuid)) {
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
        cards.sort_by_key(|card| card.index);
        let driver_version = match &self.driver {
            Driver::Up { version } => version.clone(),
            Driver::Gone { .. } => String::new(),
        };
        Inventory {
            driver_version,
            driver_limits: self.driver_limits(),
            cards,
        }
    }

    /// Whether the driver has memory limits. The hook reports for each container whether its limit
    /// is set.
    fn driver_limits(&self) -> bool {
        let Driver::Up { version } = &self.driver else {
            return false;
        };
        let branch = DriverBranch::of(version);
        self.settings.cgroup_v2 && branch.is_some_and(|branch| branch >= DRIVER_LIMITS)
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
        let own = policy
            .gpus
            .iter()
            .find(|gpu| gpu.uuid == identity.uuid.as_str());
        let default = GpuPolicy::default();
        let own = own.unwrap_or(&default);
        let reserved = [
            reading.reserved,
            self.settings.mps_reserve,
            policy.reserve_mib.unwrap_or_default(),
        ]
        .into_iter()
        .fold(Mib(0), |sum, part| Mib(sum.0.saturating_add(part.0)));
        let reserved = reserved.min(reading.total);
        let unlisted = self.unlisted(&identity.uuid).map(|memory| Stranger {
            pid: 0,
            command: UNLISTED_NAME.to_owned(),
            pod_uid: None,
            container_id: None,
            memory,
        });
        let strangers: Vec<Stranger> = reading
            .processes
            .iter()
            .filter(|process| !explained(&identity.uuid, process))
            .filter(|process| self.is_settled(&identity.uuid, process))
            .map(|process| Stranger {
                pid: process.pid,
                command: process.origin.command.clone(),
                pod_uid: process.origin.pod_uid.clone(),
                container_id: process.origin.container_id.clone(),
                memory: process.memory.unwrap_or_default(),
            })
            .chain(unlisted)
            .collect();
        let taken = strangers
            .iter()
            .fold(Mib(0), |sum, one| Mib(sum.0.saturating_add(one.memory.0)));
        let health = match self.health.health(&identity.uuid, now) {
            Health::Healthy if reading.compute_mode == ComputeMode::Prohibited => {
                Health::Unhealthy {
                    reason: "the card's compute mode is PROHIBITED".to_owned(),
                    // With shares on the card the mode is restored; running containers keep
                    // running.
                    lasting: false,
                }
            }
            health => health,
        };
        Card {
            uuid: identity.uuid.clone(),
            index: identity.index,
            minor: identity.minor,
            product: identity.product.clone(),
            total: reading.total,
            reserved,
            used: reading.used,
            grantable: reading.total.saturating_sub(reserved).saturating_sub(taken),
            strangers,
            health,
            compute_mode: reading.compute_mode,
            mig: reading.mig,
            cordoned: own.cordoned,
            hidden_from_other_plugins: own.hidden_from_other_plugins,
            only_mode: own.mode,
            only_front: only_front(own.front.or(policy.default_front)),
            switchable: switchable(
                reading.mig,
                own.mode,
                policy.minimum_fence,
                self.driver_limits(),
            ),
            minimum_fence: policy.minimum_fence,
            compute_capability: identity.compute_capability.clone(),
            pci: identity.pci.clone(),
            numa: identity.numa,
            nvlink_peers: identity.nvlink_peers.clone(),
            server_reserve: self.settings.mps_reserve,
            client_slots: self.settings.client_slots,
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

/// Memory in use that is listed with no process.
fn unlisted(reading: &Reading) -> Mib {
    let listed = reading.processes.iter().filter_map(|p| p.memory);
    listed.fold(reading.used, Mib::saturating_sub)
}

/// Nothing is known of it: it is gone, or of another pid namespace.
fn is_vague(process: &Process) -> bool {
    *process.origin == crate::attribute::Origin::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::Origin;
    use crate::nvml::{Identity, UnreadableCard};

    const SETTINGS: Settings = Settings {
        mps_reserve: Mib(64),
        client_slots: 48,
        context_allowance: Mib(512),
        cgroup_v2: true,
    };

    fn process(pid: u32, mib: u64, command: &str) -> Process {
        Process {
            pid,
            memory: Some(Mib(mib)),
            mps_client: false,
            sm_percent: None,
            origin: Origin {
                command: command.to_owned(),
                ..Origin::default()
            }
            .into(),
        }
    }

    fn seen(processes: &[Process], mig: bool) -> Observation {
        let device = |index: u32| Device {
            identity: Identity {
                uuid: GpuUuid::from(format!("GPU-{index}").as_str()),
                index,
                minor: 7 - index,
                product: "T4".into(),
                pci: String::new(),
                compute_capability: "7.5".into(),
                numa: None,
                nvlink_peers: Vec::new(),
            },
            reading: Ok(Reading {
                total: Mib(15360),
                reserved: Mib(258),
                processes: if index == 0 {
                    processes.to_vec()
                } else {
                    Vec::new()
                },
                mig,
                ..Reading::default()
            }),
        };
        Observation {
            driver: Driver::Up {
                version: "570".into(),
            },
            devices: vec![device(1), device(0)],
        }
    }

    fn inventory(observation: &Observation, policy: &GpuNodeSpec) -> Inventory {
        let now = Instant::now();
        let mut builder = InventoryBuilder::new(SETTINGS);
        builder.observe(observation, now);
        builder.inventory(policy, |_, process| process.pid == 1, now)
    }

    #[test]
    fn what_is_grantable_leaves_out_reserves_and_strangers() {
        let processes = vec![process(1, 2000, "python"), process(2, 300, "blender")];
        let policy = GpuNodeSpec {
            reserve_mib: Some(Mib(38)),
            ..GpuNodeSpec::default()
        };
        let inventory = inventory(&seen(&processes, false), &policy);
        let card = &inventory.cards[0];
        assert_eq!(card.reserved, Mib(258 + 64 + 38));
        assert_eq!(card.capacity(), Mib(15000));
        assert_eq!(card.grantable, Mib(14700));
        assert_eq!(card.strangers.len(), 1);
        assert_eq!(card.strangers[0].command, "blender");
        assert_eq!(inventory.cards[1].grantable, Mib(15000));
    }

    #[test]
    fn a_dying_process_is_no_stranger_and_one_that_never_shows_itself_is() {
        let now = Instant::now();
        let mut builder = InventoryBuilder::new(SETTINGS);
        let look = seen(&[process(2, 300, "")], false);
        for expected in [0, 1] {
            builder.observe(&look, now);
            let inventory = builder.inventory(&GpuNodeSpec::default(), |_, _| false, now);
            assert_eq!(inventory.cards[0].strangers.len(), expected);
        }
    }

    #[test]
    fn memory_that_no_process_is_listed_with_is_granted_to_nobody() {
        let now = Instant::now();
        let mut builder = InventoryBuilder::new(SETTINGS);
        let mut look = seen(&[process(1, 2000, "python")], false);
        let mut grantable = |used: u64, looks: usize| {
            for device in &mut look.devices {
                device.reading.as_mut().unwrap().used = Mib(used);
            }
            for _ in 0..looks {
                builder.observe(&look, now);
            }
            let inventory = builder.inventory(&GpuNodeSpec::default(), |_, _| true, now);
            inventory.cards[0].grantable.0
        };
        let all = 15360 - 258 - 64;
        assert_eq!(grantable(2512, 5), all, "the driver's own");
        assert_eq!(grantable(5000, 4), all, "not for long enough");
        assert_eq!(grantable(5000, 1), all - 3000);
        assert_eq!(grantable(2500, 1), all);
    }

    #[test]
    fn a_process_that_came_between_two_looks_is_a_stranger_from_the_second_on() {
        let now = Instant::now();
        let mut builder = InventoryBuilder::new(SETTINGS);
        builder.observe(&seen(&[], false), now);
        // It may have any name.
        let look = seen(&[process(2, 300, "nvidia-cuda-mps-server")], false);
        for expected in [0, 1] {
            builder.observe(&look, now);
            let inventory = builder.inventory(&GpuNodeSpec::default(), |_, _| false, now);
            assert_eq!(inventory.cards[0].strangers.len(), expected);
        }
    }

    #[test]
    fn cards_stand_in_nvmls_order_and_keep_their_minor() {
        let inventory = inventory(&seen(&[], false), &GpuNodeSpec::default());
        let order: Vec<_> = inventory.cards.iter().map(|c| (c.index, c.minor)).collect();
        assert_eq!(order, [(0, 7), (1, 6)]);
    }

    #[test]
    fn policy_is_per_card() {
        let policy = GpuNodeSpec {
            gpus: vec![GpuPolicy {
                uuid: "GPU-1".into(),
                mode: Some(Mode::Mps),
                cordoned: true,
                hidden_from_other_plugins: true,
                front: Some(gpu_node::Front::Auto),
            }],
            default_front: Some(gpu_node::Front::Dra),
            context_allowance_mib: Some(Mib(0)),
            ..GpuNodeSpec::default()
        };
        let inventory = inventory(&seen(&[], false), &policy);
        let all = [
            Mode::Exclusive,
            Mode::Mps,
            Mode::MpsIsolated,
            Mode::TimeSlicing,
        ];
        assert_eq!(inventory.cards[0].switchable, all);
        assert!(!inventory.cards[0].cordoned);
        assert_eq!(inventory.cards[0].only_front, Some(Front::Dra));
        assert_eq!(inventory.cards[1].only_front, None);
        assert_eq!(inventory.cards[1].switchable, [Mode::Mps]);
        assert!(inventory.cards[1].cordoned);
        assert_eq!(inventory.cards[1].context_allowance, Mib(0));
    }

    #[test]
    fn modes_with_a_weaker_fence_than_the_admin_wants_are_not_offered() {
        for (least, sharing) in [
            (
                Fence::WatchdogOnly,
                &[Mode::Mps, Mode::MpsIsolated, Mode::TimeSlicing][..],
            ),
            (Fence::ClientLimit, &[Mode::Mps, Mode::MpsIsolated]),
            (Fence::ServerLimit, &[Mode::Mps, Mode::MpsIsolated]),
            (Fence::DriverLimit, &[]),
        ] {
            let policy = GpuNodeSpec {
                minimum_fence: Some(least),
                ..GpuNodeSpec::default()
            };
            let card = inventory(&seen(&[], false), &policy).cards[0].clone();
            let whole = [Mode::Exclusive];
            let expected: Vec<Mode> = whole.iter().chain(sharing).copied().collect();
            assert_eq!(card.switchable, expected, "{least}");
            assert_eq!(card.minimum_fence, Some(least));
        }
    }

    #[test]
    fn a_driver_with_limits_of_its_own_gives_every_mode_the_strongest_fence() {
        let policy = GpuNodeSpec {
            minimum_fence: Some(Fence::DriverLimit),
            ..GpuNodeSpec::default()
        };
        for (version, cgroup_v2, expected) in [
            ("615.71.09", true, true),
            ("700.1", true, true),
            ("610.43", true, false),
            ("615.71.09", false, false),
            ("nonsense", true, false),
        ] {
            let mut builder = InventoryBuilder::new(Settings {
                cgroup_v2,
                ..SETTINGS
            });
            let now = Instant::now();
            let mut observation = seen(&[], false);
            observation.driver = Driver::Up {
                version: version.into(),
            };
            builder.observe(&observation, now);
            let inventory = builder.inventory(&policy, |_, _| true, now);
            assert_eq!(inventory.driver_limits, expected, "{version}");
            let modes = inventory.cards[0].switchable.len();
            assert_eq!(modes, if expected { 4 } else { 1 }, "{version}");
        }
    }

    #[test]
    fn mig_cards_are_not_for_us() {
        let inventory = inventory(&seen(&[], true), &GpuNodeSpec::default());
        assert!(
            inventory
                .cards
                .iter()
                .all(|card| card.switchable.is_empty())
        );
    }

    #[test]
    fn a_silent_card_keeps_its_last_figures_and_is_unhealthy() {
        let now = Instant::now();
        let mut builder = InventoryBuilder::new(SETTINGS);
        let mut observation = seen(&[process(2, 300, "blender")], false);
        builder.observe(&observation, now);
        observation.devices[1].reading = Err(UnreadableCard {
            reason: "GPU is lost".into(),
            lost: true,
        });
        builder.observe(&observation, now);
        let card = builder
            .inventory(&GpuNodeSpec::default(), |_, _| false, now)
            .cards[0]
            .clone();
        assert_eq!(card.total, Mib(15360));
        assert_eq!(card.strangers.len(), 1);
        assert_eq!(
            card.health.reason(),
            "the card does not answer: GPU is lost"
        );
    }
}
