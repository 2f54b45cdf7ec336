//! A pod that does not exist, as the webhook would amend it and the watch would show it.

use super::claims::ClaimTemplates;
use crate::convert::World;
use crate::watch::{Fact, Seen};
use k8s_openapi::api::core::v1::Pod;
use scheduler_core::Event;
use scheduler_core::ids::PodUid;
use scheduler_core::units::Time;
use serde_json::Value;

/// The prefix of the UIDs of pods that exist only in a trial.
pub const UID: &str = "simulated-";

/// A pod that was added.
#[derive(Clone, Debug)]
pub struct AdmittedPod {
    /// Its UID, which begins with [`UID`].
    pub uid: PodUid,
    /// `namespace/name`.
    pub name: String,
    /// The warnings that the webhook would give.
    pub warnings: Vec<String>,
    /// The pod for the core. Newer than all existing ones.
    pub events: Vec<Event>,
}

/// Adds a pod that does not exist, as the webhook would amend it and the watch show it, and its claims,
/// made of these templates. `number` distinguishes it from others of the same trial; `now` is its
/// creation time.
///
/// # Errors
/// One sentence on why the webhook would refuse it.
pub fn take_pod(
    world: &mut World,
    object: &Value,
    number: u64,
    now: Time,
    templates: &ClaimTemplates,
) -> Result<AdmittedPod, String> {
    let amended = crate::admission::amended(object).map_err(|why| why.to_string())?;
    let mut pod: Pod =
        serde_json::from_value(amended.pod).map_err(|why| format!("it is no pod: {why}"))?;
    let name = match (&pod.metadata.name, &pod.metadata.generate_name) {
        (Some(name), _) => name.clone(),
        (None, Some(prefix)) => format!("{prefix}{number}"),
        (None, None) => format!("pod-{number}"),
    };
    let uid = PodUid::new(format!("{UID}{number:06}"));
    pod.metadata.name = Some(name.clone());
    pod.metadata.uid = Some(uid.to_string());
    pod.status = None;
    default_requests(&mut pod);
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let mut events = Vec::new();
    for claim in templates.instantiate(&mut pod) {
        events.extend(world.take(Fact::DeviceClaim(Seen::There(Box::new(claim)))));
    }
    events.extend(world.take(Fact::Pod(Seen::There(Box::new(pod)))));
    // The selectors of its claims may be new.
    while world.is_due() {
        events.extend(world.elapse(now));
    }
    for event in &mut events {
        if let Event::Pod(pod) = event
            && pod.uid == uid
        {
            pod.created = now;
        }
    }
    Ok(AdmittedPod {
        uid,
        name: format!("{namespace}/{name}"),
        warnings: amended.warnings,
        events,
    })
}

/// What a container does not request is its limit: Kubernetes' `SetDefaults_Pod`.
fn default_requests(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else {
        return;
    };
    let inits = spec.init_containers.iter_mut().flatten();
    for resources in inits
        .chain(&mut spec.containers)
        .filter_map(|container| container.resources.as_mut())
    {
        let limits = resources.limits.clone().unwrap_or_default();
        let requests = resources.requests.get_or_insert_default();
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}
