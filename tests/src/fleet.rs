//! Simulated nodes: objects of the real API server, kept alive by kwok, whose pods run
//! in name only.
//!
//! In: the resources of such a node. Out: nodes that are Ready and take pods, until the claim ends.
//! Must never be mistaken for nodes with an agent: they have whole GPUs, as any device plugin would
//! show them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use proto::names::resource;
use serde_json::json;

use crate::daemon::{Command, Daemon};
use crate::manifest;
use crate::programs::Programs;
use crate::wait::{Seen, until};

/// kwok minds the nodes with this, and no others.
const MARK: &str = "kwok.x-k8s.io/node";
/// The same as a label, by which they are listed.
const LABEL: &str = "type=kwok";

/// The running kwok.
#[derive(Debug)]
pub(crate) struct Fleet {
    kwok: Daemon,
}

impl Fleet {
    /// Starts kwok: it keeps all nodes with its label Ready.
    pub(crate) fn start(programs: &Programs, kubeconfig: PathBuf, logs: &Path) -> Result<Self> {
        let kwok = Command::new("kwok", programs.operator_file("bin/kwok")?)
            .flag("--kubeconfig", kubeconfig)
            .flag("--config", programs.operator_file("manifests/kwok.yaml")?)
            .flag("--manage-all-nodes", "false")
            .flag(
                "--manage-nodes-with-annotation-selector",
                format!("{MARK}=fake"),
            )
            .flag("--node-lease-duration-seconds", "40")
            .start(logs)?;
        Ok(Self { kwok })
    }

    /// Creates nodes with this many GPUs each, and waits until they are Ready.
    pub(crate) async fn simulate_nodes(
        &mut self,
        client: &Client,
        names: &[&str],
        gpus: u32,
    ) -> Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        let amounts = json!({
            "cpu": "64", "memory": "512Gi", "pods": "110", resource::GPU: gpus.to_string(),
        });
        for name in names {
            let node = json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "annotations": { MARK: "fake" },
                    "labels": {
                        "type": "kwok",
                        "kubernetes.io/hostname": name,
                        "nvidia.com/gpu.count": gpus.to_string(),
                    },
                },
            });
            manifest::apply(client, &node).await?;
            let status = json!({ "status": { "capacity": amounts, "allocatable": amounts } });
            nodes
                .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
                .await?;
        }
        until(
            "the simulated nodes Ready",
            Duration::from_secs(30),
            || async {
                let listed = nodes.list(&ListParams::default().labels(LABEL)).await?;
                let waits: Vec<String> = listed
                    .items
                    .into_iter()
                    .filter(|node| !ready(node))
                    .filter_map(|node| node.metadata.name)
                    .collect();
                Ok(Seen::when(waits.is_empty(), waits.join(", ")))
            },
        )
        .await?;
        self.kwok.alive()
    }

    /// Removes the simulated nodes, after their pods are gone.
    pub(crate) async fn disband(mut self, client: &Client) -> Result<()> {
        Api::<Node>::all(client.clone())
            .delete_collection(
                &DeleteParams::default(),
                &ListParams::default().labels(LABEL),
            )
            .await?;
        self.kwok.stop().await
    }
}

/// Whether a node is Ready and takes pods.
fn ready(node: &Node) -> bool {
    let tainted = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_ref())
        .is_some_and(|taints| !taints.is_empty());
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    !tainted
        && conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
