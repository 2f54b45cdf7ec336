//! The queues, the pod and the two inference servers of a user who shares one GPU
//! between them, as written.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::wait::{Seen, until};
use aliquot_tests::{gang, http};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

const NAMESPACE: &str = "ai-workloads";
/// The columns that the user looks at.
const COLUMNS: &str = "custom-columns=NAME:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName,GPU-FRACTION:.metadata.annotations.gpu-fraction,GPU-GROUP:.metadata.labels.runai-gpu-group";
/// The user waits a minute before the first probe.
const READY: Duration = Duration::from_secs(100);

pub(crate) async fn seed_003_a_pod_with_a_whole_gpu_sees_that_one(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 2))
        .await?;
    cluster.apply_file("tests/seeds/003/queues.yaml").await?;
    cluster.apply_file("tests/seeds/003/gpu-pod.yaml").await?;
    let pod = cluster.pod_phase("default", "gpu-pod", "Running").await?;
    let granted = aliquot_tests::share::grant_of(&pod)?;
    let uuid = granted.containers[0].gpus[0].clone();
    let listed = cluster
        .kubectl
        .exec("default", "gpu-pod", "main", &["nvidia-smi", "-L"])
        .await?;
    ensure!(
        listed.lines().count() == 1 && listed.contains(&uuid),
        "granted was {uuid}, nvidia-smi lists {listed}"
    );
    // The first thing that its own command does.
    let log = cluster.logs("default", "gpu-pod", None).await?;
    ensure!(
        log.contains("NVIDIA-SMI") && log.contains("RTX 6000 Ada"),
        "the pod's own nvidia-smi: {log}"
    );
    Ok(())
}

pub(crate) async fn seed_003_two_vllm_servers_share_one_gpu(cluster: &mut Cluster) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    cluster.apply_file("tests/seeds/003/queues.yaml").await?;
    cluster.make_namespace(NAMESPACE).await?;
    cluster
        .apply_file("tests/seeds/003/vllm-test-07.yaml")
        .await?;
    let first = cluster
        .pods_running(NAMESPACE, "app=vllm-test-07", 1)
        .await?;
    cluster.apply_file("tests/seeds/003/service.yaml").await?;
    cluster
        .apply_file("tests/seeds/003/vllm-test-02.yaml")
        .await?;
    let second = cluster
        .pods_running(NAMESPACE, "app=vllm-test-02", 1)
        .await?;

    let table = cluster
        .kubectl
        .run(&["-n", NAMESPACE, "get", "pods", "-o", COLUMNS])
        .await?;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    ensure!(rows.len() == 3, "{table}");
    ensure!(
        rows[0] == ["NAME", "STATUS", "NODE", "GPU-FRACTION", "GPU-GROUP"],
        "{table}"
    );
    let group = rows[1].get(4).context("no GPU-GROUP")?;
    for (row, name, fraction) in [
        (&rows[1], "vllm-test-02-", "0.2"),
        (&rows[2], "vllm-test-07-", "0.7"),
    ] {
        ensure!(
            row.len() == 5
                && row[0].starts_with(name)
                && row[1..4] == ["Running", "n1", fraction]
                && row[4] == *group
                && *group != "<none>",
            "{table}"
        );
    }

    // Each has started: it found the requested memory, and holds it.
    for (pod, part) in [(&first[0], 700), (&second[0], 200)] {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let line = cluster.said(NAMESPACE, name, "vllm", "serve").await?;
        let (total, wanted, held) = (
            line["total_mib"].as_u64().context("total")?,
            line["wanted_mib"].as_u64().context("wanted")?,
            line["held_mib"].as_u64().context("held")?,
        );
        ensure!(
            wanted == total * part / 1000 && held == wanted,
            "{name}: {line}"
        );
    }
    cluster.limits_hold().await?;

    // Ready by the user's own probes, then asked by the user's own request.
    for name in ["vllm-test-07", "vllm-test-02"] {
        until(&format!("{name} ready"), READY, || async {
            let pods = cluster.pods_with(NAMESPACE, &format!("app={name}")).await?;
            Ok(Seen::when(
                pods.iter().all(gang::ready),
                "its probe has not passed",
            ))
        })
        .await?;
    }
    completes(cluster).await
}

/// Asks through the Service, forwarded as the user does it.
async fn completes(cluster: &Cluster) -> Result<()> {
    let logs = cluster.work.logs();
    let mut forward = cluster.kubectl.start(
        "port-forward",
        &[
            "-n",
            NAMESPACE,
            "port-forward",
            "svc/vllm-test-07",
            "9000:80",
        ],
        &logs,
    )?;
    let request = r#"{
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        "prompt": "San Francisco is a",
        "max_tokens": 7,
        "temperature": 0
    }"#;
    let answer = until("a completion", Duration::from_secs(20), || async {
        let answer = http::post("127.0.0.1:9000", "/v1/completions", request).await?;
        Ok(Seen::Done(answer))
    })
    .await;
    forward.stop().await?;
    let answer: serde_json::Value = serde_json::from_str(&answer?)?;
    ensure!(
        answer["object"] == "text_completion"
            && answer["model"] == "Qwen/Qwen2.5-1.5B-Instruct"
            && answer["choices"][0]["text"] == " city in the state of California,"
            && answer["usage"]["completion_tokens"] == 7,
        "{answer}"
    );
    Ok(())
}
