//! This is the list of operators that claims may ask for, with their images, namespaces and objects.

/// One operator.
#[derive(Debug, PartialEq, Eq)]
pub struct Operator {
    /// Its folder in `tests/cluster/tools`.
    pub name: &'static str,
    /// The program that was built of it.
    pub program: &'static str,
    /// The image that its manifests name.
    pub image: &'static str,
    /// The namespace in which it runs.
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
/// It puts [`ARGO_EXECUTOR`] into each of its pods.
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
