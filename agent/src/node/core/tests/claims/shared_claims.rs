//! Claims that several containers or pods have together, and several cards in one.

use super::*;
use api::gpu_node::Reaction;
use api::units::Fence;

/// The rows, in order: pod, container, allocation.
fn rows(core: &Core) -> Vec<(String, String, AllocId)> {
    let row = |share: &Share| {
        (
            share.pod.uid.clone(),
            share.container.clone(),
            share.alloc_id.unwrap(),
        )
    };
    core.ledger.all().map(row).collect()
}

fn row(pod: u32, container: &str, of: AllocId) -> (String, String, AllocId) {
    (format!("u{pod}"), container.to_owned(), of)
}

/// Claim 1 of 600 MiB of card 0 is prepared for pod 1 with two containers.
fn shared() -> (World, Core, Allocated) {
    let mut world = World::new();
    let mut core = world.started();
    taker(
        &mut world,
        1,
        &[("main", 1, None), ("side", 1, Some("gpu"))],
    );
    let of = allocated(1, &[("gpu", 0, 600)], &[1]);
    prepare(&mut world, &mut core, &of).unwrap();
    (world, core, of)
}

fn comes(world: &mut World, core: &mut Core, pod: PodView) -> Vec<Effect> {
    let effects = core.apply(Event::Pod(Box::new(pod)), world.now);
    world.carry_out(effects.clone());
    write(world, core);
    effects
}

fn reserved(pods: &[u32]) -> Event {
    let pods = pods.iter().map(|pod| format!("u{pod}"));
    Event::Reserved("c1".into(), pods.collect())
}

#[test]
fn containers_and_pods_of_a_claim_have_one_share_that_counts_once() {
    let (mut world, mut core, _) = shared();
    assert_eq!(
        rows(&core),
        [row(1, "main", alloc(1)), row(1, "side", alloc(1))]
    );
    assert_eq!(core.ledger.granted(&uuid(0)), Mib(600));
    // A pod that comes later waits until the API server says that the claim is its too.
    let other = taker(&mut world, 2, &[("main", 1, None)]);
    let effects = comes(&mut world, &mut core, other);
    assert!(!effects.contains(&Effect::List(alloc(1))));
    assert_eq!(core.state().claims["c1"].awaited, ["u2".to_owned()].into());
    let effects = core.apply(reserved(&[1, 2]), world.now);
    assert!(effects.contains(&Effect::List(alloc(1))), "{effects:?}");
    assert!(core.state().claims["c1"].awaited.is_empty());
    assert_eq!(rows(&core)[2], row(2, "main", alloc(1)));
    assert_eq!(core.ledger.granted(&uuid(0)), Mib(600));
    let (left, side) = (claimed(&mut world, 3, 0, 400), claimed(&mut world, 4, 0, 1));
    prepare(&mut world, &mut core, &left).unwrap();
    let why = prepare(&mut world, &mut core, &side).unwrap_err();
    assert!(why.contains("0 MiB left"), "{why}");
    // A new agent has the same rows, whatever the list.
    write(&mut world, &core);
    let before = rows(&core);
    assert_eq!(rows(&world.started()), before);
}

