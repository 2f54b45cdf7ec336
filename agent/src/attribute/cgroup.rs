//! The text of `/proc/<pid>/cgroup` → the pod and container that a process belongs to.
//!
//! Pure and total. Known forms, v1 and v2, any prefix (a kubelet's own cgroup root, kind):
//!
//! ```text
//! /kubepods/burstable/pod<uid>/<id>                                     cgroupfs, containerd
//! /kubepods/burstable/pod<uid>/crio-<id>                                cgroupfs, CRI-O
//! /kubepods.slice/…/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope    systemd
//! /kubepods.slice/…/kubepods-pod<uid>.slice/crio-<id>.scope/container   systemd, CRI-O
//! /kubepods.slice/…/kubepods-pod<uid>.slice/cri-containerd-<id>.scope/container    containerd, crun
//! /kubepods-burstable-pod<uid>.slice:cri-containerd:<id>                v1, drivers that disagree
//! ```
//!
//! The outermost pod in a path counts: a tenant that may make cgroups below its own can
//! name them as it likes, but cannot move out.

use std::ops::Range;

/// The prefix of the names of the cgroups in which MPS daemons run. These cgroups are beside that of
/// the supervisor's container.
pub const MPS_DAEMON: &str = "aliquot-mps-";

/// One line of `/proc/<pid>/cgroup`: the cgroup of a process in one hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership<'a> {
    /// Of the hierarchy; empty for version 2.
    pub controllers: &'a str,
    /// Of the cgroup, below the hierarchy's root. It may hold colons.
    pub path: &'a str,
}

impl<'a> Membership<'a> {
    /// Those of one process; a line of another form is none.
    pub fn all(text: &'a str) -> impl Iterator<Item = Self> {
        text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            Some(Self { controllers, path })
        })
    }

    /// The pod's cgroup, however deep below it the process runs. `None` outside of a pod, and for
    /// a container that is not below its pod's cgroup, as where the drivers disagree.
    pub fn pod(self) -> Option<&'a str> {
        let (_, segment) = pod_in(self.path)?;
        let is_above = !self.path[segment.clone()].contains(':');
        is_above.then(|| &self.path[..segment.end])
    }
}

/// Where a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `metadata.uid` of the pod, with dashes.
    pub pod_uid: String,
    /// The container, without the runtime's prefix; `None` for the pod's own cgroup, for the
    /// runtime's helpers in it and for an MPS daemon.
    pub container_id: Option<String>,
}

/// Reads all lines. `None`: no pod, or lines that name different ones, which no runtime
/// makes.
pub fn parse(text: &str) -> Option<Place> {
    let mut found: Option<Place> = None;
    for place in Membership::all(text).filter_map(|one| place_in(one.path)) {
        match &mut found {
            None => found = Some(place),
            Some(first) if first.pod_uid != place.pod_uid => return None,
            Some(first) => match (&first.container_id, &place.container_id) {
                (Some(one), Some(other)) if one != other => return None,
                (None, Some(_)) => first.container_id = place.container_id,
                _ => {}
            },
        }
    }
    found
}

fn place_in(path: &str) -> Option<Place> {
    let (pod_uid, segment) = pod_in(path)?;
    let container = match path[segment.clone()].split(':').nth(2) {
        Some(id) => Some(id),
        None => path[segment.end..].split('/').nth(1),
    };
    Some(Place {
        pod_uid,
        container_id: container.and_then(container_of),
    })
}

/// The UID of the outermost pod in a path, and which part of the path names it.
fn pod_in(path: &str) -> Option<(String, Range<usize>)> {
    let mut below_kubepods = false;
    let mut start = 0;
    for segment in path.split('/') {
        let end = start + segment.len();
        let unit = segment.split(':').next().unwrap_or_default();
        if let Some(pod_uid) = pod_of(unit, below_kubepods) {
            return Some((pod_uid, start..end));
        }
        below_kubepods |= is_kubepods(unit);
        start = end + 1;
    }
    None
}

/// `kubepods`, or a slice whose name ends so: the kubelet's own root may come before.
fn is_kubepods(unit: &str) -> bool {
    let name = unit.strip_suffix(".slice").unwrap_or(unit);
    name == "kubepods" || name.ends_with("-kubepods")
}

