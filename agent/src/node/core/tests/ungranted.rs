//! Claims about pods that hold devices without a grant.

use super::*;

/// Pods that are reported to schedulers.
fn told(core: &Core) -> Vec<String> {
    let ungranted = core.state().ungranted;
    ungranted.into_iter().map(|one| one.pod.uid).collect()
}

fn later(world: &mut World, core: &mut Core) {
    world.now += UNGRANTED_GRACE;
    step(world, core, &Step::Look);
}

#[test]
fn a_pod_that_holds_tokens_without_a_grant_is_reported_after_a_minute() {
    for grant in [None, Some("sig.{}")] {
        let mut world = World::new();
        let mut core = world.started();
        step(&mut world, &mut core, &Step::Bind(1, false, 0, 300));
        let pod = world.pods.get_mut("u1").unwrap();
        pod.grant = grant.map(str::to_owned);
        let mut pod = pod.clone();
        world.tell(&mut core, Event::Pod(Box::new(pod.clone())));
        step(&mut world, &mut core, &Step::Allocate(1));
        step(&mut world, &mut core, &Step::Look);
        assert!(told(&core).is_empty(), "{grant:?}");
        later(&mut world, &mut core);
        assert_eq!(told(&core), ["u1"], "{grant:?}");
        assert_eq!(core.state().ungranted[0].devices, 1);
        // It is on its way.
        pod.deleting = true;
        world.tell(&mut core, Event::Pod(Box::new(pod)));
        assert!(told(&core).is_empty());
    }
}

#[test]
fn a_pod_with_a_grant_is_not_reported_whatever_keeps_it_from_starting() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 300));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::Look);
    later(&mut world, &mut core);
    assert!(told(&core).is_empty());
    // Its key is not trusted any more, and it runs.
    step(&mut world, &mut core, &Step::PreStart(1));
    step(&mut world, &mut core, &Step::Prove(1));
    let none = Verifier::new("c", BTreeMap::new());
    world.tell(&mut core, Event::Trust(none, String::new()));
    step(&mut world, &mut core, &Step::Look);
    later(&mut world, &mut core);
    assert!(told(&core).is_empty());
}
