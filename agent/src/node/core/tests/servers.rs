//! Claims about MPS servers that broke, and about a kubelet that lost its plugin.

use super::*;
use crate::gpu::ComputeMode;
use crate::ledger::HolderKey;
use crate::nvml::{CardSample, UnreadableCard};
use crate::reconcile::Limited;
use cdi::hook::Backend;
use proto::mps::{ServerPhase, ServerState};

pub(super) fn client(pid: u32, pod: &str) -> Process {
    Process {
        pid,
        memory: Some(Mib(30)),
        mps_client: true,
        sm_percent: None,
        works: None,
        origin: crate::attribute::Origin {
            pod_uid: Some(pod.to_owned()),
            ..Default::default()
        }
        .into(),
    }
}

fn observed(supervisor_started: u64, step: u64, losses: u32) -> mps::Observation {
    mps::Observation {
        servers: vec![ServerState {
            name: "GPU-0".into(),
            phase: ServerPhase::Ready.into(),
            losses,
            ..Default::default()
        }],
        supervisor_started,
        step,
        ..Default::default()
    }
}

fn seen(losses: u32) -> Event {
    Event::Mps(mps::Plan::default(), observed(1, losses.into(), losses))
}

fn broke(effects: &[Effect]) -> usize {
    let broke = |effect: &&Effect| matches!(effect, Effect::Tell(Note::ServerBroke { .. }));
    effects.iter().filter(broke).count()
}

#[test]
fn what_a_supervisor_saw_earlier_and_silence_take_nothing_back_of_what_it_saw_later() {
    let mut core = World::new().started();
    let now = Instant::now();
    for (event, breaks) in [
        (Event::Mps(mps::Plan::default(), observed(1, 1, 0)), 0),
        (Event::MpsSeen(observed(1, 3, 1)), 1),
        // Sent before, and received after.
        (Event::Mps(mps::Plan::default(), observed(1, 2, 0)), 0),
        (Event::MpsSilent("no answer".into()), 0),
        (Event::MpsSeen(observed(1, 4, 1)), 0),
        (Event::MpsSeen(observed(1, 5, 2)), 1),
        // Another supervisor, which has adopted the server and then seen it fault.
        (Event::MpsSeen(observed(2, 1, 0)), 0),
        (Event::MpsSeen(observed(2, 2, 1)), 1),
        (Event::MpsSeen(observed(3, 1, 1)), 1),
    ] {
        let text = format!("{event:?}");
        assert_eq!(broke(&core.apply(event, now)), breaks, "{text}");
    }
    assert_eq!(core.mps.seen, observed(3, 1, 1));
    assert_eq!(core.mps.unreachable, "no answer");
}

#[test]
fn a_server_that_nobody_needs_any_more_is_not_waited_for() {
    let mut world = World::new();
    let mut core = world.started();
    let mended = |effects: &[Effect]| {
        let mended = |effect: &&Effect| matches!(effect, Effect::Tell(Note::ServerMended { .. }));
        effects.iter().filter(mended).count()
    };
    for needed in [true, false] {
        let starts = [
            Step::Bind(1, false, 0, 300),
            Step::Allocate(1),
            Step::PreStart(1),
        ];
        let ends = [Step::Gone(1), Step::KubeletForgets(1), Step::Look];
        for one in if needed { &starts } else { &ends } {
            step(&mut world, &mut core, one);
        }
        assert_eq!(core.ledger.shares().count(), usize::from(needed));
        let life = if needed { 1 } else { 2 };
        core.apply(Event::MpsSeen(observed(life, 1, 0)), world.now);
        let mut dead = observed(life, 2, 1);
        dead.servers[0].set_phase(ServerPhase::Dead);
        assert_eq!(broke(&core.apply(Event::MpsSeen(dead), world.now)), 1);
        let back = Event::MpsSeen(observed(life, 3, 1));
        let told = mended(&core.apply(back, world.now));
        assert_eq!(told, usize::from(needed), "{needed}");
    }
}

