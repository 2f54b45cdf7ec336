//! A pod's annotations and limits → what it asks for, or one clear sentence.
//!
//! In: a pod as Kubernetes has it. Out: [`PodRequest`]. The refusals are KAI's own
//! sentences where KAI has one (`gpu_request_validator.go`), so that a user who moves
//! over reads what he knows.

use crate::units::{Mib, Mode};
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::names::{request as key, resource};
use std::collections::{BTreeMap, BTreeSet};

/// What one pod asks of GPUs. Empty when it asks for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// In the pod's order, init containers first; only those that ask for something.
    pub containers: Vec<ContainerRequest>,
}

/// What one container asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Its name.
    pub name: String,
    /// True for an init container, restartable or not.
    pub init: bool,
    /// What it asks for.
    pub gpus: GpuRequest,
}

/// Whole cards, or a part of some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRequest {
    /// `nvidia.com/gpu: N`, N > 0.
    Whole(u32),
    /// `gpu-memory` or `gpu-fraction`.
    Share(ShareRequest),
}

/// A part of one or several cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// Of each card.
    pub amount: Amount,
    /// How many cards, at least 1, all on one node.
    pub devices: u32,
    /// Compute ceiling, 1 to 100, where the user set one.
    pub compute_percent: Option<u8>,
    /// Where the user named a mode.
    pub mode: Option<Mode>,
}

/// `nano` of a card in thousandths.
const NANO_PER_MILLI: u64 = 1_000_000;

impl ShareRequest {
    /// The extended resource that admission writes beside the token, and how much of it:
    /// what `ResourceQuota` counts.
    pub fn counted(&self) -> (&'static str, u64) {
        let devices = u64::from(self.devices);
        match self.amount {
            Amount::Memory(mib) => (resource::MEMORY_MIB, mib.0.saturating_mul(devices)),
            Amount::Fraction(nano) => (
                resource::MILLI,
                nano.saturating_mul(devices).div_ceil(NANO_PER_MILLI),
            ),
        }
    }
}

/// How much of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Exactly so many MiB.
    Memory(Mib),
    /// Billionths of a card, 1 to 999 999 999.
    Fraction(u64),
}

/// Why a pod's wish is refused. The text is what the user reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// KAI's sentence.
    #[error("gpu-memory annotation value must be a positive integer greater than 0")]
    Memory,
    /// KAI's sentence.
    #[error("gpu-fraction annotation value must be a positive number smaller than 1.0")]
    Fraction,
    /// KAI's sentence.
    #[error("cannot request both GPU and GPU memory")]
    Both,
    /// KAI's sentence.
    #[error("cannot have both GPU fraction request and whole GPU resource request/limit")]
    ShareAndWhole,
    /// KAI's sentence.
    #[error(
        "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
    )]
    DevicesAlone,
    /// KAI's sentence.
    #[error("fraction count annotation value must be a positive integer greater than 0")]
    Devices,
    /// KAI's sentence.
    #[error("MPS is only supported with GPU fraction request")]
    MpsAlone,
    /// KAI's sentence.
    #[error(
        "failed to get fraction container ref: container with name {} not found for fraction request",
        shown(.0)
    )]
    Container(String),
    /// KAI's sentence (per-container form).
    #[error(
        "container {} not found in pod spec, but a fractional annotation referencing it was found",
        shown(.0)
    )]
    PerContainer(String),
    /// KAI's sentence (per-container form).
    #[error("cannot request both gpu-fraction and GPU memory request")]
    BothForms,
    /// Ours.
    #[error("{} annotation value must be a Kubernetes quantity of memory greater than 0", shown(.0))]
    Quantity(String),
    /// Ours: a limit above the request is burst, which nothing here could enforce.
    #[error(
        "{} is above the container's request: bursting above the request is not offered, set both alike",
        shown(.0)
    )]
    LimitAboveRequest(String),
    /// Ours.
    #[error("{} annotation value must be time-slicing or sm-sharing", shown(.0))]
    ComputeMode(String),
    /// Ours.
    #[error("aliquot.dev/gpu-compute annotation value must be an integer from 1 to 100")]
    Compute,
    /// Ours.
    #[error("aliquot.dev/gpu-compute needs gpu-memory or gpu-fraction")]
    ComputeAlone,
    /// Ours: `nvidia.com/gpu` that is no whole number.
    #[error("nvidia.com/gpu of container {} must be a whole number", shown(.0))]
    Whole(String),
    /// A share for a container that Kubernetes gives no devices.
    #[error("the pod has no container")]
    NoContainer,
}

