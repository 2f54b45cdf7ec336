//! A share → the whole edit of its container, as a CDI file.
//!
//! Pure, but for [`driver`], which lists the driver's files. In: a share, its cards, the
//! driver's edits, MPS directories. Out: a sealed [`Spec`], the same for the same input,
//! so that a container that starts again finds its file unchanged.

pub mod driver;
pub mod hints;

pub use driver::{DriverFiles, capabilities, trimmed, without_graphics};

use crate::gpu::GpuUuid;
use crate::ledger::{AllocId, Share, record_key};
use api::Mode;
use cdi::hook::{Arguments, Limit, LimitedCard, ShareOwner};
use cdi::{ContainerEdits, Device, Hook, Mount, Spec};
use driver::text;
use proto::names;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the hook as the OCI runtime starts it.
const HOOK_NAME: &str = "aliquot-hook";
/// Seconds; the hook reads three small files.
const HOOK_TIMEOUT: i64 = 10;

/// Where things are, as the runtime sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// CDI files.
    pub cdi_dir: PathBuf,
    /// `share/<alloc_id>/share.json`.
    pub share_dir: PathBuf,
    /// What the hook leaves.
    pub proof_dir: PathBuf,
    /// The hook.
    pub hook: PathBuf,
}

/// Directories of the MPS server that a container is a client of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsDirs {
    /// Has the directory in which its control daemon listens.
    pub tenant: PathBuf,
    /// Its `/dev/shm`, where the driver needs it in common with clients.
    pub shm: Option<PathBuf>,
}

/// The inputs of a share's edit, besides the share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EditInputs<'a> {
    /// For the share's cards.
    pub driver: ContainerEdits,
    /// In the modes that have a server.
    pub mps: Option<&'a MpsDirs>,
    /// In mode `time-slicing`: [`hints`].
    pub hints: Vec<String>,
    /// Where the driver has limits of its own.
    pub limit: Option<DriverLimit>,
}

/// How the hook sets the driver's own limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverLimit {
    /// `nvidia-smi`, as the runtime sees it.
    pub smi: PathBuf,
    /// The share's cards.
    pub cards: Vec<LimitedCard>,
    /// The node's minimum fence asks for it: without it the container must not start.
    pub needed: bool,
}

/// The sealed CDI file of one allocation.
pub fn spec(share: &Share, alloc: AllocId, made: EditInputs<'_>, places: &Places) -> Spec {
    let mut edits = made.driver;
    edits.merge(own(share, alloc, made.mps, made.limit.as_ref(), places));
    edits.env.extend(made.hints);
    let mut spec = Spec {
        kind: names::cdi::KIND.to_owned(),
        annotations: BTreeMap::from([(record_key(), share.to_record())]),
        devices: vec![Device {
            name: alloc.to_string(),
            container_edits: edits,
            ..Device::default()
        }],
        ..Spec::default()
    }
    .with_lowest_version();
    cdi::seal(&mut spec);
    spec
}

