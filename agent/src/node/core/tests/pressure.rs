//! Claims about shares that hold more than is kept for them.

use super::*;
use api::gpu_node::Reaction;

/// The reaction to a share that holds more than is kept for it, once a pod arrives for which the
/// rest of the card is kept: the containers that are ended, and the pods to be evicted.
fn pressed(on_pressure: Option<Reaction>, kept: Option<Mib>) -> (Vec<String>, Vec<String>) {
    holding(Mib(900), on_pressure, kept)
}

/// A share with a limit of 900 MiB, of which so much is kept for it, in a running container.
fn bursting(
    on_pressure: Option<Reaction>,
    on_violation: Reaction,
    kept: Option<Mib>,
) -> (World, Core) {
    let mut world = World::new();
    let mut core = world.started();
    let mut policy = Policy::default();
    policy.spec.on_pressure = on_pressure;
    policy.spec.on_violation = Some(on_violation);
    world.tell(&mut core, Event::Policy(Some(policy)));
    let burster = world.granted(1, false, 0, 900, kept);
    world.tell(&mut core, Event::Pod(Box::new(burster)));
    world.allocate(&mut core, "u1");
    // The first on its card waits for no look at it.
    assert!(matches!(world.pre_start(&mut core, "u1"), Some(Ok(_))));
    (world, core)
}

/// Another pod comes, with a share of 500 MiB.
fn comes(world: &mut World, core: &mut Core) {
    let other = world.pod(2, false, 0, 500);
    world.tell(core, Event::Pod(Box::new(other)));
}

/// As [`pressed`], where the share holds so much.
fn holding(
    held: Mib,
    on_pressure: Option<Reaction>,
    kept: Option<Mib>,
) -> (Vec<String>, Vec<String>) {
    let (mut world, mut core) = bursting(on_pressure, Reaction::Report, kept);
    let mut ended = Vec::new();
    for came in [false, true] {
        if came {
            comes(&mut world, &mut core);
        }
        for _ in 0..3 {
            world.now += Duration::from_millis(100);
            let effects = core.apply(sampled(world.now, held), world.now);
            ended.extend(effects.into_iter().filter_map(|effect| match effect {
                Effect::End(one) => one.container_id,
                _ => None,
            }));
        }
        assert!(came || ended.is_empty(), "{ended:?}: no share needs it");
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
        works: None,
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
        let (mut world, mut core) = bursting(on_pressure, Reaction::Kill, Some(Mib(300)));
        comes(&mut world, &mut core);
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
    // Nothing is reclaimed: it would wait without end.
    assert_eq!(start(Some(Reaction::Report), &[900]), Ok(()));
}

/// So many looks, half a second apart, at a share that holds so much: at which one its
/// container is ended.
fn ended_at(world: &mut World, core: &mut Core, looks: u32, held: u64) -> Option<u32> {
    (1..=looks).find(|_| {
        world.now += Duration::from_millis(500);
        let effects = core.apply(sampled(world.now, Mib(held)), world.now);
        let mut ends = effects.iter();
        ends.any(|effect| matches!(effect, Effect::End(_)))
    })
}

/// The pod's grace period is set by its tenant: whether it holds what is kept for others or more
/// than its limit.
#[test]
fn a_pod_that_is_evicted_and_does_not_end_is_ended() {
    let evict = Reaction::Evict;
    for (held, beside) in [(900, true), (950, false)] {
        let (mut world, mut core) = bursting(Some(evict), evict, Some(Mib(300)));
        if beside {
            comes(&mut world, &mut core);
        }
        let first = ended_at(&mut world, &mut core, 100, held).unwrap();
        assert!((60..=64).contains(&first), "after {first} looks");
        // Ten seconds without a finding start the next grace period.
        assert_eq!(ended_at(&mut world, &mut core, 30, 300), None);
        let second = ended_at(&mut world, &mut core, 100, held).unwrap();
        assert!((60..=64).contains(&second), "after {second} looks");
    }
}

#[test]
fn a_pod_that_is_being_deleted_gets_no_second_grace_period() {
    let evict = Reaction::Evict;
    let (mut world, mut core) = bursting(Some(evict), evict, Some(Mib(300)));
    comes(&mut world, &mut core);
    let mut leaves = world.pods["u1"].clone();
    leaves.deleting = true;
    world.tell(&mut core, Event::Pod(Box::new(leaves)));
    assert_eq!(ended_at(&mut world, &mut core, 20, 900), None);
    assert_eq!(ended_at(&mut world, &mut core, 30, 300), None);
    let ended = ended_at(&mut world, &mut core, 100, 900).unwrap();
    assert!((8..=14).contains(&ended), "after {ended} looks");
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
