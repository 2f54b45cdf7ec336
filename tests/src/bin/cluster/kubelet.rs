//! Unexpected behaviour of the kubelet and the runtime, which a node survives.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::node;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{PROGRAM, grant_of, line, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use api::gpu_node::GpuNode;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::ResourceExt;
use kube::api::ListParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const CDI: &str = "/var/run/cdi";

fn gpus(cluster: &mut Cluster) -> Result<&mut Gpus> {
    cluster.gpus.as_mut().context("no GPUs")
}

/// It works: it takes memory within its limit, on the card that it was granted.
pub(crate) async fn works(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    until(
        &format!("{name} works"),
        Duration::from_secs(40),
        || async {
            let pod = cluster.pods(ns).get(name).await?;
            let granted = grant_of(&pod)?.containers[0].clone();
            let command = [PROGRAM, "report", "alloc", "100"];
            let said = cluster.kubectl.exec(ns, name, "main", &command).await?;
            let report = line(&said, "report").with_context(|| said.clone())?;
            let own = report["devices"][0]["uuid"] == granted.gpus[0].as_str();
            let ok = line(&said, "alloc").is_some_and(|line| line["ok"] == true);
            Ok(Seen::when(own && ok, said))
        },
    )
    .await
}

/// Processes of a pod's containers, on this machine.
fn processes(uid: &str, sandboxes: bool) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // Not the sandbox's.
            cgroup.contains(uid) && (sandboxes || !command.starts_with(b"/bin/sleep"))
        })
        .collect()
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .map(|s| s.restart_count)
        .sum()
}

pub(crate) async fn pod_resources_answers_from_inside_prestart(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let agent = &mut gpus(cluster)?.agent;
    agent.kill().await?;
    let mark = agent.mark()?;
    agent.start_again_with(|command| command.env("RUST_LOG", "info,agent=debug"))?;
    // A pod that comes before the kubelet has its plugin back is rejected permanently.
    let agent = &gpus(cluster)?.agent;
    until("registered again", Duration::from_secs(20), || async {
        let said = agent.said_since(mark)?;
        let back = said.lines().any(|line| {
            line.contains("registered resource") && line.contains(proto::names::resource::SHARE)
        });
        Ok(Seen::when(back, said))
    })
    .await?;
    let ns = cluster.namespace().await?;
    let manifest = pod(&ns, "pod", &[("gpu-memory", "2000")], "report hold");
    let ran = cluster.run_share(&manifest).await;
    let agent = &mut gpus(cluster)?.agent;
    let said = agent.said_since(mark)?;
    agent.kill().await?;
    agent.start_again_with(|command| command.env("RUST_LOG", "info"))?;
    ran?;
    ensure!(
        !said.contains("identities come from the checkpoint alone"),
        "PodResources did not answer while PreStartContainer was open"
    );
    Ok(())
}

pub(crate) async fn a_container_that_starts_again_without_the_agent_keeps_its_card(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    let mut manifest = pod(&ns, "pod", &[("gpu-memory", "2000")], "report hold");
    manifest["spec"]["restartPolicy"] = json!("Always");
    let running = cluster.run_share(&manifest).await?;
    let uid = running.uid().context("a UID")?;
    gpus(cluster)?.agent.kill().await?;
    cluster.node.kubelet.kill().await?;
    cluster.node.kubelet.start_again()?;
    // It knows its pods again when it allows an exec into one.
    let knows = works(cluster, &ns, "pod").await;
    for pid in processes(&uid, false) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    // The kubelet asks no plugin for a container that it has started before, and the file
    // that was written then still says what the container gets.
    let alone = async {
        cluster
            .pod_until(&ns, "pod", "started again", |pod| {
                restarts(pod) == 1 && phase_of(pod) == "Running"
            })
            .await?;
        works(cluster, &ns, "pod").await
    }
    .await;
    gpus(cluster)?.agent.start_again()?;
    knows.and(alone)?;
    let name = format!("{ns}/pod");
    cluster.ledger_is(&[(&name, "main", 2000)]).await?;
    Ok(())
}

/// How many pods come at once. Each takes a second of a machine of two cores, also from the claims
/// of the other cluster; `--extended` has a hundred.
const POD_COUNT: usize = 24;

/// Nearly two seconds each on a machine of two busy cores.
fn patience(pods: usize) -> Duration {
    Duration::from_millis(1700 * u64::try_from(pods).unwrap_or(u64::MAX))
}