#[test]
fn a_pod_that_must_not_have_a_claim_is_listed_with_the_reason() {
    let (mut world, mut core, of) = shared();
    let mut pods = Vec::new();
    for (n, containers, way) in [
        (2, vec![("main", 1, None)], Some("it sets hostPID")),
        (3, vec![("main", 1, None)], None),
    ] {
        let mut pod = taker(&mut world, n, &containers);
        pod.way_around = way.map(str::to_owned);
        world.pods.insert(pod.identity.uid.clone(), pod.clone());
        pods.push(pod);
    }
    // It holds something else already.
    let mut pod = taker(&mut world, 4, &[("main", 4, None)]);
    let of_four = allocated(4, &[("gpu", 1, 100)], &[4]);
    prepare(&mut world, &mut core, &of_four).unwrap();
    pod.containers[0].claims.push(ClaimUse {
        claim: "c1".into(),
        request: None,
    });
    pods.push(pod);
    for pod in pods {
        comes(&mut world, &mut core, pod);
    }
    core.apply(reserved(&[1, 2, 3, 4]), world.now);
    let refused = &core.state().claims["c1"].refused;
    let refused: Vec<(&str, &str)> = refused
        .iter()
        .map(|(uid, why)| (uid.as_str(), why.as_str()))
        .collect();
    assert!(
        matches!(refused[..], [("u2", two), ("u4", four)]
            if two.contains("hostPID") && four.contains("holds another share already")),
        "{refused:?}"
    );
    assert!(rows(&core).contains(&row(3, "main", alloc(1))));
    // The kubelet may ask for any of them.
    let all = Allocated {
        reserved: (1..5).map(|n| (format!("u{n}"), format!("p{n}"))).collect(),
        ..of
    };
    prepare(&mut world, &mut core, &all).unwrap();
    let alone = Allocated {
        reserved: [("u2".to_owned(), "p2".to_owned())].into(),
        ..allocated(9, &[("gpu", 1, 100)], &[])
    };
    let mut pod = world.pods["u2"].clone();
    pod.containers[0].claims[0].claim = "c9".into();
    world.pods.insert("u2".into(), pod);
    let why = prepare(&mut world, &mut core, &alone).unwrap_err();
    assert!(
        why.contains("pod ns/p2 must not have a share of a GPU: it sets hostPID"),
        "{why}"
    );
}

#[test]
fn a_claim_goes_on_with_whom_it_has_and_is_free_when_the_last_is_gone() {
    let (mut world, mut core, _) = shared();
    core.apply(reserved(&[1, 2]), world.now);
    let other = taker(&mut world, 2, &[("main", 1, None)]);
    comes(&mut world, &mut core, other);
    for (pod, container) in [(1, "main"), (1, "side"), (2, "main")] {
        prove(&mut world, alloc(1), pod, container);
    }
    look(&mut world, &mut core);
    // The first pod leaves; its proofs go, and nothing else.
    world.pods.remove("u1");
    world.living.remove("c-u1-main");
    world.tell(&mut core, Event::PodGone("u1".into()));
    look(&mut world, &mut core);
    assert_eq!(
        rows(&core),
        [row(1, "side", alloc(1)), row(2, "main", alloc(1))]
    );
    assert_eq!(world.proofs.len(), 2);
    world.living.remove("c-u1-side");
    look(&mut world, &mut core);
    assert_eq!(rows(&core), [row(2, "main", alloc(1))]);
    let why = core.unprepare("c1", world.now).0.unwrap_err();
    assert!(why.contains("ns/p2"), "{why}");
    // The last one ends, and for as long as the kubelet may let another one start with what it
    // has, the claim stays.
    world.living.clear();
    world.pods.get_mut("u2").unwrap().finished = true;
    let finished = world.pods["u2"].clone();
    comes(&mut world, &mut core, finished);
    look(&mut world, &mut core);
    assert_eq!(held(&core), [alloc(1)]);
    let late = taker(&mut world, 3, &[("main", 1, None)]);
    comes(&mut world, &mut core, late);
    core.apply(reserved(&[3]), world.now);
    look(&mut world, &mut core);
    assert_eq!(rows(&core), [row(3, "main", alloc(1))]);
    world.now += reconcile::START_GRACE;
    look(&mut world, &mut core);
    assert_eq!(held(&core), [alloc(1)]);
    assert_eq!(core.unprepare("c1", world.now).0, Ok(()));
    assert_eq!(held(&core), []);
}

