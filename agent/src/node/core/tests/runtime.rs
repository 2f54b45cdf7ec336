//! Claims about a runtime that ignores CDI.

use super::*;

fn ended(effects: &[Effect]) -> Vec<String> {
    let terminations = effects.iter().filter_map(|effect| match effect {
        Effect::End(one) => one.container_id.clone(),
        _ => None,
    });
    terminations.collect()
}

/// A container of pod 1 that runs by every account, and whose proof is not there.
fn without_proof(world: &mut World, core: &mut Core, class: Option<&str>) {
    step(world, core, &Step::Bind(1, false, 0, 300));
    step(world, core, &Step::Allocate(1));
    step(world, core, &Step::PreStart(1));
    let pod = world.pods.get_mut("u1").unwrap();
    pod.containers[0].running = Some("c1".into());
    pod.runtime_class = class.map(str::to_owned);
    let pod = pod.clone();
    world.tell(core, Event::Pod(Box::new(pod)));
    world.living.insert("c1".into());
}

/// Two looks with the grace between them; what the second one ended.
fn looks(world: &mut World, core: &mut Core) -> Vec<String> {
    step(world, core, &Step::Look);
    world.now += reconcile::PROOF_GRACE;
    let local = world.local();
    ended(&core.apply(Event::Local(local), world.now))
}

#[test]
fn a_pod_of_a_class_without_hooks_is_ended_and_the_node_goes_on() {
    let mut world = World::new();
    let mut core = world.started();
    without_proof(&mut world, &mut core, Some("kata"));
    assert_eq!(looks(&mut world, &mut core), ["c1"]);
    assert_eq!(core.state().not_offering, None);
}

#[test]
fn what_ran_before_this_agent_is_left_alone_and_nothing_comes_beside_it() {
    let mut world = World::new();
    let mut old = world.started();
    without_proof(&mut world, &mut old, None);
    let mut core = world.started();
    assert!(looks(&mut world, &mut core).is_empty());
    let why = core.state().not_offering.unwrap();
    assert!(
        why.contains("ns/p1") && why.contains("restart the pod"),
        "{why}"
    );
    world.living.clear();
    step(&mut world, &mut core, &Step::Look);
    assert_eq!(core.state().not_offering, None);
}

#[test]
fn nobody_is_judged_while_proofs_or_processes_cannot_be_read() {
    for part in [LocalSource::Proofs, LocalSource::Processes] {
        let mut world = World::new();
        let mut core = world.started();
        without_proof(&mut world, &mut core, None);
        world.unreadable.insert(part, "input/output error".into());
        assert!(looks(&mut world, &mut core).is_empty());
        let why = core.state().not_offering.unwrap();
        assert!(why.contains("input/output error"), "{why}");
        world.unreadable.clear();
        step(&mut world, &mut core, &Step::Look);
        assert_eq!(core.state().not_offering, None);
    }
    // Its own proof is there and says nothing.
    let mut world = World::new();
    let mut core = world.started();
    without_proof(&mut world, &mut core, None);
    let name = core.ledger.shares().next().unwrap().proof_name().unwrap();
    world.proofs.insert(name, None);
    assert!(looks(&mut world, &mut core).is_empty());
}

#[test]
fn a_container_that_the_api_server_has_not_heard_of_is_not_taken_for_one_without_proof() {
    let mut world = World::new();
    let mut core = world.started();
    without_proof(&mut world, &mut core, None);
    // It has restarted, and the API server still names the previous container.
    step(&mut world, &mut core, &Step::Prove(1));
    assert!(looks(&mut world, &mut core).is_empty());
    world.living.remove("c1");
    world.living.remove("c-u1");
    assert!(looks(&mut world, &mut core).is_empty());
    assert_eq!(core.state().not_offering, None);
}

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
    // The API server says that it runs; that may be old, so the kernel is asked.
    assert_eq!(core.state().doubted, BTreeSet::from(["c1".to_owned()]));
    world.living.insert("c1".into());
    step(&mut world, &mut core, &Step::Look);
    world.now += reconcile::PROOF_GRACE;
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
