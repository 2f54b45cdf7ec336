//! The specification's structs, and the runtime's rules for merging edits.
//!
//! Fields are in the specification's order, so that our files read and diff like others. An unknown
//! field makes a file unreadable here, as it does in a runtime: dropping it would inject less than
//! the file says.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The lowest version that the fields need; see [`Spec::with_lowest_version`].
    pub cdi_version: String,
    /// `vendor/class`.
    pub kind: String,
    /// Free.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// At least one.
    pub devices: Vec<Device>,
    /// Applied once if any device of this file is asked for.
    #[serde(default, skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// Something that a container can ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Within the file's kind.
    pub name: String,
    /// Free.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Never empty: one empty edit makes the whole file unusable.
    pub container_edits: ContainerEdits,
}

/// What a runtime does to the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    /// `NAME=value`; wins over the pod's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Nodes in the container's `/dev`, with their cgroup rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces moved into the container. Since 1.1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// OCI hooks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Bind mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Since 0.7.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Supplementary groups. Since 0.7.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// A node in the container's `/dev`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// In the container.
    pub path: String,
    /// On the host where it differs. Since 0.5.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// `c`, `b`, `u` or `p`; read from the host's node when empty.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Read from the host's node when zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub major: i64,
    /// Read from the host's node when major is zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub minor: i64,
    /// Permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Of the cgroup rule: some of `rwm`, or `none`; all when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    /// The container's own user when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The container's own group when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    /// On the host.
    pub host_interface_name: String,
    /// In the container.
    pub name: String,
}

/// A bind mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// On the host.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// As in an OCI mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Bind when empty. Since 0.4.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

/// A program that the runtime runs at a point of the container's life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// One of [`Hook::NAMES`].
    pub hook_name: String,
    /// On the host.
    pub path: String,
    /// With `argv[0]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// `NAME=value`; the program gets nothing else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

impl Hook {
    /// OCI's hook names.
    pub const NAMES: [&'static str; 6] = [
        "prestart",
        "createRuntime",
        "createContainer",
        "startContainer",
        "poststart",
        "poststop",
    ];
}

/// Cache and memory bandwidth of Intel CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntelRdt {
    /// Class of service.
    #[serde(default, rename = "closID", skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    /// L3 cache.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    /// Memory bandwidth.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
    /// Since 1.1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// Since 1.1.
    #[serde(default, skip_serializing_if = "is_false")]
    pub enable_monitoring: bool,
    /// Until 1.0.
    #[serde(default, rename = "enableCMT", skip_serializing_if = "is_false")]
    pub enable_cmt: bool,
    /// Until 1.0.
    #[serde(default, rename = "enableMBM", skip_serializing_if = "is_false")]
    pub enable_mbm: bool,
}

impl Spec {
    /// The pretty JSON that goes to disk, with a newline at its end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .expect("strings, integers and maps with string keys always print");
        text.push('\n');
        text
    }
}

impl ContainerEdits {
    /// Whether nothing is edited. A runtime refuses a device with empty edits.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The value that the container sees for a variable: the last one set.
    pub fn env_value(&self, name: &str) -> Option<&str> {
        self.env
            .iter()
            .rev()
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// Puts `later` over these edits as a runtime does when it applies both in this order:
    /// a variable, a node at one path and a mount at one path are replaced in place of the
    /// earlier ones, hooks and groups are added.
    ///
    /// One file can then say what two would, and no order of names in a request can
    /// change it.
    pub fn merge(&mut self, later: Self) {
        let Self {
            env,
            device_nodes,
            net_devices,
            hooks,
            mounts,
            intel_rdt,
            additional_gids,
        } = later;
        replace(&mut self.env, env, |pair| env_name(pair));
        replace(&mut self.device_nodes, device_nodes, |node| &node.path);
        replace(&mut self.net_devices, net_devices, |device| {
            &device.host_interface_name
        });
        self.hooks.extend(hooks);
        replace(&mut self.mounts, mounts, |mount| &mount.container_path);
        if intel_rdt.is_some() {
            self.intel_rdt = intel_rdt;
        }
        let mut known: BTreeSet<u32> = self.additional_gids.iter().copied().collect();
        let new = additional_gids.into_iter().filter(|gid| known.insert(*gid));
        self.additional_gids.extend(new);
    }
}

/// Each of `later` in place of what has its key, the last one where several have.
fn replace<T>(all: &mut Vec<T>, later: Vec<T>, key: impl Fn(&T) -> &str) {
    let mut seen = BTreeSet::new();
    // From the last to the first, and popped from the first to the last.
    let mut last: Vec<bool> = later
        .iter()
        .rev()
        .map(|one| seen.insert(key(one)))
        .collect();
    all.retain(|old| !seen.contains(key(old)));
    all.extend(later.into_iter().filter(|_| last.pop().unwrap_or(true)));
}

fn env_name(pair: &str) -> &str {
    pair.split_once('=').map_or(pair, |(name, _)| name)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands the field by reference"
)]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands the field by reference"
)]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits(env: &[&str]) -> ContainerEdits {
        ContainerEdits {
            env: env.iter().map(ToString::to_string).collect(),
            ..ContainerEdits::default()
        }
    }

    #[test]
    fn a_later_variable_replaces_an_earlier_one() {
        let mut merged = edits(&["A=1", "B=2", "AA=3"]);
        merged.merge(edits(&["A=9", "C=4"]));
        assert_eq!(merged.env, ["B=2", "AA=3", "A=9", "C=4"]);
        assert_eq!(merged.env_value("A"), Some("9"));
        assert_eq!(merged.env_value("AA"), Some("3"));
        assert_eq!(merged.env_value("D"), None);
    }

    #[test]
    fn a_later_node_or_mount_at_one_path_replaces_and_hooks_add_up() {
        let node = |host: &str| DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: host.into(),
            ..DeviceNode::default()
        };
        let mount = |host: &str| Mount {
            host_path: host.into(),
            container_path: "/dev/shm".into(),
            ..Mount::default()
        };
        let hook = Hook {
            hook_name: "createRuntime".into(),
            path: "/h".into(),
            ..Hook::default()
        };
        let one = |host: &str| ContainerEdits {
            device_nodes: vec![node(host)],
            mounts: vec![mount(host)],
            hooks: vec![hook.clone()],
            additional_gids: vec![44],
            ..ContainerEdits::default()
        };
        let mut merged = one("/a");
        merged.merge(one("/b"));
        assert_eq!(merged.device_nodes, [node("/b")]);
        assert_eq!(merged.mounts, [mount("/b")]);
        assert_eq!(merged.hooks.len(), 2);
        assert_eq!(merged.additional_gids, [44]);
    }

    #[test]
    fn an_unknown_field_makes_a_file_unreadable() {
        let known = r#"{"cdiVersion":"0.5.0","kind":"v/c","devices":[]}"#;
        assert!(serde_json::from_str::<Spec>(known).is_ok());
        let unknown = r#"{"cdiVersion":"0.5.0","kind":"v/c","devices":[],"more":1}"#;
        assert!(serde_json::from_str::<Spec>(unknown).is_err());
    }
}
