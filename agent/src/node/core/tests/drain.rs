//! Claims about clients of MPS servers that the kubelet is about to kill.

use super::*;
use crate::node::core::tests::servers::client;
use crate::nvml::CardSample;
use crate::pods::PodView;

/// A pod with a share in mode `mps`, whose container has this process on the card.
fn running(pid: u32) -> (World, Core, PodView) {
    let mut world = World::new();
    let mut core = world.started();
    let pod = world.pod(1, false, 0, 100);
    world.tell(&mut core, Event::Pod(Box::new(pod.clone())));
    world.allocate(&mut core, "u1");
    assert!(matches!(world.pre_start(&mut core, "u1"), Some(Ok(_))));
    world.prove("u1");
    let local = world.local();
    world.tell(&mut core, Event::Local(local));
    world.tell(&mut core, on_card(&[pid]));
    (world, core, pod)
}

fn on_card(pids: &[u32]) -> Event {
    let clients = pids.iter().map(|pid| client(*pid, "u1")).collect();
    Event::Observed(Arc::new(observation(&BTreeMap::from([(0, clients)]))))
}

/// What is drained by an event: the server, and the processes.
fn drained(world: &World, core: &mut Core, event: Event) -> Vec<(String, Vec<u32>)> {
    let effects = core.apply(event, world.now);
    let drains = effects.into_iter().filter_map(|effect| match effect {
        Effect::Drain(drain) => Some((drain.server, drain.pids)),
        _ => None,
    });
    drains.collect()
}

fn deleted(mut pod: PodView, seconds: u64) -> Event {
    pod.deleting = true;
    pod.grace = Duration::from_secs(seconds);
    Event::Pod(Box::new(pod))
}

/// A sample of the processes on the card, of which nothing else follows.
fn sample(world: &World) -> Event {
    let card = CardSample {
        uuid: uuid(0),
        at: world.now,
        processes: vec![client(7, "u1")],
    };
    Event::Sampled(Arc::new(Sample { cards: vec![card] }))
}

#[test]
fn a_client_of_a_deleted_pod_is_drained_once_just_before_the_kubelet_kills_it() {
    let (mut world, mut core, pod) = running(7);
    assert_eq!(drained(&world, &mut core, deleted(pod.clone(), 30)), []);
    // What the program does after SIGTERM, it does with its GPU.
    world.now += Duration::from_millis(28_900);
    assert_eq!(drained(&world, &mut core, Event::Tick), []);
    // Samples come ten times a second.
    world.now += Duration::from_millis(100);
    let sampled = sample(&world);
    let drain = ("GPU-0".to_owned(), vec![7]);
    assert_eq!(drained(&world, &mut core, sampled), [drain]);
    assert_eq!(drained(&world, &mut core, Event::Tick), []);
    // A process that started since is drained, too.
    let drain = ("GPU-0".to_owned(), vec![8]);
    assert_eq!(drained(&world, &mut core, on_card(&[7, 8])), [drain]);
}

#[test]
fn a_second_deletion_shortens_the_time_and_a_short_period_is_halved() {
    for (seconds, millis) in [(1, 500), (2, 1000), (3, 2000)] {
        let (mut world, mut core, pod) = running(7);
        assert_eq!(drained(&world, &mut core, deleted(pod.clone(), 60)), []);
        world.now += Duration::from_secs(10);
        assert_eq!(
            drained(&world, &mut core, deleted(pod.clone(), seconds)),
            []
        );
        world.now += Duration::from_millis(millis - 1);
        // A later report of the pod does not put it off.
        assert_eq!(drained(&world, &mut core, deleted(pod, seconds)), []);
        world.now += Duration::from_millis(1);
        assert_eq!(
            drained(&world, &mut core, Event::Tick).len(),
            1,
            "{seconds}"
        );
    }
}

#[test]
fn a_pod_that_is_deleted_by_force_is_drained_at_once_and_others_never() {
    let (world, mut core, pod) = running(7);
    let gone = Event::PodGone("u1".into());
    assert_eq!(drained(&world, &mut core, gone).len(), 1);
    // A static pod outlives its mirror.
    let (mut world, mut core, _) = running(7);
    let mirror = PodView {
        mirror_uid: Some("m1".into()),
        ..pod.clone()
    };
    let present = Event::Pod(Box::new(mirror.clone()));
    assert_eq!(drained(&world, &mut core, present), []);
    assert_eq!(drained(&world, &mut core, deleted(mirror, 0)), []);
    let gone = Event::PodGone("u1".into());
    assert_eq!(drained(&world, &mut core, gone), []);
    world.now += Duration::from_secs(40);
    assert_eq!(drained(&world, &mut core, Event::Tick), []);
    // A pod that runs on.
    let (mut world, mut core, _) = running(7);
    world.now += Duration::from_secs(40);
    assert_eq!(drained(&world, &mut core, Event::Tick), []);
}
