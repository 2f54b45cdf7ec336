//! The spec of a `ResourceClaim` → what the core has to find for it.

use super::filters::Wanted;
use super::pools::{amounts, exact, is_gpu};
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceConstraint, DeviceRequest as KubeRequest,
    DeviceSelector, DeviceSubRequest, DeviceToleration as KubeToleration, ExactDeviceRequest,
    ResourceClaimSpec,
};
use proto::names::dra;
use scheduler_core::model::{
    Alternative, Constraint, Count, DeviceRequest, DeviceToleration, DeviceWants, Effect,
};
use scheduler_core::units::{NanoGpu, Quantity};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Device classes by name.
pub(super) type Classes = BTreeMap<String, Box<DeviceClass>>;

/// Why a claim is not even tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum No {
    /// Something is missing that may come.
    Lacks(String),
    /// The field, and what is wrong with it.
    Unknown(String),
}

/// A claim's spec, read.
#[derive(Debug, Default)]
pub(super) struct Wants {
    pub wants: DeviceWants,
    /// Of each request.
    pub filters: Vec<Wanted>,
}

/// `share`: bytes that count as one GPU for a share of a card of ours.
pub(super) fn of(
    spec: &ResourceClaimSpec,
    classes: &Classes,
    share: Option<Quantity>,
) -> Result<Wants, No> {
    let mut out = Wants {
        wants: DeviceWants::default(),
        filters: Vec::new(),
    };
    let Some(devices) = &spec.devices else {
        return Ok(out);
    };
    for request in devices.requests.iter().flatten() {
        let read = Reader {
            name: &request.name,
            classes,
            share,
        };
        let alternatives = read.request(request, &mut out.filters)?;
        out.wants.requests.push(DeviceRequest {
            name: Arc::from(request.name.as_str()),
            alternatives,
        });
    }
    let constraints = devices.constraints.iter().flatten().enumerate();
    for (at, one) in constraints {
        out.wants.constraints.push(constraint(at, one)?);
    }
    Ok(out)
}

/// The classes that its requests name.
pub(super) fn classes(spec: &ResourceClaimSpec) -> impl Iterator<Item = &str> {
    let requests = spec
        .devices
        .iter()
        .flat_map(|one| one.requests.iter().flatten());
    requests.flat_map(|request| {
        let exactly = request
            .exactly
            .iter()
            .map(|one| one.device_class_name.as_str());
        let ways = request.first_available.iter().flatten();
        exactly.chain(ways.map(|one| one.device_class_name.as_str()))
    })
}

fn constraint(at: usize, constraint: &DeviceConstraint) -> Result<Constraint, No> {
    let (attribute, distinct) = match (&constraint.match_attribute, &constraint.distinct_attribute)
    {
        (Some(attribute), None) => (attribute, false),
        (None, Some(attribute)) => (attribute, true),
        _ => {
            return Err(No::Unknown(format!(
                "constraints[{at}]: neither matchAttribute nor distinctAttribute"
            )));
        }
    };
    let requests = constraint.requests.iter().flatten();
    Ok(Constraint {
        requests: requests.map(|one| Arc::from(one.as_str())).collect(),
        attribute: Arc::from(attribute.as_str()),
        distinct,
    })
}

/// What requests and their alternatives have alike.
struct Common<'a> {
    name: Option<&'a str>,
    class: &'a str,
    selectors: Option<&'a [DeviceSelector]>,
    mode: Option<&'a str>,
    count: Option<i64>,
    admin: bool,
    capacity: Option<&'a CapacityRequirements>,
    tolerations: Option<&'a [KubeToleration]>,
    derives: bool,
}

impl<'a> From<&'a ExactDeviceRequest> for Common<'a> {
    fn from(request: &'a ExactDeviceRequest) -> Self {
        Self {
            name: None,
            class: &request.device_class_name,
            selectors: request.selectors.as_deref(),
            mode: request.allocation_mode.as_deref(),
            count: request.count,
            admin: request.admin_access == Some(true),
            capacity: request.capacity.as_ref(),
            tolerations: request.tolerations.as_deref(),
            derives: request.derived_attributes.is_some(),
        }
    }
}

impl<'a> From<&'a DeviceSubRequest> for Common<'a> {
    fn from(request: &'a DeviceSubRequest) -> Self {
        Self {
            name: Some(&request.name),
            class: &request.device_class_name,
            selectors: request.selectors.as_deref(),
            mode: request.allocation_mode.as_deref(),
            count: request.count,
            admin: false,
            capacity: request.capacity.as_ref(),
            tolerations: request.tolerations.as_deref(),
            derives: request.derived_attributes.is_some(),
        }
    }
}

struct Reader<'a> {
    /// Of the request.
    name: &'a str,
    classes: &'a Classes,
    share: Option<Quantity>,
}

