//! The two forms of a request for a share, and their combination.
//!
//! The pod's form: `gpu-memory` or `gpu-fraction`, for one container. The containers' form:
//! `nvidia.com/container.<name>.gpu-memory.request` and its kin, which wins where both are
//! there. Source: KAI's `gpu_sharing.go`, `gpu_sharing_nvfractions.go`,
//! `gpu_sharing_validation.go`. KAI takes one container of the second form, here each has its
//! own.

use super::error::RequestError;
use super::number;
use super::pod_request::{Amount, Annotations, ShareRequest};
use crate::quantity;
use crate::units::{Mib, Mode};
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::names::request as key;
use std::collections::{BTreeMap, BTreeSet};

/// What an annotation says of its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Request,
    Limit,
    Mode,
    Compute,
}

const SUFFIXES: [(&str, What); 4] = [
    (key::CONTAINER_MEMORY_REQUEST, What::Request),
    (key::CONTAINER_MEMORY_LIMIT, What::Limit),
    (key::CONTAINER_COMPUTE_MODE, What::Mode),
    (key::CONTAINER_COMPUTE_REQUEST, What::Compute),
];

/// The container and the rest of a key without its prefix.
pub(super) fn split(rest: &str) -> Option<(&str, What)> {
    SUFFIXES
        .iter()
        .find_map(|(suffix, what)| Some((rest.strip_suffix(suffix)?, *what)))
}

/// Whether a key without its prefix is one that KAI's binder writes.
pub(super) fn is_binders(rest: &str) -> bool {
    rest.ends_with(key::CONTAINER_DEVICES) || rest.ends_with(key::CONTAINER_COMPUTE_PORTION)
}

/// What one container's annotations say.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    request: Option<Mib>,
    limit: Option<Mib>,
    mode: Option<Mode>,
    compute: Option<u8>,
}

impl Own {
    /// The scheduled amount: a limit alone is the request, too.
    fn amount(&self) -> Option<Mib> {
        self.request.or(self.limit)
    }
}

pub(super) fn container_key(container: &str, suffix: &str) -> String {
    format!("{}{container}{suffix}", key::CONTAINER_PREFIX)
}

/// What each container asks for, by its name.
pub(super) fn shares<'a>(
    annotations: &'a Annotations,
    inits: &'a [Container],
    containers: &'a [Container],
) -> Result<BTreeMap<&'a str, ShareRequest>, RequestError> {
    let names: BTreeSet<&str> = inits
        .iter()
        .chain(containers)
        .map(|container| container.name.as_str())
        .collect();
    let devices = match annotations.get(key::NUM_DEVICES) {
        None => 1,
        Some(text) => number::positive(text).ok_or_else(|| RequestError::Devices(text.clone()))?,
    };
    let own = own(annotations)?;
    let mut amounts = BTreeMap::new();
    for (container, own) in &own {
        let Some(memory) = own.amount() else { continue };
        if !names.contains(container) {
            return Err(RequestError::PerContainer((*container).to_owned()));
        }
        let limit = own.limit.unwrap_or(memory);
        if memory > limit {
            return Err(RequestError::AboveLimit((*container).to_owned()));
        }
        amounts.insert(*container, (Amount::Memory(memory), Amount::Memory(limit)));
    }
    let pods = pod_form(annotations)?;
    let target = target(annotations, &names, containers, &amounts, pods.is_some())?;
    let limits = pod_limits(annotations, pods, target)?;
    if let (Some(amount), Some(target)) = (pods, target) {
        match own.get(target).filter(|own| own.amount().is_some()) {
            None => {
                amounts.insert(target, (amount, limits.unwrap_or(amount)));
            }
            Some(own) => beside(annotations, amount, limits, target, own)?,
        }
        if let (Amount::Memory(_), Some(limit)) = (amount, limits) {
            amounts.insert(target, (amount, limit));
        }
    }
    if amounts.is_empty() {
        if annotations.contains_key(key::NUM_DEVICES) {
            return Err(RequestError::DevicesAlone);
        }
        if annotations.contains_key(key::COMPUTE) {
            return Err(RequestError::ComputeAlone);
        }
    }
    let compute = compute(annotations)?;
    let mode = pod_mode(annotations)?;
    let shares = amounts.into_iter().map(|(container, (amount, limit))| {
        let own = own.get(container).copied().unwrap_or_default();
        let share = ShareRequest {
            amount,
            limit: (limit != amount).then_some(limit),
            devices,
            compute_percent: own.compute.or(compute),
            mode: own.mode.or(mode),
        };
        (container, share)
    });
    Ok(shares.collect())
}

