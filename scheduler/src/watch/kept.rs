//! What is kept of a pod: the fields that the scheduler reads.
//!
//! In: a pod as the API server has it, 20 to 45 KB of memory with a token volume and a kubelet's
//! status. Out: the same pod with the other fields unset, and lists without room to grow. A pod is
//! held by several readers until it ends, and there may be 100,000 of them.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, Container, ContainerStatus, EnvVar,
    EphemeralVolumeSource, Pod, PodSpec, PodStatus, ProjectedVolumeSource, Volume,
    VolumeProjection,
};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Unsets what is not read.
pub(super) fn trim(pod: &mut Pod) {
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(of_spec(spec));
    }
    if let Some(status) = pod.status.take() {
        pod.status = Some(of_status(status));
    }
    shrink(&mut pod.metadata.owner_references);
    shrink(&mut pod.metadata.finalizers);
}

fn of_spec(spec: PodSpec) -> PodSpec {
    let mut spec = PodSpec {
        dns_config: None,
        dns_policy: None,
        enable_service_links: None,
        ephemeral_containers: None,
        host_aliases: None,
        hostname: None,
        image_pull_secrets: None,
        readiness_gates: None,
        security_context: None,
        service_account: None,
        service_account_name: None,
        subdomain: None,
        ..spec
    };
    // Other pods have no run time of their own.
    let ends = spec.restart_policy.as_deref() != Some("Always");
    let of_container = |container| of_container(container, ends);
    spec.containers = spec.containers.into_iter().map(of_container).collect();
    spec.containers.shrink_to_fit();
    let inits = spec.init_containers.take();
    spec.init_containers = inits.map(|all| all.into_iter().map(of_container).collect());
    shrink(&mut spec.init_containers);
    let volumes = spec.volumes.take().into_iter().flatten();
    let volumes: Vec<Volume> = volumes.filter_map(of_volume).collect();
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    shrink(&mut spec.volumes);
    shrink(&mut spec.tolerations);
    shrink(&mut spec.resource_claims);
    shrink(&mut spec.scheduling_gates);
    shrink(&mut spec.topology_spread_constraints);
    spec
}

/// Without what the container runs, and its environment: both may be long. References to config maps
/// stay. If the pod `ends`, a digest of what it runs stands in place of the arguments: it tells the pods
/// of one template from others, whose run times are compared.
fn of_container(container: Container, ends: bool) -> Container {
    Container {
        args: ends.then(|| vec![digest(&container)]),
        name: container.name,
        env: container.env.and_then(by_config_maps),
        env_from: container.env_from,
        ports: container.ports,
        resources: container.resources,
        restart_policy: container.restart_policy,
        ..Container::default()
    }
}

fn digest(container: &Container) -> String {
    let mut hasher = DefaultHasher::new();
    (&container.image, &container.command, &container.args).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn by_config_maps(mut variables: Vec<EnvVar>) -> Option<Vec<EnvVar>> {
    let is_of_one = |one: &EnvVar| {
        let from = one.value_from.as_ref();
        from.is_some_and(|from| from.config_map_key_ref.is_some())
    };
    variables.retain(is_of_one);
    variables.shrink_to_fit();
    (!variables.is_empty()).then_some(variables)
}

/// A volume by claim or of a config map. `None`: it is of another kind, which places no pod.
fn of_volume(volume: Volume) -> Option<Volume> {
    let config_map = volume
        .config_map
        .map(|map| ConfigMapVolumeSource { items: None, ..map });
    let projected = volume.projected.and_then(of_projected);
    let ephemeral = volume.ephemeral.map(|_| EphemeralVolumeSource::default());
    let is_kept = volume.persistent_volume_claim.is_some()
        || config_map.is_some()
        || projected.is_some()
        || ephemeral.is_some();
    is_kept.then(|| Volume {
        name: volume.name,
        persistent_volume_claim: volume.persistent_volume_claim,
        config_map,
        projected,
        ephemeral,
        ..Volume::default()
    })
}

fn of_projected(projected: ProjectedVolumeSource) -> Option<ProjectedVolumeSource> {
    let sources = projected.sources.into_iter().flatten();
    let maps = sources.filter_map(|source| source.config_map);
    let maps: Vec<VolumeProjection> = maps
        .map(|map| VolumeProjection {
            config_map: Some(ConfigMapProjection { items: None, ..map }),
            ..VolumeProjection::default()
        })
        .collect();
    (!maps.is_empty()).then(|| {
        let mut sources = Some(maps);
        shrink(&mut sources);
        ProjectedVolumeSource {
            sources,
            ..ProjectedVolumeSource::default()
        }
    })
}

fn of_status(status: PodStatus) -> PodStatus {
    let mut status = PodStatus {
        ephemeral_container_statuses: None,
        host_ip: None,
        host_ips: None,
        pod_ip: None,
        pod_ips: None,
        ..status
    };
    let of_containers = |all: Option<Vec<ContainerStatus>>| {
        all.map(|all| all.into_iter().map(of_container_status).collect())
    };
    status.container_statuses = of_containers(status.container_statuses);
    status.init_container_statuses = of_containers(status.init_container_statuses);
    shrink(&mut status.conditions);
    shrink(&mut status.container_statuses);
    shrink(&mut status.init_container_statuses);
    shrink(&mut status.resource_claim_statuses);
    status
}

fn of_container_status(status: ContainerStatus) -> ContainerStatus {
    ContainerStatus {
        name: status.name,
        state: status.state,
        last_state: status.last_state,
        ready: status.ready,
        started: status.started,
        restart_count: status.restart_count,
        resources: status.resources,
        allocated_resources: status.allocated_resources,
        ..ContainerStatus::default()
    }
}

fn shrink<T>(list: &mut Option<Vec<T>>) {
    if let Some(list) = list {
        list.shrink_to_fit();
    }
}
