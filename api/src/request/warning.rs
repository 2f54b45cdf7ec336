//! What a manifest says and is not followed, or not as KAI follows it: one sentence each.

use super::error::shown;
use super::form::{self, What};
use super::pod_request::{Amount, Annotations, GpuRequest, PodRequest, ShareRequest};
use crate::units::Mode;
use proto::names::request as key;

/// Annotations of KAI and its components about shares, other than those that are read.
const OTHERS: [(&str, &str); 2] = [
    (
        "kai-resource-isolator.io/inject",
        "limits hold for every share",
    ),
    (
        "runai/shared-gpu-configmap",
        "a share's container needs no ConfigMap",
    ),
];

/// In the order of the annotations' names.
pub(super) fn of(annotations: &Annotations, request: &PodRequest) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, value) in annotations {
        if let Some(why) = why(name, value, annotations, request) {
            warnings.push(format!("annotation {} {why}", shown(name)));
        }
    }
    warnings
}

fn why(name: &str, value: &str, annotations: &Annotations, request: &PodRequest) -> Option<String> {
    if let Some(rest) = name.strip_prefix(key::CONTAINER_PREFIX) {
        let (container, what) = form::split(rest)?;
        return of_container(container, what, request);
    }
    if name.starts_with(key::KAI_CONTAINER_PREFIX) {
        return match form::portion_of(name) {
            Some(container) => fraction_unused(container, annotations, request),
            None => Some(format!(
                "is not followed: of {}NAME only {} is known",
                key::KAI_CONTAINER_PREFIX,
                key::KAI_PORTION_LIMIT
            )),
        };
    }
    let none = shares(request).next().is_none();
    match name {
        key::FRACTION | key::FRACTION_LIMIT => shares(request)
            .next()
            .and_then(|(container, _)| fraction_unused(container, annotations, request)),
        key::CONTAINER | key::COMPUTE_MODE if none => {
            Some("is not followed: the pod asks for no share of a GPU".to_owned())
        }
        key::COMPUTE_MODE | key::MPS => overruled(name, value, annotations, request),
        key::COMPUTE => {
            let own =
                |container: &str| form::container_key(container, key::CONTAINER_COMPUTE_REQUEST);
            let own = shares(request)
                .map(|(container, _)| own(container))
                .find(|own| annotations.contains_key(own))?;
            Some(format!(
                "is not followed for the container that has {}",
                shown(&own)
            ))
        }
        _ => {
            let (_, why) = OTHERS.iter().find(|(other, _)| *other == name)?;
            Some(format!("is not followed: {why}"))
        }
    }
}

fn shares(request: &PodRequest) -> impl Iterator<Item = (&str, &ShareRequest)> {
    let containers = request.containers.iter();
    containers.filter_map(|container| match &container.gpus {
        GpuRequest::Share(share) => Some((container.name.as_str(), share)),
        GpuRequest::Whole(_) => None,
    })
}

fn of_container(container: &str, what: What, request: &PodRequest) -> Option<String> {
    let Some((_, share)) = shares(request).find(|(name, _)| *name == container) else {
        return Some(format!(
            "is not followed: container {} asks for no share of a GPU",
            shown(container)
        ));
    };
    match (what, share.mode) {
        (What::Compute, Some(Mode::TimeSlicing)) => {
            Some("has no effect in mode time-slicing, which has no ceiling for compute".to_owned())
        }
        (What::Compute, _) => Some(
            "is followed as a ceiling: a card's shares may be given more than all of its compute together"
                .to_owned(),
        ),
        _ => None,
    }
}

/// A fraction beside a container's own request in memory.
fn fraction_unused(
    container: &str,
    annotations: &Annotations,
    request: &PodRequest,
) -> Option<String> {
    let (_, share) = shares(request).find(|(name, _)| *name == container)?;
    let own = form::container_key(container, key::CONTAINER_MEMORY_REQUEST);
    let unused = matches!(share.amount, Amount::Memory(_)) && annotations.contains_key(&own);
    unused.then(|| format!("is not followed: {} is there as well", shown(&own)))
}

/// The container's own word on its mode wins.
fn overruled(
    name: &str,
    value: &str,
    annotations: &Annotations,
    request: &PodRequest,
) -> Option<String> {
    let asked = match (name, value) {
        (key::MPS, "true") | (_, "sm-sharing") => Mode::Mps,
        (key::MPS, "false") => return None,
        (key::MPS, _) => return Some("is not followed: the only value is true".to_owned()),
        _ => Mode::TimeSlicing,
    };
    let (container, _) = shares(request).find(|(_, share)| share.mode != Some(asked))?;
    let own = form::container_key(container, key::CONTAINER_COMPUTE_MODE);
    let winner = if annotations.contains_key(&own) {
        own
    } else {
        key::COMPUTE_MODE.to_owned()
    };
    Some(format!(
        "is not followed for container {}: {} says otherwise",
        shown(container),
        shown(&winner)
    ))
}
