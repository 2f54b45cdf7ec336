//! The request that evicts a pod.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use scheduler_core::Evict;
use serde_json::json;

/// Sends one eviction. With `dry_run` it only asks whether the eviction would be taken.
pub(super) async fn post(
    api: &Api<Pod>,
    evict: &Evict,
    dry_run: bool,
) -> kube::Result<kube::core::Status> {
    let mut options = json!({"preconditions": {"uid": evict.pod.as_str()}});
    if dry_run {
        options["dryRun"] = json!(["All"]);
    }
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": &*evict.name, "namespace": &*evict.namespace},
        "deleteOptions": options,
    });
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    api.create_subresource("eviction", &evict.name, &params, &eviction)
        .await
}
