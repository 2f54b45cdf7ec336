//! `kubelet_internal_checkpoint`, in the real file's form.
//!
//! Written to a temporary file, synced, renamed. The checksum is some number: the real one depends
//! on how Go prints its memory, and no other program can check it.

use super::devices::{Devices, Held, Ids, Owner};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// `null` while there is none, as Go prints an empty list.
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: BTreeMap<String, Option<Vec<String>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By NUMA node, "-1" for none.
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<String, Vec<String>>,
    #[serde(rename = "AllocResp")]
    response: String,
}

/// Writes the books.
pub(super) fn write(path: &Path, devices: &Devices) -> io::Result<()> {
    let entries: Vec<Entry> = devices
        .all_held()
        .map(|(owner, held)| Entry {
            pod_uid: owner.pod_uid.clone(),
            container: owner.container.clone(),
            resource: owner.resource.clone(),
            ids: by_numa(devices, &owner.resource, &held.ids),
            response: STANDARD.encode(&held.response),
        })
        .collect();
    let data = Data {
        pod_device_entries: Some(entries).filter(|list| !list.is_empty()),
        registered_devices: devices
            .healthy()
            .map(|(name, ids)| (name.clone(), Some(ids.iter().cloned().collect())))
            .collect(),
    };
    let checksum = fnv32(serde_json::to_string(&data)?.as_bytes());
    let text = serde_json::to_string(&File { data, checksum })?;
    let temporary = path.with_extension("tmp");
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(temporary, path)
}

fn by_numa(devices: &Devices, resource: &str, ids: &Ids) -> BTreeMap<String, Vec<String>> {
    let mut map: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in ids {
        let nodes = match devices.numa(resource, id) {
            [] => &[-1],
            nodes => nodes,
        };
        for node in nodes {
            map.entry(node.to_string()).or_default().push(id.clone());
        }
    }
    map
}

/// What the file says: allocations, and the resources that were registered.
pub(super) type Restored = (Vec<(Owner, Held)>, Vec<String>);

/// `None` where there is no file.
pub(super) fn read(path: &Path) -> io::Result<Option<Restored>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let file: File = serde_json::from_str(&text)?;
    let held = file
        .data
        .pod_device_entries
        .into_iter()
        .flatten()
        .map(|entry| {
            let owner = Owner {
                pod_uid: entry.pod_uid,
                container: entry.container,
                resource: entry.resource,
            };
            let response = STANDARD.decode(&entry.response).map_err(io::Error::other)?;
            let ids = entry.ids.into_values().flatten().collect();
            Ok((owner, Held { ids, response }))
        })
        .collect::<io::Result<_>>()?;
    Ok(Some((
        held,
        file.data.registered_devices.into_keys().collect(),
    )))
}

fn fnv32(bytes: &[u8]) -> u64 {
    let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(*byte)
    });
    u64::from(hash)
}

#[cfg(test)]
mod tests {
    use super::super::devices::Listed;
    use super::*;

    #[test]
    fn the_file_has_the_real_form_and_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet_internal_checkpoint");
        assert!(read(&path).unwrap().is_none());
        let mut devices = Devices::default();
        let listed = |id: &str, numa| Listed {
            id: id.to_owned(),
            healthy: true,
            numa,
        };
        devices.update("r.dev/x", vec![listed("a", vec![]), listed("b", vec![1])]);
        write(&path, &devices).unwrap();
        let empty: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert!(empty["Data"]["PodDeviceEntries"].is_null());

        let owner = Owner {
            pod_uid: "u".into(),
            container: "c".into(),
            resource: "r.dev/x".into(),
        };
        let held = Held {
            ids: ["a", "b"].map(str::to_owned).into(),
            response: vec![1, 2, 255],
        };
        devices.insert(owner.clone(), held.clone());
        write(&path, &devices).unwrap();
        let file: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(
            file["Data"],
            serde_json::json!({
                "PodDeviceEntries": [{"PodUID": "u", "ContainerName": "c", "ResourceName": "r.dev/x",
                    "DeviceIDs": {"-1": ["a"], "1": ["b"]}, "AllocResp": "AQL/"}],
                "RegisteredDevices": {"r.dev/x": ["a", "b"]},
            })
        );
        assert!(file["Checksum"].is_u64());
        assert_eq!(
            read(&path).unwrap(),
            Some((vec![(owner, held)], vec!["r.dev/x".to_owned()]))
        );
    }
}
