//! Many nodes with agents that this process simulates: `Node` and `GpuNode` objects of the real API
//! server, and a telemetry stream for each, with a token bound to its node.
//!
//! In: how many nodes and cards, and where the schedulers are. Out: nodes that take pods, which
//! then stay as they are bound: nothing runs them. No controller may react to the missing kubelets,
//! so the controllers are stopped for this time. Must never report of a card what an idle one's
//! agent would not report.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use proto::names::{NAMESPACE, object, resource, telemetry};
use proto::telemetry::agent_message::Body;
use proto::telemetry::telemetry_client::TelemetryClient;
use proto::telemetry::{AgentMessage, Gpu, Heartbeat, NodeState};
use serde_json::json;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::manifest;
use crate::token::AccountToken;
use crate::wait::{Seen, until};

/// By which its nodes are known.
const LABEL: &str = "aliquot.test/simulated-agent";
/// Concurrent requests during its creation.
const AT_ONCE: usize = 32;
/// An agent sends a heartbeat after so much silence.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Between two tries to reach a scheduler.
const AGAIN: Duration = Duration::from_millis(250);
/// For a connection and for the answer on it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of each card, as an H100 has it.
pub const CARD_MIB: u64 = 81_559;
/// What of it can be granted.
pub const GRANTABLE_MIB: u64 = 80_000;
/// Tokens of a card, and clients that its MPS server takes.
const SLOTS: u32 = 48;

/// What an agent says that its node has.
#[derive(Clone, Copy, Debug)]
pub struct Cards {
    pub count: u32,
    pub product: &'static str,
    /// Of each card.
    pub total_mib: u64,
    /// Of each card.
    pub grantable_mib: u64,
}

impl Cards {
    /// This number of H100s.
    pub fn h100(count: u32) -> Self {
        Self {
            count,
            product: "NVIDIA H100 80GB HBM3",
            total_mib: CARD_MIB,
            grantable_mib: GRANTABLE_MIB,
        }
    }

    /// What the kubelet lists of them once the agent has registered.
    fn amounts(self) -> serde_json::Value {
        let count = u64::from(self.count);
        json!({
            resource::GPU: count.to_string(),
            resource::SHARE: (count * u64::from(SLOTS)).to_string(),
            resource::MEMORY_MIB: (count * self.grantable_mib).to_string(),
            resource::MILLI: (count * 1000).to_string(),
        })
    }
}

/// The agent of one node that another part maintains, for as long as this lives.
#[derive(Debug)]
pub struct Enlisted {
    /// Its node.
    pub node: String,
    _to: watch::Sender<Vec<SocketAddr>>,
    _stream: JoinSet<()>,
}

/// The nodes, and their simulated agents.
#[derive(Debug)]
pub struct SimulatedAgents {
    /// Their names.
    pub nodes: Vec<String>,
    to: watch::Sender<Vec<SocketAddr>>,
    /// Accepted streams that are open.
    heard: Arc<AtomicUsize>,
    _streams: JoinSet<()>,
}

impl SimulatedAgents {
    /// Creates nodes with this many cards each, once the manifests are applied. Their agents have
    /// no connection yet.
    pub(crate) async fn start(client: &Client, nodes: usize, cards: u32) -> Result<Self> {
        let names: Vec<String> = (0..nodes).map(|at| format!("simulated-{at:04}")).collect();
        let agents: Vec<(NodeState, String)> = stream::iter(names.clone())
            .map(|name| recruit(client, name, cards))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        let (to, schedulers) = watch::channel(Vec::new());
        let mut streams = JoinSet::new();
        let (trust, heard) = (Arc::default(), Arc::<AtomicUsize>::default());
        for (state, token) in agents {
            let stream = AgentStream {
                state,
                token,
                client: client.clone(),
                trust: Arc::clone(&trust),
                heard: heard.clone(),
            };
            streams.spawn(agent(Arc::new(stream), schedulers.clone()));
        }
        Ok(Self {
            nodes: names,
            to,
            heard,
            _streams: streams,
        })
    }

    /// From now on its agents connect to these schedulers only.
    pub fn speak_to(&self, schedulers: &[SocketAddr]) {
        self.to.send_replace(schedulers.to_vec());
    }

    /// Waits until every scheduler has accepted each one's stream.
    pub async fn heard(&self) -> Result<()> {
        let wanted = self.nodes.len() * self.to.borrow().len();
        until("every agent heard", Duration::from_mins(1), || async {
            let heard = self.heard.load(Ordering::Relaxed);
            Ok(Seen::when(heard >= wanted, format!("{heard} of {wanted}")))
        })
        .await
    }

