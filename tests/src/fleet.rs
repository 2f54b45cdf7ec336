//! Simulated nodes: objects of the real API server, kept alive by kwok, whose pods run
//! in name only.
//!
//! In: the resources of such a node. Out: nodes that are Ready and take pods, until the claim ends.
//! Must never be mistaken for nodes with an agent: they have whole GPUs, as any device plugin would
//! show them.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use proto::names::resource;
use serde_json::json;

use crate::cluster::Cluster;
use crate::daemon::{Command, Daemon};
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

impl Cluster {
    /// Starts kwok, unless it runs: it keeps all nodes with its label Ready.
    pub fn keep_nodes(&mut self) -> Result<()> {
        if self.fleet.is_none() {
            let kwok = Command::new("kwok", self.operator_file("bin/kwok")?)
                .flag("--kubeconfig", self.control_plane.kubeconfig("admin"))
                .flag("--config", self.operator_file("manifests/kwok.yaml")?)
                .flag("--manage-all-nodes", "false")
                .flag(
                    "--manage-nodes-with-annotation-selector",
                    format!("{MARK}=fake"),
                )
                .flag("--node-lease-duration-seconds", "40")
                .start(&self.work.logs())?;
            self.fleet = Some(Fleet { kwok });
        }
        Ok(())
    }

    /// Creates nodes with this many GPUs each, and waits until they are Ready.
    pub async fn simulate_nodes(&mut self, names: &[&str], gpus: u32) -> Result<()> {
        self.keep_nodes()?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let amounts = json!({
            "cpu": "64", "memory": "512Gi", "pods": "110", resource::GPU: gpus.to_string(),
        });
        for name in names {
            self.apply_one(&json!({
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
            }))
            .await?;
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
        self.fleet
            .as_mut()
            .map_or(Ok(()), |fleet| fleet.kwok.alive())
    }

    /// Removes the simulated nodes, after their pods are gone.
    pub(crate) async fn disband(&mut self) -> Result<()> {
        if let Some(mut fleet) = self.fleet.take() {
            Api::<Node>::all(self.client.clone())
                .delete_collection(
                    &DeleteParams::default(),
                    &ListParams::default().labels(LABEL),
                )
                .await?;
            fleet.kwok.stop().await?;
        }
        Ok(())
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
