//! Claims about processes without a grant.

use super::*;
use crate::gpu::ComputeMode;
use api::gpu_node::Reaction;

fn process(pid: u32, command: &str, pod: Option<&str>, container: Option<&str>) -> Process {
    Process {
        pid,
        memory: Some(Mib(30)),
        mps_client: false,
        sm_percent: None,
        works: None,
        origin: crate::attribute::Origin {
            command: command.to_owned(),
            pod_uid: pod.map(str::to_owned),
            container_id: container.map(str::to_owned),
        }
        .into(),
    }
}

fn strangers(core: &Core) -> Vec<u32> {
    let found = &core.cards.inventory.cards[0].strangers;
    found.iter().map(|stranger| stranger.pid).collect()
}

#[test]
fn a_server_is_known_by_the_pid_that_its_supervisor_tells_and_never_by_its_name() {
    let mut world = World::new();
    let mut core = world.started();
    let named = "nvidia-cuda-mps-server";
    let mut look = observation(&BTreeMap::from([(
        0,
        vec![process(1, named, None, None), process(2, named, None, None)],
    )]));
    // Of an exclusive card nothing more is believed.
    look.devices[0].reading.as_mut().unwrap().compute_mode = ComputeMode::ExclusiveProcess;
    let look = Arc::new(look);
    for _ in 0..2 {
        world.tell(&mut core, Event::Observed(look.clone()));
    }
    assert_eq!(strangers(&core), [1, 2]);
    let mut view = MpsView::default();
    view.seen.servers = vec![proto::mps::ServerState {
        name: "GPU-0".into(),
        phase: proto::mps::ServerPhase::Ready.into(),
        server_pids: vec![1],
        ..Default::default()
    }];
    world.tell(&mut core, Event::Mps(view.applied, view.seen));
    assert_eq!(strangers(&core), [2]);
}

#[test]
fn a_strangers_pod_is_to_be_evicted_only_where_the_admin_says_so_and_after_its_grace() {
    let mut world = World::new();
    let mut core = world.started();
    let both = vec![
        process(1, "a", None, None),
        process(2, "b", Some("u9"), None),
    ];
    let look = Arc::new(observation(&BTreeMap::from([(0, both)])));
    let evicted = |core: &Core| -> Vec<u32> {
        let evicted = core.state().evicted_strangers;
        evicted.into_iter().map(|(_, pid)| pid).collect()
    };
    let mut policy = Policy::default();
    policy.spec.on_stranger = Some(Reaction::Evict);
    world.tell(&mut core, Event::Policy(Some(policy)));
    for _ in 0..2 {
        world.tell(&mut core, Event::Observed(look.clone()));
        assert!(evicted(&core).is_empty());
    }
    world.now += Duration::from_secs(3);
    world.tell(&mut core, Event::Observed(look.clone()));
    assert_eq!(evicted(&core), [2]);
    // How long its pod may take to end is not the tenant's word alone.
    let mut ended = |after: u64| -> Vec<u32> {
        world.now += Duration::from_secs(after);
        let effects = core.apply(Event::Observed(look.clone()), world.now);
        let ends = effects.into_iter().filter_map(|effect| match effect {
            Effect::End(one) => Some(one.pids),
            _ => None,
        });
        ends.flatten().collect()
    };
    assert_eq!((ended(29), ended(1)), (vec![], vec![2]));
    world.tell(&mut core, Event::Policy(None));
    assert!(evicted(&core).is_empty());
}

#[test]
fn a_process_beside_its_own_pods_share_is_judged_as_a_violation_and_not_as_a_stranger() {
    let evict = Some(Reaction::Evict);
    let kill = Some(Reaction::Kill);
    for (on_stranger, on_violation, expected) in [(evict, kill, &[][..]), (kill, evict, &[7])] {
        let mut world = World::new();
        let mut core = world.started();
        let mut policy = Policy::default();
        policy.spec.on_stranger = on_stranger;
        policy.spec.on_violation = on_violation;
        world.tell(&mut core, Event::Policy(Some(policy)));
        // Two shares of one pod, and a container of it that has neither.
        let pod = world.pod(1, false, 0, 100);
        world.tell(&mut core, Event::Pod(Box::new(pod)));
        world.allocate(&mut core, "u1");
        assert!(matches!(world.pre_start(&mut core, "u1"), Some(Ok(_))));
        let mut second = core.ledger.shares().next().unwrap().clone();
        second.container = "second".into();
        second.alloc_id = Some(AllocId::new(99));
        core.ledger.restore(second);
        let beside = process(7, "beside", Some("u1"), Some("c-other"));
        let look = Arc::new(observation(&BTreeMap::from([(0, vec![beside])])));
        for _ in 0..4 {
            world.now += Duration::from_secs(2);
            world.tell(&mut core, Event::Observed(look.clone()));
        }
        let evicted = core.state().evicted_strangers;
        let pids: Vec<u32> = evicted.into_iter().map(|(_, pid)| pid).collect();
        assert_eq!(pids, expected, "{on_stranger:?} {on_violation:?}");
    }
}