/// What comes after the driver's edits, and therefore wins.
fn own(
    share: &Share,
    alloc: AllocId,
    mps: Option<&MpsDirs>,
    limit: Option<&DriverLimit>,
    places: &Places,
) -> ContainerEdits {
    let id = alloc.to_string();
    let uuids: Vec<&str> = share.gpus.iter().map(GpuUuid::as_str).collect();
    let mut env = vec![
        format!("{}={}", names::env::CUDA_VISIBLE_DEVICES, uuids.join(",")),
        format!("{}=void", names::env::NVIDIA_VISIBLE_DEVICES),
    ];
    let mut mounts = vec![Mount {
        host_path: text(&share_file(&places.share_dir, alloc)),
        container_path: names::container::SHARE_FILE.to_owned(),
        options: options(&["ro", "nosuid", "nodev", "noexec", "bind"]),
        ..Mount::default()
    }];
    if let Some(dirs) = mps {
        env.extend([format!(
            "{}={}",
            names::env::MPS_PIPE_DIRECTORY,
            names::container::MPS_PIPE
        )]);
        if share.mode == Mode::Mps {
            // In mode `mps-isolated` the server's own settings have both.
            env.extend([
                // One device is visible, so its ordinal is 0. A UUID is not understood by
                // every driver, and a second entry would lift the limit.
                format!(
                    "{}=0={}M",
                    names::env::MPS_PINNED_DEVICE_MEM_LIMIT,
                    share.memory.0
                ),
                format!(
                    "{}={}",
                    names::env::MPS_ACTIVE_THREAD_PERCENTAGE,
                    share.compute_percent
                ),
            ]);
        }
        // Mounts that a restarted daemon makes in it later propagate into the container.
        let followed = ["ro", "nosuid", "nodev", "noexec", "rbind", "rslave"];
        mounts.push(Mount {
            host_path: text(&dirs.tenant),
            container_path: names::container::MPS.to_owned(),
            options: options(&followed),
            ..Mount::default()
        });
        let shared = ["rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"];
        mounts.extend(dirs.shm.as_ref().map(|shm| Mount {
            host_path: text(shm),
            container_path: "/dev/shm".to_owned(),
            options: options(&shared),
            ..Mount::default()
        }));
    }
    if share.mode != Mode::Exclusive {
        env.push(format!("{}={}", names::env::MEMORY_MIB, share.memory.0));
    }
    let file = places
        .cdi_dir
        .join(format!("{}{id}.json", names::cdi::FILE_PREFIX));
    let limit = limit.filter(|_| share.mode != Mode::Exclusive);
    let arguments = Arguments {
        whose: match share.claimed {
            Some(_) => ShareOwner::Listed(holders_file(&places.share_dir, alloc)),
            None => ShareOwner::Container {
                pod_uid: share.pod.uid.clone(),
                container: share.container.clone(),
            },
        },
        alloc: id.clone(),
        // Put in place by the seal.
        digest: None,
        proof: places.proof_dir.join(&id),
        spec: Some(file),
        limit: limit.map(|limit| Limit {
            mib: share.memory.0,
            cards: limit.cards.clone(),
            smi: limit.smi.clone(),
            needed: limit.needed,
        }),
    };
    let mut args = vec![HOOK_NAME.to_owned()];
    args.extend(arguments.print());
    ContainerEdits {
        env,
        mounts,
        hooks: vec![Hook {
            hook_name: "createRuntime".to_owned(),
            path: text(&places.hook),
            args,
            timeout: Some(HOOK_TIMEOUT),
            ..Hook::default()
        }],
        ..ContainerEdits::default()
    }
}

/// `share/<alloc_id>/holders.json` below the folder of shares.
pub fn holders_file(share_dir: &Path, alloc: AllocId) -> PathBuf {
    share_dir.join(alloc.to_string()).join("holders.json")
}

/// `share/<alloc_id>/share.json` below the folder of shares.
pub fn share_file(share_dir: &Path, alloc: AllocId) -> PathBuf {
    share_dir.join(alloc.to_string()).join("share.json")
}

fn options(list: &[&str]) -> Vec<String> {
    list.iter().map(|option| (*option).to_owned()).collect()
}