/// The containers' form, as far as it is read. Other names count for nothing here: admission
/// refuses them.
fn own(annotations: &Annotations) -> Result<BTreeMap<&str, Own>, RequestError> {
    let mut all: BTreeMap<&str, Own> = BTreeMap::new();
    for (name, value) in annotations {
        let rest = name.strip_prefix(key::CONTAINER_PREFIX);
        let Some((container, what)) = rest.and_then(split) else {
            continue;
        };
        let own = all.entry(container).or_default();
        let memory = || {
            let wrong = || RequestError::Quantity(name.clone(), value.clone());
            let memory = quantity::mib_up(value).filter(|mib| *mib > Mib(0));
            // KAI takes 2000 bytes for a request of 1 MiB. Beside `gpu-memory: "2000"`, which is in
            // MiB, a unit was forgotten.
            match quantity::up(&Quantity(value.clone())) {
                Some(bytes) if memory.is_some() && bytes < 1_000_000 => {
                    Err(RequestError::BelowOneMb(name.clone(), value.clone()))
                }
                _ => memory.ok_or_else(wrong),
            }
        };
        match what {
            What::Request => own.request = Some(memory()?),
            What::Limit => own.limit = Some(memory()?),
            What::Mode => own.mode = Some(mode_of(name, value)?),
            What::Compute => {
                let percent = number::percent(value);
                let wrong = || RequestError::ComputeRequest(name.clone(), value.clone());
                own.compute = Some(percent.ok_or_else(wrong)?);
            }
        }
    }
    Ok(all)
}

/// How much the pod's form asks for.
fn pod_form(annotations: &Annotations) -> Result<Option<Amount>, RequestError> {
    let memory = annotations.get(key::MEMORY);
    let fraction = annotations.get(key::FRACTION);
    if is_mps(annotations) && fraction.is_none() {
        return Err(RequestError::MpsAlone);
    }
    Ok(Some(match (memory, fraction) {
        (Some(_), Some(_)) => return Err(RequestError::Both),
        (Some(text), None) => {
            let wrong = || RequestError::Memory(text.clone());
            Amount::Memory(number::mib(text).ok_or_else(wrong)?)
        }
        (None, Some(text)) => {
            let wrong = || RequestError::Fraction(text.clone());
            Amount::Fraction(number::fraction(text).ok_or_else(wrong)?)
        }
        (None, None) => return Ok(None),
    }))
}

/// The container that the pod's form applies to; `None` without such a form.
fn target<'a>(
    annotations: &'a Annotations,
    names: &BTreeSet<&'a str>,
    containers: &'a [Container],
    own: &BTreeMap<&'a str, (Amount, Amount)>,
    asks: bool,
) -> Result<Option<&'a str>, RequestError> {
    let named = annotations.get(key::CONTAINER).map(String::as_str);
    let mut others = own.keys().copied();
    if let (Some(name), Some(container)) = (named, others.next())
        && !own.contains_key(name)
    {
        return Err(RequestError::OtherContainer {
            name: name.to_owned(),
            container: container.to_owned(),
        });
    }
    if !asks {
        return Ok(None);
    }
    if own.len() > 1 {
        let key = if annotations.contains_key(key::MEMORY) {
            key::MEMORY
        } else {
            key::FRACTION
        };
        return Err(RequestError::SeveralContainers(key));
    }
    match (named, own.keys().next()) {
        (Some(name), _) if names.contains(name) => Ok(Some(name)),
        (Some(name), _) => Err(RequestError::Container {
            name: name.to_owned(),
            there: names.iter().copied().collect::<Vec<_>>().join(", "),
        }),
        (None, Some(only)) => Ok(Some(only)),
        (None, None) => match containers.first() {
            Some(first) => Ok(Some(first.name.as_str())),
            None => Err(RequestError::NoContainer),
        },
    }
}

/// The container has annotations of its own beside the pod's: they must agree, as KAI's webhook
/// writes the one for the other.
fn beside(
    annotations: &Annotations,
    amount: Amount,
    limit: Option<Amount>,
    target: &str,
    own: &Own,
) -> Result<(), RequestError> {
    if own.limit.is_some() && limit.is_none() {
        return Err(RequestError::LimitOfOtherForm);
    }
    let Amount::Memory(memory) = amount else {
        // KAI takes the container's, and so do we; admission says so.
        return Ok(());
    };
    // Where KAI's webhook copied gpu-memory.limit, the container's request was written, too.
    let request = own.request.unwrap_or(memory);
    if request != memory {
        return Err(RequestError::Mismatch { request, memory });
    }
    match (own.limit, limit) {
        (Some(own), Some(Amount::Memory(limit))) if own != limit => Err(RequestError::Conflict {
            short: key::MEMORY_LIMIT,
            long: container_key(target, key::CONTAINER_MEMORY_LIMIT),
        }),
        _ if annotations.contains_key(key::MEMORY_LIMIT) || own.limit.is_none() => Ok(()),
        _ => Err(RequestError::LimitOfOtherForm),
    }
}