pub(crate) async fn pods_at_once_each_get_their_own_card(cluster: &mut Cluster) -> Result<()> {
    pods_at_once(cluster, POD_COUNT).await
}

/// `ALIQUOT_POD_COUNT` says another number. The kubelet here takes 250.
pub(crate) async fn pods_at_once(cluster: &mut Cluster, usual: usize) -> Result<()> {
    let asked = std::env::var("ALIQUOT_POD_COUNT").ok();
    let pods_wanted = asked.and_then(|text| text.parse().ok()).unwrap_or(usual);
    // Eight of these cards have room for 120 of 1000 MiB.
    let mib = if pods_wanted <= 100 { 1000 } else { 400 };
    cluster.aliquot(&Hardware::preset("T4", 8)).await?;
    let ns = cluster.namespace().await?;
    let begin = Instant::now();
    for n in 0..pods_wanted {
        let mut manifest = pod(
            &ns,
            &format!("p{n}"),
            &[("gpu-memory", &mib.to_string())],
            "report hold",
        );
        manifest["metadata"]["labels"] = json!({ "app": "many-pods" });
        cluster.apply_one(&manifest).await?;
    }
    let pods = cluster.pods(&ns);
    let list = ListParams::default().labels("app=many-pods");
    let all = until("all of them run", patience(pods_wanted), || async {
        let all = pods.list(&list).await?.items;
        let failed = all.iter().find(|pod| phase_of(pod) == "Failed");
        if let Some(failed) = failed {
            return Ok(Seen::Never(anyhow::anyhow!(
                "{}: {}",
                failed.name_any(),
                describe(failed)
            )));
        }
        let running = all.iter().filter(|pod| phase_of(pod) == "Running").count();
        Ok(if running == pods_wanted {
            Seen::Done(all)
        } else {
            Seen::NotYet(format!("{running} of {pods_wanted}"))
        })
    })
    .await?;
    let took = begin.elapsed();
    let mut by_card: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &all {
        let name = pod.name_any();
        let granted = grant_of(pod)?.containers[0].gpus[0].clone();
        let report = cluster.said(&ns, &name, "main", "report").await?;
        ensure!(
            report["devices"][0]["uuid"] == granted.as_str()
                && report["devices"][0]["limit_mib"] == mib,
            "{name} was granted {granted}, sees {report}"
        );
        *by_card.entry(granted).or_default() += 1;
    }
    #[expect(clippy::print_stdout, reason = "the figure is worth a line")]
    {
        println!("{pods_wanted} pods at once: all run after {took:?}, by card {by_card:?}");
    }
    cluster.limits_hold().await
}

pub(crate) async fn a_pod_that_the_kubelet_refuses_after_allocate_frees_its_card(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(cluster.client.clone());
    let node = nodes.get(node::NAME).await?;
    let cpu = node
        .status
        .and_then(|status| status.allocatable?.get("cpu").cloned())
        .context("no cpu")?;
    let milli: u64 = cpu.0.parse::<u64>().context(cpu.0)? * 1000;
    let most = json!({ "requests": { "cpu": format!("{}m", milli * 3 / 4) } });
    // Older, and bound by hand while the kubelet is suspended: a new one admits it first.
    let mut other = pod(&ns, "other", &[], "report hold");
    other["spec"]["schedulerName"] = json!("nobody");
    other["spec"]["containers"][0]["resources"] = most.clone();
    let other = cluster.apply_one(&other).await?;
    // Creation times are whole seconds.
    until("a second later", Duration::from_secs(5), || async {
        let made = other.creation_timestamp().context("no time")?;
        let age = k8s_openapi::jiff::Timestamp::now().duration_since(made.0);
        Ok(Seen::when(age.as_secs() >= 2, "not yet"))
    })
    .await?;
    // Nothing is bound to a kubelet that has lost its plugin; this one only gets no events.
    cluster.node.kubelet.signal(Signal::SIGSTOP)?;
    let bound = async {
        let mut share = pod(&ns, "share", &[("gpu-memory", "15000")], "report hold");
        share["spec"]["containers"][0]["resources"] = most;
        cluster.apply_one(&share).await?;
        cluster
            .pod_until(&ns, "share", "bound", |pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.is_some())
            })
            .await?;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": "other", "namespace": ns },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node::NAME },
        });
        let path = format!("/api/v1/namespaces/{ns}/pods/other/binding");
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&binding)?)?;
        cluster.client.request_text(request).await?;
        anyhow::Ok(())
    }
    .await;
    cluster.node.kubelet.kill().await?;
    cluster.node.kubelet.start_again()?;
    bound?;
    cluster.node_ready().await?;
    let refused = cluster.pod_phase(&ns, "share", "Failed").await?;
    ensure!(describe(&refused).contains("cpu"), "{}", describe(&refused));
    // What it held is another's at once.
    let next = pod(&ns, "next", &[("gpu-memory", "15000")], "report hold");
    cluster.run_share(&next).await?;
    cluster.limits_hold().await
}