#[test]
fn containers_that_take_parts_of_a_claim_have_shares_of_their_own() {
    let mut world = World::new();
    let mut core = world.started();
    taker(&mut world, 1, &[("a", 1, Some("x")), ("b", 1, Some("y"))]);
    let of = allocated(1, &[("x", 0, 600), ("y", 0, 300)], &[1]);
    prepare(&mut world, &mut core, &of).unwrap();
    let [x, y] = ["x", "y"].map(|request| alloc(1).of_part([request]));
    assert_eq!(rows(&core), [row(1, "a", x), row(1, "b", y)]);
    assert_eq!(core.ledger.granted(&uuid(0)), Mib(900));
    // Another pod takes the same parts, or none.
    core.apply(reserved(&[1, 2, 3]), world.now);
    let same = taker(&mut world, 2, &[("z", 1, Some("y"))]);
    comes(&mut world, &mut core, same);
    let all = taker(&mut world, 3, &[("z", 1, None)]);
    comes(&mut world, &mut core, all);
    assert_eq!(rows(&core)[2], row(2, "z", y));
    let why = &core.state().claims["c1"].refused["u3"];
    assert!(why.contains("take parts of claim c1 that overlap"), "{why}");
    assert_eq!(core.unprepare("c1", world.now).0, Ok(()));
    assert_eq!(held(&core), []);
}

