//! An agent that is replaced, and one that offers more tokens than are needed.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::{Cluster, quantity};
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use aliquot_tests::{node, pod::phase_of};
use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;
use proto::names::resource;

/// For an agent to start.
const LIMIT: Duration = Duration::from_secs(20);

fn gpus(cluster: &mut Cluster) -> Result<&mut Gpus> {
    cluster.gpus.as_mut().context("no GPUs")
}

/// Tokens that the node offers.
async fn offered(cluster: &Cluster) -> Result<u64> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let status = nodes.get(node::NAME).await?.status.unwrap_or_default();
    let tokens = status
        .allocatable
        .as_ref()
        .and_then(|all| all.get(resource::SHARE));
    Ok(tokens.and_then(|tokens| quantity(&tokens.0)).unwrap_or(0))
}

/// A rolling update with `maxSurge`: the kubelet starts the new agent beside the old one, again
/// and again, until the old one is gone.
pub(crate) async fn an_agent_started_beside_the_old_one_waits_and_takes_over_without_a_gap(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let before = pod(&ns, "before", &[("gpu-memory", "2000")], "report hold");
    cluster.run_share(&before).await?;
    let all = offered(cluster).await?;
    let logs = cluster.work.logs();
    let command = gpus(cluster)?.agent.command();
    let mark = gpus(cluster)?.agent.mark()?;
    let mut next = command.clone().start(&logs)?;
    until("the new one refuses", Duration::from_secs(40), || {
        let ended = next.alive().is_err();
        async move { Ok(Seen::when(ended, "it runs")) }
    })
    .await?;
    // Once more, and this time the old one goes while the new one waits for it.
    next.start_again()?;
    gpus(cluster)?.agent.stop().await?;
    let begin = Instant::now();
    let agent = &gpus(cluster)?.agent;
    until(
        "the new one has registered",
        Duration::from_secs(20),
        || async {
            let said = agent.said_since(mark)?;
            let back = said
                .lines()
                .any(|line| line.contains("registered resource") && line.contains(resource::SHARE));
            Ok(Seen::when(back, said))
        },
    )
    .await?;
    let took = begin.elapsed();
    let least = std::cell::Cell::new(u64::MAX);
    let served = async {
        let after = pod(&ns, "after", &[("gpu-memory", "2000")], "report hold");
        cluster.run_share(&after).await?;
        least.set(offered(cluster).await?);
        let pod: Pod = cluster.pods(&ns).get("before").await?;
        ensure!(phase_of(&pod) == "Running", "{}", phase_of(&pod));
        let names = [format!("{ns}/before"), format!("{ns}/after")];
        cluster
            .ledger_is(&[(&names[0], "main", 2000), (&names[1], "main", 2000)])
            .await
            .map(drop)
    }
    .await;
    next.stop().await?;
    gpus(cluster)?.agent.start_again()?;
    served?;
    ensure!(least.get() == all, "{} of {all} tokens", least.get());
    ensure!(took < Duration::from_secs(5), "registered after {took:?}");
    cluster.limits_hold().await
}

