//! Kubelets and agents that come back: everything is rebuilt, nothing is touched.

use crate::machine::{Machine, SHARE, WHOLE, until};
use proto::mps::ServerPhase;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_is_registered_soon_after_its_start() {
    let mut machine = Machine::bare(4).await;
    let started = Instant::now();
    machine.start_agent();
    machine.registered().await;
    // The target is 50 ms; a busy machine gets ten times as much.
    assert!(
        started.elapsed() < Duration::from_millis(500),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_kubelet_is_registered_with_at_once() {
    let mut machine = Machine::new(1).await;
    for round in 1..=3 {
        let before = machine.kubelet.registrations();
        machine.kubelet.kill().await;
        machine.kubelet.start();
        let back = Instant::now();
        machine.registered().await;
        assert!(back.elapsed() < Duration::from_secs(5), "round {round}");
        let after = machine.kubelet.registrations();
        assert!(after >= before + 2, "{before} {after}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_is_registered_again_and_only_that_one() {
    let machine = Machine::new(1).await;
    let before = machine.kubelet.registrations();
    machine.kubelet.hang_up(SHARE);
    assert_eq!(machine.kubelet.healthy(SHARE), None);
    machine.registered().await;
    assert_eq!(machine.kubelet.registrations(), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_lists_are_not_sent() {
    let machine = Machine::new(2).await;
    let uid = machine.share_pod("p", 0, 100).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    until("the shared card is withdrawn", || async {
        (machine.healthy(WHOLE).len() == 1).then_some(())
    })
    .await;
    let before = machine.kubelet.lists();
    // Dozens of looks at the cards and at the disk.
    for _ in 0..3 {
        machine.kubelet.pre_start(&entry).await.unwrap();
        machine.prove(&entry);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(machine.kubelet.lists(), before);
}

/// What the kubelet and the supervisor see of the ledger.
fn visible(machine: &Machine) -> (Vec<String>, Vec<String>, proto::mps::Plan) {
    (
        machine.healthy(SHARE).into_iter().collect(),
        machine.healthy(WHOLE).into_iter().collect(),
        machine.mps.plan.lock().unwrap().clone(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_was_killed_rebuilds_what_it_knew_and_touches_nothing() {
    let mut machine = Machine::new(3).await;
    let running = machine.share_pod("running", 0, 5000).await;
    let entry = machine.admit("running", &running).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    machine.prove(&entry);
    // Bound, and not yet started.
    let waiting = machine.share_pod("waiting", 1, 6000).await;
    until("both cards are shared", || async {
        (machine.healthy(WHOLE).len() == 1).then_some(())
    })
    .await;
    until("both servers are planned", || async {
        (machine.mps.plan.lock().unwrap().servers.len() == 2).then_some(())
    })
    .await;
    let before = visible(&machine);
    let file = machine.cdi(&entry);
    machine.kill_agent().await;
    machine.mps.plans.lock().unwrap().clear();
    // The pod's grant is not needed any more: its CDI file has everything.
    machine.start_agent();
    let back = Instant::now();
    until("the same is offered", || async {
        (visible(&machine) == before).then_some(())
    })
    .await;
    assert!(back.elapsed() < Duration::from_secs(5));
    assert_eq!(machine.cdi(&entry), file);
    // Not for a moment was a server unwanted whose tenant runs.
    let plans = machine.mps.plans.lock().unwrap().clone();
    let kept = |plan: &proto::mps::Plan| plan.servers.iter().any(|s| s.name == machine.cards[0]);
    assert!(!plans.is_empty() && plans.iter().all(kept), "{plans:?}");
    let second = machine.admit("waiting", &waiting).await;
    machine.kubelet.pre_start(&second).await.unwrap();
    // What is held is still held: 15022 - 5000 is left of card 0.
    let third = machine.share_pod("third", 0, 10_023).await;
    let third = machine.admit("third", &third).await;
    assert!(
        machine
            .kubelet
            .pre_start(&third)
            .await
            .unwrap_err()
            .message()
            .contains("10022 MiB left")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_inside_prestart_lets_the_container_start_later() {
    let mut machine = Machine::new(1).await;
    *machine.mps.phase.lock().unwrap() = ServerPhase::Starting;
    let uid = machine.share_pod("p", 0, 2000).await;
    let entry = machine.admit("p", &uid).await;
    {
        let call = machine.kubelet.pre_start(&entry);
        let mut call = std::pin::pin!(call);
        tokio::select! {
            result = &mut call => panic!("answered while the server starts: {result:?}"),
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
    }
    machine.kill_agent().await;
    *machine.mps.phase.lock().unwrap() = ServerPhase::Ready;
    machine.start_agent();
    until("it starts", || async {
        machine.kubelet.pre_start(&entry).await.ok()
    })
    .await;
    assert_eq!(
        machine.env(&entry, "ALIQUOT_GPU_MEMORY_MIB").unwrap(),
        "2000"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_told_to_stop_closes_its_streams_and_its_sockets() {
    let mut machine = Machine::new(1).await;
    let told = Instant::now();
    machine.stop_agent().await.unwrap();
    assert!(
        told.elapsed() < Duration::from_secs(2),
        "{:?}",
        told.elapsed()
    );
    assert!(
        !machine
            .config
            .plugin_dir()
            .join("aliquot-share.sock")
            .exists()
    );
    assert!(
        !machine
            .config
            .plugin_dir()
            .join("aliquot-gpu.sock")
            .exists()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_goes_withdraws_what_nobody_holds() {
    let mut machine = Machine::new(2).await;
    let uid = machine.share_pod("p", 0, 2000).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    machine.stop_driver();
    until("no unheld device is healthy", || async {
        let (tokens, whole) = (machine.healthy(SHARE), machine.healthy(WHOLE));
        (tokens == entry.ids && whole.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_agent_of_the_same_node_refuses_and_the_first_does_not_notice() {
    let machine = Machine::new(2).await;
    let uid = machine.share_pod("p", 0, 2000).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let second = agent::run(machine.config.clone(), machine.client.clone(), stop).await;
    let refused = second.unwrap_err();
    assert!(matches!(refused, agent::RunError::NotAlone(_)), "{refused}");
    assert!(machine.cdi(&entry).is_some());
    machine.registered().await;
}
