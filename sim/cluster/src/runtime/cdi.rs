//! Reading CDI as a runtime does: directories of specs, names, edits.
//!
//! Written apart from the crate that makes our specs, so that a mistake there is not repeated here.
//! In: directories, lowest priority first, read again for each container. Out: the edits of the
//! asked devices, spec edits first. Never writes.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why a container gets no devices.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdiError {
    /// No file, or two files of one directory, or a broken file only, define these.
    #[error("CDI device injection failed: unresolvable CDI devices {}", .0.join(", "))]
    Unresolvable(Vec<String>),
}

/// The changes to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Edits {
    /// `NAME=value`.
    pub(crate) env: Vec<String>,
    pub(crate) device_nodes: Vec<DeviceNode>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) hooks: Vec<Hook>,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceNode {
    /// In the container.
    pub(crate) path: PathBuf,
    /// On the host; the same where it is absent.
    #[serde(default)]
    pub(crate) host_path: Option<PathBuf>,
}

/// A bind mount.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mount {
    pub(crate) host_path: PathBuf,
    pub(crate) container_path: PathBuf,
}

/// A program that the runtime runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Hook {
    #[serde(rename = "hookName")]
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The first is the program's own name.
    #[serde(default)]
    pub(crate) args: Vec<String>,
    #[serde(default)]
    pub(crate) env: Vec<String>,
    /// Seconds.
    #[serde(default)]
    pub(crate) timeout: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: String,
    kind: String,
    devices: Vec<Device>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

/// The edits of the named devices, `vendor/class=name`, in order.
pub(crate) fn resolve(directories: &[PathBuf], names: &[String]) -> Result<Edits, CdiError> {
    let known = scan(directories);
    let missing: Vec<String> = names
        .iter()
        .filter(|name| !matches!(known.get(*name), Some(Some(_))))
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(CdiError::Unresolvable(missing));
    }
    let mut all = Edits::default();
    let mut specs_seen = Vec::new();
    for name in names {
        let Some(Some(found)) = known.get(name) else {
            continue;
        };
        if !specs_seen.contains(&found.file) {
            specs_seen.push(found.file.clone());
            all.extend(&found.spec_edits);
        }
        all.extend(&found.edits);
    }
    Ok(all)
}

impl Edits {
    fn extend(&mut self, other: &Self) {
        self.env.extend_from_slice(&other.env);
        self.device_nodes.extend_from_slice(&other.device_nodes);
        self.mounts.extend_from_slice(&other.mounts);
        self.hooks.extend_from_slice(&other.hooks);
    }
}

#[derive(Clone, Debug)]
struct Found {
    file: PathBuf,
    spec_edits: Edits,
    edits: Edits,
}

/// Every device by its full name; `None` where two files of one directory define it.
fn scan(directories: &[PathBuf]) -> BTreeMap<String, Option<Found>> {
    let mut known = BTreeMap::new();
    for directory in directories {
        let mut here: BTreeMap<String, Option<Found>> = BTreeMap::new();
        for file in spec_files(directory) {
            let Some(spec) = read(&file) else { continue };
            for device in spec.devices {
                let name = format!("{}={}", spec.kind, device.name);
                let found = Found {
                    file: file.clone(),
                    spec_edits: spec.container_edits.clone(),
                    edits: device.container_edits,
                };
                here.entry(name)
                    .and_modify(|twice| *twice = None)
                    .or_insert(Some(found));
            }
        }
        known.extend(here);
    }
    known
}

fn spec_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        // YAML specs are of others; no simulated node has any.
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .collect();
    files.sort();
    files
}

fn read(file: &Path) -> Option<Spec> {
    let text = std::fs::read_to_string(file).ok()?;
    let spec: Spec = serde_json::from_str(&text)
        .inspect_err(|error| tracing::warn!(file = %file.display(), %error, "broken CDI spec"))
        .ok()?;
    let known = [
        "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0",
    ];
    (known.contains(&spec.cdi_version.as_str()) && !spec.devices.is_empty()).then_some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, env: &str) -> String {
        format!(
            r#"{{"cdiVersion": "0.6.0", "kind": "v.dev/c", "containerEdits": {{"env": ["ALL=1"]}},
            "devices": [{{"name": "{name}", "containerEdits": {{"env": ["{env}"]}}}}]}}"#
        )
    }

    #[test]
    fn a_name_is_found_by_the_later_directory_and_conflicts_count_as_absent() {
        let dir = tempfile::tempdir().unwrap();
        let (low, high) = (dir.path().join("etc"), dir.path().join("run"));
        for (place, text) in [
            (low.join("a.json"), spec("x", "LOW=1")),
            (high.join("a.json"), spec("x", "HIGH=1")),
            (high.join("b.json"), spec("twice", "B=1")),
            (high.join("c.json"), spec("twice", "C=1")),
            (high.join("broken.json"), "{".to_owned()),
            (high.join(".tmp"), spec("hidden", "T=1")),
        ] {
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, text).unwrap();
        }
        let directories = [low, high];
        let edits = resolve(&directories, &["v.dev/c=x".to_owned()]).unwrap();
        assert_eq!(edits.env, ["ALL=1", "HIGH=1"]);
        for missing in ["v.dev/c=twice", "v.dev/c=hidden", "v.dev/c=none"] {
            let error = resolve(&directories, &[missing.to_owned()]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("CDI device injection failed: unresolvable CDI devices {missing}")
            );
        }
    }
}
