//! Installed as a cluster has it: agent, MPS supervisor and scheduler as pods of the image.

use aliquot_tests::adapt::{adapt, is_workload};
use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Driver, Hardware};
use aliquot_tests::image::Image;
use aliquot_tests::manifest::documents;
use aliquot_tests::node;
use aliquot_tests::pod::describe;
use aliquot_tests::programs::Place;
use aliquot_tests::share::{self, grant_of, lines};
use aliquot_tests::wait::{Seen, until};
use aliquot_tests::{scheduler, stand_in};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proto::names::{NAMESPACE, container};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// As `deploy/` names it; the registry answers for it.
const IMAGE: &str = "aliquot:0.1.0";
/// The scheduler, admission, the agent, the MPS supervisor.
const PODS: usize = 4;

pub(crate) async fn what_is_built_runs_a_users_pod_as_pods_of_its_own(
    cluster: &mut Cluster,
) -> Result<()> {
    let mut driver = begin(cluster).await?;
    let outcome = installed(cluster).await;
    let removed = end(cluster, &mut driver).await;
    outcome.and(removed)
}

/// A node as a machine has it: a driver, and none of our programs beside it.
pub(crate) async fn begin(cluster: &mut Cluster) -> Result<Machine> {
    // Those of other claims are processes.
    cluster.repair().await?;
    // The one folder of the DaemonSets that this machine shares with its host.
    let cdi = Path::new("/etc/cdi").exists();
    forget_devices(cluster).await?;
    forget_webhooks(cluster).await?;
    let driver = start_driver(cluster).await?;
    label(cluster, json!("true")).await?;
    Ok(Machine { driver, cdi })
}

/// Leaves nothing of what was installed, and no driver.
pub(crate) async fn end(cluster: &mut Cluster, machine: &mut Machine) -> Result<()> {
    let removed = remove(cluster).await;
    machine.driver.daemon.stop().await?;
    if !machine.cdi && Path::new("/etc/cdi").exists() {
        fs::remove_dir("/etc/cdi")?;
    }
    forget_devices(cluster).await?;
    forget_webhooks(cluster).await?;
    removed
}

/// The webhooks of processes are called by URL, those of pods by their Service: a change between
/// the two recreates them.
async fn forget_webhooks(cluster: &Cluster) -> Result<()> {
    for kind in ["mutating", "validating"] {
        let kind = format!("{kind}webhookconfiguration");
        let delete = ["delete", "--ignore-not-found", &kind, "aliquot"];
        cluster.kubectl.run(&delete).await?;
    }
    Ok(())
}

/// What [`begin`] has made and found.
pub(crate) struct Machine {
    driver: Driver,
    cdi: bool,
}

/// The image, to where the manifests name it.
pub(crate) async fn push(cluster: &Cluster) -> Result<()> {
    let layout = cluster.programs.image.clone();
    let image = Image::at(layout.context("no image was built: --image")?);
    cluster.registry.push(&image, IMAGE).await
}

/// A supervisor that crashes is started again by the kubelet in the same pod; the servers and their
/// clients stay.
pub(crate) async fn a_crashed_mps_supervisor_ends_nobody(cluster: &mut Cluster) -> Result<()> {
    let mut driver = begin(cluster).await?;
    let outcome = crashed(cluster).await;
    let removed = end(cluster, &mut driver).await;
    outcome.and(removed)
}