/// The most that the pod's form allows.
fn pod_limits(
    annotations: &Annotations,
    amount: Option<Amount>,
    target: Option<&str>,
) -> Result<Option<Amount>, RequestError> {
    let memory = memory_limit(annotations, amount)?;
    let fraction = fraction_limit(annotations, amount, target)?;
    Ok(memory.or(fraction))
}

fn memory_limit(
    annotations: &Annotations,
    amount: Option<Amount>,
) -> Result<Option<Amount>, RequestError> {
    let Some(text) = annotations.get(key::MEMORY_LIMIT) else {
        return Ok(None);
    };
    let Some(Amount::Memory(memory)) = amount else {
        return Err(RequestError::LimitAlone {
            limit: key::MEMORY_LIMIT.to_owned(),
            with: key::MEMORY,
        });
    };
    // A number without a unit would be bytes here, and is MiB beside it.
    let limit = quantity::mib_up(text)
        .filter(|limit| *limit > Mib(0) && text.parse::<f64>().is_err())
        .ok_or_else(|| RequestError::MemoryLimit(text.clone()))?;
    if limit < memory {
        return Err(RequestError::MemoryLimitBelow { limit, memory });
    }
    Ok(Some(Amount::Memory(limit)))
}

/// `gpu-fraction.limit`, and what KAI's webhook makes of it for the container.
fn fraction_limit(
    annotations: &Annotations,
    amount: Option<Amount>,
    target: Option<&str>,
) -> Result<Option<Amount>, RequestError> {
    let short = annotations
        .get(key::FRACTION_LIMIT)
        .map(|text| (key::FRACTION_LIMIT, text));
    let mut all: Vec<(&str, &String)> = short.into_iter().collect();
    for (name, text) in annotations {
        let Some(container) = portion_of(name) else {
            continue;
        };
        if amount.is_some_and(|amount| matches!(amount, Amount::Fraction(_)))
            && target != Some(container)
        {
            return Err(RequestError::FractionLimitContainer {
                key: name.clone(),
                container: container.to_owned(),
            });
        }
        all.push((name, text));
    }
    let mut limits = all.iter().map(|(name, text)| {
        let fraction = annotations.get(key::FRACTION);
        let Some((Amount::Fraction(nano), fraction)) = amount.zip(fraction) else {
            return Err(RequestError::LimitAlone {
                limit: (*name).to_owned(),
                with: key::FRACTION,
            });
        };
        if !number::is_short(text) {
            return Err(RequestError::FractionLimitDigits((*name).to_owned()));
        }
        let limit = number::fraction(text)
            .ok_or_else(|| RequestError::FractionLimit((*name).to_owned(), (*text).clone()))?;
        if limit <= nano {
            return Err(RequestError::FractionLimitBelow {
                key: (*name).to_owned(),
                limit: (*text).clone(),
                fraction: fraction.clone(),
            });
        }
        Ok(limit)
    });
    let first = limits.next().transpose()?;
    for (limit, (long, _)) in limits.zip(all.iter().skip(1)) {
        if Some(limit?) != first {
            return Err(RequestError::Conflict {
                short: key::FRACTION_LIMIT,
                long: (*long).to_owned(),
            });
        }
    }
    Ok(first.map(Amount::Fraction))
}

/// Whose limit a key of KAI's own says.
pub(super) fn portion_of(name: &str) -> Option<&str> {
    name.strip_prefix(key::KAI_CONTAINER_PREFIX)?
        .strip_suffix(key::KAI_PORTION_LIMIT)
}

pub(super) fn is_mps(annotations: &Annotations) -> bool {
    annotations
        .get(key::MPS)
        .is_some_and(|value| value == "true")
}

/// What the pod says of the mode of all its shares.
fn pod_mode(annotations: &Annotations) -> Result<Option<Mode>, RequestError> {
    let said = annotations.get(key::COMPUTE_MODE);
    let mode = said
        .map(|value| mode_of(key::COMPUTE_MODE, value))
        .transpose()?;
    Ok(mode.or(is_mps(annotations).then_some(Mode::Mps)))
}

fn mode_of(key: &str, value: &str) -> Result<Mode, RequestError> {
    match value {
        "time-slicing" => Ok(Mode::TimeSlicing),
        "sm-sharing" => Ok(Mode::Mps),
        _ => Err(RequestError::ComputeMode(key.to_owned(), value.to_owned())),
    }
}

fn compute(annotations: &Annotations) -> Result<Option<u8>, RequestError> {
    let Some(text) = annotations.get(key::COMPUTE) else {
        return Ok(None);
    };
    match number::positive(text).and_then(|value| u8::try_from(value).ok()) {
        Some(percent @ 1..=100) => Ok(Some(percent)),
        _ => Err(RequestError::Compute(text.clone())),
    }
}
