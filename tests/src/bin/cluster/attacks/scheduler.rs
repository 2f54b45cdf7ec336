//! A tenant, or a compromised node, against the scheduler's inputs.

use std::time::Duration;

use aliquot_tests::claims;
use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::image::WORKLOAD_IMAGE;
use aliquot_tests::pod::phase_of;
use aliquot_tests::scheduler::{self, Replica};
use aliquot_tests::share::{grant_of, pod};
use aliquot_tests::simulated_agents;
use aliquot_tests::suite::Claim;
use aliquot_tests::token::AccountToken;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proto::names::{NAMESPACE, condition, object, telemetry};
use proto::telemetry::agent_message::Body;
use proto::telemetry::telemetry_client::TelemetryClient;
use proto::telemetry::{AgentMessage, Gpu, NodeState, SchedulerMessage, Share};
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::attacks;
use crate::identity::{gets_no_gpu, scheduler_client};

pub(crate) fn claims() -> Vec<Claim> {
    claims![
        attacks::scheduler::a_running_share_is_charged_as_it_was_granted_whatever_is_written_on_its_pod,
        attacks::scheduler::an_agent_speaks_of_its_own_nodes_pods_alone_and_a_stranger_of_none,
        attacks::scheduler::a_new_signing_key_ends_no_share_and_a_revoked_one_starts_none,
    ]
}

/// Queues of their own, so that nothing else is charged to them.
fn queue(name: &str) -> Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": { "name": name },
        "spec": { "resources": { "gpu": all, "cpu": all, "memory": all } },
    })
}

/// What the queues are charged with, as their status says; nothing is written of a queue that
/// is charged with nothing.
async fn charged(cluster: &Cluster, names: [&str; 2]) -> Result<[String; 2]> {
    let queues = Api::<api::Queue>::all(cluster.client.clone());
    let mut all = [String::new(), String::new()];
    for (of, name) in all.iter_mut().zip(names) {
        let status = queues.get(name).await?.status.unwrap_or_default();
        let status = serde_json::to_value(status)?;
        let charge = status["allocated"]["nvidia.com/gpu"].as_str();
        charge.unwrap_or_default().clone_into(of);
    }
    Ok(all)
}

/// The guard would reject these writes, so it only records them in this test, which is about what
/// the scheduler believes, even after a restart.
pub(crate) async fn a_running_share_is_charged_as_it_was_granted_whatever_is_written_on_its_pod(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let names = ["wall-payer", "wall-other"];
    for name in names {
        cluster.apply_one(&queue(name)).await?;
    }
    let mut manifest = pod(&ns, "tenant", &[("gpu-memory", "4000")], "hold");
    manifest["metadata"]["labels"] = json!({ "kai.scheduler/queue": names[0] });
    cluster.run_share(&manifest).await?;
    // 4000 of 15360 MiB.
    let honest = ["261m".to_owned(), String::new()];
    let is_honest = || async {
        let now = charged(cluster, names).await?;
        let same = now[0] == honest[0] && ["", "0"].contains(&now[1].as_str());
        Ok(Seen::when(same, format!("{now:?}")))
    };
    until("the share is charged", Duration::from_secs(20), is_honest).await?;

    let lies = json!({ "metadata": {
        "annotations": { "gpu-memory": "1", "pod-group-name": "another" },
        "labels": {
            "kai.scheduler/queue": names[1],
            "priorityClassName": "build",
            "kai.scheduler/preemptibility": "non-preemptible",
        },
    } });
    let lies = Patch::Merge(lies);
    let parameters = PatchParams::default();
    let pods = cluster.pods(&ns);
    for pods in [
        &pods,
        &Api::<Pod>::namespaced(scheduler_client(cluster).await?, &ns),
    ] {
        let refused = pods.patch("tenant", &parameters, &lies).await;
        ensure!(refused.is_err(), "the guard let it be written");
    }
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let set = |action: &str| Patch::Merge(json!({ "spec": { "validationActions": [action] } }));
    bindings
        .patch("aliquot-grant", &parameters, &set("Audit"))
        .await?;
    let written = until(
        "the guard only records",
        Duration::from_secs(20),
        || async {
            Ok(match pods.patch("tenant", &parameters, &lies).await {
                Ok(_) => Seen::Done(()),
                Err(error) => Seen::NotYet(error.to_string()),
            })
        },
    )
    .await;
    bindings
        .patch("aliquot-grant", &parameters, &set("Deny"))
        .await?;
    written?;
    // The charge of a pod of the other queue is written after the false reports arrived; the second
    // time by a scheduler that knows the first pod only by its object.
    for (name, sum) in [("next", "131m"), ("after", "261m")] {
        let mut next = pod(&ns, name, &[("gpu-memory", "2000")], "hold");
        next["metadata"]["labels"] = json!({ "kai.scheduler/queue": names[1] });
        cluster.run_share(&next).await?;
        until(
            &format!("{name} is charged"),
            Duration::from_secs(20),
            || async {
                let now = charged(cluster, names).await?;
                Ok(Seen::when(now[1] == sum, format!("{now:?}")))
            },
        )
        .await?;
        let now = charged(cluster, names).await?;
        ensure!(now[0] == honest[0], "{name} runs, and now {now:?}");
        if name == "next" {
            cluster.replace_scheduler(Replica::only()).await?;
        }
    }
    Ok(())
}

