//! Claims about a card's one server, and about the supervisor itself.

use super::mps_node::{MpsNode, pids, until};
use agent::mps::{ClientError, ServeError, serve};
use agent::termination::{self, Drain, Order};
use api::grant::PodIdentity;
use proto::mps::{Plan, Server, ServerPhase};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

pub(crate) async fn a_planned_card_gets_a_ready_server_and_holds_its_tenant_to_the_limit() {
    let bench = MpsNode::new(2).await;
    let seen = bench.ensure(&[(0, 2000, 50)]).await;
    let server = &seen.servers[0];
    assert_eq!(
        (server.phase(), server.reason.as_str()),
        (ServerPhase::Ready, "")
    );
    #[expect(deprecated, reason = "as an older agent reads it")]
    let word = &server.state;
    assert_eq!(word, "Ready");
    // It reads back in whole GiB, rounded down, as on a real one; the log says the rest.
    assert_eq!(server.observed_default_memory_mib, 2000);
    assert_eq!(server.observed_default_thread_percent, 50);
    assert_eq!(server.restarts, 0);
    assert!(!server.driver_version.is_empty());
    assert_eq!(bench.compute_mode(0), "Exclusive_Process");
    assert_eq!(bench.compute_mode(1), "Default");
    let mut tenant = bench.tenant(0, server, "grow 100 hold");
    let refused = tenant.reach("grow");
    assert_eq!(refused["held_mib"].as_u64().unwrap() / 100, 19, "{refused}");
    let server = bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    assert_eq!(pids(&server), [tenant.pid()]);
    tenant.end();
    bench.end().await;
}

pub(crate) async fn a_larger_limit_reaches_the_next_client_without_a_restart() {
    let bench = MpsNode::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 50)]).await;
    let daemon = bench.daemon_pid(0);
    let mut small = bench.tenant(0, &seen.servers[0], "alloc 1000 hold");
    assert_eq!(small.reach("alloc")["ok"], true);
    let seen = bench.ensure(&[(0, 8192, 100)]).await;
    assert_eq!(seen.servers[0].observed_default_memory_mib, 8192);
    assert_eq!(seen.servers[0].observed_default_thread_percent, 100);
    let mut large = bench.tenant(0, &seen.servers[0], "alloc 7000 hold");
    assert_eq!(large.reach("alloc")["ok"], true);
    assert_eq!(bench.daemon_pid(0), daemon);
    small.end();
    large.end();
    bench.end().await;
}

pub(crate) async fn a_limit_that_is_raised_within_a_gib_is_reported_to_the_mib() {
    let mut bench = MpsNode::new(1).await;
    let seen = bench.ensure(&[(0, 3200, 50)]).await;
    assert_eq!(seen.servers[0].observed_default_memory_mib, 3200);
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
    tenant.reach("alloc");
    // It reads back as `3G` before and after, and its server writes what it was set to.
    let to_the_mib = async |bench: &MpsNode| {
        bench.ensure(&[(0, 3900, 50)]).await;
        bench
            .server(0, "its limit to the MiB", |s| {
                s.observed_default_memory_mib == 3900
            })
            .await
    };
    to_the_mib(&bench).await;
    // Another supervisor sets it again, and does not take what it did not hear for what is.
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    bench.stop().await;
    bench.start().await;
    bench
        .server(0, "it is adopted", |s| s.phase() == ServerPhase::Ready)
        .await;
    to_the_mib(&bench).await;
    tenant.end();
    bench.end().await;
}

pub(crate) async fn a_card_out_of_the_plan_keeps_its_server_until_its_clients_end() {
    let bench = MpsNode::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 await go alloc 100 hold");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    let seen = bench.client.ensure(Plan::default()).await.unwrap();
    assert_eq!(seen.servers[0].phase(), ServerPhase::Draining);
    assert_eq!(seen.servers[0].reason, "waits for 1 clients to end");
    assert_eq!(bench.compute_mode(0), "Exclusive_Process");
    tenant.end();
    until("the server is gone", async || {
        let seen = bench.client.observe().await.unwrap();
        seen.servers.is_empty().then_some(())
    })
    .await;
    assert_eq!(bench.compute_mode(0), "Default");
    assert!(!bench.place(0).exists());
    bench.end().await;
}

