//! GPUs as devices of a DRA driver: nodes whose kubelets list none, and pods with claims on them.

use super::{GPUS, NOW, event, node, node_name, pod, queue};
use scheduler_core::event::Event;
use scheduler_core::ids::{ClaimUid, FilterName, NodeName, PoolName};
use scheduler_core::model::{
    AllocatedDevice, Allocation, Alternative, Amounts, Count, Device, DeviceClaim, DeviceNodes,
    DevicePool, DeviceRequest, DeviceWants, Front, Phase, Placement, Pod,
};
use scheduler_core::units::{CpuMilli, NanoGpu, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

const DRIVER: &str = "gpu.example.com";
const FILTER: &str = "gpu.example.com";
const REQUEST: &str = "container-0-request-0";

/// How the pods ask for their GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// By a claim of their own.
    Claim,
    /// By `nvidia.com/gpu`, for which a claim stands in.
    Resource,
}

fn pool(index: usize) -> PoolName {
    PoolName::new(DRIVER, &node_name(index))
}

fn device(index: usize) -> Arc<str> {
    Arc::from(format!("gpu-{index}"))
}

fn nodes(count: usize) -> Vec<Event> {
    let devices = |at: usize| {
        let one = |index: usize| Device {
            name: device(index),
            nodes: DeviceNodes::Node(NodeName::new(node_name(at))),
            selected_by: [FilterName::new(FILTER)].into(),
            ..Device::default()
        };
        Event::Devices(DevicePool {
            name: pool(at),
            fault: None,
            devices: (0..GPUS).map(one).collect(),
            counters: BTreeMap::new(),
        })
    };
    let both = |at: usize| node(at, 0).into_iter().chain([devices(at)]);
    (0..count).flat_map(both).collect()
}

fn with_claim(name: &str, queue: &str, asks: Asks) -> Pod {
    let stands_in = asks == Asks::Resource;
    let mut new = pod(name, queue, u32::from(stands_in));
    new.devices.push(DeviceClaim {
        uid: ClaimUid::new(name),
        name: Arc::from(format!("default/{name}")),
        own: true,
        stands_in,
        wants: Arc::new(DeviceWants {
            requests: vec![DeviceRequest {
                name: Arc::from(REQUEST),
                alternatives: vec![Alternative {
                    name: None,
                    filter: FilterName::new(FILTER),
                    count: Count::Exactly(1),
                    capacity: Amounts::new(),
                    tolerations: Vec::new(),
                    admin: false,
                    nano: NanoGpu::ONE.0,
                }],
            }],
            constraints: Vec::new(),
        }),
    });
    new
}

/// It runs with that device of that node.
fn running(mut of: Pod, at: usize, index: usize) -> [Event; 2] {
    let claim = &of.devices[0];
    let allocated = Event::Allocated(Allocation {
        claim: claim.uid.clone(),
        devices: Arc::from([AllocatedDevice {
            request: Arc::from(REQUEST),
            device: pool(at).device(&device(index)),
            admin: false,
            consumed: None,
        }]),
        nodes: None,
        consumers: 1,
        leaving: false,
    });
    of.phase = Phase::Running(Placement {
        node: NodeName::new(node_name(at)),
        grants: Vec::new(),
        decision: None,
        front: if claim.stands_in {
            Front::Claim
        } else {
            Front::Plugin
        },
    });
    [allocated, event(of)]
}

/// Pending pods for all devices, with so many different requests of CPU.
pub fn waiting(count: usize, asks: Asks, requests: u64) -> Vec<Event> {
    let mut events = nodes(count);
    events.push(queue("queue-0", None, None, 1));
    let new = |index: usize| {
        let mut new = with_claim(&format!("job-{index:06}"), "queue-0", asks);
        new.cpu = CpuMilli(1000 + index as u64 % requests);
        event(new)
    };
    events.extend((0..count * GPUS).map(new));
    events
}

/// Every device taken by one queue, half of them beyond its quota, and as many pods of another one
/// that may have that half, with so many different requests of CPU.
pub fn full(count: usize, asks: Asks, requests: u64) -> Vec<Event> {
    let quota = Some(count as u64 * 4);
    let mut events = nodes(count);
    events.push(queue("dept", None, None, 1));
    events.push(queue("queue-0", Some("dept"), quota, 1));
    events.push(queue("queue-1", Some("dept"), quota, 1));
    events.extend((0..count * GPUS).flat_map(|index| {
        let mut old = with_claim(&format!("run-{index:06}"), "queue-0", asks);
        old.created = Time(1 + (index % 5000) as u64);
        running(old, index / GPUS, index % GPUS)
    }));
    events.extend((0..count * GPUS).map(|index| {
        let mut new = with_claim(&format!("wait-{index:06}"), "queue-1", asks);
        new.created = NOW;
        new.cpu = CpuMilli(1000 + index as u64 % requests);
        event(new)
    }));
    events
}