/// A node that was taken over: it exists, and its agent's token is stolen.
const TAKEN: &str = "taken-over";

/// A stream that says what it likes.
struct Stream {
    out: tokio::sync::mpsc::Sender<AgentMessage>,
    answers: Streaming<SchedulerMessage>,
    said: u64,
}

impl Stream {
    async fn open(cluster: &Cluster, token: &str) -> Result<std::result::Result<Self, Status>> {
        let authority = simulated_agents::authority(&cluster.client).await?;
        let scheduler = cluster.scheduler.as_ref().context("no scheduler")?;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority))
            .domain_name(format!("{}.{NAMESPACE}.svc", object::TELEMETRY_SERVICE));
        let channel = Endpoint::from_shared(format!("https://{}", scheduler.replica.telemetry()))?
            .tls_config(tls)?
            .connect()
            .await?;
        let (out, messages) = tokio::sync::mpsc::channel(4);
        let mut request = Request::new(ReceiverStream::new(messages));
        let bearer = MetadataValue::try_from(format!("Bearer {token}"))?;
        request.metadata_mut().insert("authorization", bearer);
        let answers = TelemetryClient::new(channel).report(request).await;
        Ok(answers.map(|answers| Self {
            out,
            answers: answers.into_inner(),
            said: 0,
        }))
    }

    /// Says a state; how the scheduler took it.
    async fn say(&mut self, state: NodeState) -> Result<std::result::Result<(), Status>> {
        self.said += 1;
        self.out
            .send(AgentMessage {
                sequence: self.said,
                agent_instance: "a".into(),
                body: Some(Body::State(state)),
                ..AgentMessage::default()
            })
            .await?;
        let answer = tokio::time::timeout(Duration::from_secs(10), self.answers.message());
        Ok(answer.await.context("no answer in 10 s")?.map(|_| ()))
    }
}

fn lies(card: &str, whole: &Pod, share: &Pod) -> NodeState {
    let of = |pod: &Pod| Share {
        pod_uid: pod.uid().unwrap_or_default(),
        pod_namespace: pod.namespace().unwrap_or_default(),
        pod_name: pod.name_any(),
        container: "main".into(),
        gpu_uuids: vec![card.into()],
        phase: "Running".into(),
        evict: true,
        complaint: "a lie".into(),
        ..Share::default()
    };
    NodeState {
        node: TAKEN.into(),
        gpus: vec![Gpu {
            uuid: card.into(),
            memory_total_mib: 15_360,
            memory_grantable_mib: 15_000,
            health: "Healthy".into(),
            ..Gpu::default()
        }],
        shares: vec![
            Share {
                mode: "exclusive".into(),
                memory_mib: 15_000,
                ..of(whole)
            },
            Share {
                mode: "mps".into(),
                fence: "DriverLimit".into(),
                memory_mib: 7777,
                observed_limit_mib: 7777,
                ..of(share)
            },
        ],
        ..NodeState::default()
    }
}

fn verified(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let one = conditions
        .iter()
        .find(|one| one.type_ == condition::ISOLATION_VERIFIED)?;
    Some(format!("{} {:?}", one.status, one.message))
}