pub(crate) async fn a_daemon_that_died_is_seen_within_a_second_and_comes_back_after_its_clients() {
    let bench = MpsNode::new(1).await;
    // The machine may be busy with something else for a moment, not three times.
    let mut tries = Vec::new();
    let (tenant, dead) = loop {
        let seen = bench.ensure(&[(0, 2000, 100)]).await;
        let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
        tenant.reach("alloc");
        bench
            .server(0, "the client is seen", |s| !s.clients.is_empty())
            .await;
        let killed = Instant::now();
        bench.cli(0, "sim die");
        let dead = bench
            .server(0, "its death is seen", |s| s.phase() == ServerPhase::Dead)
            .await;
        tries.push(killed.elapsed());
        if tries
            .last()
            .is_some_and(|last| *last < Duration::from_secs(1))
        {
            break (tenant, dead);
        }
        assert!(tries.len() < 3, "{tries:?}");
        tenant.end();
        bench
            .server(0, "it is back", |s| {
                s.phase() == ServerPhase::Ready && s.clients.is_empty()
            })
            .await;
    };
    assert!(
        dead.reason.starts_with("the control daemon ended"),
        "{}",
        dead.reason
    );
    bench
        .server(0, "it waits for the client", |s| {
            s.reason.ends_with("waits for 1 clients of it")
        })
        .await;
    tenant.end();
    let back = bench
        .server(0, "it is back", |s| s.phase() == ServerPhase::Ready)
        .await;
    assert_eq!(back.restarts as usize, tries.len());
    let mut tenant = bench.tenant(0, &back, "alloc 101 hold");
    assert_eq!(tenant.reach("alloc")["ok"], true);
    tenant.end();
    bench.end().await;
}

pub(crate) async fn a_supervisor_that_returns_adopts_what_runs() {
    let mut bench = MpsNode::new(2).await;
    let seen = bench.ensure(&[(0, 2000, 50), (1, 2000, 50)]).await;
    let daemon = bench.daemon_pid(0);
    let of_first = seen
        .servers
        .iter()
        .find(|s| s.name == bench.cards[0])
        .unwrap();
    let mut tenant = bench.tenant(0, of_first, "alloc 100 sleep 1000");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    bench.stop().await;
    // The idle one ended with its supervisor, the other one did not.
    assert!(!bench.place(1).exists());
    bench.start().await;
    // Before the agent has a plan nothing changes.
    let adopted = bench
        .server(0, "it is adopted", |s| s.phase() == ServerPhase::Ready)
        .await;
    assert_eq!(pids(&adopted), [tenant.pid()]);
    let seen = bench.ensure(&[(0, 2000, 50)]).await;
    assert_eq!(seen.servers[0].phase(), ServerPhase::Ready);
    assert_eq!(seen.servers[0].restarts, 0);
    assert_eq!(bench.daemon_pid(0), daemon);
    tenant.end();
    bench.end().await;
}