    /// Ends the agents, and deletes their nodes.
    pub(crate) async fn end(self, client: &Client) -> Result<()> {
        // Their streams first: a scheduler is not to hear of nodes that are gone.
        drop(self);
        let (now, ours) = (DeleteParams::default(), ListParams::default().labels(LABEL));
        let nodes = Api::<Node>::all(client.clone());
        nodes.delete_collection(&now, &ours).await?;
        Api::<api::GpuNode>::all(client.clone())
            .delete_collection(&now, &ours)
            .await?;
        Ok(())
    }
}

/// Gives an existing node an agent, which is connected to this scheduler from now on. The
/// kubelet lists its cards already.
pub async fn enlist(
    client: &Client,
    node: &Node,
    cards: Cards,
    to: SocketAddr,
) -> Result<Enlisted> {
    let (state, token) = agent_of(client, node, cards).await?;
    let amounts = cards.amounts();
    let status = json!({ "status": { "capacity": amounts, "allocatable": amounts } });
    let nodes: Api<Node> = Api::all(client.clone());
    nodes
        .patch_status(&state.node, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let stream = AgentStream {
        state,
        token,
        client: client.clone(),
        trust: Arc::default(),
        heard: Arc::default(),
    };
    // Requested before it connects, as an agent has it mounted.
    let ask = || authority(&stream.client);
    stream.trust.get_or_try_init(ask).await?;
    let node = stream.state.node.clone();
    let (to, scheduler) = watch::channel(vec![to]);
    let mut tasks = JoinSet::new();
    tasks.spawn(agent(Arc::new(stream), scheduler));
    Ok(Enlisted {
        node,
        _to: to,
        _stream: tasks,
    })
}

/// Ends agents that were enlisted, and forgets their nodes' cards.
pub async fn discharge(client: &Client, enlisted: Vec<Enlisted>) -> Result<()> {
    let gpu_nodes: Api<api::GpuNode> = Api::all(client.clone());
    for agent in enlisted {
        gpu_nodes
            .delete(&agent.node, &DeleteParams::default())
            .await?;
    }
    Ok(())
}

async fn recruit(client: &Client, name: String, cards: u32) -> Result<(NodeState, String)> {
    let made = make_node(client, &name, cards).await?;
    agent_of(client, &made, Cards::h100(cards)).await
}

/// The message of a node's agent, and the token with which it is sent.
async fn agent_of(client: &Client, node: &Node, cards: Cards) -> Result<(NodeState, String)> {
    let name = node.name_any();
    let gpu_node = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode",
        "metadata": { "name": name, "labels": { LABEL: "true" } }, "spec": {},
    });
    manifest::apply(client, &gpu_node).await?;
    let token = AccountToken {
        namespace: NAMESPACE.to_owned(),
        account: object::AGENT_ACCOUNT.to_owned(),
        node: Some(name.clone()),
        audience: Some(telemetry::AUDIENCE.to_owned()),
        file: std::path::PathBuf::new(),
    };
    let token = token.ask(client).await?;
    let gpus = (0..cards.count).map(|index| card(&name, index, cards));
    let state = NodeState {
        gpus: gpus.collect(),
        node: name.clone(),
        node_uid: node.uid().unwrap_or_default(),
        driver_version: "580.95.05".to_owned(),
        ..NodeState::default()
    };
    Ok((state, token))
}

/// A node that is ready, and that no kubelet keeps.
pub async fn make_node(client: &Client, name: &str, cards: u32) -> Result<Node> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node: Node = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": { LABEL: "true", "kubernetes.io/hostname": name },
        },
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let params = PatchParams::default();
    // Admission marks a new node as not ready, and the controller that would clear it does not run.
    let ready = json!({ "spec": { "taints": null } });
    nodes.patch(name, &params, &Patch::Merge(ready)).await?;
    let mut amounts = json!({ "cpu": "128", "memory": "1Ti", "pods": "500" });
    if cards > 0
        && let (Some(all), Some(more)) = (
            amounts.as_object_mut(),
            Cards::h100(cards).amounts().as_object_mut(),
        )
    {
        all.append(more);
    }
    let status = json!({ "status": {
        "capacity": amounts, "allocatable": amounts,
        "conditions": [{ "type": "Ready", "status": "True", "reason": "SimulatedAgents",
            "lastHeartbeatTime": null, "lastTransitionTime": null }],
    }});
    let status = Patch::Merge(status);
    Ok(nodes.patch_status(name, &params, &status).await?)
}

