//! Claims about shares by `ResourceClaim`: the same ledger by another front.

mod shared_claims;

use super::*;
use crate::inventory::Front;
use crate::node::claims::parts::{Allocated, Config, Device, device_name};
use crate::pods::ClaimUse;

/// The claim of this number, by its UID.
fn alloc(claim: u32) -> AllocId {
    AllocId::new(1000 + u128::from(claim))
}

/// What claim `n` was allocated of cards: request, card and MiB of each; and the numbers of the
/// pods that it is reserved for.
fn allocated(n: u32, devices: &[(&str, u32, u64)], pods: &[u32]) -> Allocated {
    let device = |(request, card, mib): &(&str, u32, u64)| Device {
        request: (*request).to_owned(),
        pool: "n1".into(),
        device: device_name(&uuid(*card)),
        share_id: Some(format!("{request}-{card}")),
        memory: Some(Mib(*mib)),
        observes: false,
        config: Config::default(),
    };
    Allocated {
        uid: format!("c{n}"),
        alloc: alloc(n),
        namespace: "ns".into(),
        name: format!("c{n}"),
        devices: devices.iter().map(device).collect(),
        reserved: pods
            .iter()
            .map(|pod| (format!("u{pod}"), format!("p{pod}")))
            .collect(),
    }
}

/// A pod of this number, and what its containers take of which claim.
fn taker(world: &mut World, n: u32, containers: &[(&str, u32, Option<&str>)]) -> PodView {
    let mut pod = world.pod(n, false, 0, 1);
    pod.grant = None;
    pod.containers = containers
        .iter()
        .map(|(name, claim, request)| ContainerView {
            name: (*name).to_owned(),
            kind: ContainerKind::App,
            tokens: 0,
            whole: 0,
            claims: vec![ClaimUse {
                claim: format!("c{claim}"),
                request: request.map(str::to_owned),
            }],
            running: None,
        })
        .collect();
    world.pods.insert(pod.identity.uid.clone(), pod.clone());
    pod
}

/// What claim `n` was allocated of a card, for the one container of a pod of that number.
fn claimed(world: &mut World, n: u32, card: u32, mib: u64) -> Allocated {
    taker(world, n, &[("main", n, None)]);
    allocated(n, &[("gpu", card, mib)], &[n])
}

/// A node, and what two claims were allocated: 600 MiB of card 0, and 500 MiB of that card.
fn two_claims(card: u32) -> (World, Core, [Allocated; 2]) {
    let mut world = World::new();
    let core = world.started();
    let claims = [
        claimed(&mut world, 1, 0, 600),
        claimed(&mut world, 2, card, 500),
    ];
    (world, core, claims)
}

/// A core that knows the pods, and what it says of this claim.
fn prepare(world: &mut World, core: &mut Core, of: &Allocated) -> Result<(), String> {
    let pods = world.pods.values().cloned().collect();
    world.tell(core, Event::PodsListed(pods));
    let (result, effects) = core.prepare_claim(of, world.now);
    world.carry_out(effects);
    result.map_err(|why| why.reason)?;
    write(world, core);
    Ok(())
}

/// As the disk has it then.
fn write(world: &mut World, core: &Core) {
    let mut files: BTreeMap<AllocId, Vec<Share>> = BTreeMap::new();
    for share in core.ledger.all().filter(|share| share.claimed.is_some()) {
        files
            .entry(share.alloc_id.unwrap())
            .or_default()
            .push(share.clone());
    }
    world
        .files
        .extend(files.into_iter().map(|(alloc, rows)| (alloc, Some(rows))));
}

/// The container of a pod runs.
fn prove(world: &mut World, of: AllocId, pod: u32, container: &str) {
    let key = HolderKey {
        pod_uid: format!("u{pod}"),
        container: container.into(),
    };
    let proof = Proof {
        pod_uid: key.pod_uid.clone(),
        container: container.into(),
        container_id: format!("c-u{pod}-{container}"),
        ..Proof::default()
    };
    world.living.insert(proof.container_id.clone());
    let name = ProofName {
        alloc: of,
        holder: Some(key),
    };
    world.proofs.insert(name, Some(proof));
}

fn look(world: &mut World, core: &mut Core) {
    let local = world.local();
    world.tell(core, Event::Local(local));
}

fn held(core: &Core) -> Vec<AllocId> {
    let mut held: Vec<AllocId> = core
        .ledger
        .all()
        .filter_map(|share| share.alloc_id)
        .collect();
    held.dedup();
    held
}