pub(crate) async fn a_hung_daemon_is_reported_and_does_not_hold_up_another_card() {
    let bench = MpsNode::new(2).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    // It hangs before it answers, so the command line would too.
    let place = bench.place(0);
    let mut hanging = Command::new(bench.config.mps_control())
        .env("CUDA_MPS_PIPE_DIRECTORY", place.join("pipe"))
        .env("SIM_ROOT", &bench.config.driver_root)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(hanging.stdin.as_mut().unwrap(), "sim hang").unwrap();
    let started = Instant::now();
    let plan = bench.plan(&[(0, 2000, 100), (1, 2000, 100)]);
    bench.client.ensure(plan).await.unwrap();
    bench
        .server(1, "the other card is ready", |s| {
            s.phase() == ServerPhase::Ready
        })
        .await;
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    let hung = bench
        .server(0, "the supervisor reports that the daemon hangs", |s| {
            s.phase() == ServerPhase::ServerFault
        })
        .await;
    assert!(hung.reason.contains("does not answer"), "{}", hung.reason);
    // With its client gone it cannot say so: it is ended by hand, and comes back.
    tenant.end();
    let pid = nix::unistd::Pid::from_raw(bench.daemon_pid(0).cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    bench
        .server(0, "it is back", |s| {
            s.phase() == ServerPhase::Ready && s.restarts == 1
        })
        .await;
    let _ = hanging.kill();
    hanging.wait().unwrap();
    bench.end().await;
}

pub(crate) async fn a_limit_that_the_daemon_refuses_is_not_called_ready() {
    let bench = MpsNode::new(1).await;
    bench.ensure(&[(0, 2000, 100)]).await;
    bench.cli(0, "sim reject set_default_device_pinned_mem_limit");
    bench
        .client
        .ensure(bench.plan(&[(0, 9000, 100)]))
        .await
        .unwrap();
    let server = bench
        .server(0, "the supervisor reports the refused limit", |s| {
            !s.reason.is_empty()
        })
        .await;
    assert_eq!(server.phase(), ServerPhase::Starting);
    assert!(
        server.reason.contains("was set to 9000 MiB and reads back"),
        "{}",
        server.reason
    );
    bench.cli(0, "sim reject nothing");
    bench
        .server(0, "it is ready", |s| s.phase() == ServerPhase::Ready)
        .await;
    bench.end().await;
}

pub(crate) async fn a_terminated_client_loses_its_work_and_its_neighbour_does_not() {
    let bench = MpsNode::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let name = bench.cards[0].as_str();
    let go = bench.folder.path().join("go");
    let script = format!("alloc 100 await {} alloc 50 hold", go.display());
    let mut one = bench.tenant(0, &seen.servers[0], &script);
    let mut other = bench.tenant(0, &seen.servers[0], &format!("report {script}"));
    one.reach("alloc");
    other.reach("alloc");
    bench
        .server(0, "both are seen", |s| s.clients.len() == 2)
        .await;
    let gone = bench
        .client
        .terminate(name, vec![one.pid(), 1])
        .await
        .unwrap();
    assert_eq!(gone, [one.pid()]);
    std::fs::write(&go, "").unwrap();
    assert_eq!(one.reach("alloc")["ok"], false);
    assert_eq!(other.reach("alloc")["ok"], true);
    let nobody = bench.client.terminate("GPU-none", vec![1]).await;
    assert!(
        matches!(nobody, Err(ClientError::Unreachable(_))),
        "{nobody:?}"
    );
    one.end();
    other.end();
    bench.end().await;
}

pub(crate) async fn a_drained_client_loses_its_work_and_lives_on_until_the_kubelet_kills_it() {
    let bench = MpsNode::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let go = bench.folder.path().join("go");
    let script = format!("alloc 100 await {} alloc 50 hold", go.display());
    let mut leaves = bench.tenant(0, &seen.servers[0], &script);
    let mut stays = bench.tenant(0, &seen.servers[0], &format!("report {script}"));
    leaves.reach("alloc");
    stays.reach("alloc");
    bench
        .server(0, "both are seen", |s| s.clients.len() == 2)
        .await;
    let (orders, inbox) = channel::unbounded();
    let stop = CancellationToken::new();
    let socket = bench.config.mps_socket();
    let proc_root = "/proc".into();
    let running = tokio::spawn(termination::run(proc_root, socket, inbox, stop));
    let drain = Drain {
        pod: PodIdentity {
            uid: "u1".into(),
            namespace: "ns".into(),
            name: "p1".into(),
        },
        server: bench.cards[0].clone(),
        pids: vec![leaves.pid()],
    };
    orders.send(Order::Drain(drain)).unwrap();
    // It ends when all that it was told is done.
    drop(orders);
    running.await.unwrap();
    assert_eq!(leaves.child.try_wait().unwrap(), None);
    std::fs::write(&go, "").unwrap();
    assert_eq!(leaves.reach("alloc")["ok"], false);
    assert_eq!(stays.reach("alloc")["ok"], true);
    leaves.end();
    stays.end();
    bench.end().await;
}

pub(crate) async fn a_fault_is_reported_until_its_clients_are_gone() {
    let bench = MpsNode::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    bench.cli(0, "sim fault");
    let fault = bench
        .server(0, "the supervisor reports the fault", |s| {
            s.phase() == ServerPhase::ServerFault
        })
        .await;
    assert_eq!(
        fault.reason,
        "the server faulted; waits for 1 clients to end"
    );
    tenant.end();
    bench
        .server(0, "it is ready", |s| s.phase() == ServerPhase::Ready)
        .await;
    bench.end().await;
}

pub(crate) async fn an_impossible_plan_is_refused_whole() {
    let bench = MpsNode::new(1).await;
    let good = bench.plan(&[(0, 2000, 100)]).servers[0].clone();
    let server = |change: fn(&mut Server)| {
        let mut server = good.clone();
        change(&mut server);
        server
    };
    for bad in [
        server(|s| s.name = "../x".into()),
        server(|s| s.default_thread_percent = 0),
        server(|s| s.default_thread_percent = 101),
        server(|s| s.gpu_uuids.clear()),
        good.clone(),
    ] {
        let servers = vec![good.clone(), bad.clone()];
        let answer = bench
            .client
            .ensure(Plan {
                probes: Vec::new(),
                servers,
                cards: Vec::new(),
            })
            .await;
        assert!(
            matches!(answer, Err(ClientError::Refused(_))),
            "{bad:?}: {answer:?}"
        );
    }
    let seen = bench.client.observe().await.unwrap();
    assert_eq!((seen.servers, seen.cards), (Vec::new(), Vec::new()));
    bench.end().await;
}

pub(crate) async fn only_one_supervisor_runs() {
    let bench = MpsNode::new(1).await;
    let second = serve(bench.config.clone(), CancellationToken::new()).await;
    assert!(matches!(second, Err(ServeError::Running(_))), "{second:?}");
    bench.client.observe().await.unwrap();
    bench.end().await;
}

pub(crate) async fn a_missing_program_is_a_reason_and_not_an_end() {
    let mut bench = MpsNode::new(1).await;
    bench.stop().await;
    bench.config.mps_control = Some("/nowhere/nvidia-cuda-mps-control".into());
    bench.start().await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    assert_eq!(seen.servers[0].phase(), ServerPhase::Dead);
    let reason = &seen.servers[0].reason;
    assert!(
        reason.contains("/nowhere/nvidia-cuda-mps-control"),
        "{reason}"
    );
    until("it is given up", async || {
        let seen = bench.client.ensure(Plan::default()).await.unwrap();
        seen.servers.is_empty().then_some(())
    })
    .await;
    bench.end().await;
}
