//! After each claim, everything that it has made is removed.

use std::time::Duration;

use anyhow::Result;
use api::kai::Queue;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};

use crate::cluster::Cluster;
use crate::pod::describe;
use crate::wait::{Seen, until};

/// Queues that `deploy/` brings; others are a claim's.
const INSTALLED_QUEUES: [&str; 2] = ["default-parent-queue", "default-queue"];

impl Cluster {
    /// Removes what a claim has made: pods until they are gone, from the node too, and
    /// then their namespaces, which go in their own time.
    pub async fn clean(&mut self) -> Result<()> {
        self.delete_workloads().await?;
        let everywhere: Api<Pod> = Api::all(self.client.clone());
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let ours = self.claimed_namespaces().await?;
        for name in &ours {
            self.delete_controllers(name).await?;
            self.pods(name)
                .delete_collection(
                    &DeleteParams::default().grace_period(1),
                    &ListParams::default(),
                )
                .await?;
        }
        until("the claim's pods gone", Duration::from_mins(1), || async {
            let left: Vec<String> = everywhere
                .list(&ListParams::default())
                .await?
                .into_iter()
                .filter(|pod| {
                    pod.namespace()
                        .is_some_and(|namespace| ours.contains(&namespace))
                })
                .map(|pod| format!("{}: {}", pod.name_any(), describe(&pod)))
                .collect();
            Ok(Seen::when(left.is_empty(), left.join(", ")))
        })
        .await?;
        if let Some(fleet) = self.fleet.take() {
            fleet.disband(&self.client).await?;
        }
        if let Some(agents) = self.agents.take() {
            agents.end(&self.client).await?;
            self.control_plane.recall_controllers()?;
        }
        self.delete_queues().await?;
        for name in ours.iter().filter(|name| *name != "default") {
            match namespaces.delete(name, &DeleteParams::default()).await {
                // An object of an earlier claim, which has gone since the list was made.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                outcome => {
                    outcome?;
                }
            }
        }
        Ok(())
    }

    /// Deletes the queues that claims have made.
    async fn delete_queues(&self) -> Result<()> {
        if self.scheduler.is_none() {
            return Ok(());
        }
        let queues: Api<Queue> = Api::all(self.client.clone());
        for queue in queues.list(&ListParams::default()).await? {
            let name = queue.name_any();
            if !INSTALLED_QUEUES.contains(&name.as_str()) {
                queues.delete(&name, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }

    /// Deletes what would recreate pods.
    async fn delete_controllers(&self, namespace: &str) -> Result<()> {
        let (all, now) = (ListParams::default(), DeleteParams::background());
        Api::<Deployment>::namespaced(self.client.clone(), namespace)
            .delete_collection(&now, &all)
            .await?;
        Api::<ReplicaSet>::namespaced(self.client.clone(), namespace)
            .delete_collection(&now, &all)
            .await?;
        Api::<StatefulSet>::namespaced(self.client.clone(), namespace)
            .delete_collection(&now, &all)
            .await?;
        Api::<CronJob>::namespaced(self.client.clone(), namespace)
            .delete_collection(&now, &all)
            .await?;
        Api::<Job>::namespaced(self.client.clone(), namespace)
            .delete_collection(&now, &all)
            .await?;
        Ok(())
    }

    /// Deletes the objects for which operators would recreate pods.
    async fn delete_workloads(&self) -> Result<()> {
        let kinds: Vec<&str> = self
            .operators
            .iter()
            .flat_map(|operator| operator.kinds.iter().copied())
            .collect();
        if kinds.is_empty() {
            return Ok(());
        }
        let kinds = kinds.join(",");
        for namespace in self.claimed_namespaces().await? {
            self.kubectl
                .run(&[
                    "delete",
                    &kinds,
                    "--all",
                    "--namespace",
                    &namespace,
                    "--wait=false",
                    "--ignore-not-found",
                ])
                .await?;
        }
        Ok(())
    }
}
