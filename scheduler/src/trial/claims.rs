//! The claims of a pod that does not exist, as Kubernetes' `resourceclaim` controller would make them
//! of their templates.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt as _;
use std::collections::BTreeMap;

/// Templates of claims, by namespace and name.
#[derive(Clone, Debug, Default)]
pub struct ClaimTemplates(BTreeMap<(String, String), ResourceClaimTemplate>);

impl ClaimTemplates {
    /// One more, or another one of its name.
    pub fn insert(&mut self, template: ResourceClaimTemplate) {
        let namespace = template.namespace().unwrap_or_default();
        self.0.insert((namespace, template.name_any()), template);
    }

    /// The claims that are made for the pod, which names them in its status from now on. One
    /// without a template is not: the pod waits for it.
    pub(super) fn instantiate(&self, pod: &mut Pod) -> Vec<ResourceClaim> {
        let namespace = pod.namespace().unwrap_or_default();
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let spec = pod.spec.as_ref();
        let named = spec.and_then(|spec| spec.resource_claims.as_ref());
        let (mut claims, mut statuses) = (Vec::new(), Vec::new());
        for one in named.into_iter().flatten() {
            let Some(template) = &one.resource_claim_template_name else {
                continue;
            };
            let template = self.0.get(&(namespace.clone(), template.clone()));
            let Some(template) = template.and_then(|template| template.spec.clone()) else {
                continue;
            };
            let claim = format!("{name}-{}", one.name);
            let metadata = template.metadata.unwrap_or_default();
            claims.push(ResourceClaim {
                metadata: ObjectMeta {
                    name: Some(claim.clone()),
                    namespace: Some(namespace.clone()),
                    uid: Some(format!("{uid}-{}", one.name)),
                    owner_references: Some(vec![OwnerReference {
                        api_version: "v1".to_owned(),
                        kind: "Pod".to_owned(),
                        name: name.clone(),
                        uid: uid.clone(),
                        controller: Some(true),
                        ..OwnerReference::default()
                    }]),
                    ..metadata
                },
                spec: template.spec,
                status: None,
            });
            statuses.push(PodResourceClaimStatus {
                name: one.name.clone(),
                resource_claim_name: Some(claim),
            });
        }
        if !statuses.is_empty() {
            let status = pod.status.get_or_insert_default();
            status.resource_claim_statuses = Some(statuses);
        }
        claims
    }
}
