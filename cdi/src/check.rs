//! What a runtime would refuse, found before it does.
//!
//! One broken device makes a runtime drop the whole file, and the container then fails
//! with "unresolvable CDI devices", which names no cause.

use crate::name::{Kind, NameError, check_device};
use crate::spec::{ContainerEdits, Hook, Spec};
use crate::version::Version;
use std::collections::BTreeSet;

/// The first rule that a spec breaks. The caller does not write it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// Kind or device name.
    #[error("name: {0}")]
    Name(#[from] NameError),
    /// The declared version is lower than the fields need.
    #[error("version {declared:?} is declared, the fields need {needed}")]
    Version {
        /// In the file.
        declared: String,
        /// By [`Version::lowest_of`].
        needed: &'static str,
    },
    /// A file without devices.
    #[error("no devices")]
    NoDevices,
    /// Two devices of one name.
    #[error("device {0:?} is defined twice")]
    Twice(String),
    /// A device without edits.
    #[error("device {0:?} edits nothing")]
    EmptyDevice(String),
    /// A variable without a name or `=`.
    #[error("variable {0:?} is not NAME=value")]
    Env(String),
    /// A node, mount or hook without a path, or with a value outside its set.
    #[error("{what} {value:?} is not allowed")]
    Value {
        /// What it is.
        what: &'static str,
        /// What it says.
        value: String,
    },
}

impl Spec {
    /// Whether a runtime would take this file.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn check(&self) -> Result<(), CheckError> {
        self.kind.parse::<Kind>()?;
        let needed = Version::lowest_of(self);
        if parse_version(&self.cdi_version).is_none_or(|declared| {
            parse_version(needed.as_str()).is_none_or(|needed| declared < needed)
        }) {
            return Err(CheckError::Version {
                declared: self.cdi_version.clone(),
                needed: needed.as_str(),
            });
        }
        if self.devices.is_empty() {
            return Err(CheckError::NoDevices);
        }
        check_edits(&self.container_edits)?;
        let mut seen = BTreeSet::new();
        for device in &self.devices {
            check_device(&device.name)?;
            if !seen.insert(&device.name) {
                return Err(CheckError::Twice(device.name.clone()));
            }
            if device.container_edits.is_empty() {
                return Err(CheckError::EmptyDevice(device.name.clone()));
            }
            check_edits(&device.container_edits)?;
        }
        Ok(())
    }
}

/// `major.minor.patch`, with or without a leading `v`.
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    let version = (
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
    );
    parts.next().is_none().then_some(version)
}

fn check_edits(edits: &ContainerEdits) -> Result<(), CheckError> {
    let refuse = |what, value: &str| CheckError::Value {
        what,
        value: value.to_owned(),
    };
    let env = edits
        .env
        .iter()
        .chain(edits.hooks.iter().flat_map(|hook| &hook.env));
    for pair in env {
        if pair.find('=').is_none_or(|at| at == 0) {
            return Err(CheckError::Env(pair.clone()));
        }
    }
    for node in &edits.device_nodes {
        if node.path.is_empty() {
            return Err(refuse("device path", ""));
        }
        if !["", "b", "c", "u", "p"].contains(&node.kind.as_str()) {
            return Err(refuse("device type", &node.kind));
        }
        if node.major < 0 || node.minor < 0 {
            return Err(refuse(
                "device number",
                &format!("{}:{}", node.major, node.minor),
            ));
        }
        if node.permissions != "none" && !node.permissions.chars().all(|c| "rwm".contains(c)) {
            return Err(refuse("device permissions", &node.permissions));
        }
    }
    for hook in &edits.hooks {
        if !Hook::NAMES.contains(&hook.hook_name.as_str()) {
            return Err(refuse("hook name", &hook.hook_name));
        }
        if hook.path.is_empty() {
            return Err(refuse("hook path", ""));
        }
    }
    for mount in &edits.mounts {
        if mount.host_path.is_empty() || mount.container_path.is_empty() {
            return Err(refuse("mount path", ""));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Device, DeviceNode, Mount};

    fn good() -> Spec {
        Spec {
            cdi_version: "0.5.0".into(),
            kind: "aliquot.dev/grant".into(),
            devices: vec![Device {
                name: "0a".into(),
                container_edits: ContainerEdits {
                    env: vec!["A=1".into()],
                    ..ContainerEdits::default()
                },
                ..Device::default()
            }],
            ..Spec::default()
        }
    }

    #[test]
    fn a_spec_within_the_rules_passes() {
        assert_eq!(good().check(), Ok(()));
    }

    #[test]
    fn each_broken_rule_is_named() {
        type Break = fn(&mut Spec);
        let table: [(Break, &str); 11] = [
            (|s| s.kind = "nothing".into(), "name: \"nothing\" lacks '/'"),
            (
                |s| s.cdi_version = "0.4.0".into(),
                "version \"0.4.0\" is declared, the fields need 0.5.0",
            ),
            (
                |s| s.cdi_version = "new".into(),
                "version \"new\" is declared, the fields need 0.5.0",
            ),
            (|s| s.devices.clear(), "no devices"),
            (
                |s| s.devices.push(s.devices[0].clone()),
                "device \"0a\" is defined twice",
            ),
            (
                |s| s.devices[0].container_edits = ContainerEdits::default(),
                "device \"0a\" edits nothing",
            ),
            (
                |s| s.container_edits.env.push("=x".into()),
                "variable \"=x\" is not NAME=value",
            ),
            (
                |s| {
                    s.container_edits.hooks.push(Hook {
                        hook_name: "start".into(),
                        path: "/x".into(),
                        ..Hook::default()
                    });
                },
                "hook name \"start\" is not allowed",
            ),
            (
                |s| s.container_edits.mounts.push(Mount::default()),
                "mount path \"\" is not allowed",
            ),
            (
                |s| {
                    s.container_edits.device_nodes.push(DeviceNode {
                        path: "/dev/x".into(),
                        kind: "x".into(),
                        ..DeviceNode::default()
                    });
                },
                "device type \"x\" is not allowed",
            ),
            (
                |s| {
                    s.container_edits.device_nodes.push(DeviceNode {
                        path: "/dev/x".into(),
                        permissions: "rwx".into(),
                        ..DeviceNode::default()
                    });
                },
                "device permissions \"rwx\" is not allowed",
            ),
        ];
        for (break_it, message) in table {
            let mut spec = good();
            break_it(&mut spec);
            assert_eq!(spec.check().unwrap_err().to_string(), message);
        }
    }
}