async fn crashed(cluster: &mut Cluster) -> Result<()> {
    brought_up(cluster).await?;
    let ns = cluster.namespace().await?;
    let mut tenant = share::pod(&ns, "tenant", &[("gpu-memory", "2000")], "alloc 500 hold");
    tenant["spec"]["restartPolicy"] = json!("Always");
    cluster.run_share(&tenant).await?;
    cluster.said(&ns, "tenant", "main", "alloc").await?;
    // A child of it has its command line until it runs its own program.
    let supervisors = until("one supervisor", Duration::from_secs(30), || async {
        let found = processes(&["aliquot-agent", "mps"])?;
        let said = format!("{found:?}");
        Ok(Seen::from_option((found.len() == 1).then_some(found), said))
    })
    .await?;
    let servers = processes(&["nvidia-cuda-mps-server"])?;
    ensure!(!servers.is_empty(), "no server");
    kill(Pid::from_raw(supervisors[0]), Signal::SIGKILL)?;
    until("another supervisor", Duration::from_secs(30), || async {
        let now = processes(&["aliquot-agent", "mps"])?;
        let other = now.len() == 1 && now != supervisors;
        Ok(Seen::when(other, format!("{now:?}")))
    })
    .await?;
    ensure!(
        processes(&["nvidia-cuda-mps-server"])? == servers,
        "the servers ended"
    );
    // It serves on: a second share gets what it needs of the server that was found.
    let next = share::pod(&ns, "next", &[("gpu-memory", "3000")], "alloc 2500 hold");
    cluster.run_share(&next).await?;
    let said = cluster.said(&ns, "next", "main", "alloc").await?;
    ensure!(said["ok"] == true, "{said}");
    let words = [share::PROGRAM, "alloc", "100"];
    let said = cluster.kubectl.exec(&ns, "tenant", "main", &words).await?;
    ensure!(
        share::line(&said, "alloc").is_some_and(|line| line["ok"] == true),
        "{said}"
    );
    let pod = cluster.pods(&ns).get("tenant").await?;
    let statuses = pod
        .status
        .unwrap_or_default()
        .container_statuses
        .unwrap_or_default();
    ensure!(
        statuses.iter().all(|status| status.restart_count == 0),
        "it started again"
    );
    Ok(())
}

/// Pids of those whose command line begins with these words, whatever folder they are in.
fn processes(words: &[&str]) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        let same = command
            .split('\0')
            .zip(words)
            .filter(|(is, word)| is.ends_with(*word))
            .count();
        if same == words.len() {
            found.push(pid);
        }
    }
    found.sort_unstable();
    Ok(found)
}

async fn installed(cluster: &mut Cluster) -> Result<()> {
    brought_up(cluster).await?;
    seed_004(cluster).await?;
    doctor(cluster).await
}

async fn brought_up(cluster: &mut Cluster) -> Result<()> {
    push(cluster).await?;
    for (reference, recipe) in stand_in::images(&cluster.programs) {
        cluster.serve_image(&recipe, reference).await?;
    }
    cluster.make_namespace(NAMESPACE).await?;
    for document in scheduler::manifests(&cluster.programs.tree)? {
        cluster.apply_one(&document).await?;
    }
    for workload in workloads(&cluster.programs.tree)? {
        cluster.apply_one(&workload).await?;
    }
    ready(cluster).await?;
    cluster.shares_are_offered().await
}

/// The document's pod on what is installed, until it is gone again.
pub(crate) async fn seed_004(cluster: &mut Cluster) -> Result<()> {
    cluster.apply_file("tests/seeds/004/queues.yaml").await?;
    cluster.make_namespace("gpu-workload").await?;
    cluster.apply_file("tests/seeds/004/pod.yaml").await?;
    let pod = cluster
        .pod_phase("gpu-workload", "gpu-pod", "Running")
        .await?;
    cluster
        .said("gpu-workload", "gpu-pod", "cuda-container", "alloc")
        .await?;
    let log = cluster.logs("gpu-workload", "gpu-pod", None).await?;
    ensure!(log.contains("Test PASSED"), "the sample: {log}");
    let report = lines(&log)
        .into_iter()
        .find(|line| line.get("nodes").is_some())
        .context("no report")?;
    ensure!(
        report["devices"][0]["limit_mib"] == 2000
            && report["pipe_directory"] == container::MPS_PIPE
            && report["mps_server"].is_number(),
        "what the container sees: {report}"
    );
    let uuid = grant_of(&pod)?.containers[0].gpus[0].clone();
    let ledger = cluster
        .ledger_is(&[("gpu-workload/gpu-pod", "cuda-container", 2000)])
        .await?;
    ensure!(
        ledger[0].0 == uuid,
        "the GpuNode shows it on {}",
        ledger[0].0
    );
    cluster.delete_pod("gpu-workload", "gpu-pod").await?;
    cluster.ledger_is(&[]).await?;
    Ok(())
}

/// The three workloads of `deploy/`, on this cluster.
fn workloads(tree: &Path) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for file in ["scheduler.yaml", "daemonset.yaml"] {
        let text = fs::read_to_string(tree.join("deploy").join(file))?;
        found.extend(documents(&text)?);
    }
    found.retain(is_workload);
    found.iter_mut().try_for_each(adapt)?;
    ensure!(found.len() == PODS, "{} workloads", found.len());
    Ok(found)
}

