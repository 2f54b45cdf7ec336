//! Claims about MPS servers that broke, and about a kubelet that lost its plugin.

use super::*;
use crate::inventory::ComputeMode;
use crate::node::state::Pool;
use crate::reconcile::Limited;
use proto::mps::ServerState;

fn client(pid: u32, pod: &str) -> Process {
    Process {
        pid,
        memory: Some(Mib(30)),
        mps_client: true,
        sm_percent: None,
        origin: crate::attribute::Origin {
            pod_uid: Some(pod.to_owned()),
            ..Default::default()
        }
        .into(),
    }
}

fn seen(losses: u32) -> Event {
    let mut view = MpsView::default();
    view.seen.servers = vec![ServerState {
        name: "GPU-0".into(),
        state: "Ready".into(),
        losses,
        ..Default::default()
    }];
    Event::Mps(view)
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
        let (at, cards) = (world.now, vec![(uuid(0), processes)]);
        Event::Sampled(Arc::new(Sample { at, cards }))
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
            Effect::End(errand) => Some(errand.pids),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(ended, [7]);
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
fn a_drivers_limit_is_a_fence_when_the_hook_has_read_it_back_and_a_complaint_when_not() {
    for (limited, fence, complaint) in [
        (None, Some(Fence::WatchdogOnly), ""),
        (
            Some(Limited {
                mib: Some(300),
                error: String::new(),
            }),
            Some(Fence::DriverLimit),
            "",
        ),
        (
            Some(Limited {
                mib: None,
                error: "no cgroup".into(),
            }),
            Some(Fence::WatchdogOnly),
            "the driver's memory limit is not set: no cgroup",
        ),
    ] {
        let mut world = World::new();
        let mut core = world.started();
        world.tell(&mut core, Event::Mps(MpsView::default()));
        for one in [
            Step::Bind(1, false, 0, 300),
            Step::Allocate(1),
            Step::PreStart(1),
            Step::Prove(1),
        ] {
            step(&mut world, &mut core, &one);
        }
        for proof in world.proofs.values_mut().flatten() {
            proof.limited.clone_from(&limited);
        }
        step(&mut world, &mut core, &Step::Look);
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