pub(crate) async fn foreign_and_broken_files_beside_ours_change_nothing(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let files: Vec<String> = (0..500)
        .map(|n| format!("{CDI}/neighbour-{n}.json"))
        .collect();
    for (n, file) in files.iter().enumerate() {
        let spec = json!({
            "cdiVersion": "0.6.0", "kind": format!("neighbour.test/d{n}"),
            "devices": [{ "name": "0", "containerEdits": { "env": ["NEIGHBOUR=1"] } }],
        });
        fs::write(file, serde_json::to_vec(&spec)?)?;
    }
    let ours = format!(
        "{CDI}/{}{}.json",
        proto::names::cdi::FILE_PREFIX,
        "0".repeat(32)
    );
    let broken = [
        format!("{CDI}/broken.json"),
        format!("{CDI}/broken.yaml"),
        ours,
    ];
    for file in &broken {
        fs::write(file, "{ nobody wrote this \u{0}")?;
    }
    let outcome = async {
        let manifest = pod(&ns, "pod", &[("gpu-memory", "2000")], "report hold");
        cluster.run_share(&manifest).await?;
        works(cluster, &ns, "pod").await
    }
    .await;
    // A file under our name without an owner is removed.
    let swept = until(
        "the false file of ours gone",
        Duration::from_secs(20),
        || async { Ok(Seen::when(!Path::new(&broken[2]).exists(), "it is there")) },
    )
    .await;
    for file in files.iter().chain(&broken) {
        let _ = fs::remove_file(file);
    }
    outcome.and(swept)
}

pub(crate) async fn a_node_that_lost_all_that_a_reboot_loses_comes_back(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    for name in ["one", "two"] {
        let mut manifest = pod(&ns, name, &[("gpu-memory", "3000")], "report hold");
        manifest["spec"]["restartPolicy"] = json!("Always");
        cluster.run_share(&manifest).await?;
    }
    lose_what_a_reboot_loses(cluster, &ns).await?;
    for name in ["one", "two"] {
        works(cluster, &ns, name).await?;
    }
    let names = [format!("{ns}/one"), format!("{ns}/two")];
    cluster
        .ledger_is(&[(&names[0], "main", 3000), (&names[1], "main", 3000)])
        .await?;
    cluster.limits_hold().await
}

/// Ends kubelet, agent, MPS daemons and the processes of a namespace's pods, removes the files in
/// memory, and starts the node again.
pub(crate) async fn lose_what_a_reboot_loses(cluster: &mut Cluster, ns: &str) -> Result<()> {
    let uids: Vec<String> = cluster
        .pods(ns)
        .list(&ListParams::default())
        .await?
        .iter()
        .filter_map(ResourceExt::uid)
        .collect();
    cluster.node.kubelet.kill().await?;
    let gpus = gpus(cluster)?;
    gpus.agent.kill().await?;
    gpus.mps.kill().await?;
    for pid in uids.iter().flat_map(|uid| processes(uid, true)) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    for pid in mps_programs() {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    lose_run_folders()?;
    gpus.mps.start_again()?;
    gpus.agent.start_again()?;
    cluster.node.kubelet.start_again()?;
    cluster.node_ready().await
}

/// MPS daemons and servers in this process namespace.
fn mps_programs() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(first).contains("nvidia-cuda-mps")
        })
        .collect()
}

