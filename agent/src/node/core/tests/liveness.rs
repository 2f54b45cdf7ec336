//! A share lives as long as its container, whatever the state of its Pod object.

use super::*;

/// Pod 1 with a share that was prepared, and proven if it `runs`.
fn one(runs: bool) -> (World, Core) {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 600));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    if runs {
        step(&mut world, &mut core, &Step::Prove(1));
    }
    step(&mut world, &mut core, &Step::Look);
    (world, core)
}

#[test]
fn a_share_whose_pod_was_deleted_by_force_stays_until_its_container_is_dead() {
    for end in [Step::Gone(1), Step::Finish(1)] {
        let (mut world, mut core) = one(true);
        step(&mut world, &mut core, &end);
        step(&mut world, &mut core, &Step::KubeletForgets(1));
        // Nothing of it is on a card, and a day goes by.
        world.now += Duration::from_hours(24);
        step(&mut world, &mut core, &Step::Look);
        let share = core.ledger.shares().next().unwrap();
        assert_eq!(share.phase, SharePhase::Terminating);
        assert_eq!(core.watched(world.now).cards, BTreeSet::from([uuid(0)]));
        assert_eq!((world.files.len(), world.proofs.len()), (1, 1));
        // It is no other's meanwhile.
        step(&mut world, &mut core, &Step::Bind(2, false, 0, 600));
        step(&mut world, &mut core, &Step::Allocate(2));
        assert!(world.pre_start(&mut core, "u2").unwrap().is_err());
        step(&mut world, &mut core, &Step::ContainerEnds(1));
        step(&mut world, &mut core, &Step::Look);
        assert!(world.pre_start(&mut core, "u2").unwrap().is_ok());
        assert_eq!(core.ledger.shares().count(), 1);
    }
}

#[test]
fn an_agent_that_starts_after_the_pod_is_gone_keeps_the_share_of_a_living_container() {
    let (mut world, mut core) = one(true);
    step(&mut world, &mut core, &Step::Gone(1));
    step(&mut world, &mut core, &Step::KubeletForgets(1));
    let mut rebuilt = world.started();
    step(&mut world, &mut rebuilt, &Step::Look);
    assert_eq!(rebuilt.ledger, core.ledger);
    step(&mut world, &mut rebuilt, &Step::ContainerEnds(1));
    step(&mut world, &mut rebuilt, &Step::Look);
    assert_eq!(rebuilt.ledger, Ledger::default());
}

#[test]
fn a_share_that_was_prepared_and_never_started_follows_the_kubelets_record() {
    let (mut world, mut core) = one(false);
    step(&mut world, &mut core, &Step::Gone(1));
    step(&mut world, &mut core, &Step::Look);
    assert_eq!(core.ledger.shares().count(), 1);
    step(&mut world, &mut core, &Step::KubeletForgets(1));
    step(&mut world, &mut core, &Step::Look);
    assert_eq!(core.ledger.shares().count(), 0);
    // The kubelet forgets a dead pod at its next allocation only, which may not come.
    let (mut world, mut core) = one(false);
    step(&mut world, &mut core, &Step::Gone(1));
    world.now += reconcile::START_GRACE;
    step(&mut world, &mut core, &Step::Look);
    assert_eq!(core.ledger.shares().count(), 0);
    // It did start.
    let (mut world, mut core) = one(false);
    step(&mut world, &mut core, &Step::Gone(1));
    step(&mut world, &mut core, &Step::Prove(1));
    step(&mut world, &mut core, &Step::Look);
    world.now += reconcile::START_GRACE;
    step(&mut world, &mut core, &Step::Look);
    assert_eq!(core.ledger.shares().count(), 1);
}

#[test]
fn a_proof_that_cannot_be_read_is_not_taken_for_none() {
    for (unreadable, garbage) in [(true, false), (false, true)] {
        let (mut world, _) = one(true);
        let proofs = std::mem::take(&mut world.proofs);
        if unreadable {
            world.unreadable.insert(LocalSource::Proofs, "no".into());
        }
        if garbage {
            world.proofs = proofs.keys().map(|name| (name.clone(), None)).collect();
        }
        // The agent starts, and never could read the proof.
        let mut core = world.started();
        step(&mut world, &mut core, &Step::Gone(1));
        step(&mut world, &mut core, &Step::KubeletForgets(1));
        world.now += Duration::from_hours(24);
        step(&mut world, &mut core, &Step::Look);
        assert_eq!(core.ledger.shares().count(), 1, "{unreadable} {garbage}");
        assert_eq!(world.files.len(), 1);
        world.unreadable.clear();
        world.proofs = proofs;
        step(&mut world, &mut core, &Step::Look);
        assert_eq!(core.ledger.shares().count(), 1);
        step(&mut world, &mut core, &Step::ContainerEnds(1));
        step(&mut world, &mut core, &Step::Look);
        assert_eq!(core.ledger.shares().count(), 0);
        assert!(world.files.is_empty() && world.proofs.is_empty());
    }
}

#[test]
fn what_lies_on_disk_for_nobody_stays_while_its_proof_cannot_be_read() {
    let (mut world, _) = one(true);
    let proofs = std::mem::take(&mut world.proofs);
    // Its file does not say whose it is, so that no share is restored.
    for file in world.files.values_mut() {
        *file = None;
    }
    world.pods.clear();
    world.checkpoint = Checkpoint::default();
    world.unreadable.insert(LocalSource::Proofs, "no".into());
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Look);
    assert_eq!(world.files.len(), 1);
    world.unreadable.clear();
    world.proofs = proofs;
    step(&mut world, &mut core, &Step::Look);
    assert_eq!(world.files.len(), 1);
    step(&mut world, &mut core, &Step::ContainerEnds(1));
    step(&mut world, &mut core, &Step::Look);
    assert!(world.files.is_empty());
}

#[test]
fn a_container_that_breaks_its_share_after_its_pod_is_gone_is_killed_since_nobody_can_evict_it() {
    let (mut world, mut core) = one(true);
    let mut policy = Policy::default();
    policy.spec.on_violation = Some(api::gpu_node::Reaction::Evict);
    world.tell(&mut core, Event::Policy(Some(policy)));
    step(&mut world, &mut core, &Step::Gone(1));
    let process = Process {
        pid: 7,
        memory: Some(Mib(900)),
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
    let mut ended = Vec::new();
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
    assert_eq!(ended, ["c-u1"]);
}