#[test]
fn a_card_that_does_not_answer_vouches_for_no_compute_mode() {
    let mut world = World::new();
    let mut core = world.started();
    for one in [
        Step::Bind(1, false, 0, 300),
        Step::Allocate(1),
        Step::PreStart(1),
        Step::Prove(1),
        Step::Look,
    ] {
        step(&mut world, &mut core, &one);
    }
    let mut server = observed(1, 1, 0);
    server.servers[0].observed_default_memory_mib = 300;
    let mut pod = world.pods["u1"].clone();
    pod.containers[0].running = Some("c-u1".into());
    world.tell(&mut core, Event::Pod(Box::new(pod)));
    let fence = |core: &Core| {
        let fence = core.ledger.shares().next().unwrap().fence;
        fence.map(|fence| fence.level)
    };
    let mut look = observation(&BTreeMap::new());
    look.devices[0].reading.as_mut().unwrap().compute_mode = ComputeMode::ExclusiveProcess;
    let mut silent = look.clone();
    silent.devices[0].reading = Err(UnreadableCard {
        reason: "slow".into(),
        lost: false,
        hangs: false,
    });
    let gone = Observation::default();
    world.tell(&mut core, Event::Observed(Arc::new(look.clone())));
    let mut plan = mps::Plan::default();
    world.tell(&mut core, Event::Mps(plan.clone(), server.clone()));
    assert_eq!(fence(&core), Some(Fence::ServerLimit));
    for other in [silent, gone] {
        world.tell(&mut core, Event::Observed(Arc::new(other)));
        assert_eq!(fence(&core), Some(Fence::WatchdogOnly));
        world.tell(&mut core, Event::Observed(Arc::new(look.clone())));
        assert_eq!(fence(&core), Some(Fence::ServerLimit));
    }
    // It reads back whole GiB, of more than that.
    plan.servers = vec![mps::Server {
        name: "GPU-0".into(),
        default_memory_mib: 400,
        ..Default::default()
    }];
    world.tell(&mut core, Event::Mps(plan, server));
    assert_eq!(fence(&core), Some(Fence::ClientLimit));
}

#[test]
fn a_client_that_came_and_went_between_two_looks_at_its_server_is_ended_with_the_others() {
    let mut world = World::new();
    let mut core = world.started();
    let pod = world.pod(1, false, 0, 100);
    world.tell(&mut core, Event::Pod(Box::new(pod)));
    world.allocate(&mut core, "u1");
    assert!(matches!(world.pre_start(&mut core, "u1"), Some(Ok(_))));
    world.tell(&mut core, seen(0));
    let sample = |world: &World, processes| {
        let card = CardSample {
            uuid: uuid(0),
            at: world.now,
            processes,
        };
        let cards = vec![card];
        Event::Sampled(Arc::new(Sample { cards }))
    };
    // It is on the card once, and no more when its server has died: what it held is lost, and
    // the driver shows it again when it asks for something.
    world.tell(&mut core, sample(&world, vec![client(7, "u1")]));
    world.now += Duration::from_millis(100);
    world.tell(&mut core, sample(&world, Vec::new()));
    world.now += Duration::from_millis(600);
    world.tell(&mut core, seen(1));
    let back = observation(&BTreeMap::from([(0, vec![client(7, "u1")])]));
    world.now += Duration::from_secs(2);
    let effects = core.apply(Event::Observed(Arc::new(back)), world.now);
    let ended: Vec<u32> = effects
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::End(one) => Some(one.pids),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(ended, [7]);
}