pub(crate) async fn an_agent_speaks_of_its_own_nodes_pods_alone_and_a_stranger_of_none(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .run_share(&pod(&ns, "share", &[("gpu-memory", "2000")], "hold"))
        .await?;
    let mut manifest = pod(&ns, "whole", &[], "hold");
    manifest["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": "1" } });
    let whole = cluster.run_share(&manifest).await?;
    let before = until(
        "its isolation is known",
        Duration::from_secs(30),
        || async {
            let share = cluster.pods(&ns).get("share").await?;
            Ok(Seen::from_option(verified(&share), "no condition"))
        },
    )
    .await?;
    let share = cluster.pods(&ns).get("share").await?;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": TAKEN } });
    cluster.apply_one(&node).await?;
    let lied = lied(cluster, &whole, &share).await;
    Api::<Node>::all(cluster.client.clone())
        .delete(TAKEN, &DeleteParams::default())
        .await?;
    lied?;
    for name in ["share", "whole"] {
        let now = cluster.pods(&ns).get(name).await?;
        ensure!(
            now.metadata.deletion_timestamp.is_none() && phase_of(&now) == "Running",
            "{name} was evicted for another node's agent"
        );
    }
    let now = verified(&cluster.pods(&ns).get("share").await?);
    ensure!(now.as_ref() == Some(&before), "{before} became {now:?}");
    Ok(())
}

async fn lied(cluster: &Cluster, whole: &Pod, share: &Pod) -> Result<()> {
    const CARD: &str = "GPU-taken-over";
    let scheduler = cluster.scheduler.as_ref().context("no scheduler")?;
    let token = AccountToken {
        namespace: NAMESPACE.to_owned(),
        account: object::AGENT_ACCOUNT.to_owned(),
        node: Some(TAKEN.to_owned()),
        audience: Some(telemetry::AUDIENCE.to_owned()),
        file: cluster.work.state().join("taken-over.token"),
    };
    let token = token.ask(&cluster.client).await?;
    let mut stream = Stream::open(cluster, &token).await??;
    let state = lies(CARD, whole, share);
    stream.say(state.clone()).await??;
    // Its card came in with the same message.
    let address = scheduler.replica.metrics();
    let snapshot = until("the card is known", Duration::from_secs(20), || async {
        let text = aliquot_tests::http::get(&address, "/snapshot").await?;
        Ok(Seen::from_option(
            text.contains(CARD).then_some(text),
            "not there",
        ))
    })
    .await?;
    let granted = grant_of(whole)?.containers[0].gpus[0].clone();
    let holds = |line: &str| line.trim_start().starts_with("grant ") && line.contains(&granted);
    ensure!(
        snapshot.lines().any(holds)
            && !snapshot
                .lines()
                .any(|line| line.trim_start().starts_with("grant ") && line.contains(CARD)),
        "the pod of another node was moved: {snapshot}"
    );
    // What no agent means ends its stream, and is counted.
    let mut malformed = state.clone();
    malformed.gpus[0].uuid.clear();
    let ended = stream.say(malformed).await?;
    ensure!(
        ended
            .as_ref()
            .is_err_and(|status| status.code() == Code::InvalidArgument),
        "a card without a UUID: {ended:?}"
    );
    // Another's name.
    let mut stream = Stream::open(cluster, &token).await??;
    let other = NodeState {
        node: aliquot_tests::node::NAME.into(),
        ..state
    };
    let ended = stream.say(other).await?;
    ensure!(
        ended
            .as_ref()
            .is_err_and(|status| status.code() == Code::PermissionDenied),
        "a state of another node: {ended:?}"
    );
    // Tokens that the API server does not know: soon they are no longer reviewed.
    let mut codes = Vec::new();
    for number in 0..8 {
        let answer = Stream::open(cluster, &format!("junk-{number}")).await?;
        codes.push(answer.err().map(|status| status.code()));
    }
    ensure!(
        codes[..5] == [Some(Code::Unauthenticated); 5]
            && codes[5..] == [Some(Code::ResourceExhausted); 3],
        "{codes:?}"
    );
    // An accepted token is not reviewed again.
    Stream::open(cluster, &token).await??;
    let metrics = scheduler.metrics().await?;
    for line in [
        "aliquot_scheduler_agents_refused_total{why=\"malformed\"} 1",
        "aliquot_scheduler_agents_refused_total{why=\"another-node\"} 1",
        "aliquot_scheduler_agents_refused_total{why=\"token\"} 5",
        "aliquot_scheduler_agents_refused_total{why=\"too-many\"} 3",
    ] {
        ensure!(metrics.contains(line), "no `{line}` in {metrics}");
    }
    Ok(())
}