/// Until every pod is ready; binds them, since no scheduler of Kubernetes' own runs here.
pub(crate) async fn ready(cluster: &Cluster) -> Result<()> {
    let pods = cluster.pods(NAMESPACE);
    until("Aliquot's pods ready", Duration::from_secs(90), || async {
        let all = pods.list(&ListParams::default()).await?;
        let mut ready = 0;
        let mut told = Vec::new();
        for pod in &all {
            let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            if bound.is_none() {
                bind(&pods, pod).await?;
            }
            ready += usize::from(is_ready(pod));
            told.push(format!("{}: {}", pod.name_any(), describe(pod)));
        }
        Ok(Seen::when(ready == PODS, told.join("; ")))
    })
    .await
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(crate) async fn bind(pods: &Api<Pod>, pod: &Pod) -> Result<()> {
    let binding = json!({
        "metadata": {"name": pod.name_any()},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node::NAME},
    });
    let (name, parameters) = (pod.name_any(), PostParams::default());
    let bound = pods.create_subresource::<Value, Value>("binding", &name, &parameters, &binding);
    match bound.await {
        Ok(_) => Ok(()),
        // Already, or gone.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What `helm test` runs: the command line of the image, as the scheduler's account.
async fn doctor(cluster: &Cluster) -> Result<()> {
    let path = "deploy/chart/templates/tests/doctor.yaml";
    let text = fs::read_to_string(cluster.programs.tree.join(path))?
        .replace("{{ .Release.Name }}", "aliquot")
        .replace("{{ include \"aliquot.image\" . }}", IMAGE);
    let mut pod = documents(&text)?.pop().context("no pod")?;
    pod["spec"]["nodeName"] = json!(node::NAME);
    cluster.apply_one(&pod).await?;
    let ended = until("the doctor's end", Duration::from_secs(30), || async {
        let pod = cluster.pods(NAMESPACE).get("aliquot-doctor").await?;
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        let phase = phase.unwrap_or_default();
        Ok(match phase.as_str() {
            "Succeeded" | "Failed" => Seen::Done(phase),
            _ => Seen::NotYet(describe(&pod)),
        })
    })
    .await?;
    let log = cluster.logs(NAMESPACE, "aliquot-doctor", None).await?;
    ensure!(ended == "Succeeded", "the doctor: {log}");
    Ok(())
}

async fn label(cluster: &Cluster, value: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {"aliquot.dev/agent": value}}}));
    nodes
        .patch(node::NAME, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// The workloads and their pods, until they are gone.
async fn remove(cluster: &mut Cluster) -> Result<()> {
    cluster.clean().await?;
    let (all, now) = (ListParams::default(), DeleteParams::background());
    Api::<Deployment>::namespaced(cluster.client.clone(), NAMESPACE)
        .delete_collection(&now, &all)
        .await?;
    Api::<DaemonSet>::namespaced(cluster.client.clone(), NAMESPACE)
        .delete_collection(&now, &all)
        .await?;
    label(cluster, Value::Null).await?;
    let pods = cluster.pods(NAMESPACE);
    pods.delete_collection(&DeleteParams::default().grace_period(1), &all)
        .await?;
    until("Aliquot's pods gone", Duration::from_mins(1), || async {
        let left = pods.list(&all).await?;
        let told: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
        Ok(Seen::when(left.items.is_empty(), told.join(", ")))
    })
    .await
}

async fn start_driver(cluster: &Cluster) -> Result<Driver> {
    let place = Place {
        programs: &cluster.programs,
        state: &cluster.work.state(),
        logs: &cluster.work.logs(),
        authority: cluster.control_plane.authority(),
        cgroup: cluster.work.cgroup(),
    };
    Driver::start(&place, &Hardware::preset("RTX-6000-Ada", 1)).await
}

/// Another machine: its kubelet knows nothing of the last one's cards.
async fn forget_devices(cluster: &mut Cluster) -> Result<()> {
    cluster.node.kubelet.stop().await?;
    if Path::new(node::CHECKPOINT).exists() {
        fs::remove_file(node::CHECKPOINT)?;
    }
    cluster.node.kubelet.start_again()?;
    cluster.node_ready().await
}
