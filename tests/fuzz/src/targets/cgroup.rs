//! `/proc/<pid>/cgroup`: whose process it is, and which cgroup a limit is set on.

use crate::{Shape, Target};
use agent::attribute::cgroup::parse;

pub(super) const TARGET: Target = Target {
    name: "cgroup",
    shape: Shape::Text,
    words: &[
        "0::",
        "/",
        "..",
        "kubepods",
        "kubepods.slice",
        "kubepods-burstable.slice",
        "besteffort",
        "burstable",
        "pod0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21",
        "-pod0f6b1c1e_4d5c_4f5e_9a64_3a1f0e5d7c21.slice",
        "podffffffff-ffff-ffff-ffff-ffffffffffff",
        "cri-containerd-",
        "crio-",
        "crio-conmon-",
        "docker-",
        ".scope",
        ":cri-containerd:",
        "12:devices:",
        "1:name=systemd:",
        "3e54a1b0c9d8e7f60123456789abcdef3e54a1b0c9d8e7f60123456789abcdef",
    ],
    seeds,
    large: crate::target::none,
    heap: 16,
    run,
};

const OTHER: &str = "ffffffff-ffff-ffff-ffff-ffffffffffff";

fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(leaf) = aliquot_hook::limit::leaf(&text) {
        assert!(!leaf.is_empty() && !leaf.starts_with('/'), "{leaf:?}");
        assert!(
            !leaf.split('/').any(|part| part == ".."),
            "{leaf:?} leads elsewhere"
        );
        assert!(!leaf.contains('\n'), "{leaf:?}");
        assert!(text.contains(leaf), "{leaf:?} was made up");
    }
    let Some(place) = parse(&text) else {
        return;
    };
    let uid = place.pod_uid.as_str();
    assert!(matches!(uid.len(), 32 | 36), "{uid:?}");
    assert!(
        uid.bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-'),
        "{uid:?}"
    );
    assert!(text.replace('_', "-").contains(uid), "{uid:?} was made up");
    if let Some(id) = &place.container_id {
        assert!(
            (12..=128).contains(&id.len()) && text.contains(id.as_str()),
            "{id:?}"
        );
    }
    // What a tenant makes below its own cgroup changes nothing.
    let below: String = text
        .lines()
        .map(|line| match parse(line) {
            Some(place) if place.container_id.is_some() => {
                format!("{line}/kubepods/pod{OTHER}/{}\n", "f".repeat(64))
            }
            _ => format!("{line}\n"),
        })
        .collect();
    if let Some(other) = parse(&below) {
        assert_eq!(other.pod_uid, place.pod_uid, "{below}");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let uid = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";
    let id = "3e54a1b0c9d8e7f60123456789abcdef3e54a1b0c9d8e7f60123456789abcdef";
    [
        "0::/kubepods/burstable/pod$U/$C\n",
        "0::/kubepods/besteffort/pod$U/crio-$C",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod$_.slice/cri-containerd-$C.scope",
        "0::/kubepods.slice/kubepods-pod$_.slice/crio-$C.scope/container",
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod$_.slice/cri-containerd-$C.scope",
        "12:devices:/kubepods/burstable/pod$U/$C\n11:memory:/kubepods/burstable/pod$U/$C\n0::/",
        "11:devices:/kubepods-burstable-pod$_.slice:cri-containerd:$C\n0::/system.slice/containerd.service",
        "0::/../../kubepods/burstable/pod$U/$C",
        "0::/kubepods/burstable/pod$U/$C/kubepods/podffffffff-ffff-ffff-ffff-ffffffffffff/$C",
        "0::/kubepods/burstable/pod$U/crio-conmon-$C",
    ]
    .map(|text| text.replace("$U", uid).replace("$_", &uid.replace('-', "_")).replace("$C", id))
    .map(String::into_bytes)
    .to_vec()
}