/// A name has 253 characters at most (RFC 1123 subdomain), an annotation's key 317; what is
/// longer is none, and may be as long as the pod.
const MAX_SHOWN: usize = 320;

/// A tenant's text, as one line of bounded length.
fn shown(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_SHOWN)
        .collect()
}

/// Reads what a pod asks for.
///
/// # Errors
/// The first contradiction, as one sentence.
pub fn of(pod: &Pod) -> Result<PodRequest, RequestError> {
    let none = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let spec = pod.spec.as_ref().ok_or(RequestError::NoContainer)?;
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let all = || {
        inits
            .iter()
            .map(|container| (container, true))
            .chain(spec.containers.iter().map(|container| (container, false)))
    };

    let mut whole = Vec::new();
    for (container, init) in all() {
        whole.extend(whole_request(container, init)?);
    }

    let names: BTreeSet<&str> = all()
        .map(|(container, _)| container.name.as_str())
        .collect();
    let mut shares = BTreeMap::new();
    if let Some((container, share)) = pod_form(annotations, inits, &spec.containers)? {
        shares.insert(container, share);
    }
    for (container, share) in per_container_form(annotations)? {
        if !names.contains(container.as_str()) {
            return Err(RequestError::PerContainer(container));
        }
        if shares.contains_key(&container) {
            return Err(RequestError::BothForms);
        }
        shares.insert(container, share);
    }
    if shares.is_empty() {
        return Ok(PodRequest { containers: whole });
    }
    if !whole.is_empty() {
        return Err(RequestError::ShareAndWhole);
    }
    let containers = all()
        .filter_map(|(container, init)| {
            shares
                .remove(&container.name)
                .map(|share| ContainerRequest {
                    name: container.name.clone(),
                    init,
                    gpus: GpuRequest::Share(share),
                })
        })
        .collect();
    Ok(PodRequest { containers })
}

/// What a pod asks for by its containers' resources alone, which cannot be changed after it
/// was made, whatever its annotations say.
pub fn whole(pod: &Pod) -> Vec<ContainerRequest> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let inits = spec.init_containers.iter().flatten();
    inits
        .map(|container| (container, true))
        .chain(spec.containers.iter().map(|container| (container, false)))
        .filter_map(|(container, init)| whole_request(container, init).ok()?)
        .collect()
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
        Some(quantity) => quantity
            .0
            .parse()
            .map_err(|_| RequestError::Whole(container.name.clone())),
    }
}

type Annotations = BTreeMap<String, String>;

/// KAI's older form: the pod's annotations, for one container.
fn pod_form(
    annotations: &Annotations,
    inits: &[Container],
    containers: &[Container],
) -> Result<Option<(String, ShareRequest)>, RequestError> {
    let memory = annotations.get(key::MEMORY);
    let fraction = annotations.get(key::FRACTION);
    if annotations
        .get(key::MPS)
        .is_some_and(|value| value == "true")
        && fraction.is_none()
    {
        return Err(RequestError::MpsAlone);
    }
    let amount = match (memory, fraction) {
        (Some(_), Some(_)) => return Err(RequestError::Both),
        (Some(text), None) => Amount::Memory(parse_mib(text).ok_or(RequestError::Memory)?),
        (None, Some(text)) => Amount::Fraction(parse_fraction(text).ok_or(RequestError::Fraction)?),
        (None, None) => {
            if annotations.contains_key(key::NUM_DEVICES) {
                return Err(RequestError::DevicesAlone);
            }
            let per_container = annotations.keys().any(|name| {
                name.starts_with(key::CONTAINER_PREFIX)
                    && name.ends_with(key::CONTAINER_MEMORY_REQUEST)
            });
            if annotations.contains_key(key::COMPUTE) && !per_container {
                return Err(RequestError::ComputeAlone);
            }
            return Ok(None);
        }
    };
    let devices = match annotations.get(key::NUM_DEVICES) {
        None => 1,
        Some(text) => parse_positive(text).ok_or(RequestError::Devices)?,
    };
    let container = match annotations.get(key::CONTAINER) {
        None => containers
            .first()
            .ok_or(RequestError::NoContainer)?
            .name
            .clone(),
        Some(name) => {
            if !inits
                .iter()
                .chain(containers)
                .any(|container| container.name == *name)
            {
                return Err(RequestError::Container(name.clone()));
            }
            name.clone()
        }
    };
    let mode = match annotations.get(&compute_mode_key(&container)) {
        Some(_) => compute_mode(annotations, &container)?,
        None if annotations
            .get(key::MPS)
            .is_some_and(|value| value == "true") =>
        {
            Some(Mode::Mps)
        }
        None => None,
    };
    let share = ShareRequest {
        amount,
        devices,
        compute_percent: compute(annotations)?,
        mode,
    };
    Ok(Some((container, share)))
}

