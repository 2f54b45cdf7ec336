use super::*;
use crate::attribute::Origin;
use crate::gpu::{Profile, Slice};
use crate::inventory::DriverLimits;
use crate::nvml::UnreadableCard;

const SETTINGS: Settings = Settings {
    mps_reserve: Mib(64),
    client_slots: 48,
    context_allowance: Mib(512),
    mig_strategy: MigStrategy::Mixed,
};

fn process(pid: u32, mib: u64, command: &str) -> Process {
    Process {
        pid,
        memory: Some(Mib(mib)),
        mps_client: false,
        sm_percent: None,
        works: None,
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
            slice: None,
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
            ..GpuPolicy::default()
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
fn modes_with_mps_are_not_offered_with_a_driver_whose_server_is_for_one_user() {
    for (version, offers) in [("550.163.01", false), ("555.58.02", true), ("580.1", true)] {
        let mut look = seen(&[], false);
        look.driver = Driver::Up {
            version: version.into(),
        };
        let card = inventory(&look, &GpuNodeSpec::default()).cards[0].clone();
        for mode in [Mode::Mps, Mode::MpsIsolated] {
            assert_eq!(card.switchable.contains(&mode), offers, "{version} {mode}");
        }
        assert!(card.switchable.contains(&Mode::TimeSlicing), "{version}");
    }
}

#[test]
fn a_driver_whose_limits_passed_a_probe_gives_every_mode_the_strongest_fence() {
    let policy = GpuNodeSpec {
        minimum_fence: Some(Fence::DriverLimit),
        ..GpuNodeSpec::default()
    };
    let card = inventory(&seen(&[], false), &policy).cards[0].uuid.clone();
    let answer = |version: &str, backend: &str, missing: &str| LimitProbed {
        uuid: card.to_string(),
        driver_version: version.into(),
        backend: backend.into(),
        missing: missing.into(),
    };
    let missing = || DriverLimits::Missing("echo +dmem > x".into());
    for (version, answers, expected) in [
        ("615.71.09", vec![], DriverLimits::Unknown),
        (
            "615.71.09",
            vec![answer("615.71.09", "dmem", "")],
            DriverLimits::Kept(Backend::Dmem),
        ),
        (
            "620.1",
            vec![answer("620.1", "misc", "")],
            DriverLimits::Kept(Backend::Misc),
        ),
        (
            "615.71.09",
            vec![answer("615.71.09", "", "echo +dmem > x")],
            missing(),
        ),
        // This answer is of the driver that ran before.
        (
            "620.1",
            vec![answer("615.71.09", "dmem", "")],
            DriverLimits::Unknown,
        ),
        // The last answer counts, and says whether there was a better one.
        (
            "615.71.09",
            vec![
                answer("615.71.09", "dmem", ""),
                answer("615.71.09", "", "echo +dmem > x"),
                answer("615.71.09", "", "echo +misc > x"),
            ],
            DriverLimits::Lost("echo +misc > x".into()),
        ),
        (
            "615.71.09",
            vec![
                answer("615.71.09", "dmem", ""),
                answer("615.71.09", "", "echo +dmem > x"),
                answer("615.71.09", "dmem", ""),
            ],
            DriverLimits::Kept(Backend::Dmem),
        ),
        (
            "610.43",
            vec![answer("610.43", "dmem", "")],
            DriverLimits::None,
        ),
        ("nonsense", vec![], DriverLimits::None),
    ] {
        let mut builder = InventoryBuilder::new(SETTINGS);
        let now = Instant::now();
        let mut observation = seen(&[], false);
        observation.driver = Driver::Up {
            version: version.into(),
        };
        builder.observe(&observation, now);
        for answer in answers {
            builder.probed(&[answer]);
        }
        // A supervisor that has just started has found nothing yet.
        builder.probed(&[]);
        let card = builder.inventory(&policy, |_, _| true, now).cards[0].clone();
        assert_eq!(card.driver_limits, expected, "{version}");
        let modes = if expected.backend().is_some() { 4 } else { 1 };
        assert_eq!(card.switchable.len(), modes, "{version}");
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

/// Two cards in MIG mode, if `all`, else one; the first has two slices of these profiles.
fn sliced(strategy: MigStrategy, all: bool, profiles: [&str; 2]) -> Inventory {
    let now = Instant::now();
    let mut look = seen(&[], true);
    look.devices[0].reading.as_mut().unwrap().mig = all;
    let parent = look.devices[1].identity.clone();
    for (id, profile) in [8, 7].into_iter().zip([profiles[1], profiles[0]]) {
        look.devices.push(Device {
            identity: Identity {
                uuid: GpuUuid::from(format!("MIG-{id}").as_str()),
                slice: Some(Slice {
                    parent: parent.uuid.clone(),
                    profile: Profile::parse(profile),
                    gpu_instance: id,
                    compute_instance: 0,
                }),
                ..parent.clone()
            },
            reading: Ok(Reading {
                total: Mib(4864),
                ..Reading::default()
            }),
        });
    }
    let mut builder = InventoryBuilder::new(Settings {
        mig_strategy: strategy,
        ..SETTINGS
    });
    builder.observe(&look, now);
    let policy = GpuNodeSpec {
        gpus: vec![GpuPolicy {
            uuid: "GPU-0".into(),
            cordoned: true,
            mode: Some(Mode::Mps),
            ..GpuPolicy::default()
        }],
        reserve_mib: Some(Mib(38)),
        default_front: Some(gpu_node::Front::Dra),
        ..GpuNodeSpec::default()
    };
    builder.inventory(&policy, |_, _| true, now)
}

#[test]
fn a_slice_follows_its_card_and_is_all_of_one_size_with_its_instance() {
    let inventory = sliced(MigStrategy::Mixed, false, ["1g.5gb", "2g.10gb"]);
    let order: Vec<&str> = inventory.cards.iter().map(|c| c.uuid.as_str()).collect();
    assert_eq!(order, ["GPU-0", "MIG-7", "MIG-8", "GPU-1"]);
    let slice = &inventory.cards[1];
    assert_eq!((slice.capacity(), slice.grantable), (Mib(4864), Mib(4864)));
    assert_eq!(slice.switchable, [Mode::Exclusive]);
    assert_eq!(slice.only_front, None);
    assert_eq!(slice.client_slots, 0);
    assert!(slice.cordoned, "the policy is its card's");
    assert_eq!(inventory.cards[0].grantable, Mib(0));
    let names: Vec<String> = (inventory.cards.iter())
        .map(|card| card.resource.name().into_owned())
        .collect();
    let mig = "nvidia.com/mig-";
    let [small, large] = ["1g.5gb", "2g.10gb"].map(|profile| format!("{mig}{profile}"));
    assert_eq!(names, ["nvidia.com/gpu", &small, &large, "nvidia.com/gpu"]);
}

#[test]
fn slices_are_gpus_in_strategy_single_if_nothing_else_is_on_the_node() {
    for (strategy, all, profiles, offered, reason) in [
        (MigStrategy::Single, true, ["1g.5gb", "1g.5gb"], true, ""),
        (
            MigStrategy::Single,
            false,
            ["1g.5gb", "1g.5gb"],
            false,
            "migStrategy single needs",
        ),
        (
            MigStrategy::Single,
            true,
            ["1g.5gb", "2g.10gb"],
            false,
            "migStrategy single needs",
        ),
        (MigStrategy::Mixed, true, ["1g.5gb", "1c.2g.10gb"], true, ""),
    ] {
        let inventory = sliced(strategy, all, profiles);
        let slice = &inventory.cards[1];
        assert_eq!(
            slice.health.is_healthy(),
            offered,
            "{strategy:?} {all} {profiles:?}"
        );
        assert!(slice.health.reason().contains(reason));
        assert_eq!(slice.switchable.is_empty(), !offered);
        if strategy == MigStrategy::Single && offered {
            assert_eq!(slice.resource, Resource::Whole);
        }
    }
    let split = sliced(MigStrategy::Mixed, true, ["1g.5gb", "1c.2g.10gb"]).cards[2].clone();
    assert!(
        split
            .health
            .reason()
            .contains("smaller than its GPU instance")
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
        hangs: false,
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

#[test]
fn a_card_that_has_reported_memory_has_memory_whatever_one_call_says() {
    let now = Instant::now();
    let mut look = seen(&[], false);
    let unified = |look: &mut Observation| {
        for device in &mut look.devices {
            device.reading = Ok(Reading {
                unified: true,
                ..Reading::default()
            });
        }
    };
    let cards = |builder: &InventoryBuilder| {
        let inventory = builder.inventory(&GpuNodeSpec::default(), |_, _| true, now);
        let of = |card: &Card| (card.total, card.switchable.len());
        inventory.cards.iter().map(of).collect::<Vec<_>>()
    };
    let mut builder = InventoryBuilder::new(SETTINGS);
    builder.observe(&look, now);
    unified(&mut look);
    builder.observe(&look, now);
    assert_eq!(cards(&builder), [(Mib(15360), 4); 2]);

    let mut builder = InventoryBuilder::new(SETTINGS);
    builder.observe(&look, now);
    assert_eq!(cards(&builder), [(Mib(0), 1); 2]);
}