#[test]
fn a_claim_counts_as_a_share_does_and_is_prepared_as_often_as_it_is_asked() {
    let (mut world, mut core, [first, second]) = two_claims(0);
    prepare(&mut world, &mut core, &first).unwrap();
    prepare(&mut world, &mut core, &first).unwrap();
    assert_eq!(held(&core), [alloc(1)]);
    let why = prepare(&mut world, &mut core, &second).unwrap_err();
    assert!(why.contains("400 MiB left"), "{why}");
    // A container has one share.
    let mut pod = world.pods["u1"].clone();
    let take = ClaimUse {
        claim: "c3".into(),
        request: None,
    };
    pod.containers[0].claims.push(take);
    world.pods.insert("u1".into(), pod);
    let another = allocated(3, &[("gpu", 1, 100)], &[1]);
    let why = prepare(&mut world, &mut core, &another).unwrap_err();
    assert!(why.contains("holds another share already"), "{why}");
}

#[test]
fn a_claim_waits_for_its_pod_and_a_pod_that_left_gets_nothing() {
    let mut world = World::new();
    let mut core = world.started();
    let of = claimed(&mut world, 1, 0, 600);
    let (result, _) = core.prepare_claim(&of, world.now);
    assert!(result.unwrap_err().may_pass);
    core.apply(Event::PodGone("u1".into()), world.now);
    let (result, _) = core.prepare_claim(&of, world.now);
    assert!(!result.unwrap_err().may_pass);
    assert_eq!(held(&core), []);
}

#[test]
fn a_new_agent_has_the_claims_that_lie_on_disk_and_the_kubelets_file_does_not_name() {
    let (mut world, mut core, [first, second]) = two_claims(1);
    for of in [&first, &second] {
        prepare(&mut world, &mut core, of).unwrap();
    }
    prove(&mut world, alloc(1), 1, "main");
    let mut core = world.started();
    world.now += Duration::from_mins(10);
    let effects = core.apply(Event::Local(world.local()), world.now);
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Forget(_) | Effect::ForgetProof(_))),
        "{effects:?}"
    );
    assert_eq!(held(&core), [alloc(1), alloc(2)]);
    assert_eq!(core.ledger.front_of(&uuid(0)), Some(Front::Dra));
}

#[test]
fn what_the_kubelet_is_done_with_is_free_once_nothing_of_it_lives() {
    let mut world = World::new();
    let mut core = world.started();
    let of = claimed(&mut world, 1, 0, 600);
    prepare(&mut world, &mut core, &of).unwrap();
    prove(&mut world, alloc(1), 1, "main");
    look(&mut world, &mut core);
    let (result, _) = core.unprepare("c1", world.now);
    assert!(result.unwrap_err().contains("still runs"));
    assert_eq!(held(&core), [alloc(1)]);
    world.living.clear();
    look(&mut world, &mut core);
    let (result, effects) = core.unprepare("c1", world.now);
    assert_eq!(result, Ok(()));
    assert!(effects.contains(&Effect::Forget(alloc(1))), "{effects:?}");
    assert_eq!(held(&core), []);
    // Asked again, and of what never was.
    assert_eq!(core.unprepare("c1", world.now).0, Ok(()));
    // Before the disk was read, nothing is reported as free.
    assert!(new_core().unprepare("c1", world.now).0.is_err());
    let early = new_core().prepare_claim(&of, world.now).0;
    assert!(early.unwrap_err().may_pass);
}

#[test]
fn a_pod_deleted_by_force_keeps_its_claim_while_its_container_lives() {
    let mut world = World::new();
    let mut core = world.started();
    let of = claimed(&mut world, 1, 0, 600);
    prepare(&mut world, &mut core, &of).unwrap();
    prove(&mut world, alloc(1), 1, "main");
    look(&mut world, &mut core);
    world.pods.clear();
    core.apply(Event::PodGone("u1".into()), world.now);
    world.now += Duration::from_mins(10);
    look(&mut world, &mut core);
    assert_eq!(held(&core), [alloc(1)]);
    world.living.clear();
    look(&mut world, &mut core);
    // The kubelet says so a moment later; where it never does, it is over all the same.
    assert_eq!(held(&core), [alloc(1)]);
    world.now += reconcile::START_GRACE;
    look(&mut world, &mut core);
    assert_eq!(held(&core), []);
}

#[test]
fn a_card_has_one_front_and_on_a_race_the_claim_wins() {
    let mut world = World::new();
    let mut core = world.started();
    // Granted and not started: it gives way.
    let granted = world.pod(1, false, 0, 300);
    core.apply(Event::Pod(Box::new(granted)), world.now);
    assert_eq!(core.ledger.front_of(&uuid(0)), Some(Front::Plugin));
    let of = claimed(&mut world, 2, 0, 600);
    prepare(&mut world, &mut core, &of).unwrap();
    assert_eq!(held(&core), [alloc(2)]);
    assert_eq!(core.ledger.shares().count(), 1);
    // Its card offers the other front nothing, the others do.
    assert!(!offered(&core, 0) && offered(&core, 1));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    assert_eq!(held(&core), [alloc(2)]);
    // What runs is not taken back.
    step(&mut world, &mut core, &Step::Bind(3, false, 1, 300));
    step(&mut world, &mut core, &Step::Allocate(3));
    step(&mut world, &mut core, &Step::PreStart(3));
    let late = claimed(&mut world, 4, 1, 100);
    let why = prepare(&mut world, &mut core, &late).unwrap_err();
    assert!(
        why.contains("granted by the plugin front, held by ns/p3"),
        "{why}"
    );
}