/// The files in memory on a node.
fn lose_run_folders() -> Result<()> {
    let run = Path::new("/run/aliquot");
    for place in fs::read_dir(run.join("mps"))
        .into_iter()
        .flatten()
        .flatten()
    {
        for part in ["tenant/pipe", "tenant", "pipe", "shm"] {
            let mounted = place.path().join(part);
            let _ = nix::mount::umount2(&mounted, nix::mount::MntFlags::MNT_DETACH);
        }
    }
    for entry in fs::read_dir(run)?.flatten() {
        if entry.path().is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    for entry in fs::read_dir(CDI)?.flatten() {
        fs::remove_file(entry.path())?;
    }
    Ok(())
}

/// A static pod comes from a file on the node, past every scheduler. The kubelet knows it by another UID
/// than the API server does.
pub(crate) async fn a_static_pod_gets_its_whole_gpu_and_no_share_joins_it(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    let mut manifest = pod(&ns, "static", &[], "report hold");
    manifest["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": 1 } });
    let file = Path::new(node::STATIC_PODS).join("static.json");
    let agent = &mut gpus(cluster)?.agent;
    let plain = agent
        .restart_with(|command| command.arg("--allow-ungranted-whole=true"))
        .await?;
    // If the kubelet sees a static pod before the agent has registered again, it refuses the pod for
    // good.
    let first = pod(&ns, "first", &[("gpu-memory", "1000")], "report hold");
    cluster.run_share(&first).await?;
    cluster.delete_pod(&ns, "first").await?;
    // The kubelet reads what it sees in the folder at once.
    let draft = Path::new(node::STATIC_PODS).join("../static.json");
    fs::write(&draft, serde_json::to_vec(&manifest)?)?;
    fs::rename(&draft, &file)?;
    let outcome = beside_a_static_pod(cluster, &ns).await;
    fs::remove_file(&file)?;
    gpus(cluster)?.agent.restart_with(|_| plain).await?;
    outcome?;
    let pods = cluster.pods(&ns);
    until(
        "the static pod is gone",
        Duration::from_secs(40),
        || async {
            let left = pods.get_opt(&format!("static-{}", node::NAME)).await?;
            Ok(left.map_or(Seen::Done(()), |pod| Seen::NotYet(describe(&pod))))
        },
    )
    .await
}

async fn beside_a_static_pod(cluster: &Cluster, ns: &str) -> Result<()> {
    let name = format!("static-{}", node::NAME);
    until("the mirror is there", Duration::from_secs(40), || async {
        let mirror = cluster.pods(ns).get_opt(&name).await?;
        Ok(Seen::when(mirror.is_some(), "no mirror".to_owned()))
    })
    .await?;
    let mirror = cluster.pod_phase(ns, &name, "Running").await?;
    let report = cluster.said(ns, &name, "main", "report").await?;
    let card = report["devices"][0]["uuid"].clone();
    // The scheduler and people know the pod by its UID at the API server.
    let gpu_nodes: Api<GpuNode> = Api::all(cluster.client.clone());
    until("its card names it", Duration::from_secs(40), || async {
        let status = gpu_nodes.get(node::NAME).await?.status.unwrap_or_default();
        let gpus = status.gpus.iter().filter(|gpu| card == *gpu.uuid);
        let mut grants = gpus.flat_map(|gpu| &gpu.grants);
        let own = grants.any(|grant| Some(&grant.pod_uid) == mirror.metadata.uid.as_ref());
        Ok(Seen::when(own, format!("{:?}", status.gpus)))
    })
    .await?;
    // A T4 has 15,360 MiB: each of the shares has room for itself alone on a card.
    let share = |name: &str| pod(ns, name, &[("gpu-memory", "9000")], "report hold");
    let running = cluster.run_share(&share("share")).await?;
    let granted = grant_of(&running)?.containers[0].gpus[0].clone();
    ensure!(
        card != granted,
        "the share is on {card}, which is held whole"
    );
    cluster.apply_one(&share("late")).await?;
    let reason = cluster.reason(ns, "late").await?;
    ensure!(reason.contains("held as a whole GPU"), "{reason}");
    Ok(())
}

pub(crate) async fn a_corrupt_checkpoint_takes_nothing_from_anybody(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let before = pod(&ns, "before", &[("gpu-memory", "3000")], "report hold");
    cluster.run_share(&before).await?;
    let file = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
    let whole = fs::read(file)?;
    fs::write(file, &whole[..whole.len() / 2])?;
    gpus(cluster)?.agent.kill().await?;
    gpus(cluster)?.agent.start_again()?;
    let name = format!("{ns}/before");
    cluster.ledger_is(&[(&name, "main", 3000)]).await?;
    works(cluster, &ns, "before").await?;
    // The kubelet rewrites the file at its next allocation.
    let after = pod(&ns, "after", &[("gpu-memory", "3000")], "report hold");
    cluster.run_share(&after).await?;
    works(cluster, &ns, "after").await?;
    cluster.limits_hold().await
}