/// KAI's newer form: `nvidia.com/container.<name>.gpu-memory.request` and its kin.
fn per_container_form(
    annotations: &Annotations,
) -> Result<Vec<(String, ShareRequest)>, RequestError> {
    let mut asked: BTreeMap<&str, (Option<&str>, Option<&str>)> = BTreeMap::new();
    for (name, value) in annotations {
        let Some(rest) = name.strip_prefix(key::CONTAINER_PREFIX) else {
            continue;
        };
        if let Some(container) = rest.strip_suffix(key::CONTAINER_MEMORY_REQUEST) {
            asked.entry(container).or_default().0 = Some(value);
        } else if let Some(container) = rest.strip_suffix(key::CONTAINER_MEMORY_LIMIT) {
            asked.entry(container).or_default().1 = Some(value);
        }
    }
    let mut out = Vec::new();
    for (container, (request, limit)) in asked {
        let request_key = format!(
            "{}{container}{}",
            key::CONTAINER_PREFIX,
            key::CONTAINER_MEMORY_REQUEST
        );
        let limit_key = format!(
            "{}{container}{}",
            key::CONTAINER_PREFIX,
            key::CONTAINER_MEMORY_LIMIT
        );
        let parse = |text: &str, key: &str| {
            quantity_mib(text).ok_or_else(|| RequestError::Quantity(key.to_owned()))
        };
        let request = request.map(|text| parse(text, &request_key)).transpose()?;
        let limit = limit.map(|text| parse(text, &limit_key)).transpose()?;
        let Some(memory) = request.or(limit) else {
            continue;
        };
        if limit.is_some_and(|limit| limit != memory) {
            return Err(RequestError::LimitAboveRequest(limit_key));
        }
        if annotations.contains_key(key::FRACTION) || annotations.contains_key(key::MEMORY) {
            return Err(RequestError::BothForms);
        }
        let share = ShareRequest {
            amount: Amount::Memory(memory),
            devices: 1,
            compute_percent: compute(annotations)?,
            mode: compute_mode(annotations, container)?,
        };
        out.push((container.to_owned(), share));
    }
    Ok(out)
}

fn compute_mode_key(container: &str) -> String {
    format!(
        "{}{container}{}",
        key::CONTAINER_PREFIX,
        key::CONTAINER_COMPUTE_MODE
    )
}

fn compute_mode(annotations: &Annotations, container: &str) -> Result<Option<Mode>, RequestError> {
    let key = compute_mode_key(container);
    match annotations.get(&key).map(String::as_str) {
        None => Ok(None),
        Some("time-slicing") => Ok(Some(Mode::TimeSlicing)),
        Some("sm-sharing") => Ok(Some(Mode::Mps)),
        Some(_) => Err(RequestError::ComputeMode(key)),
    }
}

fn compute(annotations: &Annotations) -> Result<Option<u8>, RequestError> {
    let Some(text) = annotations.get(key::COMPUTE) else {
        return Ok(None);
    };
    match parse_positive(text).and_then(|value| u8::try_from(value).ok()) {
        Some(percent @ 1..=100) => Ok(Some(percent)),
        _ => Err(RequestError::Compute),
    }
}

/// Go's `ParseUint(text, 10, 64)`: digits alone; and not 0.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|value| *value > 0)
}

fn parse_mib(text: &str) -> Option<Mib> {
    digits(text).map(Mib)
}

fn parse_positive(text: &str) -> Option<u32> {
    digits(text).and_then(|value| u32::try_from(value).ok())
}

/// A number in (0, 1) in billionths, rounded to the nearest, never to 0 or 1.
fn parse_fraction(text: &str) -> Option<u64> {
    let value: f64 = text.parse().ok()?;
    if !(value > 0.0 && value < 1.0) {
        return None;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // In (0, 1e9) by the check above.
    let nano = (value * 1e9).round() as u64;
    Some(nano.clamp(1, 999_999_999))
}

/// A Kubernetes quantity in MiB, rounded up: a request is never made smaller.
fn quantity_mib(text: &str) -> Option<Mib> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let number = u128::from(digits(number)?);
    let scale: u128 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    u64::try_from((number * scale).div_ceil(1 << 20))
        .ok()
        .map(Mib)
}

#[cfg(test)]
mod tests;
