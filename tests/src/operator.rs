//! Operators of users' workloads, as their users run them: pods of their own images,
//! under the manifests and the rights that come with them.
//!
//! In: what `tests/cluster/tools/operators` built and rendered. Out: an operator that is Available,
//! once per cluster, and the end of its objects. Must never lend an operator more rights than its
//! own manifests do.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;

mod known;

pub use known::{
    ARGO, ARGO_EXECUTOR, JOBSET, KUBERAY, KUEUE, LEADER_WORKER_SET, Operator, TRAINER, TRAINING,
};

use crate::cluster::Cluster;
use crate::image::Recipe;
use crate::wait::{Seen, until};

/// Time for an operator to serve
const LIMIT: Duration = Duration::from_secs(150);

impl Cluster {
    /// Brings an operator up, unless it is.
    pub async fn operator(&mut self, operator: &'static Operator) -> Result<()> {
        if self.operators.contains(&operator) {
            return Ok(());
        }
        let program = self
            .programs
            .operator_file(&format!("bin/{}", operator.program))?;
        let manifests = self
            .programs
            .operator_file(&format!("manifests/{}.yaml", operator.name))?;
        let image = Recipe::busybox()
            .file(program, "/manager")
            .entrypoint(["/manager"])
            .user("65532:65532");
        self.serve_image(&image, operator.image).await?;
        self.make_namespace(operator.namespace).await?;
        self.operators.push(operator);
        let manifests = manifests.to_string_lossy();
        self.kubectl
            .run(&[
                "apply",
                "--server-side",
                "--force-conflicts",
                "--filename",
                &manifests,
            ])
            .await?;
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), operator.namespace);
        until(&format!("{} available", operator.name), LIMIT, || async {
            let status = deployments.get(operator.deployment).await?.status;
            let available = status.as_ref().and_then(|status| status.available_replicas);
            Ok(Seen::when(available >= Some(1), format!("{status:?}")))
        })
        .await
        .with_context(|| format!("the operator {}", operator.name))
    }

    /// What an operator has logged.
    pub async fn operator_log(&self, operator: &Operator) -> Result<String> {
        let target = format!("deployment/{}", operator.deployment);
        self.kubectl
            .run(&["logs", "-n", operator.namespace, &target, "--tail=-1"])
            .await
    }
}