#[test]
fn several_cards_are_one_share_in_a_mode_that_gives_several() {
    let mut world = World::new();
    let mut core = world.started();
    taker(&mut world, 1, &[("main", 1, None)]);
    let mut of = allocated(1, &[("gpu", 0, 300), ("gpu", 1, 300)], &[1]);
    prepare(&mut world, &mut core, &of).unwrap();
    let share = core.ledger.all().next().unwrap();
    assert_eq!((share.mode, share.gpus.len()), (Mode::MpsIsolated, 2));
    assert_eq!(core.ledger.granted(&uuid(1)), Mib(300));
    // What comes beside it has its mode.
    let beside = claimed(&mut world, 2, 1, 100);
    prepare(&mut world, &mut core, &beside).unwrap();
    assert_eq!(core.ledger.mode_of(&uuid(1)), Some(Mode::MpsIsolated));
    for (n, devices, words) in [
        (
            3,
            vec![("gpu", 2, 10), ("gpu", 2, 10)],
            "twice for one container",
        ),
        (
            4,
            vec![("gpu", 2, 10), ("more", 1, 20)],
            "different amounts",
        ),
        (5, vec![("gpu", 7, 10)], "no card of this node"),
        (6, vec![("gpu", 2, 0)], "asks for no memory"),
    ] {
        taker(&mut world, n, &[("main", n, None)]);
        of = allocated(n, &devices, &[n]);
        let why = prepare(&mut world, &mut core, &of).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
    // A server that knows no amounts.
    taker(&mut world, 9, &[("main", 9, None)]);
    of = allocated(9, &[("gpu", 2, 10)], &[9]);
    of.devices[0].memory = None;
    let why = prepare(&mut world, &mut core, &of).unwrap_err();
    assert!(why.contains("DRAConsumableCapacity"), "{why}");
    // A card that is in mode mps is none of several.
    let mps = claimed(&mut world, 7, 2, 100);
    prepare(&mut world, &mut core, &mps).unwrap();
    taker(&mut world, 8, &[("main", 8, None)]);
    of = allocated(8, &[("gpu", 2, 10), ("gpu", 0, 10)], &[8]);
    let why = prepare(&mut world, &mut core, &of).unwrap_err();
    assert!(why.contains("mode mps"), "{why}");
}

fn configured(world: &mut World, n: u32, card: u32, mib: u64, config: Config) -> Allocated {
    let mut of = claimed(world, n, card, mib);
    of.devices[0].config = config;
    of
}

#[test]
fn a_claim_gets_the_mode_that_it_asks_for_or_a_sentence() {
    let mut world = World::new();
    let mut core = world.started();
    let asks = |mode| Config {
        mode: Some(mode),
        ..Config::default()
    };
    let sliced = configured(&mut world, 1, 0, 300, asks(Mode::TimeSlicing));
    prepare(&mut world, &mut core, &sliced).unwrap();
    let other = configured(&mut world, 2, 0, 300, asks(Mode::Mps));
    let why = prepare(&mut world, &mut core, &other).unwrap_err();
    assert!(
        why.contains("in mode time-slicing, held by ns/p1, and not in mode mps"),
        "{why}"
    );
    // Whole is whole.
    let part = configured(&mut world, 3, 1, 300, asks(Mode::Exclusive));
    let why = prepare(&mut world, &mut core, &part).unwrap_err();
    assert!(
        why.contains("asks for card GPU-1 whole, and for 300 MiB of it"),
        "{why}"
    );
    let whole = configured(&mut world, 4, 1, TOTAL, asks(Mode::Exclusive));
    let mut pod = world.pods["u4"].clone();
    pod.way_around = Some("it is privileged".into());
    world.pods.insert("u4".into(), pod);
    prepare(&mut world, &mut core, &whole).unwrap();
    assert_eq!(core.ledger.mode_of(&uuid(1)), Some(Mode::Exclusive));
    let beside = claimed(&mut world, 5, 1, 1);
    let why = prepare(&mut world, &mut core, &beside).unwrap_err();
    assert!(why.contains("mode exclusive"), "{why}");
    // Its rows are found again, also where what a card can give has changed.
    let mut policy = Policy::default();
    policy.spec.reserve_mib = Some(Mib(10));
    core.apply(Event::Policy(Some(policy)), world.now);
    prepare(&mut world, &mut core, &whole).unwrap();
}

#[test]
fn a_claim_can_be_stricter_than_the_node_and_its_class_anything() {
    let mut world = World::new();
    let mut core = world.started();
    let asks = |class, own| Config {
        on_violation: class,
        at_least: own,
        ..Config::default()
    };
    let mut wish = |n, class, own| {
        let of = configured(&mut world, n, 0, 10, asks(class, own));
        prepare(&mut world, &mut core, &of)
    };
    let why = wish(1, None, Some(Reaction::Report)).unwrap_err();
    assert!(why.contains("a claim can only be stricter"), "{why}");
    wish(2, Some(Reaction::Report), None).unwrap();
    wish(3, Some(Reaction::Report), Some(Reaction::Evict)).unwrap();
    wish(4, None, Some(Reaction::Kill)).unwrap();
    let fence = Config {
        minimum_fence: Some(Fence::DriverLimit),
        ..Config::default()
    };
    let of = configured(&mut world, 5, 1, 10, fence);
    let why = prepare(&mut world, &mut core, &of).unwrap_err();
    assert!(
        why.contains("the claim's minimum fence is DriverLimit"),
        "{why}"
    );
}

#[test]
fn who_only_looks_at_a_card_is_let_in_with_any_walls_and_counts_nothing() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, TOTAL));
    let mut look = claimed(&mut world, 2, 0, 0);
    for device in &mut look.devices {
        (device.observes, device.memory) = (true, None);
    }
    let mut pod = world.pods["u2"].clone();
    pod.way_around = Some("it is privileged".into());
    world.pods.insert("u2".into(), pod);
    prepare(&mut world, &mut core, &look).unwrap();
    assert_eq!(core.ledger.mode_of(&uuid(0)), Some(Mode::Mps));
    assert_eq!(core.ledger.front_of(&uuid(0)), Some(Front::Plugin));
    assert_eq!(core.ledger.granted(&uuid(0)), Mib(TOTAL));
    // A new agent knows it, and what it has goes when it goes.
    let mut core = world.started();
    assert_eq!(held(&core), [alloc(2)]);
    assert_eq!(core.unprepare("c2", world.now).0, Ok(()));
    assert_eq!(held(&core), []);
    // Not together with a share.
    let mut both = allocated(3, &[("a", 1, 10), ("b", 2, 10)], &[3]);
    both.devices[0].observes = true;
    taker(&mut world, 3, &[("main", 3, None)]);
    let why = prepare(&mut world, &mut core, &both).unwrap_err();
    assert!(why.contains("adminAccess"), "{why}");
}
