//! Claims about shares that hold more than is kept for them.

use super::*;
use api::gpu_node::Reaction;

/// What is done about a share that holds more than is kept for it, once a pod comes for which
/// the rest of the card is kept: who is ended, and whose pod is to be evicted.
fn pressed(on_pressure: Option<Reaction>, kept: Option<Mib>) -> (Vec<String>, Vec<String>) {
    holding(Mib(900), on_pressure, kept)
}

/// As [`pressed`], where the share's limit is 900 MiB and it holds so much.
fn holding(
    held: Mib,
    on_pressure: Option<Reaction>,
    kept: Option<Mib>,
) -> (Vec<String>, Vec<String>) {
    let mut world = World::new();
    let mut core = world.started();
    let mut policy = Policy::default();
    policy.spec.on_pressure = on_pressure;
    // Of a violation it says nothing.
    policy.spec.on_violation = Some(Reaction::Report);
    world.tell(&mut core, Event::Policy(Some(policy)));
    let burster = world.granted(1, false, 0, 900, kept);
    world.tell(&mut core, Event::Pod(Box::new(burster)));
    world.allocate(&mut core, "u1");
    assert!(matches!(world.pre_start(&mut core, "u1"), Some(Ok(_))));
    let process = Process {
        pid: 7,
        memory: Some(held),
        mps_client: true,
        sm_percent: None,
        origin: crate::attribute::Origin {
            pod_uid: Some("u1".into()),
            container_id: Some("c-u1".into()),
            command: "python".into(),
        }
        .into(),
    };
    let mut ended = Vec::new();
    for came in [false, true] {
        if came {
            let other = world.pod(2, false, 0, 500);
            world.tell(&mut core, Event::Pod(Box::new(other)));
        }
        for _ in 0..3 {
            world.now += Duration::from_millis(100);
            let sample = crate::nvml::Sample {
                cards: vec![crate::nvml::CardSample {
                    uuid: uuid(0),
                    at: world.now,
                    processes: vec![process.clone()],
                }],
            };
            let effects = core.apply(Event::Sampled(Arc::new(sample)), world.now);
            ended.extend(effects.into_iter().filter_map(|effect| match effect {
                Effect::End(one) => one.container_id,
                _ => None,
            }));
        }
        assert!(came || ended.is_empty(), "{ended:?}: nobody needs it");
    }
    let complaints = core.state().complaints;
    let evicted = complaints.iter().filter(|(_, complaint)| complaint.evict);
    (ended, evicted.map(|(key, _)| key.pod_uid.clone()).collect())
}

#[test]
fn who_holds_what_is_kept_for_a_pod_that_comes_gives_back_as_the_admin_says() {
    let (one, none) = (|name: &str| vec![name.to_owned()], Vec::new);
    let kept = Some(Mib(300));
    assert_eq!(pressed(None, kept), (one("c-u1"), none()));
    assert_eq!(pressed(Some(Reaction::Kill), kept), (one("c-u1"), none()));
    assert_eq!(pressed(Some(Reaction::Evict), kept), (none(), one("u1")));
    assert_eq!(pressed(Some(Reaction::Report), kept), (none(), none()));
    // Nor does it stay because it is above its limit as well, which is only reported.
    let above = holding(Mib(950), Some(Reaction::Evict), kept);
    assert_eq!(above, (none(), one("u1")));
    // What is kept for it whole is not for others: the other pod has no place here.
    assert_eq!(pressed(None, None), (none(), none()));
}
