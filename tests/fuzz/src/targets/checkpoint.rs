//! The kubelet's checkpoint: the container of an allocation.

use crate::{Shape, Target};
use agent::identity::{Checkpoint, holders};
use agent::ledger::AllocId;
use agent::resource::Resource;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use proto::deviceplugin::{CdiDevice, ContainerAllocateResponse};
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(super) const TARGET: Target = Target {
    name: "checkpoint",
    shape: Shape::Json,
    words: &[
        "Data",
        "PodDeviceEntries",
        "RegisteredDevices",
        "PodUID",
        "ContainerName",
        "ResourceName",
        "DeviceIDs",
        "AllocResp",
        "Checksum",
        "-1",
        "0",
        "GPU-0::3",
        "GPU-0",
        "aliquot.dev/gpu-share",
        "nvidia.com/gpu",
        "u1",
        "u2",
        "main",
        "aliquot.dev/grant=",
        "000102030405060708090a0b0c0d0e0f",
        "====",
        "KgA=",
    ],
    seeds,
    large,
    heap: 64,
    run,
};

const ALLOC: &str = "000102030405060708090a0b0c0d0e0f";

fn run(input: &[u8]) {
    let Ok(checkpoint) = Checkpoint::parse(input) else {
        return;
    };
    // What the agent skips may be beyond all numbers.
    let Ok(value) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    let entries = value["Data"]["PodDeviceEntries"].as_array();
    let entries = entries.map(Vec::as_slice).unwrap_or_default();
    // serde reads lists as structs, too; the kubelet writes none.
    let objects = value.is_object() && value["Data"].is_object();
    if !objects || !entries.iter().all(Value::is_object) {
        return;
    }
    assert_eq!(entries.len(), checkpoint.entries.len());
    for (said, read) in entries.iter().zip(&checkpoint.entries) {
        assert_eq!(said["PodUID"], read.pod_uid.as_str());
        assert_eq!(said["ContainerName"], read.container.as_str());
        assert_eq!(said["ResourceName"], read.resource.as_str());
        // An allocation is one that the answer names to the letter.
        let answer = STANDARD.decode(said["AllocResp"].as_str().unwrap_or_default());
        let answer = answer.expect("it was read");
        let answer = ContainerAllocateResponse::decode(answer.as_slice()).expect("it was read");
        let named = |alloc: AllocId| format!("aliquot.dev/grant={alloc}");
        match read.alloc {
            Some(alloc) => assert!(
                answer
                    .cdi_devices
                    .iter()
                    .any(|device| device.name == named(alloc)),
                "{alloc} is not in {answer:?}"
            ),
            None => assert!(
                answer.cdi_devices.iter().all(|device| {
                    let id = device.name.strip_prefix("aliquot.dev/grant=");
                    id.is_none_or(|id| AllocId::parse(id).is_none())
                }),
                "an allocation was overlooked: {answer:?}"
            ),
        }
    }
    // Every holder of these IDs has an entry of its own for them.
    let ids = BTreeSet::from(["GPU-0::3".to_owned()]);
    for holder in holders(&checkpoint, Resource::Share, &ids) {
        assert!(
            checkpoint.entries.iter().any(|entry| {
                entry.pod_uid == holder.pod_uid
                    && entry.container == holder.container
                    && entry.alloc == Some(holder.alloc)
                    && entry.ids == ids
                    && entry.resource == "aliquot.dev/gpu-share"
            }),
            "{holder:?}"
        );
        assert!(checkpoint.holds(holder.alloc));
    }
}

fn answer(name: &str) -> String {
    let answer = ContainerAllocateResponse {
        cdi_devices: vec![CdiDevice {
            name: name.to_owned(),
        }],
        ..ContainerAllocateResponse::default()
    };
    STANDARD.encode(answer.encode_to_vec())
}

fn entry(uid: &str, ids: &Value, answer: &str) -> Value {
    json!({"PodUID": uid, "ContainerName": "main", "ResourceName": "aliquot.dev/gpu-share",
        "DeviceIDs": ids, "AllocResp": answer})
}

fn seeds() -> Vec<Vec<u8>> {
    let ours = answer(&format!("aliquot.dev/grant={ALLOC}"));
    let theirs = answer("nvidia.com/gpu=0");
    let file = |entries: Value| {
        json!({"Data": {"PodDeviceEntries": entries,
        "RegisteredDevices": {"aliquot.dev/gpu-share": ["GPU-0::3"], "nvidia.com/gpu": null}}, "Checksum": 1})
    };
    [
        file(json!([entry("u1", &json!({"-1": ["GPU-0::3"]}), &ours)])),
        file(json!([
            entry("u1", &json!({"-1": ["GPU-0::3"]}), &ours),
            entry("u2", &json!({"0": ["GPU-0"], "1": ["GPU-1"]}), &theirs),
            {"PodUID": "u3", "ContainerName": "c", "ResourceName": "x/y", "DeviceIDs": null, "AllocResp": null},
        ])),
        file(Value::Null),
    ]
    .iter()
    .map(|file| serde_json::to_vec(file).expect("it prints"))
    .collect()
}

/// An answer of nothing but empty parts: the most structs of the fewest bytes.
fn large(size: usize) -> Vec<Vec<u8>> {
    [0x0a, 0x12, 0x1a, 0x22, 0x2a]
        .into_iter()
        .map(|field| {
            let parts = crate::large::repeated(&[field, 0], size * 3 / 4);
            let ids = json!({"-1": ["GPU-0::3"]});
            let file =
                json!({"Data": {"PodDeviceEntries": [entry("u1", &ids, &STANDARD.encode(parts))]}});
            serde_json::to_vec(&file).expect("it prints")
        })
        .collect()
}
