//! Claims about the cluster itself, on which the other claims rely.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Driver, Hardware};
use aliquot_tests::image::Recipe;
use aliquot_tests::node;
use aliquot_tests::pod::phase_of;
use aliquot_tests::programs::Place;
use aliquot_tests::token::AccountToken;
use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::TokenReview;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

pub(crate) async fn a_pod_runs_and_its_log_is_read(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    cluster
        .apply(&format!(
            r"
apiVersion: v1
kind: Pod
metadata: {{ name: hello, namespace: {ns} }}
spec:
  nodeName: n1
  restartPolicy: Never
  containers:
    - {{ name: main, image: busybox, command: [echo, hello] }}
"
        ))
        .await?;
    cluster.pod_phase(&ns, "hello", "Succeeded").await?;
    assert_eq!(cluster.logs(&ns, "hello", None).await?, "hello\n");
    Ok(())
}

pub(crate) async fn an_image_is_pulled_under_its_public_name(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let recipe = Recipe::busybox()
        .entrypoint(["/bin/sh", "-c", "echo $STAND_IN"])
        .env("STAND_IN", "stands in");
    for (pod, image) in [
        // Not an image of another claim: the node keeps what it has pulled.
        ("cuda", "nvcr.io/nvidia/cuda:12.5.0-base"),
        ("opt", "team/opt:latest"),
        ("debian", "debian"),
    ] {
        cluster.serve_image(&recipe, image).await?;
        cluster
            .apply(&format!(
                r#"
apiVersion: v1
kind: Pod
metadata: {{ name: {pod}, namespace: {ns} }}
spec:
  nodeName: n1
  restartPolicy: Never
  containers:
    - {{ name: main, image: "{image}" }}
"#
            ))
            .await?;
        cluster.pod_phase(&ns, pod, "Succeeded").await?;
        assert_eq!(cluster.logs(&ns, pod, None).await?, "stands in\n");
    }
    Ok(())
}

pub(crate) async fn a_killed_kubelet_comes_back_and_leaves_pods_running(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = sleeper(cluster).await?;
    let before = cluster.pods(&ns).get("sleeper").await?;
    cluster.node.kubelet.kill().await?;
    cluster.node.kubelet.start_again()?;
    // Only a kubelet that is back runs another pod.
    cluster
        .apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{ name: after, namespace: {ns} }}
spec:
  nodeName: n1
  restartPolicy: Never
  containers:
    - {{ name: main, image: busybox, command: ["true"] }}
"#
        ))
        .await?;
    cluster.pod_phase(&ns, "after", "Succeeded").await?;
    let after = cluster.pods(&ns).get("sleeper").await?;
    assert_eq!(phase_of(&after), "Running");
    let container = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status
            .as_ref()?
            .container_statuses
            .as_ref()?
            .first()?
            .container_id
            .clone()
    };
    let id = container(&before).context("a running pod without a container")?;
    assert_eq!(Some(id), container(&after));
    Ok(())
}

pub(crate) async fn a_command_runs_in_a_container(cluster: &mut Cluster) -> Result<()> {
    let ns = sleeper(cluster).await?;
    let said = cluster
        .kubectl
        .exec(&ns, "sleeper", "main", &["echo", "from inside"])
        .await?;
    assert_eq!(said, "from inside\n");
    Ok(())
}

async fn sleeper(cluster: &mut Cluster) -> Result<String> {
    let ns = cluster.namespace().await?;
    cluster
        .apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{ name: sleeper, namespace: {ns} }}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers:
    - {{ name: main, image: busybox, command: [sleep, "3600"] }}
"#
        ))
        .await?;
    cluster.pod_phase(&ns, "sleeper", "Running").await?;
    Ok(ns)
}

pub(crate) async fn the_simulated_driver_is_seen_by_nvidia_smi_and_ends(
    cluster: &mut Cluster,
) -> Result<()> {
    let (state, logs) = (cluster.work.state(), cluster.work.logs());
    let place = Place {
        programs: &cluster.programs,
        state: &state,
        logs: &logs,
        authority: cluster.control_plane.authority(),
        cgroup: cluster.work.cgroup(),
    };
    // It takes over the driver root: the next claim starts its own.
    if let Some(mut gpus) = cluster.gpus.take() {
        gpus.stop().await?;
    }
    let mut driver = Driver::start(&place, &Hardware::preset("T4", 2)).await?;
    let listed = driver
        .smi(&["--query-gpu=name,memory.total", "--format=csv,noheader"])
        .await?;
    assert_eq!(listed, "Tesla T4, 15360 MiB\nTesla T4, 15360 MiB\n");
    driver.daemon.stop().await?;
    assert!(
        driver.smi(&["-L"]).await.is_err(),
        "nvidia-smi answers without a driver"
    );
    Ok(())
}

pub(crate) async fn a_token_bound_to_the_node_names_it_to_its_audience_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = cluster.namespace().await?;
    cluster
        .apply(&format!(
            r"
apiVersion: v1
kind: ServiceAccount
metadata: {{ name: stream, namespace: {ns} }}
"
        ))
        .await?;
    let audience = proto::names::telemetry::AUDIENCE;
    let token = AccountToken {
        namespace: ns.clone(),
        account: "stream".to_owned(),
        node: Some(node::NAME.to_owned()),
        audience: Some(audience.to_owned()),
        file: cluster.work.state().join("stream.token"),
    };
    token.write(&cluster.client).await?;
    let token = std::fs::read_to_string(&token.file)?;
    let reviews: Api<TokenReview> = Api::all(cluster.client.clone());
    for (asked, valid) in [(audience, true), ("another.audience", false)] {
        let review: TokenReview = serde_json::from_value(json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": { "token": token, "audiences": [asked] },
        }))?;
        let answer = reviews.create(&PostParams::default(), &review).await?;
        let status = serde_json::to_value(answer.status)?;
        assert_eq!(
            status["authenticated"].as_bool().unwrap_or(false),
            valid,
            "{asked}: {status}"
        );
        if valid {
            assert_eq!(
                status["user"]["extra"][proto::names::telemetry::NODE_NAME_EXTRA][0],
                node::NAME
            );
        }
    }
    Ok(())
}