/// What a container reads of its share, for humans and tools. The containers of one claim
/// read the same.
///
/// # Panics
/// Never: strings and integers always print.
pub fn share_text(share: &Share) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct File<'a> {
        version: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        container: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        claim: Option<String>,
        gpus: Vec<&'a str>,
        memory_mib: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_mib: Option<u64>,
        compute_percent: u8,
        mode: &'a str,
        decision: &'a str,
    }
    let own = share.claimed.is_none();
    let file = File {
        version: 1,
        pod: own.then(|| share.pod.to_string()),
        container: own.then_some(&share.container),
        claim: share.claim_name(),
        gpus: share.gpus.iter().map(GpuUuid::as_str).collect(),
        memory_mib: share.memory.0,
        request_mib: (share.kept < share.memory).then_some(share.kept.0),
        compute_percent: share.compute_percent,
        mode: share.mode.as_str(),
        decision: &share.decision,
    };
    let mut text = serde_json::to_string_pretty(&file).expect("strings and integers always print");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use cdi::DeviceNode;

    fn places() -> Places {
        Places {
            cdi_dir: "/var/run/cdi".into(),
            share_dir: "/run/aliquot/share".into(),
            proof_dir: "/run/aliquot/proof".into(),
            hook: "/var/lib/aliquot/bin/aliquot-hook".into(),
        }
    }

    fn share(mode: Mode) -> Share {
        let mut share = Share::from_record(
            AllocId::new(0xab),
            r#"{"version":1,"pod":{"uid":"u1","namespace":"ns","name":"p"},"container":"main",
                "gpus":["GPU-0"],"memoryMib":2000,"computePercent":25,"mode":"mps","decision":"d1"}"#,
        )
        .unwrap();
        share.mode = mode;
        share
    }

    fn driver() -> ContainerEdits {
        ContainerEdits {
            env: vec!["NVIDIA_VISIBLE_DEVICES=all".into(), "X=1".into()],
            device_nodes: vec![DeviceNode {
                path: "/dev/nvidia0".into(),
                host_path: "/root/dev/nvidia0".into(),
                ..DeviceNode::default()
            }],
            ..ContainerEdits::default()
        }
    }

    fn made(mode: Mode) -> Spec {
        let dirs = MpsDirs {
            tenant: "/run/aliquot/mps/GPU-0/tenant".into(),
            shm: Some("/run/aliquot/mps/GPU-0/shm".into()),
        };
        let made = EditInputs {
            driver: driver(),
            mps: matches!(mode, Mode::Mps | Mode::MpsIsolated).then_some(&dirs),
            hints: Vec::new(),
            limit: Some(DriverLimit {
                smi: "/root/usr/bin/nvidia-smi".into(),
                cards: vec![LimitedCard {
                    uuid: "GPU-0".into(),
                    pci: "00000000:01:00.0".into(),
                }],
                needed: true,
            }),
        };
        spec(&share(mode), AllocId::new(0xab), made, &places())
    }

    #[test]
    fn a_share_under_mps_has_its_limit_its_pipe_and_its_guard() {
        let spec = made(Mode::Mps);
        spec.check().unwrap();
        let edits = &spec.devices[0].container_edits;
        for (name, value) in [
            ("CUDA_VISIBLE_DEVICES", "GPU-0"),
            ("CUDA_MPS_PIPE_DIRECTORY", "/run/aliquot/mps/pipe"),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2000M"),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
            ("NVIDIA_VISIBLE_DEVICES", "void"),
            ("ALIQUOT_GPU_MEMORY_MIB", "2000"),
            ("X", "1"),
        ] {
            assert_eq!(edits.env_value(name), Some(value), "{name}");
        }
        let mounts: Vec<_> = edits
            .mounts
            .iter()
            .map(|m| (m.host_path.as_str(), m.container_path.as_str()))
            .collect();
        assert!(mounts.contains(&("/run/aliquot/mps/GPU-0/tenant", "/run/aliquot/mps")));
        assert!(mounts.contains(&("/run/aliquot/mps/GPU-0/shm", "/dev/shm")));
        let file = "/run/aliquot/share/000000000000000000000000000000ab/share.json";
        assert!(mounts.contains(&(file, "/run/aliquot/share.json")));
        let hook = &edits.hooks[0];
        assert_eq!(hook.hook_name, "createRuntime");
        let digest = cdi::digest(&spec).to_string();
        assert_eq!(
            hook.args.join(" "),
            format!(
                "aliquot-hook create-runtime --pod-uid u1 --container main \
                 --alloc 000000000000000000000000000000ab --digest {digest} \
                 --proof /run/aliquot/proof/000000000000000000000000000000ab \
                 --spec /var/run/cdi/aliquot.dev-grant_000000000000000000000000000000ab.json \
                 --limit-mib 2000 --limit-gpus GPU-0=00000000:01:00.0 \
                 --limit-smi /root/usr/bin/nvidia-smi --limit-needed true"
            )
        );
    }

    #[test]
    fn an_isolated_share_has_its_limit_at_its_server_alone() {
        let spec = made(Mode::MpsIsolated);
        spec.check().unwrap();
        let edits = &spec.devices[0].container_edits;
        for (name, value) in [
            ("CUDA_MPS_PIPE_DIRECTORY", Some("/run/aliquot/mps/pipe")),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", None),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", None),
        ] {
            assert_eq!(edits.env_value(name), value, "{name}");
        }
    }

    #[test]
    fn a_whole_card_has_no_limit_and_no_pipe() {
        let spec = made(Mode::Exclusive);
        spec.check().unwrap();
        let edits = &spec.devices[0].container_edits;
        assert!(edits.env.iter().all(|pair| !pair.starts_with("CUDA_MPS_")));
        assert_eq!(edits.mounts.len(), 1);
        assert_eq!(edits.hooks.len(), 1);
        let args = edits.hooks[0].args.join(" ");
        assert!(!args.contains("--limit"), "{args}");
    }

    #[test]
    fn the_same_share_gives_the_same_bytes_and_remembers_itself() {
        let spec = made(Mode::Mps);
        assert_eq!(spec.to_json(), made(Mode::Mps).to_json());
        let record = &spec.annotations[&record_key()];
        assert_eq!(
            Share::from_record(AllocId::new(0xab), record),
            Some(share(Mode::Mps))
        );
    }

    #[test]
    fn a_container_can_read_what_it_holds() {
        let value: serde_json::Value =
            serde_json::from_str(&share_text(&share(Mode::Mps))).unwrap();
        assert_eq!(value["memoryMib"], 2000);
        assert_eq!(value["gpus"][0], "GPU-0");
        assert_eq!(value["pod"], "ns/p");
    }
}
