//! Claims about a runtime that ignores CDI.

use super::*;

#[test]
fn a_container_that_never_met_the_hook_is_ended_and_the_node_offers_nothing_for_a_while() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 300));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    let mut pod = world.pods["u1"].clone();
    pod.containers[0].running = Some("c1".into());
    world.tell(&mut core, Event::Pod(Box::new(pod.clone())));
    world.now += reconcile::PROOF_GRACE;
    let ended = |effects: &[Effect]| {
        let errands = effects.iter().filter_map(|effect| match effect {
            Effect::End(errand) => errand.container_id.clone(),
            _ => None,
        });
        errands.collect::<Vec<_>>()
    };
    let effects = core.apply(Event::Local(world.local()), world.now);
    assert_eq!(ended(&effects), ["c1"]);
    let why = core.state().not_offering.unwrap();
    assert!(
        why.contains("ignores CDI") && why.contains("ns/p1"),
        "{why}"
    );
    let held = &world.checkpoint.entries[0].ids;
    let offer = core.offer();
    let mut open = offer.share.iter().chain(&offer.whole);
    assert!(open.all(|d| d.health != "Healthy" || held.contains(&d.id)));

    // It is gone, and the runtime is no other for that.
    pod.containers[0].running = None;
    pod.finished = true;
    world.tell(&mut core, Event::Pod(Box::new(pod)));
    assert!(core.state().not_offering.is_some());
    world.now += Duration::from_mins(10);
    core.apply(Event::Tick, world.now);
    assert_eq!(core.state().not_offering, None);
}
