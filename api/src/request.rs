//! A pod's annotations and limits → its request, or one clear sentence.
//!
//! In: a pod as Kubernetes has it. Out: [`PodRequest`]. The refusals are KAI's own sentences where
//! KAI has one (`gpu_request_validator.go`, `gpu_sharing_validation.go`), so that users of KAI
//! recognize them.
//!
//! - [`of`]: of any pod, the bound ones of a cluster included.
//! - [`admitted`]: of a manifest: also keys that no manifest may have, and keys without an effect.

mod advice;
mod error;
mod form;
mod number;
mod pod_request;
mod warning;

pub use error::RequestError;
pub(crate) use error::shown;
pub use pod_request::{Amount, ContainerRequest, GpuRequest, PodRequest, ShareRequest};

use crate::quantity;
use k8s_openapi::api::core::v1::{Container, Pod};
use pod_request::Annotations;
use proto::names::{request as key, resource};

/// What a manifest asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// As [`of`] reads it.
    pub request: PodRequest,
    /// One sentence for each annotation that is not followed, or not as KAI follows it.
    pub warnings: Vec<String>,
}

/// Reads what a pod asks for. What KAI's binder wrote on it counts for nothing.
///
/// # Errors
/// The first contradiction, as one sentence.
pub fn of(pod: &Pod) -> Result<PodRequest, RequestError> {
    let none = Annotations::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let spec = pod.spec.as_ref().ok_or(RequestError::NoContainer)?;
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let all = || {
        inits
            .iter()
            .map(|container| (container, ends_first(container)))
            .chain(spec.containers.iter().map(|container| (container, false)))
    };

    let mut whole = Vec::new();
    for (container, init) in all() {
        whole.extend(whole_request(container, init)?);
    }
    let mut shares = form::shares(annotations, inits, &spec.containers)?;
    if shares.is_empty() {
        return Ok(PodRequest { containers: whole });
    }
    if let Some(other) = whole.into_iter().next() {
        return Err(RequestError::ShareAndWhole(other.name));
    }
    let containers = all()
        .filter_map(|(container, init)| {
            shares
                .remove(container.name.as_str())
                .map(|share| ContainerRequest {
                    name: container.name.clone(),
                    init,
                    gpus: GpuRequest::Share(share),
                })
        })
        .collect();
    Ok(PodRequest { containers })
}

/// Reads what a manifest asks for.
///
/// # Errors
/// As [`of`]; and what KAI's binder alone writes, and a name for a container that is none.
pub fn admitted(pod: &Pod) -> Result<Admitted, RequestError> {
    let none = Annotations::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    for name in annotations.keys() {
        let Some(rest) = name.strip_prefix(key::CONTAINER_PREFIX) else {
            continue;
        };
        if form::is_binders(rest) {
            return Err(RequestError::Binders(name.clone()));
        }
        if form::split(rest).is_none_or(|(container, _)| container.is_empty()) {
            return Err(RequestError::UnknownName(name.clone()));
        }
    }
    let request = of(pod)?;
    let warnings = warning::of(annotations, &request);
    Ok(Admitted { request, warnings })
}

/// What a pod asks for by its containers' resources alone, which cannot be changed after it
/// was made, whatever its annotations say.
pub fn whole(pod: &Pod) -> Vec<ContainerRequest> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let inits = spec.init_containers.iter().flatten();
    inits
        .map(|container| (container, ends_first(container)))
        .chain(spec.containers.iter().map(|container| (container, false)))
        .filter_map(|(container, init)| whole_request(container, init).ok()?)
        .collect()
}

/// Returns true if an init container ends before the next container starts.
fn ends_first(container: &Container) -> bool {
    container.restart_policy.as_deref() != Some("Always")
}

fn whole_request(
    container: &Container,
    init: bool,
) -> Result<Option<ContainerRequest>, RequestError> {
    let count = whole_gpus(container)?;
    Ok((count > 0).then(|| ContainerRequest {
        name: container.name.clone(),
        init,
        gpus: GpuRequest::Whole(count),
    }))
}

/// `limits` win; a request alone counts too, as Kubernetes' defaulting copies one to the other.
fn whole_gpus(container: &Container) -> Result<u32, RequestError> {
    let Some(resources) = &container.resources else {
        return Ok(0);
    };
    let quantity = resources
        .limits
        .as_ref()
        .and_then(|limits| limits.get(resource::GPU))
        .or_else(|| {
            resources
                .requests
                .as_ref()
                .and_then(|requests| requests.get(resource::GPU))
        });
    match quantity {
        None => Ok(0),
        Some(quantity) => quantity::whole(quantity)
            .and_then(|count| u32::try_from(count).ok())
            .ok_or_else(|| RequestError::Whole(container.name.clone(), quantity.0.clone())),
    }
}

#[cfg(test)]
mod tests;
