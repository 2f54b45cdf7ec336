//! A tenant against its card's MPS server: its directories, its control pipe, its slots.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_tests::claims;
use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{PROGRAM, grant_of, line, pod};
use aliquot_tests::suite::Claim;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proto::names::container;
use serde_json::{Value, json};

use crate::attacks;

pub(crate) fn claims() -> Vec<Claim> {
    claims![
        attacks::server::root_in_a_container_changes_nothing_in_the_pipe_directory,
        attacks::server::a_daemon_that_starts_again_is_found_by_containers_that_are_there,
        attacks::server::shared_memory_is_common_to_a_card_only_where_the_driver_needs_it,
        attacks::server::a_command_of_a_tenant_is_told_and_a_raise_below_one_gib_is_set_right,
    ]
}

/// Runs a script of the shell in a container, as root.
async fn shell(cluster: &Cluster, ns: &str, name: &str, script: &str) -> Result<String> {
    let command = ["/bin/busybox", "sh", "-c", script];
    cluster.kubectl.exec(ns, name, "main", &command).await
}

/// One command to the control daemon, by root in a container.
async fn drive(cluster: &Cluster, ns: &str, name: &str, command: &str) -> Result<Vec<String>> {
    let words = [PROGRAM, "drive", command];
    let said = cluster.kubectl.exec(ns, name, "main", &words).await?;
    let answers = line(&said, "drive").with_context(|| said.clone())?["answers"].clone();
    Ok(serde_json::from_value(answers)?)
}

/// It has memory of its card now.
async fn allocates(cluster: &Cluster, ns: &str, name: &str) -> Result<Seen<()>> {
    let words = [PROGRAM, "alloc", "100"];
    let said = cluster.kubectl.exec(ns, name, "main", &words).await?;
    let ok = line(&said, "alloc").is_some_and(|line| line["ok"] == true);
    Ok(Seen::when(ok, said))
}

/// A share of one card, with a container that does not start again.
async fn tenant(cluster: &Cluster, ns: &str, name: &str, mib: &str, script: &str) -> Result<()> {
    let manifest = pod(ns, name, &[("gpu-memory", mib)], script);
    cluster.run_share(&manifest).await?;
    Ok(())
}

/// The directories of the server that a pod is a client of, on the node.
async fn server_of(cluster: &Cluster, ns: &str, name: &str) -> Result<PathBuf> {
    let pod = cluster.pods(ns).get(name).await?;
    let card = grant_of(&pod)?.containers[0].gpus[0].clone();
    Ok(Path::new(container::MPS).join(card))
}

pub(crate) async fn root_in_a_container_changes_nothing_in_the_pipe_directory(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    tenant(cluster, &ns, "attacker", "2000", "hold").await?;
    tenant(cluster, &ns, "neighbour", "3000", "alloc 500 hold").await?;
    cluster.said(&ns, "neighbour", "main", "alloc").await?;
    let pipe = server_of(cluster, &ns, "attacker").await?.join("pipe");
    let files = || -> Result<BTreeSet<OsString>> {
        let entries = fs::read_dir(&pipe)?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    };
    let before = files()?;
    // These changes would fill the node's `/run`, take other tenants' connections, or obstruct a
    // supervisor that starts. Each is tried only if the server's pipe is there; otherwise the test
    // fails.
    for change in [
        "touch x",
        "mkdir x",
        "rm control",
        "mv control c",
        "rm nvidia-cuda-mps-control.pid",
        "mkfifo f",
        "ln -s /dev/zero l",
        "touch ../x",
        "mount -o remount,rw /run/aliquot/mps/pipe",
    ] {
        let tried = format!(
            "cd /run/aliquot/mps/pipe && test -S control && echo there; {change} 2>/dev/null && echo changed; :"
        );
        let said = shell(cluster, &ns, "attacker", &tried).await?;
        ensure!(said.trim() == "there", "it can {change}: {said}");
    }
    ensure!(files()? == before, "{before:?} are {:?}", files()?);
    let gpus = cluster.gpus.as_mut().context("no GPUs")?;
    gpus.mps.kill().await?;
    gpus.mps.start_again()?;
    until(
        "the neighbour's next process",
        Duration::from_secs(10),
        || allocates(cluster, &ns, "neighbour"),
    )
    .await
}

pub(crate) async fn a_daemon_that_starts_again_is_found_by_containers_that_are_there(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    tenant(cluster, &ns, "idle", "2000", "hold").await?;
    let pipe = server_of(cluster, &ns, "idle").await?.join("pipe");
    let file = pipe.join("nvidia-cuda-mps-control.pid");
    let before: i32 = fs::read_to_string(&file)?.trim().parse()?;
    kill(Pid::from_raw(before), Signal::SIGKILL)?;
    until("another daemon", Duration::from_secs(20), || async {
        let now = fs::read_to_string(&file).unwrap_or_default();
        let other = now.trim().parse().is_ok_and(|pid: i32| pid != before);
        Ok(Seen::when(other, now))
    })
    .await?;
    until("the container finds it", Duration::from_secs(10), || {
        allocates(cluster, &ns, "idle")
    })
    .await
}

/// One T4 with this driver.
fn driver(version: &str) -> Hardware {
    Hardware::described(json!({
        "driver_version": version, "cards": [{ "preset": "T4", "count": 1 }],
    }))
}