#[test]
fn who_lost_work_by_a_fault_is_told_whose_process_it_was_for_ten_seconds() {
    let mut world = World::new();
    let mut core = world.started();
    for n in 1..=3 {
        for one in [
            Step::Bind(n, false, 0, 100),
            Step::Allocate(n),
            Step::PreStart(n),
        ] {
            step(&mut world, &mut core, &one);
        }
    }
    // The third one has no program on the card.
    let busy = BTreeMap::from([(0, vec![client(7, "u1"), client(8, "u2")])]);
    world.tell(&mut core, Event::Observed(Arc::new(observation(&busy))));
    world.tell(&mut core, seen(0));
    let mut faulted = observed(1, 1, 1);
    faulted.servers[0].clients = vec![
        proto::mps::Client {
            pid: 7,
            server_pid: 70,
        },
        proto::mps::Client {
            pid: 8,
            server_pid: 70,
        },
    ];
    faulted.servers[0].set_phase(ServerPhase::ServerFault);
    faulted.servers[0].blamed_pid = 8;
    let effects = core.apply(Event::MpsSeen(faulted), world.now);
    let named = |pod: &str| {
        core.ledger
            .shares()
            .find(|share| share.pod.uid == pod)
            .unwrap()
    };
    let (first, second) = (named("u1"), named("u2"));
    let (keys, faulter) = ([first.key(), second.key()], second.pod.to_string());
    assert!(effects.iter().any(|effect| matches!(effect,
        Effect::Tell(Note::ServerBroke { blamed, .. }) if *blamed == faulter)));
    let told = |core: &Core| -> Vec<(HolderKey, String)> {
        let all = core.state().complaints.into_iter();
        all.map(|(key, complaint)| (key, complaint.text)).collect()
    };
    let text =
        format!("lost its work on the GPU: its MPS server faulted, by a process of pod {faulter}");
    assert_eq!(told(&core), keys.map(|key| (key, text.clone())));
    world.tell(&mut core, Event::MpsSeen(observed(1, 2, 1)));
    for (later, lines) in [(9, 2), (2, 0)] {
        world.now += Duration::from_secs(later);
        let mut look = observation(&BTreeMap::new());
        look.devices[0].reading.as_mut().unwrap().compute_mode = ComputeMode::ExclusiveProcess;
        world.tell(&mut core, Event::Observed(Arc::new(look)));
        assert_eq!(told(&core).len(), lines, "{later}");
    }
}

#[test]
fn a_kubelet_without_our_plugin_shows_no_card_whatever_it_showed_before() {
    let mut world = World::new();
    let mut core = world.started();
    let shown = |core: &Core| -> Vec<Pool> { core.state().kubelet_pools.into_values().collect() };
    let nowhere = vec![Pool::None; CARDS as usize];
    assert_eq!(shown(&core), nowhere, "started, not registered yet");
    let pools = BTreeMap::from([(uuid(0), Pool::Whole)]);
    world.tell(&mut core, Event::Pools(pools));
    world.tell(&mut core, Event::Registered(true));
    assert_eq!(shown(&core), [Pool::Whole]);
    world.tell(&mut core, Event::Registered(false));
    assert_eq!(shown(&core), nowhere);
}

#[test]
fn an_agent_that_leaves_shows_no_card_and_serves_what_is_bound() {
    let mut world = World::new();
    let mut core = world.started();
    world.tell(
        &mut core,
        Event::Pools(BTreeMap::from([(uuid(0), Pool::Shared)])),
    );
    world.tell(&mut core, Event::Registered(true));
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 300));
    let before = core.offer();
    world.tell(&mut core, Event::Leaving);
    let shown: Vec<Pool> = core.state().kubelet_pools.into_values().collect();
    assert_eq!(shown, [Pool::None; CARDS as usize]);
    assert_eq!(
        core.offer(),
        before,
        "the kubelet would reject what is bound"
    );
    step(&mut world, &mut core, &Step::Allocate(1));
    assert!(world.pre_start(&mut core, "u1").unwrap().is_ok());
}

