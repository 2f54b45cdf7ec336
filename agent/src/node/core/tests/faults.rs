//! What cannot be read is not "nothing there".

use super::*;
use proto::podresources::{ContainerDevices, ContainerResources, PodResources};

#[test]
fn before_our_files_could_be_read_once_nothing_is_offered_planned_or_bound() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 600));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    step(&mut world, &mut core, &Step::Prove(1));
    let files = std::mem::take(&mut world.files);
    world
        .unreadable
        .insert(LocalSource::CdiFiles, "input/output error".into());
    let mut blind = world.started();
    assert!(!blind.state().restored);
    let why = blind.state().not_offering.unwrap();
    assert!(why.contains("input/output error"), "{why}");
    let refused = world.pre_start(&mut blind, "u1");
    assert!(refused.is_none_or(|result| result.is_err()));
    world.files = files;
    world.unreadable.clear();
    step(&mut world, &mut blind, &Step::Look);
    assert!(blind.state().restored);
    assert_eq!(blind.state().not_offering, None);
    assert_eq!(blind.ledger.shares().count(), 1);
}

#[test]
fn what_cannot_be_read_for_a_while_keeps_new_shares_away_and_the_checkpoint_does_not() {
    for part in LocalSource::ALL {
        let mut world = World::new();
        let mut core = world.started();
        world.unreadable.insert(part, "no".into());
        step(&mut world, &mut core, &Step::Look);
        assert_eq!(core.state().not_offering, None);
        assert_eq!(core.state().unreadable, BTreeSet::from([part]));
        world.now += reconcile::UNREADABLE_GRACE;
        core.apply(Event::Tick, world.now);
        let why = core.state().not_offering;
        assert_eq!(
            why.is_some(),
            part != LocalSource::Checkpoint,
            "{part:?}: {why:?}"
        );
        // The tokens stay healthy, because the kubelet would permanently reject a pod that was
        // bound before; its start waits.
        let mut offered = core.offer().share.into_iter();
        assert!(offered.all(|device| device.health == proto::names::kubelet::HEALTHY));
        step(&mut world, &mut core, &Step::Bind(1, false, 0, 300));
        step(&mut world, &mut core, &Step::Allocate(1));
        if let Some(why) = why {
            assert_eq!(world.pre_start(&mut core, "u1").unwrap().unwrap_err(), why);
        }
        world.unreadable.clear();
        step(&mut world, &mut core, &Step::Look);
        assert!(
            world.pre_start(&mut core, "u1").unwrap().is_ok(),
            "{part:?}"
        );
    }
}

#[test]
fn a_card_whose_samples_all_come_too_late_starts_nothing_until_one_comes_in_time() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 600));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    let sample = |world: &World, age| {
        let cards = vec![crate::nvml::CardSample {
            uuid: uuid(0),
            at: world.now.checked_sub(age).unwrap(),
            processes: Vec::new(),
        }];
        Event::Sampled(Arc::new(Sample { cards }))
    };
    let look = || Event::Observed(Arc::new(observation(&BTreeMap::new())));
    world.tell(&mut core, look());
    for second in 1..=6 {
        world.now += Duration::from_secs(1);
        let late = sample(&world, Duration::from_millis(401));
        world.tell(&mut core, late);
        world.tell(&mut core, look());
        let closed = core.state().unguarded.contains_key(&uuid(0));
        assert_eq!(closed, second >= 5, "{second}");
    }
    assert_eq!(core.state().stale_samples, 6);
    // Only this card is closed; the node goes on offering shares.
    assert_eq!(core.state().not_offering, None);
    assert_eq!(core.state().unguarded.len(), 1);
    let why = core.state().unguarded[&uuid(0)].clone();
    assert!(why.contains("GPU-0"), "{why}");
    let shown = |card: usize| {
        let state = core.state();
        crate::telemetry::report::health(&state, &state.inventory.cards[card])
    };
    assert_eq!(shown(0).reason(), why);
    assert!(shown(1).is_healthy());
    // The start of a pod that was bound before has to wait: without a free ID the kubelet would
    // reject the pod permanently. A container that has its share already may restart.
    let mut offered = core.offer().share.into_iter();
    assert!(offered.all(|device| device.health == proto::names::kubelet::HEALTHY));
    step(&mut world, &mut core, &Step::Bind(2, false, 0, 300));
    step(&mut world, &mut core, &Step::Allocate(2));
    let held_up = world.pre_start(&mut core, "u2").unwrap().unwrap_err();
    assert_eq!(held_up, why);
    assert!(world.pre_start(&mut core, "u1").unwrap().is_ok());
    step(&mut world, &mut core, &Step::Bind(3, false, 1, 300));
    step(&mut world, &mut core, &Step::Allocate(3));
    assert!(world.pre_start(&mut core, "u3").unwrap().is_ok());
    let fresh = sample(&world, Duration::from_millis(399));
    world.tell(&mut core, fresh);
    core.apply(Event::Tick, world.now);
    assert!(!core.state().unguarded.contains_key(&uuid(0)));
    let started = world.pre_start(&mut core, "u2").unwrap();
    assert!(started.is_ok(), "{started:?}");
    // A card that does not work at all is one card, not the node.
    let mut lost = observation(&BTreeMap::new());
    lost.devices[0].reading = Err(crate::nvml::UnreadableCard {
        reason: "lost".into(),
        lost: true,
        hangs: false,
    });
    world.now += Duration::from_secs(10);
    world.tell(&mut core, Event::Observed(Arc::new(lost)));
    assert_eq!(core.state().not_offering, None);
    assert!(!core.state().unguarded.contains_key(&uuid(0)));
    // While the driver is gone nothing is missed, and its first look need not come first.
    let gone = Event::Observed(Arc::new(Observation::default()));
    world.tell(&mut core, gone);
    world.now += Duration::from_secs(10);
    core.apply(Event::Tick, world.now);
    world.tell(&mut core, look());
    assert!(!core.state().unguarded.contains_key(&uuid(0)));
}

