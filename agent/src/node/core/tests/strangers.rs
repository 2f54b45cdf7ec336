//! Claims about processes that nobody granted a card.

use super::*;
use crate::inventory::ComputeMode;
use api::gpu_node::Reaction;

#[test]
fn the_server_of_an_exclusive_card_is_no_stranger_and_anyone_beside_it_is() {
    let mut world = World::new();
    let mut core = world.started();
    let process = |pid, mps_client| Process {
        pid,
        memory: Some(Mib(30)),
        mps_client,
        sm_percent: None,
        origin: crate::attribute::Origin {
            command: format!("p{pid}"),
            ..Default::default()
        }
        .into(),
    };
    let mut look = observation(&BTreeMap::from([(
        0,
        vec![process(1, false), process(2, true)],
    )]));
    let strangers = |core: &Core| -> Vec<u32> {
        let found = &core.inventory.cards[0].strangers;
        found.iter().map(|stranger| stranger.pid).collect()
    };
    world.tell(&mut core, Event::Observed(Arc::new(look.clone())));
    assert_eq!(strangers(&core), [1, 2]);
    look.devices[0].reading.as_mut().unwrap().compute_mode = ComputeMode::ExclusiveProcess;
    world.tell(&mut core, Event::Observed(Arc::new(look)));
    assert_eq!(
        strangers(&core),
        [1, 2],
        "nobody said that it is a server's"
    );
    let mut view = MpsView::default();
    view.seen.servers = vec![proto::mps::ServerState {
        name: "GPU-0".into(),
        state: "Ready".into(),
        ..Default::default()
    }];
    world.tell(&mut core, Event::Mps(view));
    assert_eq!(strangers(&core), [2]);
}

#[test]
fn a_strangers_pod_is_to_be_evicted_only_where_the_admin_says_so_and_after_its_grace() {
    let mut world = World::new();
    let mut core = world.started();
    let process = |pid, pod: Option<&str>| Process {
        pid,
        memory: Some(Mib(30)),
        mps_client: false,
        sm_percent: None,
        origin: crate::attribute::Origin {
            pod_uid: pod.map(str::to_owned),
            ..Default::default()
        }
        .into(),
    };
    let both = vec![process(1, None), process(2, Some("u9"))];
    let look = Arc::new(observation(&BTreeMap::from([(0, both)])));
    let evicted = |core: &Core| -> Vec<u32> {
        let evicted = core.state().evicted_strangers;
        evicted.into_iter().map(|(_, pid)| pid).collect()
    };
    let mut policy = Policy::default();
    policy.spec.on_stranger = Some(Reaction::Evict);
    world.tell(&mut core, Event::Policy(Some(policy)));
    world.tell(&mut core, Event::Observed(look.clone()));
    assert!(evicted(&core).is_empty());
    world.now += Duration::from_secs(3);
    world.tell(&mut core, Event::Observed(look.clone()));
    assert_eq!(evicted(&core), [2]);
    world.tell(&mut core, Event::Policy(None));
    assert!(evicted(&core).is_empty());
}
