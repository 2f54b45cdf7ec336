//! Claims about servers of single shares, cards without one, and servers that end.

use super::mps_node::{MpsNode, until};
use agent::mps::ClientError;
use futures::TryStreamExt as _;
use proto::mps::{Plan, Server, ServerPhase};
use std::process::Command;
use std::time::{Duration, Instant};

/// The plan of one share's own server.
fn isolated(bench: &MpsNode, name: &str, memory: u64) -> Server {
    Server {
        name: name.into(),
        gpu_uuids: vec![bench.cards[0].clone()],
        multiuser: true,
        exclusive: false,
        default_memory_mib: memory,
        default_thread_percent: 50,
        compute_mode_faults: 0,
    }
}

pub(crate) async fn isolated_servers_share_a_card_and_each_holds_its_own_tenant() {
    let bench = MpsNode::new(1).await;
    let plan = Plan {
        probes: Vec::new(),
        servers: vec![isolated(&bench, "aa", 2000), isolated(&bench, "bb", 3000)],
        cards: Vec::new(),
    };
    let seen = until("both are ready", async || {
        let seen = bench.client.ensure(plan.clone()).await.unwrap();
        seen.servers
            .iter()
            .all(|s| s.phase() == ServerPhase::Ready)
            .then_some(seen)
    })
    .await;
    assert_eq!(bench.compute_mode(0), "Default");
    for (server, limit) in seen.servers.iter().zip([2000, 3000]) {
        assert_eq!(server.observed_default_memory_mib, limit);
        let mut tenant = bench.tenant(0, server, "grow 100 hold");
        let grown = tenant.reach("grow");
        let held = grown["held_mib"].as_u64().unwrap();
        assert!(held <= limit && held > limit - 200, "{grown}");
        // A fault of one is the end of one.
        if limit == 2000 {
            tenant.end();
            let mut faulty = bench.tenant(0, server, "context fault hold");
            faulty.reach("fault");
        }
    }
    let both = Plan {
        probes: Vec::new(),
        servers: vec![
            isolated(&bench, "aa", 2000),
            Server {
                name: bench.cards[0].clone(),
                exclusive: true,
                ..isolated(&bench, "", 2000)
            },
        ],
        cards: Vec::new(),
    };
    let refused = bench.client.ensure(both).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(_)), "{refused}");
    bench.client.ensure(Plan::default()).await.unwrap();
    until("both are gone", async || {
        let seen = bench.client.observe().await.unwrap();
        seen.servers.is_empty().then_some(())
    })
    .await;
    bench.end().await;
}

pub(crate) async fn a_card_without_a_server_gets_its_mode_and_its_slice_and_gives_it_back() {
    let bench = MpsNode::new(1).await;
    let smi = |arguments: &[&str]| {
        let output = Command::new(bench.config.driver_root.join("usr/bin/nvidia-smi"))
            .args(arguments)
            .env("SIM_ROOT", &bench.config.driver_root)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // As an agent that was killed may have left it.
    smi(&["-i", "0", "-c", "EXCLUSIVE_PROCESS"]);
    let plan = Plan {
        probes: Vec::new(),
        servers: Vec::new(),
        cards: vec![proto::mps::Card {
            uuid: bench.cards[0].clone(),
            time_slice: Some(3),
            compute_mode_faults: 0,
        }],
    };
    let seen = bench.client.ensure(plan).await.unwrap();
    assert!(seen.cards[0].ready, "{seen:?}");
    assert_eq!(bench.compute_mode(0), "Default");
    assert!(smi(&["compute-policy", "-l"]).contains("LONG"));
    bench.client.ensure(Plan::default()).await.unwrap();
    until("the driver's own slice is back", async || {
        smi(&["compute-policy", "-l"])
            .contains("DEFAULT")
            .then_some(())
    })
    .await;
    let wrong = Plan {
        probes: Vec::new(),
        servers: Vec::new(),
        cards: vec![proto::mps::Card {
            uuid: bench.cards[0].clone(),
            time_slice: Some(4),
            compute_mode_faults: 0,
        }],
    };
    let refused = bench.client.ensure(wrong).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(_)), "{refused}");
    bench.end().await;
}

pub(crate) async fn a_limit_that_another_client_sets_is_reported_and_set_right() {
    let bench = MpsNode::new(1).await;
    bench.ensure(&[(0, 2000, 100)]).await;
    bench.cli(0, "set_default_device_pinned_mem_limit 0 30000M");
    let told = bench
        .server(0, "the supervisor reports the command", |server| {
            !server.tampered.is_empty() && server.phase() == ServerPhase::Ready
        })
        .await;
    assert_eq!(
        told.tampered,
        "unexpected command on the MPS control pipe: \
         \"set_default_device_pinned_mem_limit 0 30000M\""
    );
    let mut tenant = bench.tenant(0, &told, "grow 100 hold");
    let held = tenant.reach("grow")["held_mib"].as_u64().unwrap();
    assert!(held <= 2000, "{held}");
    tenant.end();
    bench.client.ensure(Plan::default()).await.unwrap();
    bench.end().await;
}

pub(crate) async fn a_killed_server_is_seen_at_once_and_comes_back() {
    let bench = MpsNode::new(1).await;
    let mut took = Vec::new();
    for _ in 0..3 {
        let seen = bench.ensure(&[(0, 2000, 100)]).await;
        let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
        tenant.reach("hold");
        let client = bench
            .server(0, "its client", |server| !server.clients.is_empty())
            .await
            .clients[0];
        let server = nix::unistd::Pid::from_raw(client.server_pid.cast_signed());
        let mut changes = bench.client.watch().await.unwrap();
        let killed = Instant::now();
        nix::sys::signal::kill(server, nix::sys::signal::Signal::SIGKILL).unwrap();
        loop {
            let seen = changes.try_next().await.unwrap().unwrap();
            if seen.servers[0].phase() != ServerPhase::Ready {
                break;
            }
        }
        took.push(killed.elapsed());
        bench
            .server(0, "another one", |server| {
                server.phase() == ServerPhase::Ready && server.clients.is_empty()
            })
            .await;
        tenant.end();
    }
    // The machine may be busy with something else for a moment, not most of the time.
    took.sort();
    assert!(took[1] < Duration::from_secs(1), "{took:?}");
    bench.client.ensure(Plan::default()).await.unwrap();
    bench.end().await;
}