/// Whether the kubelet is offered anything of a card, in parts and whole alike.
fn offered(core: &Core, card: u32) -> bool {
    let (offer, card) = (core.offer(), uuid(card).to_string());
    let [share, whole] = [&offer.share, &offer.whole].map(|list| {
        list.iter().any(|device| {
            device.health == proto::names::kubelet::HEALTHY
                && (device.id == card || device.id.starts_with(&format!("{card}::")))
        })
    });
    assert_eq!(share, whole, "{card}");
    share
}

fn fronts(world: &World, core: &mut Core, front: api::gpu_node::Front) {
    let mut policy = Policy::default();
    policy.spec.default_front = Some(front);
    core.apply(Event::Policy(Some(policy)), world.now);
}

#[test]
fn the_admin_closes_cards_to_a_front_and_what_is_held_stays() {
    use api::gpu_node::Front as Admin;
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 300));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    // Reserved and not started: gives way. Bound: stays, and keeps its card closed.
    step(&mut world, &mut core, &Step::Bind(2, false, 1, 300));
    assert_eq!(core.ledger.shares().count(), 2);
    fronts(&world, &mut core, Admin::Dra);
    assert_eq!(core.ledger.front_of(&uuid(0)), Some(Front::Plugin));
    assert_eq!(core.ledger.front_of(&uuid(1)), None);
    assert!(!offered(&core, 1));
    step(&mut world, &mut core, &Step::PreStart(1));
    assert_eq!(core.ledger.front_of(&uuid(0)), Some(Front::Plugin));
    let on = |world: &mut World, n, card| claimed(world, n, card, 100);
    let (held, open) = (on(&mut world, 4, 0), on(&mut world, 5, 1));
    let why = prepare(&mut world, &mut core, &held).unwrap_err();
    assert!(why.contains("held by ns/p1"), "{why}");
    prepare(&mut world, &mut core, &open).unwrap();
    fronts(&world, &mut core, Admin::Plugin);
    prepare(&mut world, &mut core, &open).unwrap();
    let late = on(&mut world, 6, 1);
    let why = prepare(&mut world, &mut core, &late).unwrap_err();
    assert!(why.contains("allows only the plugin front"), "{why}");
    assert!(core.offer().any_whole);
    fronts(&world, &mut core, Admin::Auto);
    prepare(&mut world, &mut core, &late).unwrap();
    fronts(&world, &mut core, Admin::Dra);
    assert!(!core.offer().any_whole);
}

#[test]
fn a_node_that_offers_nothing_keeps_the_claims_it_has() {
    let (mut world, mut core, [first, second]) = two_claims(1);
    prepare(&mut world, &mut core, &first).unwrap();
    let why = Some("no hook".to_owned());
    core.apply(Event::Obstacle(Obstacle::Hook, why), world.now);
    prepare(&mut world, &mut core, &first).unwrap();
    assert_eq!(
        prepare(&mut world, &mut core, &second),
        Err("no hook".into())
    );
}

#[test]
fn a_claim_outlives_an_api_server_that_is_away_as_long_as_it_may_run() {
    let mut world = World::new();
    let mut core = world.started();
    let of = claimed(&mut world, 1, 0, 600);
    prepare(&mut world, &mut core, &of).unwrap();
    // A new agent without an API server: the kubelet's checkpoint never names a claim.
    let mut core = new_core();
    core.apply(Event::Local(world.local()), world.now);
    world.now += Duration::from_mins(10);
    core.apply(Event::Local(world.local()), world.now);
    assert_eq!(held(&core), [alloc(1)]);
}

#[test]
fn a_claims_container_that_never_met_the_hook_closes_the_node() {
    let mut world = World::new();
    let mut core = world.started();
    let of = claimed(&mut world, 1, 0, 600);
    prepare(&mut world, &mut core, &of).unwrap();
    let mut pod = world.pods["u1"].clone();
    pod.containers[0].running = Some("x".into());
    world.living.insert("x".into());
    world.tell(&mut core, Event::Pod(Box::new(pod)));
    look(&mut world, &mut core);
    world.now += reconcile::PROOF_GRACE;
    let effects = core.apply(Event::Local(world.local()), world.now);
    let ended = effects.iter().any(
        |effect| matches!(effect, Effect::End(end) if end.container_id.as_deref() == Some("x")),
    );
    assert!(ended, "{effects:?}");
    let why = core.state().not_offering.unwrap();
    assert!(why.contains("ignores CDI"), "{why}");
    // With its proof all is well.
    prove(&mut world, alloc(1), 1, "main");
    world.living.remove("x");
    look(&mut world, &mut core);
    assert_eq!(core.state().not_offering, None);
}