pub(crate) async fn shared_memory_is_common_to_a_card_only_where_the_driver_needs_it(
    cluster: &mut Cluster,
) -> Result<()> {
    for (version, common) in [("580.65.06", false), ("570.172.08", true)] {
        cluster.aliquot(&driver(version)).await?;
        let ns = cluster.namespace().await?;
        for name in ["writer", "reader"] {
            tenant(cluster, &ns, name, "2000", "alloc 500 hold").await?;
            let said = cluster.said(&ns, name, "main", "alloc").await?;
            ensure!(said["ok"] == true, "{version}: {said}");
        }
        shell(cluster, &ns, "writer", "echo secret >/dev/shm/left").await?;
        let look = "cat /dev/shm/left 2>/dev/null || echo nothing; df -m /dev/shm | tail -1";
        let seen = shell(cluster, &ns, "reader", look).await?;
        let words: Vec<&str> = seen.split_whitespace().collect();
        ensure!(
            (words.first() == Some(&"secret")) == common,
            "{version}: the other tenant sees {seen}"
        );
        // Never the node's own, and never more than the limit.
        ensure!(!Path::new("/dev/shm/left").exists(), "it is the node's");
        let mib = if common { "1024" } else { "64" };
        ensure!(words.get(2) == Some(&mib), "{version}: {seen}");
        cluster.delete_pods(&ns, ["writer", "reader"]).await?;
        // With the last share it is gone.
        tenant(cluster, &ns, "later", "2000", "hold").await?;
        let seen = shell(cluster, &ns, "later", look).await?;
        ensure!(seen.starts_with("nothing"), "{version}: {seen}");
        cluster.delete_pod(&ns, "later").await?;
    }
    Ok(())
}

/// What the agent says of a share, once it says this.
async fn complaint(cluster: &Cluster, name: &str, words: &str) -> Result<()> {
    until(
        &format!("{words:?} told of {name}"),
        Duration::from_secs(10),
        || async {
            let ledger = cluster.ledger().await?;
            let mut grants = ledger.iter().filter(|(_, grant)| grant.pod.ends_with(name));
            let told = grants.any(|(_, grant)| grant.complaint.contains(words));
            Ok(Seen::when(told, format!("{ledger:?}")))
        },
    )
    .await
}

pub(crate) async fn a_command_of_a_tenant_is_told_and_a_raise_below_one_gib_is_set_right(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    tenant(cluster, &ns, "attacker", "2000", "hold").await?;
    let mut neighbour = pod(
        &ns,
        "neighbour",
        &[("gpu-memory", "3000")],
        "alloc 500 hold",
    );
    neighbour["spec"]["restartPolicy"] = json!("Always");
    cluster.run_share(&neighbour).await?;
    cluster.said(&ns, "neighbour", "main", "alloc").await?;
    let attack = |command: String| {
        let ns = &ns;
        let cluster = &*cluster;
        async move { drive(cluster, ns, "attacker", &command).await }
    };
    let server = attack("get_server_list".into()).await?.concat();
    // 3050 reads back as 2G, and so do 3000: so the exact limit cannot be derived from it.
    for raise in [
        format!("set_device_pinned_mem_limit {server} 0 3050M"),
        "set_default_device_pinned_mem_limit 0 3050M".to_owned(),
        format!("set_active_thread_percentage {server} 1"),
    ] {
        attack(raise.clone()).await?;
        complaint(cluster, "neighbour", &raise).await?;
    }
    let log = server_of(cluster, &ns, "attacker")
        .await?
        .join("log/daemon.log");
    let last = |verb: &str| -> Result<String> {
        let text = fs::read_to_string(&log)?;
        let mut commands = text
            .lines()
            .rev()
            .filter_map(|line| line.split_once("Cmd:"));
        let found = commands.find(|(_, command)| command.starts_with(verb));
        Ok(found
            .map(|(_, command)| command.to_owned())
            .unwrap_or_default())
    };
    let right = [
        format!("set_device_pinned_mem_limit {server} 0 3000M"),
        "set_default_device_pinned_mem_limit 0 3000M".to_owned(),
        format!("set_active_thread_percentage {server} 100"),
    ];
    until("all limits set right", Duration::from_secs(10), || async {
        let now: Vec<String> = right
            .iter()
            .map(|command| last(command.split(' ').next().unwrap_or_default()))
            .collect::<Result<_>>()?;
        Ok(Seen::when(now == right, now.join("; ")))
    })
    .await?;

    // Work of another tenant, by its number: it loses it, and the agent says how.
    let clients = attack(format!("get_client_list {server}")).await?;
    let victim = clients.first().context("no client")?;
    let terminate = format!("terminate_client {server} {victim}");
    attack(terminate.clone()).await?;
    complaint(cluster, "neighbour", &terminate).await?;
    let loses = |value: &Value| value["ok"] == false;
    let words = [PROGRAM, "alloc", "100"];
    let said = cluster.kubectl.exec(&ns, "neighbour", "main", &words).await;
    // Another process of it works as before.
    ensure!(
        said.is_ok_and(|said| line(&said, "alloc").is_some_and(|line| !loses(&line))),
        "the server takes no client any more"
    );
    Ok(())
}