/// The UID in `pod<uid>` below kubepods, or in `…kubepods…-pod<uid>.slice`, where systemd
/// reads a dash as a level, so that the kubelet writes underscores.
fn pod_of(unit: &str, below_kubepods: bool) -> Option<String> {
    if let Some(slice) = unit.strip_suffix(".slice") {
        let (parents, uid) = slice.rsplit_once("-pod")?;
        let under_kubepods = parents.split('-').any(|level| level == "kubepods");
        return if under_kubepods {
            checked_uid(&uid.replace('_', "-"))
        } else {
            None
        };
    }
    if below_kubepods {
        checked_uid(unit.strip_prefix("pod")?)
    } else {
        None
    }
}

/// A UUID, or the 32 hex digits that the kubelet gives a static pod.
fn checked_uid(uid: &str) -> Option<String> {
    let bytes = uid.as_bytes();
    let good = match bytes.len() {
        36 => bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        }),
        32 => bytes.iter().all(u8::is_ascii_hexdigit),
        _ => false,
    };
    good.then(|| uid.to_owned())
}

/// The id in `<id>`, `<runtime>-<id>` or `<runtime>-<id>.scope`; none for CRI-O's monitor, and
/// none for an MPS daemon, whose name ends as the UUID of its card does.
fn container_of(unit: &str) -> Option<String> {
    let name = unit.strip_suffix(".scope").unwrap_or(unit);
    let (runtime, id) = name.rsplit_once('-').unwrap_or(("", name));
    let good = (12..=128).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        && !runtime.ends_with("conmon")
        && !unit.starts_with(MPS_DAEMON);
    good.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UID: &str = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";
    const UID_: &str = "0f6b1c1e_4d5c_4f5e_9a64_3a1f0e5d7c21";
    const ID: &str = "3e54a1b0c9d8e7f60123456789abcdef3e54a1b0c9d8e7f60123456789abcdef";

    fn expand(text: &str) -> String {
        text.replace("$U", UID)
            .replace("$_", UID_)
            .replace("$C", ID)
    }

    #[test]
    fn every_known_form_names_pod_and_container() {
        for text in [
            "0::/kubepods/burstable/pod$U/$C",
            "0::/kubepods/pod$U/$C",
            "0::/kubepods/besteffort/pod$U/crio-$C",
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod$_.slice/cri-containerd-$C.scope",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod$_.slice/cri-containerd-$C.scope",
            "0::/kubepods.slice/kubepods-pod$_.slice/cri-containerd-$C.scope",
            "0::/kubepods.slice/kubepods-pod$_.slice/cri-containerd-$C.scope/container",
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod$_.slice/cri-containerd-$C.scope/container",
            "0::/kubepods.slice/kubepods-pod$_.slice/crio-$C.scope",
            "0::/kubepods.slice/kubepods-pod$_.slice/crio-$C.scope/container",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod$_.slice/docker-$C.scope",
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod$_.slice/cri-containerd-$C.scope",
            "0::/docker/0123456789abcdef/kubelet/kubepods/burstable/pod$U/$C",
            "0::/../../kubepods/burstable/pod$U/$C",
            "12:devices:/kubepods/burstable/pod$U/$C\n11:memory:/kubepods/burstable/pod$U/$C\n1:name=systemd:/kubepods/burstable/pod$U/$C\n0::/",
            "12:pids:/\n11:devices:/kubepods/burstable/pod$U/$C\n0::/system.slice/containerd.service",
            "11:devices:/kubepods-burstable-pod$_.slice:cri-containerd:$C\n0::/system.slice/containerd.service",
            "11:devices:/system.slice/containerd.service/kubepods-burstable-pod$_.slice:cri-containerd:$C",
            "2:cpu,cpuacct:/kubepods.slice/kubepods-pod$_.slice/cri-containerd-$C.scope",
            "0::/kubepods/burstable/pod$U/$C/init.scope/nested",
        ] {
            assert_eq!(
                parse(&expand(text)),
                Some(Place {
                    pod_uid: UID.into(),
                    container_id: Some(ID.into())
                }),
                "{text}"
            );
        }
    }

    #[test]
    fn the_pods_cgroup_is_found_from_any_depth_below_it() {
        let slice = "/kubepods.slice/kubepods-pod$_.slice";
        for (text, pod) in [
            ("0::/kubepods/pod$U/$C".into(), Some("/kubepods/pod$U")),
            (format!("0::{slice}/cri-containerd-$C.scope"), Some(slice)),
            (
                format!("0::{slice}/cri-containerd-$C.scope/container"),
                Some(slice),
            ),
            (format!("0::{slice}/crio-$C.scope"), Some(slice)),
            (format!("0::{slice}/crio-$C.scope/container"), Some(slice)),
            (format!("0::{slice}/aliquot-mps-GPU-{UID}"), Some(slice)),
            (format!("0::{slice}"), Some(slice)),
            ("0::/a/kubepods-pod$_.slice:cri-containerd:$C".into(), None),
            ("0::/user.slice/session-1.scope".into(), None),
        ] {
            let text = expand(&text);
            let found = Membership::all(&text).next().unwrap().pod();
            assert_eq!(found, pod.map(expand).as_deref(), "{text}");
        }
    }

    #[test]
    fn a_static_pods_uid_is_taken() {
        let uid = "0123456789abcdef0123456789abcdef";
        let place = parse(&format!("0::/kubepods/burstable/pod{uid}/{ID}")).unwrap();
        assert_eq!(place.pod_uid, uid);
    }

    #[test]
    fn a_pods_own_cgroup_and_what_is_beside_its_containers_are_no_container() {
        for text in [
            "0::/kubepods.slice/kubepods-pod$_.slice/aliquot-mps-GPU-$U",
            "0::/kubepods/pod$U/aliquot-mps-GPU-$U",
            "0::/kubepods/burstable/pod$U",
            "0::/kubepods/burstable/pod$U/crio-conmon-$C",
            "0::/kubepods.slice/kubepods-pod$_.slice/crio-conmon-$C.scope",
            "0::/kubepods.slice/kubepods-pod$_.slice",
        ] {
            let place = parse(&expand(text)).unwrap();
            assert_eq!(
                (place.pod_uid.as_str(), place.container_id),
                (UID, None),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_pod_is_none() {
        for text in [
            "",
            "0::/",
            "0::/user.slice/user-1000.slice/session-1.scope",
            "0::/system.slice/pod$U/$C",
            "0::/pod$U/$C",
            "0::/kubepods/burstable/podxyz/$C",
            "0::/my-pod$_.slice/$C",
            "0::/kubepods/burstable",
            "kubepods/pod$U/$C",
            "0:/kubepods/pod$U/$C",
        ] {
            assert_eq!(parse(&expand(text)), None, "{text}");
        }
    }

    #[test]
    fn a_tenants_own_cgroups_do_not_change_who_it_is() {
        let other = "ffffffff-ffff-ffff-ffff-ffffffffffff";
        let text = expand(&format!(
            "0::/kubepods/pod$U/$C/kubepods/pod{other}/{}",
            "f".repeat(64)
        ));
        assert_eq!(parse(&text).unwrap().pod_uid, UID);
    }

    #[test]
    fn lines_that_disagree_name_no_one() {
        let other = "ffffffff-ffff-ffff-ffff-ffffffffffff";
        let text = expand(&format!(
            "2:cpu:/kubepods/pod$U/$C\n1:pids:/kubepods/pod{other}/$C"
        ));
        assert_eq!(parse(&text), None);
        let text = expand(&format!(
            "2:cpu:/kubepods/pod$U/$C\n1:pids:/kubepods/pod$U/{}",
            "f".repeat(64)
        ));
        assert_eq!(parse(&text), None);
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic_and_what_is_named_is_in_it(text in "[a-z0-9/:._\\-\n]{0,200}") {
            if let Some(place) = parse(&text) {
                prop_assert!(text.replace('_', "-").contains(&place.pod_uid));
                if let Some(id) = place.container_id {
                    prop_assert!(text.contains(&id));
                }
            }
        }

        #[test]
        fn any_prefix_and_any_depth_below_name_the_same(
            prefix in "(/[a-z]{1,8}){0,3}",
            below in "(/[a-z0-9]{1,8}){0,3}",
            systemd: bool,
        ) {
            let inner = if systemd {
                "/kubepods.slice/kubepods-pod$_.slice/cri-containerd-$C.scope"
            } else {
                "/kubepods/burstable/pod$U/$C"
            };
            let place = parse(&expand(&format!("0::{prefix}{inner}{below}"))).unwrap();
            prop_assert_eq!(place.pod_uid, UID);
            prop_assert_eq!(place.container_id.as_deref(), Some(ID));
        }
    }
}
