//! The lowest `cdiVersion` that a spec's fields allow.
//!
//! A runtime refuses a file of a version it does not know, and containerd 1.7 embeds an
//! older library: the lowest version reaches the most runtimes.

use crate::spec::{ContainerEdits, Spec};

/// Versions in which fields were added, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The base.
    V0_3,
    /// A mount's `type`.
    V0_4,
    /// A node's `hostPath`; device names that start with a digit.
    V0_5,
    /// Annotations; dots in a class.
    V0_6,
    /// `intelRdt`, `additionalGids`.
    V0_7,
    /// `netDevices`, and more of `intelRdt`.
    V1_1,
}

impl Version {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_3 => "0.3.0",
            Self::V0_4 => "0.4.0",
            Self::V0_5 => "0.5.0",
            Self::V0_6 => "0.6.0",
            Self::V0_7 => "0.7.0",
            Self::V1_1 => "1.1.0",
        }
    }

    /// The lowest that allows every field this spec uses.
    pub fn lowest_of(spec: &Spec) -> Self {
        let class_has_dot = spec
            .kind
            .split_once('/')
            .is_some_and(|(_, class)| class.contains('.'));
        let mut lowest = if class_has_dot || !spec.annotations.is_empty() {
            Self::V0_6
        } else {
            Self::V0_3
        };
        lowest = lowest.max(of_edits(&spec.container_edits));
        for device in &spec.devices {
            if !device
                .name
                .starts_with(|first: char| first.is_ascii_alphabetic())
            {
                lowest = lowest.max(Self::V0_5);
            }
            if !device.annotations.is_empty() {
                lowest = lowest.max(Self::V0_6);
            }
            lowest = lowest.max(of_edits(&device.container_edits));
        }
        lowest
    }
}

fn of_edits(edits: &ContainerEdits) -> Version {
    let more_rdt = edits
        .intel_rdt
        .as_ref()
        .is_some_and(|rdt| !rdt.schemata.is_empty() || rdt.enable_monitoring);
    if more_rdt || !edits.net_devices.is_empty() {
        Version::V1_1
    } else if edits.intel_rdt.is_some() || !edits.additional_gids.is_empty() {
        Version::V0_7
    } else if edits
        .device_nodes
        .iter()
        .any(|node| !node.host_path.is_empty())
    {
        Version::V0_5
    } else if edits.mounts.iter().any(|mount| !mount.kind.is_empty()) {
        Version::V0_4
    } else {
        Version::V0_3
    }
}

impl Spec {
    /// With the lowest version that its fields allow.
    #[must_use]
    pub fn with_lowest_version(mut self) -> Self {
        Version::lowest_of(&self)
            .as_str()
            .clone_into(&mut self.cdi_version);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Device, DeviceNode, IntelRdt, Mount, NetDevice};

    fn with(name: &str, edits: ContainerEdits) -> Spec {
        Spec {
            kind: "v.com/c".into(),
            devices: vec![Device {
                name: name.into(),
                container_edits: edits,
                ..Device::default()
            }],
            ..Spec::default()
        }
    }

    #[test]
    fn each_field_asks_for_the_version_that_brought_it() {
        let mount = ContainerEdits {
            mounts: vec![Mount {
                kind: "bind".into(),
                ..Mount::default()
            }],
            ..ContainerEdits::default()
        };
        let node = ContainerEdits {
            device_nodes: vec![DeviceNode {
                host_path: "/h".into(),
                ..DeviceNode::default()
            }],
            ..ContainerEdits::default()
        };
        let gids = ContainerEdits {
            additional_gids: vec![44],
            ..ContainerEdits::default()
        };
        let rdt = |enable_monitoring| ContainerEdits {
            intel_rdt: Some(IntelRdt {
                enable_monitoring,
                ..IntelRdt::default()
            }),
            ..ContainerEdits::default()
        };
        let net = ContainerEdits {
            net_devices: vec![NetDevice::default()],
            ..ContainerEdits::default()
        };
        let table = [
            (with("a", ContainerEdits::default()), "0.3.0"),
            (with("0", ContainerEdits::default()), "0.5.0"),
            (with("a", mount), "0.4.0"),
            (with("a", node), "0.5.0"),
            (with("a", gids.clone()), "0.7.0"),
            (with("a", rdt(false)), "0.7.0"),
            (with("a", rdt(true)), "1.1.0"),
            (with("a", net), "1.1.0"),
        ];
        for (spec, version) in table {
            assert_eq!(
                spec.clone().with_lowest_version().cdi_version,
                version,
                "{spec:?}"
            );
        }
        let mut global = with("a", ContainerEdits::default());
        global.container_edits = gids;
        assert_eq!(Version::lowest_of(&global), Version::V0_7);
        let mut annotated = with("a", ContainerEdits::default());
        annotated.annotations.insert("k".into(), "v".into());
        assert_eq!(Version::lowest_of(&annotated), Version::V0_6);
        let mut dotted = with("a", ContainerEdits::default());
        dotted.kind = "v.com/c.d".into();
        assert_eq!(Version::lowest_of(&dotted), Version::V0_6);
    }
}
