//! Karpenter with its provider for kwok: a real autoscaler, whose machines are nodes that kwok
//! keeps.
//!
//! In: which instance types there are. Out: a running Karpenter, and the nodes that it has made.
//! Needs what `tests/cluster/tools/extended` builds. Must never make a node itself.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::daemon::{Command, Daemon};
use crate::wait::{Seen, until};

/// Karpenter's label on its nodes: their `NodePool`.
pub const POOL: &str = "karpenter.sh/nodepool";

/// One instance type, as its cloud would offer it.
#[derive(Clone, Copy, Debug)]
pub struct InstanceType {
    pub name: &'static str,
    pub cpu: u32,
    pub memory_gib: u32,
    pub gpus: u32,
    /// Of an hour.
    pub price: f64,
}

impl InstanceType {
    fn written(self) -> Value {
        let only =
            |key: &str, value: &str| json!({ "key": key, "operator": "In", "values": [value] });
        let mut resources = json!({
            "cpu": self.cpu.to_string(), "memory": format!("{}Gi", self.memory_gib), "pods": "110",
        });
        if self.gpus > 0 {
            resources[proto::names::resource::GPU] = json!(self.gpus.to_string());
        }
        json!({
            "name": self.name, "architecture": "amd64", "operatingSystems": ["linux"],
            "resources": resources,
            "offerings": [{ "Price": self.price, "Available": true, "Requirements": [
                only("karpenter.sh/capacity-type", "on-demand"),
                only("topology.kubernetes.io/zone", "zone-a"),
            ] }],
        })
    }
}

/// It runs for as long as it lives.
#[derive(Debug)]
pub struct Karpenter {
    daemon: Daemon,
}

impl Karpenter {
    /// Starts it, with these instance types to choose from, and waits until it has its kinds.
    pub async fn start(cluster: &mut Cluster, types: &[InstanceType]) -> Result<Self> {
        let program = cluster.programs.operator_file("bin/karpenter")?;
        let kinds = cluster.programs.operator_file("manifests/karpenter.yaml")?;
        cluster.keep_nodes()?;
        let kinds = kinds.to_string_lossy();
        let apply = ["apply", "--server-side", "--filename", &kinds];
        cluster.kubectl.run(&apply).await?;
        let established = [
            "wait",
            "--for=condition=Established",
            "--timeout=30s",
            "--filename",
            &kinds,
        ];
        cluster.kubectl.run(&established).await?;
        let folder = cluster.work.state().join("karpenter");
        fs::create_dir_all(&folder)?;
        let file = folder.join("instance-types.json");
        let types: Vec<Value> = types.iter().map(|one| one.written()).collect();
        fs::write(&file, json!(types).to_string())?;
        let daemon = Command::new("karpenter", program)
            .flag("--instance-types-file-path", file)
            .flag("--disable-leader-election", "true")
            .flag("--metrics-port", "0")
            .flag("--health-probe-port", "0")
            .env("KUBECONFIG", cluster.control_plane.kubeconfig("admin"))
            .env("SYSTEM_NAMESPACE", "kube-system")
            .start(&cluster.work.logs())?;
        Ok(Self { daemon })
    }

    /// Waits until Karpenter considers this many nodes of a pool registered.
    pub async fn nodes(
        &mut self,
        cluster: &Cluster,
        pool: &str,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<Node>> {
        let what = format!("{count} nodes of Karpenter's pool {pool}");
        let nodes = until(&what, limit, || {
            let alive = self.daemon.alive();
            async move {
                if let Err(dead) = alive {
                    return Ok(Seen::Never(dead));
                }
                let nodes = nodes_of(cluster, pool).await?;
                let all = nodes.len() == count && nodes.iter().all(is_registered);
                let names: Vec<_> = nodes.iter().map(kube::ResourceExt::name_any).collect();
                Ok(Seen::from_option(
                    all.then_some(nodes),
                    format!("{names:?}"),
                ))
            }
        });
        nodes.await.context("Karpenter")
    }

    /// Ends it.
    pub async fn stop(mut self) -> Result<()> {
        self.daemon.stop().await
    }
}

/// The nodes of a pool that are there and stay.
pub async fn nodes_of(cluster: &Cluster, pool: &str) -> Result<Vec<Node>> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let of_pool = ListParams::default().labels(&format!("{POOL}={pool}"));
    let mut listed = nodes.list(&of_pool).await?.items;
    listed.sort_by_key(|node| (node.metadata.creation_timestamp.clone(), node.name_any()));
    Ok(listed)
}

fn is_registered(node: &Node) -> bool {
    let registered = node.labels().get("karpenter.sh/registered");
    registered.is_some_and(|value| value == "true") && node.metadata.deletion_timestamp.is_none()
}
