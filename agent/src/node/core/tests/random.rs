//! One node's life at random; a core that is started in the middle of it must know the same.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Bind(u32, bool, u32, u64),
    Allocate(u32),
    PreStart(u32),
    Prove(u32),
    Delete(u32),
    Finish(u32),
    Gone(u32),
    ContainerEnds(u32),
    KubeletForgets(u32),
    Look,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0..6_u32;
    let one = prop_oneof![
        4 => (pod.clone(), prop::bool::weighted(0.3), 0..CARDS, 1..700_u64)
            .prop_map(|(p, w, c, m)| Step::Bind(p, w, c, m)),
        4 => pod.clone().prop_map(Step::Allocate),
        4 => pod.clone().prop_map(Step::PreStart),
        2 => pod.clone().prop_map(Step::Prove),
        1 => pod.clone().prop_map(Step::Delete),
        1 => pod.clone().prop_map(Step::Finish),
        1 => pod.clone().prop_map(Step::Gone),
        2 => pod.clone().prop_map(Step::ContainerEnds),
        1 => pod.prop_map(Step::KubeletForgets),
        2 => Just(Step::Look),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(one, 0..50)
}

pub(super) fn step(world: &mut World, core: &mut Core, step: &Step) {
    world.now += Duration::from_millis(300);
    match step {
        Step::Bind(n, whole, card, mib) => {
            // A name that comes back has a new UID; a UID never does.
            if !world.pods.contains_key(&format!("u{n}")) && !world.gone.contains(n) {
                let pod = world.pod(*n, *whole, *card, *mib);
                world.tell(core, Event::Pod(Box::new(pod)));
            }
        }
        Step::Allocate(n) => world.allocate(core, &format!("u{n}")),
        Step::PreStart(n) => {
            world.pre_start(core, &format!("u{n}"));
        }
        Step::Prove(n) => world.prove(&format!("u{n}")),
        Step::Delete(n) | Step::Finish(n) => {
            if let Some(pod) = world.pods.get_mut(&format!("u{n}")) {
                match step {
                    Step::Delete(_) => pod.deleting = true,
                    _ => pod.finished = true,
                }
                let pod = pod.clone();
                world.tell(core, Event::Pod(Box::new(pod)));
            }
        }
        Step::Gone(n) => {
            let uid = format!("u{n}");
            if world.pods.remove(&uid).is_some() {
                world.gone.insert(*n);
                world.tell(core, Event::PodGone(uid));
            }
        }
        Step::ContainerEnds(n) => {
            world.living.remove(&format!("c-u{n}"));
        }
        Step::KubeletForgets(n) => {
            let uid = format!("u{n}");
            let live = world.pods.get(&uid).is_some_and(|pod| !pod.finished);
            if !live {
                world
                    .checkpoint
                    .entries
                    .retain(|entry| entry.pod_uid != uid);
            }
        }
        Step::Look => {
            let local = world.local();
            world.tell(core, Event::Local(local));
        }
        Step::Restart => *core = world.restarted(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_core_that_starts_in_the_middle_knows_what_the_old_one_knew(steps in steps()) {
        let mut world = World::new();
        let mut core = world.started();
        for one in &steps {
            step(&mut world, &mut core, one);
            for card in 0..CARDS {
                prop_assert!(core.ledger.granted(&uuid(card)) <= Mib(TOTAL), "{one:?}");
            }
        }
        let local = world.local();
        world.tell(&mut core, Event::Local(local));
        if !core.allocations.minted.is_empty() {
            // An answer that came and went between two readings of the checkpoint is remembered as
            // one that may still come; an agent that starts later cannot know of it.
            world.now += reconcile::MINTED_GRACE;
            let local = world.local();
            world.tell(&mut core, Event::Local(local));
        }
        let mut rebuilt = world.started();
        let local = world.local();
        world.tell(&mut rebuilt, Event::Local(local));
        let bound = |core: &Core| -> Vec<Share> {
            core.ledger.shares().filter(|s| s.alloc_id.is_some()).cloned().collect()
        };
        prop_assert_eq!(bound(&core), bound(&rebuilt));
        // If more is claimed than exists, the order of the claims is not recorded anywhere.
        if core.grants.oldest_first().iter().all(|claim| core.ledger.get(&claim.key()).is_some()) {
            prop_assert_eq!(&core.ledger, &rebuilt.ledger);
            prop_assert_eq!(core.offer().share, rebuilt.offer().share);
            prop_assert_eq!(core.offer().whole, rebuilt.offer().whole);
        }
    }

    #[test]
    fn when_everyone_left_nothing_is_held_and_nothing_lies_around(steps in steps()) {
        let mut world = World::new();
        let mut core = world.started();
        for one in &steps {
            step(&mut world, &mut core, one);
        }
        for n in 0..6 {
            step(&mut world, &mut core, &Step::Gone(n));
        }
        for n in 0..6 {
            step(&mut world, &mut core, &Step::ContainerEnds(n));
            step(&mut world, &mut core, &Step::KubeletForgets(n));
        }
        // Two looks: what the first removes, the second no longer finds.
        step(&mut world, &mut core, &Step::Look);
        step(&mut world, &mut core, &Step::Look);
        prop_assert_eq!(&core.ledger, &Ledger::default());
        prop_assert!(world.files.is_empty() && world.proofs.is_empty());
        let idle = new_core_offer();
        world.now += reconcile::MINTED_GRACE;
        core.apply(Event::Tick, world.now);
        prop_assert_eq!(core.offer(), idle);
    }
}