/// What `aliquot keys rotate` and `revoke` write.
pub(crate) async fn a_new_signing_key_ends_no_share_and_a_revoked_one_starts_none(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let share = |name: &str| pod(&ns, name, &[("gpu-memory", "2000")], "hold");
    let before = cluster.run_share(&share("before")).await?;
    let old = grant_of(&before)?.key;
    // Bound with the old key; its share starts when its first container lets it.
    let mut late = share("late");
    let wait = "until [ -e /tmp/go ]; do /bin/busybox sleep 0.1; done";
    late["spec"]["initContainers"] = json!([{ "name": "wait", "image": WORKLOAD_IMAGE,
        "command": ["/bin/busybox", "sh", "-c", wait] }]);
    cluster.apply_one(&late).await?;
    cluster
        .pod_until(&ns, "late", "its first container runs", |pod| {
            let status = pod.status.as_ref();
            let inits = status.and_then(|status| status.init_container_statuses.as_ref());
            inits.is_some_and(|all| {
                all.iter().any(|one| {
                    one.state
                        .as_ref()
                        .is_some_and(|state| state.running.is_some())
                })
            })
        })
        .await?;

    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let empty = json!({ "data": null });
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    secrets
        .patch(
            object::GRANT_KEY_SECRET,
            &PatchParams::default(),
            &Patch::Merge(empty),
        )
        .await?;
    let news = json!({ "data": { (object::TRUST_SIGNING_KEY): null } });
    maps.patch(
        object::TRUST_CONFIG_MAP,
        &PatchParams::default(),
        &Patch::Merge(news),
    )
    .await?;
    let new = until("another key signs", Duration::from_secs(20), || async {
        let data = maps.get(object::TRUST_CONFIG_MAP).await?.data;
        let signs = data.and_then(|mut data| data.remove(object::TRUST_SIGNING_KEY));
        Ok(Seen::from_option(
            signs.filter(|key| *key != old),
            "the old one",
        ))
    })
    .await?;
    let data = maps.get(object::TRUST_CONFIG_MAP).await?.data;
    let data = data.context("an empty ConfigMap")?;
    let mut keys: std::collections::BTreeMap<String, String> =
        serde_json::from_str(&data[object::TRUST_KEYS])?;
    ensure!(
        keys.contains_key(&old) && keys.contains_key(&new),
        "{keys:?}"
    );
    keys.remove(&old);
    let revoked = json!({ "data": { (object::TRUST_KEYS): serde_json::to_string(&keys)? } });
    maps.patch(
        object::TRUST_CONFIG_MAP,
        &PatchParams::default(),
        &Patch::Merge(revoked),
    )
    .await?;

    // An upgrade applies the Secrets of `deploy/` again, which are empty.
    let filled = secrets.get(object::GRANT_KEY_SECRET).await?.data;
    let manifests = scheduler::manifests(&cluster.programs.tree)?;
    for secret in manifests.iter().filter(|one| one["kind"] == "Secret") {
        cluster.apply_one(secret).await?;
    }
    let kept = secrets.get(object::GRANT_KEY_SECRET).await?.data;
    ensure!(
        kept == filled && kept.is_some_and(|data| !data.is_empty()),
        "an apply changed the key"
    );

    let after = cluster.run_share(&share("after")).await?;
    ensure!(
        grant_of(&after)?.key == new,
        "signed with a key that is gone"
    );
    let touch = ["/bin/busybox", "touch", "/tmp/go"];
    cluster
        .kubectl
        .exec(&ns, "late", "wait", &touch)
        .await
        .context("the first container cannot be told")?;
    gets_no_gpu(cluster, &ns, "late", object::TRUST_CONFIG_MAP).await?;
    let runs = cluster.pods(&ns).get("before").await?;
    ensure!(
        phase_of(&runs) == "Running",
        "who ran with the old key ended"
    );
    let data = maps.get(object::TRUST_CONFIG_MAP).await?.data;
    let keys = data.and_then(|mut data| data.remove(object::TRUST_KEYS));
    ensure!(
        keys.as_ref().is_some_and(|keys| !keys.contains(&old)),
        "the revoked key came back: {keys:?}"
    );
    Ok(())
}
