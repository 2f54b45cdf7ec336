//! The kubelet's checkpoint, `kubelet_internal_checkpoint`: which container holds which devices.
//!
//! A private format of the kubelet's, stable since 1.20. Its checksum is over Go's own dump
//! of the structs and cannot be checked here; the file is written by rename, so it is whole.

use crate::ledger::AllocId;
use base64::Engine as _;
use prost::Message as _;
use proto::deviceplugin::ContainerAllocateResponse;
use proto::names;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// What the kubelet has allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Entries of our resources, and of others under our resources' names.
    pub entries: Vec<Entry>,
    /// Healthy IDs of each resource that is registered.
    pub registered: BTreeMap<String, BTreeSet<String>>,
}

/// One container's hold on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `metadata.uid`.
    pub pod_uid: String,
    /// Its name.
    pub container: String,
    /// Resource name.
    pub resource: String,
    /// Device IDs, of all NUMA nodes.
    pub ids: BTreeSet<String>,
    /// What our answer named; `None` where another plugin answered.
    pub alloc: Option<AllocId>,
}

/// The file is not of the form that is known.
#[derive(Debug, thiserror::Error)]
#[error("the kubelet's checkpoint is not readable: {0}")]
pub struct CheckpointError(String);

#[derive(Deserialize)]
struct File {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    // May be null, and must be there: a file of another form is not one without entries.
    #[serde(rename = "PodDeviceEntries", deserialize_with = "Option::deserialize")]
    entries: Option<Vec<RawEntry>>,
    #[serde(rename = "RegisteredDevices", default)]
    registered: Option<BTreeMap<String, Option<BTreeSet<String>>>>,
}

#[derive(Deserialize)]
struct RawEntry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs", default)]
    ids: Option<BTreeMap<String, Option<Vec<String>>>>,
    #[serde(rename = "AllocResp", default)]
    response: Option<String>,
}

impl Checkpoint {
    /// Reads the file's bytes.
    ///
    /// # Errors
    /// When they are not of the form that is known; then nothing in them is believed.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let file: File =
            serde_json::from_slice(bytes).map_err(|error| CheckpointError(error.to_string()))?;
        let entries = file
            .data
            .entries
            .unwrap_or_default()
            .into_iter()
            .map(Entry::of)
            .collect::<Result<_, _>>()?;
        let registered = file.data.registered.unwrap_or_default();
        Ok(Self {
            entries,
            registered: registered
                .into_iter()
                .map(|(resource, ids)| (resource, ids.unwrap_or_default()))
                .collect(),
        })
    }

    /// Whether an entry names this allocation.
    pub fn holds(&self, alloc: AllocId) -> bool {
        self.entries.iter().any(|entry| entry.alloc == Some(alloc))
    }
}

impl Entry {
    fn of(raw: RawEntry) -> Result<Self, CheckpointError> {
        let ids = raw.ids.unwrap_or_default();
        let alloc = match raw.response.as_deref() {
            None | Some("") => None,
            Some(text) => {
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .map_err(|error| CheckpointError(format!("AllocResp: {error}")))?;
                let response = ContainerAllocateResponse::decode(bytes.as_slice())
                    .map_err(|error| CheckpointError(format!("AllocResp: {error}")))?;
                named(&response)
            }
        };
        // Every answer of ours names its allocation, and no other plugin answers for shares.
        if alloc.is_none() && raw.resource == names::resource::SHARE {
            return Err(CheckpointError(format!(
                "{} of container {} names no allocation",
                raw.resource, raw.container
            )));
        }
        Ok(Self {
            pod_uid: raw.pod_uid,
            container: raw.container,
            resource: raw.resource,
            ids: ids.into_values().flatten().flatten().collect(),
            alloc,
        })
    }
}

/// The allocation that an answer of ours names.
fn named(response: &ContainerAllocateResponse) -> Option<AllocId> {
    response.cdi_devices.iter().find_map(|device| {
        let (kind, name) = device.name.split_once('=')?;
        (kind == names::cdi::KIND).then(|| AllocId::parse(name))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::deviceplugin::CdiDevice;

    fn response(name: &str) -> String {
        let response = ContainerAllocateResponse {
            cdi_devices: vec![CdiDevice {
                name: name.to_owned(),
            }],
            ..ContainerAllocateResponse::default()
        };
        base64::engine::general_purpose::STANDARD.encode(response.encode_to_vec())
    }

    #[test]
    fn a_kubelets_file_is_read() {
        let ours = response("aliquot.dev/grant=000102030405060708090a0b0c0d0e0f");
        let theirs = response("nvidia.com/gpu=0");
        let text = format!(
            r#"{{"Data":{{"PodDeviceEntries":[
              {{"PodUID":"u1","ContainerName":"main","ResourceName":"aliquot.dev/gpu-share",
                "DeviceIDs":{{"-1":["GPU-0::3"]}},"AllocResp":"{ours}"}},
              {{"PodUID":"u2","ContainerName":"c","ResourceName":"nvidia.com/gpu",
                "DeviceIDs":{{"0":["GPU-0"],"1":["GPU-1"]}},"AllocResp":"{theirs}"}},
              {{"PodUID":"u3","ContainerName":"c","ResourceName":"x/y","DeviceIDs":null,"AllocResp":null}}],
              "RegisteredDevices":{{"aliquot.dev/gpu-share":["GPU-0::3"],"nvidia.com/gpu":null}}}},"Checksum":1}}"#
        );
        let checkpoint = Checkpoint::parse(text.as_bytes()).unwrap();
        let alloc = AllocId::parse("000102030405060708090a0b0c0d0e0f");
        assert_eq!(checkpoint.entries[0].alloc, alloc);
        assert_eq!(
            checkpoint.entries[0].ids,
            BTreeSet::from(["GPU-0::3".to_owned()])
        );
        assert_eq!(checkpoint.entries[1].alloc, None);
        assert_eq!(checkpoint.entries[1].ids.len(), 2);
        assert!(checkpoint.entries[2].ids.is_empty());
        assert!(checkpoint.holds(alloc.unwrap()));
        assert!(checkpoint.registered["nvidia.com/gpu"].is_empty());
    }

    #[test]
    fn a_fresh_kubelets_file_is_read() {
        let text = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":7}"#;
        assert_eq!(
            Checkpoint::parse(text.as_bytes()).unwrap(),
            Checkpoint::default()
        );
    }

    proptest! {
        #[test]
        fn noise_is_an_error_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Checkpoint::parse(&bytes);
            let mut framed = br#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","AllocResp":""#.to_vec();
            framed.extend_from_slice(base64::engine::general_purpose::STANDARD.encode(&bytes).as_bytes());
            framed.extend_from_slice(br#""}]}}"#);
            let _ = Checkpoint::parse(&framed);
        }
    }
}