#[test]
fn a_drivers_limit_is_a_fence_when_the_hook_has_read_it_back_and_a_complaint_when_not() {
    for (limited, fence, complaint) in [
        (None, Some(Fence::WatchdogOnly), ""),
        (
            Some(Limited {
                mib: Some(300),
                backend: Some(Backend::Misc),
                error: String::new(),
            }),
            Some(Fence::DriverLimit),
            "",
        ),
        // This hook has asked the driver alone.
        (
            Some(Limited {
                mib: Some(300),
                ..Limited::default()
            }),
            Some(Fence::WatchdogOnly),
            "",
        ),
        (
            Some(Limited {
                error: "no cgroup".into(),
                ..Limited::default()
            }),
            Some(Fence::WatchdogOnly),
            "the driver's memory limit is not set: no cgroup",
        ),
    ] {
        let mut world = World::new();
        let mut core = world.started();
        world.tell(
            &mut core,
            Event::Mps(mps::Plan::default(), mps::Observation::default()),
        );
        limited_share(&mut world, &mut core, limited.clone());
        let mut look = observation(&BTreeMap::new());
        look.devices[0].reading.as_mut().unwrap().compute_mode = ComputeMode::ExclusiveProcess;
        world.tell(&mut core, Event::Observed(Arc::new(look)));
        let mut pod = world.pod(1, false, 0, 300);
        for container in &mut pod.containers {
            container.running = Some(format!("c-{}", pod.identity.uid));
        }
        world.tell(&mut core, Event::Pod(Box::new(pod)));
        let state = core.state();
        let share = state.ledger.shares().next().unwrap();
        assert_eq!(share.fence.map(|f| f.level), fence, "{limited:?}");
        let complaints = state.complaints.values();
        let texts: String = complaints.map(|c| c.text.as_str()).collect();
        assert_eq!(texts, complaint);
    }
}

/// Starts a share of 300 MiB whose hook has set this limit.
fn limited_share(world: &mut World, core: &mut Core, limited: Option<Limited>) {
    for one in [
        Step::Bind(1, false, 0, 300),
        Step::Allocate(1),
        Step::PreStart(1),
        Step::Prove(1),
    ] {
        step(world, core, &one);
    }
    for proof in world.proofs.values_mut().flatten() {
        proof.limited.clone_from(&limited);
    }
    step(world, core, &Step::Look);
}

#[test]
fn a_card_that_loses_its_drivers_limits_is_told_once_and_its_shares_are_told_why() {
    let mut world = World::new();
    let mut core = world.started();
    let mut look = observation(&BTreeMap::new());
    look.driver = Driver::Up {
        version: "615.1".into(),
    };
    world.tell(&mut core, Event::Observed(Arc::new(look)));
    let limited = Limited {
        mib: Some(300),
        backend: Some(Backend::Dmem),
        error: String::new(),
    };
    limited_share(&mut world, &mut core, Some(limited));
    let probed = |step, backend: &str, missing: &str| {
        let mut seen = observed(1, step, 0);
        seen.limits = vec![mps::LimitProbed {
            uuid: "GPU-0".into(),
            driver_version: "615.1".into(),
            backend: backend.into(),
            missing: missing.into(),
        }];
        Event::MpsSeen(seen)
    };
    for (at, backend, missing, told) in [
        (1, "dmem", "", false),
        (2, "", "no dmem", true),
        (3, "", "no dmem", false),
        (4, "dmem", "", false),
        (5, "", "no dmem", true),
    ] {
        let effects = core.apply(probed(at, backend, missing), world.now);
        let note = Note::LimitsLost {
            gpu: uuid(0),
            missing: "no dmem".into(),
        };
        let notes = effects
            .into_iter()
            .filter(|effect| *effect == Effect::Tell(note.clone()));
        assert_eq!(notes.count(), usize::from(told), "{at}");
        let state = core.state();
        let texts: String = state
            .complaints
            .values()
            .map(|one| one.text.as_str())
            .collect();
        let expected = if backend.is_empty() {
            "card GPU-0 lost the driver's memory limits; the container's own limit stays as it was set: no dmem"
        } else {
            ""
        };
        assert_eq!(texts, expected, "{at}");
    }
}