impl Reader<'_> {
    fn request(
        &self,
        request: &KubeRequest,
        filters: &mut Vec<Wanted>,
    ) -> Result<Vec<Alternative>, No> {
        let ways: Vec<Common> = match (&request.exactly, &request.first_available) {
            (Some(exactly), None) => vec![Common::from(exactly)],
            (None, Some(all)) if !all.is_empty() => all.iter().map(Common::from).collect(),
            _ => return Err(self.unknown("neither exactly nor firstAvailable")),
        };
        ways.iter().map(|one| self.way(one, filters)).collect()
    }

    fn unknown(&self, what: &str) -> No {
        No::Unknown(format!("request {}: {what}", self.name))
    }

    fn way(&self, way: &Common, filters: &mut Vec<Wanted>) -> Result<Alternative, No> {
        if way.derives {
            return Err(self.unknown("derivedAttributes"));
        }
        let wanted = self.wanted(way)?;
        let count = match way.mode {
            None | Some("" | "ExactCount") => {
                let count = way.count.unwrap_or(1);
                Count::Exactly(u64::try_from(count).unwrap_or(0))
            }
            Some("All") => Count::All,
            Some(mode) => return Err(self.unknown(&format!("allocationMode {mode}"))),
        };
        let asked = way.capacity.and_then(|one| one.requests.as_ref());
        let tolerations = way.tolerations.unwrap_or_default();
        let alternative = Alternative {
            name: way.name.map(Arc::from),
            filter: wanted.name(),
            count,
            capacity: amounts(asked.into_iter().flatten()),
            tolerations: tolerations.iter().filter_map(toleration).collect(),
            admin: way.admin,
            nano: if way.admin {
                0
            } else {
                self.nano(
                    &wanted,
                    asked.and_then(|asked| asked.get(dra::MEMORY)).map(exact),
                )
            },
        };
        filters.push(wanted);
        Ok(alternative)
    }

    fn wanted(&self, way: &Common) -> Result<Wanted, No> {
        let name = way.class;
        let class = self.classes.get(name).ok_or_else(|| {
            No::Lacks(format!(
                "request {}: device class {name} does not exist",
                self.name
            ))
        })?;
        let mut selectors = Vec::new();
        let mut read = |place: &dyn Fn(usize) -> String, all: &[DeviceSelector]| {
            for (at, selector) in all.iter().enumerate() {
                let place = place(at);
                let Some(cel) = &selector.cel else {
                    return Err(No::Unknown(format!("{place}: no selector by CEL")));
                };
                selectors.push((place, cel.expression.clone()));
            }
            Ok(())
        };
        let of_class = class.spec.as_ref();
        let of_class = of_class.and_then(|spec| spec.selectors.as_deref());
        let of_class = of_class.unwrap_or_default();
        read(
            &|at| format!("device class {name}: selectors[{at}]"),
            of_class,
        )?;
        let own = way.selectors.unwrap_or_default();
        read(&|at| format!("request {}: selectors[{at}]", self.name), own)?;
        Ok(Wanted {
            class: name.to_owned(),
            selectors,
        })
    }

    /// What queues count for one device: KAI counts one GPU where the class's name says so. A
    /// share of ours counts by its memory.
    fn nano(&self, wanted: &Wanted, memory: Option<Quantity>) -> u64 {
        let one = NanoGpu::ONE.0;
        if !is_ours(wanted) {
            return if is_gpu(&wanted.class) { one } else { 0 };
        }
        let Some((memory, whole)) = memory.zip(self.share) else {
            return one;
        };
        let part = memory
            .0
            .saturating_mul(i128::from(one))
            .checked_div(whole.0);
        let part = part.and_then(|part| u64::try_from(part).ok());
        part.unwrap_or(one).min(one)
    }
}

/// It is about cards of our agents.
fn is_ours(wanted: &Wanted) -> bool {
    let mut selectors = wanted.selectors.iter();
    wanted.class.ends_with(dra::SHARE_CLASS)
        || selectors.any(|(_, selector)| selector.contains(dra::DRIVER))
}

/// One with an operator or an effect that is not known tolerates nothing, as in Kubernetes.
fn toleration(toleration: &KubeToleration) -> Option<DeviceToleration> {
    let value = match toleration.operator.as_deref() {
        Some("Exists") => None,
        None | Some("" | "Equal") => Some(toleration.value.as_deref().unwrap_or_default()),
        Some(_) => return None,
    };
    let effect = match toleration.effect.as_deref() {
        None | Some("") => None,
        Some("NoSchedule") => Some(Effect::NoSchedule),
        Some("NoExecute") => Some(Effect::NoExecute),
        Some(_) => return None,
    };
    let key = toleration.key.as_deref().filter(|key| !key.is_empty());
    Some(DeviceToleration {
        key: key.map(Arc::from),
        value: value.map(Arc::from),
        effect,
    })
}