/// The kubelet permanently rejects a pod that it has to start without the plugin. So pods come all the time while one agent replaces the other: first as a
/// `DaemonSet` with `maxSurge` does it, then after a crash.
pub(crate) async fn a_share_starts_at_every_moment_of_a_rolling_update(
    cluster: &mut Cluster,
) -> Result<()> {
    /// Pods, and at which of them the update begins, the agent crashes and is there again.
    const PODS: usize = 60;
    const SURGE: usize = 15;
    const CRASH: usize = 40;
    const BACK: usize = 48;
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let logs = cluster.work.logs();
    let usual = gpus(cluster)?.agent.command();
    let mut old = None;
    let mut names = Vec::new();
    let served = async {
        for number in 0..PODS {
            let name = format!("p{number:02}");
            let memory = if number % 2 == 0 { "100" } else { "200" };
            let share = pod(&ns, &name, &[("gpu-memory", memory)], "report");
            cluster.apply_one(&share).await?;
            names.push(name);
            let agent = &mut gpus(cluster)?.agent;
            if number == SURGE {
                let next = usual.clone().replace("--pod-uid", "next");
                let next = next.replace("--listen", "127.0.0.1:9410").start(&logs)?;
                let first = std::mem::replace(agent, next);
                until("the next one waits", LIMIT, || async {
                    let said = agent.said()?;
                    Ok(Seen::when(
                        said.contains("waits until the node's other agent has ended"),
                        said,
                    ))
                })
                .await?;
                first.signal(Signal::SIGTERM)?;
                old = Some(first);
            }
            if number == CRASH {
                // A crash cannot be foretold: what is bound in the same moment is lost.
                tokio::time::sleep(Duration::from_secs(2)).await;
                agent.kill().await?;
            }
            if number == BACK {
                agent.start_again()?;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        for name in &names {
            cluster.pod_phase(&ns, name, "Succeeded").await?;
        }
        anyhow::Ok(())
    }
    .await;
    if let Some(mut old) = old {
        old.stop().await?;
    }
    let agent = &mut gpus(cluster)?.agent;
    agent.stop().await?;
    agent.start_again_with(|_| usual)?;
    served
}

/// The kubelet keeps a set of IDs per resource, writes them to its checkpoint and reads all of
/// them in each answer of `ListAndWatch`.
pub(crate) async fn ten_thousand_tokens_register_and_allocate(cluster: &mut Cluster) -> Result<()> {
    const CARDS: u32 = 8;
    const SLOTS: u32 = 1250;
    cluster.aliquot(&Hardware::preset("T4", CARDS)).await?;
    let usual = gpus(cluster)?.agent.command();
    let few = offered(cluster).await?;
    let mut lines = Vec::new();
    let outcome = async {
        for slots in [SLOTS / 10, SLOTS / 2, SLOTS] {
            let wanted = u64::from(CARDS * slots);
            let agent = &mut gpus(cluster)?.agent;
            agent.stop().await?;
            let mark = agent.mark()?;
            let more = usual.clone().flag("--client-slots", slots.to_string());
            agent.start_again_with(|_| more)?;
            let begin = Instant::now();
            let agent = &gpus(cluster)?.agent;
            until("registered", Duration::from_secs(30), || async {
                let said = agent.said_since(mark)?;
                let back = said.lines().any(|line| {
                    line.contains("registered resource") && line.contains(resource::SHARE)
                });
                Ok(Seen::when(back, said))
            })
            .await?;
            let registered = begin.elapsed();
            until("all offered", Duration::from_mins(1), || async {
                let now = offered(cluster).await?;
                Ok(Seen::when(now == wanted, format!("{now} of {wanted}")))
            })
            .await?;
            let shown = begin.elapsed();
            let ns = cluster.namespace().await?;
            let begin = Instant::now();
            let manifest = pod(&ns, "pod", &[("gpu-memory", "2000")], "report hold");
            cluster.run_share(&manifest).await?;
            let ran = begin.elapsed();
            let writes = patches_within(cluster, &ns, Duration::from_secs(10)).await?;
            lines.push(format!(
                "{wanted} tokens: registered {registered:?} after the agent's start, in the node's status after {shown:?}, a share ran {ran:?} after it was made, {writes} writes to its status in the 10 s after"
            ));
            ensure!(registered < Duration::from_secs(5), "{registered:?}");
            // The kubelet writes a pod's status when something about it changes.
            ensure!(writes <= 4, "{writes} writes in 10 s");
        }
        anyhow::Ok(())
    }
    .await;
    let agent = &mut gpus(cluster)?.agent;
    agent.stop().await?;
    agent.start_again_with(|_| usual)?;
    until("as few as before", Duration::from_mins(1), || async {
        let now = offered(cluster).await?;
        Ok(Seen::when(now == few, format!("{now}")))
    })
    .await?;
    #[expect(clippy::print_stdout, reason = "the figures are worth lines")]
    for line in lines {
        println!("{line}");
    }
    outcome
}

/// How often anything about the pods of a namespace was written within this time.
async fn patches_within(cluster: &Cluster, ns: &str, span: Duration) -> Result<usize> {
    let changes = watcher(cluster.pods(ns), watcher::Config::default()).applied_objects();
    let mut changes = std::pin::pin!(changes);
    let mut seen = std::collections::BTreeSet::new();
    let counted = async {
        while let Some(Ok(pod)) = changes.next().await {
            seen.insert(pod.resource_version());
        }
    };
    // It never ends by itself.
    let _ = tokio::time::timeout(span, counted).await;
    // The first is the list's.
    Ok(seen.len().saturating_sub(1))
}