/// The name of a card.
pub fn uuid(node: &str, index: u32) -> String {
    format!("GPU-{node}-{index}")
}

fn card(node: &str, index: u32, of: Cards) -> Gpu {
    Gpu {
        uuid: uuid(node, index),
        index,
        product: of.product.to_owned(),
        memory_total_mib: of.total_mib,
        memory_reserved_mib: of.total_mib - of.grantable_mib,
        memory_grantable_mib: of.grantable_mib,
        switchable_modes: ["exclusive", "mps", "mps-isolated", "time-slicing"]
            .map(str::to_owned)
            .to_vec(),
        ready: true,
        mps_state: "Absent".to_owned(),
        health: "Healthy".to_owned(),
        compute_capability: "9.0".to_owned(),
        pci_bus_id: format!("00000000:{index:02X}:00.0"),
        numa_node: i32::from(index >= 4),
        client_slots: SLOTS,
        kubelet_pool: "whole".to_owned(),
        ..Gpu::default()
    }
}

/// The simulated agent of one node.
struct AgentStream {
    state: NodeState,
    token: String,
    client: kube::Client,
    /// The schedulers' authority, asked for once.
    trust: Arc<OnceCell<String>>,
    heard: Arc<AtomicUsize>,
}

/// One open stream, counted.
struct Taken<'a>(&'a AtomicUsize);

impl<'a> Taken<'a> {
    fn count(heard: &'a AtomicUsize) -> Self {
        heard.fetch_add(1, Ordering::Relaxed);
        Self(heard)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Speaks to whichever schedulers there are.
async fn agent(stream: Arc<AgentStream>, mut schedulers: watch::Receiver<Vec<SocketAddr>>) {
    loop {
        let addresses = schedulers.borrow_and_update().clone();
        let mut talks = JoinSet::new();
        for address in addresses {
            let stream = stream.clone();
            talks.spawn(async move {
                loop {
                    // It ends with the scheduler; then it connects to the next one.
                    let _ = talk(&stream, address).await;
                    sleep(AGAIN).await;
                }
            });
        }
        if schedulers.changed().await.is_err() {
            return;
        }
    }
}

async fn talk(stream: &AgentStream, address: SocketAddr) -> Result<()> {
    // No server listens yet: the CA is not needed.
    drop(tokio::net::TcpStream::connect(address).await?);
    let ask = || authority(&stream.client);
    let trust = stream.trust.get_or_try_init(ask).await?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(trust))
        .domain_name(format!("{}.{NAMESPACE}.svc", object::TELEMETRY_SERVICE));
    let channel = Endpoint::from_shared(format!("https://{address}"))?
        .tls_config(tls)?
        .connect_timeout(PATIENCE)
        .connect()
        .await?;
    let (out, messages) = tokio::sync::mpsc::channel(4);
    let mut sequence = 0;
    let mut next = |body| {
        sequence += 1;
        AgentMessage {
            sequence,
            agent_instance: "simulated".to_owned(),
            release: proto::names::RELEASE.to_owned(),
            body: Some(body),
        }
    };
    out.send(next(Body::State(stream.state.clone()))).await?;
    let mut request = Request::new(ReceiverStream::new(messages));
    let bearer = MetadataValue::try_from(format!("Bearer {}", stream.token))?;
    request.metadata_mut().insert("authorization", bearer);
    let mut telemetry = TelemetryClient::new(channel);
    let mut answers = timeout(PATIENCE, telemetry.report(request))
        .await??
        .into_inner();
    let _taken = Taken::count(&stream.heard);
    let mut beat = tokio::time::interval(HEARTBEAT);
    beat.tick().await;
    loop {
        tokio::select! {
            answer = answers.message() => {
                answer?.context("the scheduler ended the stream")?;
            }
            _ = beat.tick() => out.send(next(Body::Heartbeat(Heartbeat {}))).await?,
        }
    }
}

/// The CA that agents trust.
pub async fn authority(client: &kube::Client) -> Result<String> {
    let trust: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let data = trust.get(object::TRUST_CONFIG_MAP).await?.data;
    let data = data.context("nothing to trust")?;
    data.get(object::TRUST_CA).cloned().context("no authority")
}
