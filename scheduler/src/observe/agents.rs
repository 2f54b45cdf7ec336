//! What an agent wrote, as if it had sent it on a stream. Pure.
//!
//! Two things are not in there: how many MPS clients a card takes follows from the driver's
//! version, and which cards the kubelet shows as whole is taken as unknown, which hinders
//! nothing.

use api::GpuNode;
use kube::ResourceExt as _;
use proto::telemetry::{Gpu, NodeState, Share, Stranger};
use std::collections::BTreeMap;

/// MiB that a fraction gets for the CUDA context where the admin says nothing.
const CONTEXT_ALLOWANCE: u64 = 512;
/// MPS clients of a card, and from which driver branch on there are more.
const CLIENTS: u32 = 48;
const MORE_CLIENTS: (u32, u32) = (590, 60);

/// What the agent of this node would say.
pub fn said(node: &GpuNode) -> NodeState {
    let status = node.status.clone().unwrap_or_default();
    let allowance = node.spec.context_allowance_mib;
    let allowance = allowance.map_or(CONTEXT_ALLOWANCE, |mib| mib.0);
    let offering = status.conditions.iter().find(|c| c.type_ == "Offering");
    let not_offering = match offering {
        Some(condition) if condition.status == "True" => String::new(),
        Some(condition) => condition.message.clone(),
        None => "its agent has not reported yet".to_owned(),
    };
    let mut shares: BTreeMap<(String, String), Share> = BTreeMap::new();
    let mut strangers = Vec::new();
    for card in &status.gpus {
        for grant in &card.grants {
            let (namespace, name) = grant.pod.split_once('/').unwrap_or(("", &grant.pod));
            let share = shares
                .entry((grant.pod_uid.clone(), grant.container.clone()))
                .or_insert_with(|| Share {
                    pod_uid: grant.pod_uid.clone(),
                    pod_namespace: namespace.to_owned(),
                    pod_name: name.to_owned(),
                    container: grant.container.clone(),
                    memory_mib: grant.memory_mib.0,
                    compute_percent: grant.compute_percent.into(),
                    mode: card
                        .mode
                        .map_or_else(String::new, |m| m.as_str().to_owned()),
                    phase: grant.phase.clone(),
                    ..Share::default()
                });
            share.gpu_uuids.push(card.uuid.clone());
        }
        strangers.extend(card.strangers.iter().map(|stranger| Stranger {
            gpu_uuid: card.uuid.clone(),
            pid: stranger.pid,
            command: stranger.command.clone(),
            memory_mib: stranger.memory_mib.0,
            ..Stranger::default()
        }));
    }
    let clients = clients(&status.driver_version);
    let gpus = status.gpus.iter().map(|card| Gpu {
        uuid: card.uuid.clone(),
        index: card.index,
        product: card.product.clone(),
        memory_total_mib: card.total_mib.0,
        memory_reserved_mib: card.reserved_mib.0,
        memory_used_mib: card.used_mib.0,
        memory_granted_mib: card.granted_mib.0,
        memory_grantable_mib: card.grantable_mib.0,
        mode: card
            .mode
            .map_or_else(String::new, |m| m.as_str().to_owned()),
        switchable_modes: card
            .switchable_modes
            .iter()
            .map(|mode| mode.as_str().to_owned())
            .collect(),
        ready: card.ready,
        mps_state: card.mps.clone(),
        health: card.health.clone(),
        health_reason: card.health_reason.clone(),
        numa_node: card.numa.and_then(|n| i32::try_from(n).ok()).unwrap_or(-1),
        nvlink_peers: card.nvlink_peers.clone(),
        client_slots: clients,
        // The admin's word, which the agent repeats a moment later.
        cordoned: (node.spec.gpus.iter()).any(|policy| policy.uuid == card.uuid && policy.cordoned),
        context_allowance_mib: allowance,
        ..Gpu::default()
    });
    NodeState {
        node: node.name_any(),
        node_uid: String::new(),
        gpus: gpus.collect(),
        shares: shares.into_values().collect(),
        strangers,
        not_offering,
        driver_version: status.driver_version.clone(),
        ..NodeState::default()
    }
}

/// MPS clients that a card takes under a driver.
fn clients(driver: &str) -> u32 {
    let branch = driver.split('.').next().and_then(|text| text.parse().ok());
    let (since, more) = MORE_CLIENTS;
    if branch.is_some_and(|branch: u32| branch >= since) {
        more
    } else {
        CLIENTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_says_how_many_clients_a_card_takes() {
        for (driver, expected) in [("590.44.01", 60), ("570.86", 48), ("", 48), ("615.1", 60)] {
            assert_eq!(clients(driver), expected, "{driver}");
        }
    }
}
