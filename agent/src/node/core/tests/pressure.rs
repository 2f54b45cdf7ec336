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
    let mut ended = Vec::new();
    for came in [false, true] {
        if came {
            let other = world.pod(2, false, 0, 500);
            world.tell(&mut core, Event::Pod(Box::new(other)));
        }
        for _ in 0..3 {
            world.now += Duration::from_millis(100);
            let effects = core.apply(sampled(world.now, held), world.now);
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

/// The first card's processes: the first pod's holds so much.
fn sampled(at: Instant, held: Mib) -> Event {
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
    let card = crate::nvml::CardSample {
        uuid: uuid(0),
        at,
        processes: vec![process],
    };
    Event::Sampled(Arc::new(crate::nvml::Sample { cards: vec![card] }))
}

#[test]
fn a_container_starts_once_what_is_kept_for_it_was_given_back() {
    let start = |on_pressure, held: &[u64]| {
        let mut world = World::new();
        let mut core = world.started();
        let mut policy = Policy::default();
        policy.spec.on_pressure = on_pressure;
        world.tell(&mut core, Event::Policy(Some(policy)));
        let burster = world.granted(1, false, 0, 900, Some(Mib(300)));
        world.tell(&mut core, Event::Pod(Box::new(burster)));
        world.allocate(&mut core, "u1");
        // The first on its card waits for no look at it.
        assert!(matches!(world.pre_start(&mut core, "u1"), Some(Ok(_))));
        let other = world.pod(2, false, 0, 500);
        world.tell(&mut core, Event::Pod(Box::new(other)));
        world.allocate(&mut core, "u2");
        for held in held {
            world.now += Duration::from_millis(100);
            core.apply(sampled(world.now, Mib(*held)), world.now);
        }
        world.pre_start(&mut core, "u2").unwrap().map(drop)
    };
    for reaction in [None, Some(Reaction::Kill), Some(Reaction::Evict)] {
        let why = start(reaction, &[900]).unwrap_err();
        assert!(why.contains("being taken back"), "{why}");
        assert_eq!(start(reaction, &[900, 300]), Ok(()));
        let why = start(reaction, &[]).unwrap_err();
        assert!(why.contains("not known yet"), "{why}");
    }
    // Nothing is taken back: it would wait for ever.
    assert_eq!(start(Some(Reaction::Report), &[900]), Ok(()));
}

/// Its grace period is the tenant's own word: whether it holds what is kept for others or
/// more than its limit.
#[test]
fn a_pod_that_is_evicted_and_does_not_end_is_ended() {
    for (held, beside) in [(900, true), (950, false)] {
        let mut world = World::new();
        let mut core = world.started();
        let mut policy = Policy::default();
        policy.spec.on_pressure = Some(Reaction::Evict);
        policy.spec.on_violation = Some(Reaction::Evict);
        world.tell(&mut core, Event::Policy(Some(policy)));
        let burster = world.granted(1, false, 0, 900, Some(Mib(300)));
        world.tell(&mut core, Event::Pod(Box::new(burster)));
        world.allocate(&mut core, "u1");
        assert!(matches!(world.pre_start(&mut core, "u1"), Some(Ok(_))));
        if beside {
            let other = world.pod(2, false, 0, 500);
            world.tell(&mut core, Event::Pod(Box::new(other)));
        }
        let mut look = |held: u64| {
            world.now += Duration::from_millis(500);
            let effects = core.apply(sampled(world.now, Mib(held)), world.now);
            let mut ends = effects.iter();
            ends.any(|effect| matches!(effect, Effect::End(_)))
        };
        let first = (1..100).find(|_| look(held)).unwrap();
        assert!((60..=64).contains(&first), "after {first} looks");
        // Once it has given back for a while, it has its grace anew.
        assert!((0..30).all(|_| !look(300)));
        let second = (1..100).find(|_| look(held)).unwrap();
        assert!((60..=64).contains(&second), "after {second} looks");
    }
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
