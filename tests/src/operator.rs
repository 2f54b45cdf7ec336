//! Operators of users' workloads, as their users run them: pods of their own images,
//! under the manifests and the rights that come with them.
//!
//! In: what `tests/cluster/tools/operators` built and rendered. Out: an operator that is Available,
//! once per cluster, and the end of its objects. Must never lend an operator more rights than its
//! own manifests do.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;

use crate::cluster::Cluster;
use crate::image::Recipe;
use crate::wait::{Seen, until};

/// Time for an operator to serve
const LIMIT: Duration = Duration::from_secs(150);

/// One operator.
#[derive(Debug, PartialEq, Eq)]
pub struct Operator {
    /// Its folder in `tests/cluster/tools`.
    pub name: &'static str,
    /// The program that was built of it.
    pub program: &'static str,
    /// The image that its manifests name.
    pub image: &'static str,
    /// Where it runs.
    pub namespace: &'static str,
    pub deployment: &'static str,
    /// Its objects, for `kubectl delete`.
    pub kinds: &'static [&'static str],
}

pub static KUBERAY: Operator = Operator {
    name: "kuberay",
    program: "kuberay",
    image: "quay.io/kuberay/operator:v1.5.1",
    namespace: "kuberay-operator",
    deployment: "kuberay-operator",
    kinds: &["rayservices.ray.io", "rayjobs.ray.io", "rayclusters.ray.io"],
};
pub static TRAINING: Operator = Operator {
    name: "training-operator",
    program: "training-operator",
    image: "kubeflow/training-operator:v1-04f9f13",
    namespace: "kubeflow",
    deployment: "training-operator",
    kinds: &["pytorchjobs.kubeflow.org", "tfjobs.kubeflow.org"],
};
pub static JOBSET: Operator = Operator {
    name: "jobset",
    program: "jobset",
    image: "us-central1-docker.pkg.dev/k8s-staging-images/jobset/jobset:main",
    namespace: "jobset-system",
    deployment: "jobset-controller-manager",
    kinds: &["jobsets.jobset.x-k8s.io"],
};
pub static LEADER_WORKER_SET: Operator = Operator {
    name: "lws",
    program: "lws",
    image: "us-central1-docker.pkg.dev/k8s-staging-images/lws/lws:main",
    namespace: "lws-system",
    deployment: "lws-controller-manager",
    kinds: &["leaderworkersets.leaderworkerset.x-k8s.io"],
};
pub static TRAINER: Operator = Operator {
    name: "trainer",
    program: "trainer-controller-manager",
    image: "ghcr.io/kubeflow/trainer/trainer-controller-manager:v2.0.0",
    namespace: "kubeflow-system",
    deployment: "kubeflow-trainer-controller-manager",
    kinds: &["trainjobs.trainer.kubeflow.org"],
};
pub static KUEUE: Operator = Operator {
    name: "kueue",
    program: "kueue",
    image: "us-central1-docker.pkg.dev/k8s-staging-images/kueue/kueue:main",
    namespace: "kueue-system",
    deployment: "kueue-controller-manager",
    kinds: &["jobs.batch"],
};
/// What it puts into each of its pods is [`ARGO_EXECUTOR`].
pub static ARGO: Operator = Operator {
    name: "argo",
    program: "workflow-controller",
    image: "quay.io/argoproj/workflow-controller:v3.7.4",
    namespace: "argo",
    deployment: "workflow-controller",
    kinds: &["workflows.argoproj.io"],
};
/// Image of the containers that Argo's controller adds to a workflow's pods, and their program.
pub const ARGO_EXECUTOR: (&str, &str) = ("quay.io/argoproj/argoexec:v3.7.4", "argoexec");

impl Cluster {
    /// A file that came with an operator or was built for it.
    pub fn operator_file(&self, path: &str) -> Result<PathBuf> {
        let folder = self.programs.operators.as_ref().context(
            "the operators were not built: tests/cluster/run builds them when its filter is empty or has `seed` in it",
        )?;
        let file = folder.join(path);
        Ok(match &self.programs.extended {
            Some(more) if !file.exists() => more.join(path),
            _ => file,
        })
    }

    /// Brings an operator up, unless it is.
    pub async fn operator(&mut self, operator: &'static Operator) -> Result<()> {
        if self.operators.contains(&operator) {
            return Ok(());
        }
        let program = self.operator_file(&format!("bin/{}", operator.program))?;
        let manifests = self.operator_file(&format!("manifests/{}.yaml", operator.name))?;
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

    /// Deletes the objects for which operators would recreate pods.
    pub(crate) async fn delete_workloads(&self) -> Result<()> {
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