#[test]
fn a_driver_that_is_late_costs_no_id_and_no_share_and_what_was_bound_waits() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 600));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    let (offer, ledger) = (core.offer(), core.ledger.clone());
    let late = Observation {
        driver: Driver::Late {
            version: "570".into(),
            reason: "unknown error".into(),
        },
        devices: Vec::new(),
    };
    world.tell(&mut core, Event::Observed(Arc::new(late)));
    assert_eq!(core.offer().share, offer.share);
    assert_eq!(core.offer().whole, offer.whole);
    assert_eq!(core.ledger, ledger);
    assert!(core.state().ready.nvml);
    step(&mut world, &mut core, &Step::Bind(2, false, 0, 300));
    step(&mut world, &mut core, &Step::Allocate(2));
    let why = world.pre_start(&mut core, "u2").unwrap().unwrap_err();
    assert!(why.contains("for the moment: unknown error"), "{why}");
    assert_eq!(core.state().not_offering, Some(why));
    let look = Event::Observed(Arc::new(observation(&BTreeMap::new())));
    world.tell(&mut core, look);
    assert!(world.pre_start(&mut core, "u2").unwrap().is_ok());
    // Once the driver is gone, no ID without a holder is healthy.
    let gone = Event::Observed(Arc::new(Observation::default()));
    world.tell(&mut core, gone);
    let mut free = core.offer().share.into_iter();
    assert!(free.any(|device| device.health == proto::names::kubelet::UNHEALTHY));
}

/// A try of `PreStartContainer` by the second witness alone.
fn by_list(world: &World, core: &mut Core) -> Result<Share, String> {
    let entry = &world.checkpoint.entries[0];
    let listed = PodResources {
        name: "p1".into(),
        namespace: "ns".into(),
        containers: vec![ContainerResources {
            name: "main".into(),
            devices: vec![ContainerDevices {
                resource_name: entry.resource.clone(),
                device_ids: entry.ids.iter().cloned().collect(),
                ..ContainerDevices::default()
            }],
            ..ContainerResources::default()
        }],
    };
    let ask = PrepareRequest {
        resource: Resource::Share,
        ids: entry.ids.clone(),
        source: Source::Listed(vec![listed]),
    };
    let (outcomes, _) = core.prepare(&ask, world.now);
    let outcome = outcomes.into_iter().next().unwrap();
    outcome.result.map_err(|why| {
        assert_eq!(outcome.pod.unwrap().identity.uid, "u1");
        format!("{} {}", why.is_final, why.reason)
    })
}

fn blind(world: &mut World, core: &mut Core) {
    world
        .unreadable
        .insert(LocalSource::Checkpoint, "version 2".into());
    let local = Local {
        checkpoint: None,
        ..world.local()
    };
    world.tell(core, Event::Local(local));
}

#[test]
fn without_a_checkpoint_a_pod_may_wait_for_its_image_for_hours_and_start_again_whenever() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 600));
    blind(&mut world, &mut core);
    step(&mut world, &mut core, &Step::Allocate(1));
    world.now += Duration::from_hours(5);
    core.apply(Event::Tick, world.now);
    let share = by_list(&world, &mut core).unwrap();
    assert_eq!(share.alloc_id, world.checkpoint.entries[0].alloc);
    world.now += Duration::from_hours(24);
    core.apply(Event::Tick, world.now);
    assert_eq!(by_list(&world, &mut core).unwrap().alloc_id, share.alloc_id);
}

#[test]
fn a_pod_that_cannot_be_identified_reads_what_to_do_and_is_sent_away_after_two_minutes() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 600));
    step(&mut world, &mut core, &Step::Allocate(1));
    // An agent that made no answer since its start.
    let mut core = world.started();
    blind(&mut world, &mut core);
    let why = by_list(&world, &mut core).unwrap_err();
    assert!(
        why.starts_with("false ") && why.contains("restart the kubelet"),
        "{why}"
    );
    world.now += Duration::from_mins(2);
    let why = by_list(&world, &mut core).unwrap_err();
    assert!(why.starts_with("true "), "{why}");
}
