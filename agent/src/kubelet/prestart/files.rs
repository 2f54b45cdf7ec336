//! What a share's container is given: its CDI file and `share.json`.

use crate::Config;
use crate::edit::{self, DriverFiles, MpsDirs, Places, trimmed, without_graphics};
use crate::fence;
use crate::gpu::{GpuUuid, Slice};
use crate::inventory::Card;
use crate::ledger::{AllocId, Share};
use crate::mps::plan;
use crate::node::{MpsView, State};
use api::Mode;
use cdi::hook::LimitedCard;
use cdi::{ContainerEdits, Spec};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Below `/proc`: which capability node is which instance's.
const MIG_MINORS: &str = "driver/nvidia-caps/mig-minors";

#[derive(Debug, thiserror::Error)]
pub(super) enum MakeError {
    #[error("card {0} is not known any more")]
    Card(GpuUuid),
    #[error("the driver's files cannot be read: {0}")]
    Driver(#[from] io::Error),
    #[error("{} lists no capability nodes for slice {slice}", file.display())]
    Capabilities { slice: GpuUuid, file: PathBuf },
    #[error(transparent)]
    Foreign(#[from] cdi::dir::DirError),
}

/// The share's CDI file.
pub(super) fn made(
    config: &Config,
    state: &State,
    share: &Share,
    alloc: AllocId,
) -> Result<Spec, MakeError> {
    let driver = driver_edits(config, state, share)?;
    let mps = plan::server_name(share).map(|name| mps_dirs(config, &state.mps, &name));
    let places = Places {
        cdi_dir: config.cdi_dir.clone(),
        share_dir: config.share_dir(),
        proof_dir: config.proof_dir(),
        hook: config.hook_path.clone(),
    };
    let hints = match share.mode {
        Mode::Exclusive => Vec::new(),
        _ => edit::hints::of(share, &state.inventory),
    };
    let made = edit::EditInputs {
        driver,
        mps: mps.as_ref(),
        hints,
        limit: driver_limit(config, state, share),
    };
    Ok(edit::spec(share, alloc, made, &places))
}

/// Returns the driver's limit that the hook sets, and whether the container must not start without
/// it. The hook sets it if the driver keeps such limits on all of the share's cards. If the driver
/// has lost them and nothing else reaches the minimum fence, the hook tries, too: its refusal names
/// the missing part.
fn driver_limit(config: &Config, state: &State, share: &Share) -> Option<edit::DriverLimit> {
    let range = fence::of_mode(share.mode)?;
    let policy = state.policy.as_ref().and_then(|p| p.spec.minimum_fence);
    let minimum = policy.into_iter().chain(share.wishes.minimum_fence).min();
    let unequal = (share.gpus.iter())
        .flat_map(|card| state.ledger.on(card))
        .any(|other| other.memory != share.memory);
    let without = if unequal { range.least } else { range.best };
    // Strongest first.
    let is_below = |fence| minimum.is_some_and(|minimum| fence > minimum);
    let kept = state.inventory.driver_limits(share.gpus.iter());
    (kept || is_below(without)).then(|| edit::DriverLimit {
        smi: config.driver_root.join("usr/bin/nvidia-smi"),
        cards: (share.gpus.iter())
            .filter_map(|uuid| {
                let pci = state.inventory.card(uuid)?.pci.clone();
                let uuid = uuid.to_string();
                Some(LimitedCard { uuid, pci })
            })
            .collect(),
        needed: is_below(range.least),
    })
}

/// Of the driver, what a share of this mode gets.
fn driver_edits(
    config: &Config,
    state: &State,
    share: &Share,
) -> Result<ContainerEdits, MakeError> {
    let all = all_driver_edits(config, state, share)?;
    Ok(match share.mode {
        Mode::Exclusive => all,
        _ => without_graphics(all),
    })
}

/// NVIDIA's own edits if every card has them, else what is found under the driver root.
fn all_driver_edits(
    config: &Config,
    state: &State,
    share: &Share,
) -> Result<ContainerEdits, MakeError> {
    let mut theirs = ContainerEdits::default();
    let mut complete = true;
    for card in &share.gpus {
        let search = cdi::foreign::find_gpu(&config.nvidia_cdi_dirs, card.as_str())?;
        for complaint in search.complaints {
            tracing::debug!(complaint, "another vendor's CDI file");
        }
        match search.found {
            Some(found) => theirs.merge(found.edits),
            None => complete = false,
        }
    }
    if complete {
        return Ok(trimmed(theirs));
    }
    let (mut minors, mut capabilities) = (BTreeSet::new(), Vec::new());
    for uuid in &share.gpus {
        let card = state.inventory.card(uuid);
        let card = card.ok_or_else(|| MakeError::Card(uuid.clone()))?;
        minors.insert(card.minor);
        if let Some(slice) = &card.slice {
            capabilities.extend(capabilities_of(config, card, slice)?);
        }
    }
    let files = DriverFiles::find(&config.driver_root, config.driver_root_here())?;
    Ok(files.edits(&minors, &capabilities))
}

/// The two capabilities without which a process does not reach a slice.
fn capabilities_of(config: &Config, card: &Card, slice: &Slice) -> Result<[u32; 2], MakeError> {
    // A driver container has its own `/proc` below its root.
    let own = config.driver_root_here().join("proc").join(MIG_MINORS);
    let file = if own.exists() {
        own
    } else {
        config.proc_root.join(MIG_MINORS)
    };
    let text = std::fs::read_to_string(&file)?;
    let ids = (slice.gpu_instance, slice.compute_instance);
    edit::capabilities(&text, card.minor, ids.0, ids.1).ok_or_else(|| MakeError::Capabilities {
        slice: card.uuid.clone(),
        file,
    })
}

/// As the supervisor says, else where it puts them by its rules.
fn mps_dirs(config: &Config, mps: &MpsView, name: &str) -> MpsDirs {
    let server = mps.seen.servers.iter().find(|s| s.name == *name);
    let path = |told: &String| (!told.is_empty()).then(|| PathBuf::from(told));
    MpsDirs {
        tenant: server
            .and_then(|s| path(&s.tenant_dir))
            .unwrap_or_else(|| config.mps_dir().join(name).join("tenant")),
        shm: server.and_then(|s| path(&s.shm_dir)),
    }
}

/// Before the CDI file that mounts it.
pub(super) fn put_share_file(share_dir: &Path, share: &Share, alloc: AllocId) -> io::Result<()> {
    let file = edit::share_file(share_dir, alloc);
    let text = edit::share_text(share);
    if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let folder = share_dir.join(alloc.to_string());
    std::fs::create_dir_all(&folder)?;
    let temporary = folder.join(".share.json");
    std::fs::write(&temporary, text)?;
    std::fs::rename(temporary, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{MigStrategy, Profile};
    use crate::inventory::DriverLimits;
    use crate::inventory::build::{InventoryBuilder, Settings};
    use crate::node::Policy;
    use crate::nvml::{Device, Driver, Identity, Observation, Reading};
    use api::Mib;
    use api::units::Fence;
    use cdi::hook::Backend;
    use std::time::Instant;

    /// A node with one card.
    fn node() -> State {
        let settings = Settings {
            mps_reserve: Mib(0),
            client_slots: 48,
            context_allowance: Mib(0),
            mig_strategy: MigStrategy::Mixed,
        };
        let identity = Identity {
            uuid: GpuUuid::from("GPU-0"),
            index: 0,
            minor: 0,
            product: "T4".into(),
            pci: String::new(),
            compute_capability: String::new(),
            numa: None,
            nvlink_peers: Vec::new(),
            slice: None,
        };
        let slice = Identity {
            uuid: GpuUuid::from("MIG-1"),
            slice: Some(Slice {
                parent: identity.uuid.clone(),
                profile: Profile::parse("1g.10gb"),
                gpu_instance: 7,
                compute_instance: 0,
            }),
            ..identity.clone()
        };
        let observation = Observation {
            driver: Driver::Up {
                version: "570".into(),
            },
            devices: [identity, slice]
                .map(|identity| Device {
                    identity,
                    reading: Ok(Reading::default()),
                })
                .into(),
        };
        let (mut builder, now) = (InventoryBuilder::new(settings), Instant::now());
        builder.observe(&observation, now);
        State {
            inventory: builder.inventory(&api::gpu_node::GpuNodeSpec::default(), |_, _| true, now),
            ..State::default()
        }
    }

    const RECORD: &str = r#"{"version":1,"pod":{"uid":"u1","namespace":"ns","name":"p"},
        "container":"main","gpus":["GPU-0"],"memoryMib":2000,"computePercent":25,
        "mode":"mps","decision":"d1"}"#;

    #[test]
    fn a_limit_of_the_driver_is_needed_where_the_mode_alone_is_weaker_than_the_minimum() {
        let mut share = Share::from_record(AllocId::new(1), RECORD).unwrap();
        let config = Config::for_node("n1");
        let mut state = node();
        // After an upgrade of the driver, before and after its probe: the mode's own fence is
        // enough for shares of one size, and the containers start.
        for (mode, minimum, asked, kept_needs) in [
            (Mode::Mps, None, false, false),
            (Mode::Mps, Some(Fence::ClientLimit), false, false),
            (Mode::Mps, Some(Fence::ServerLimit), false, true),
            (Mode::MpsIsolated, Some(Fence::ServerLimit), false, false),
            (Mode::MpsIsolated, Some(Fence::DriverLimit), true, true),
            (Mode::TimeSlicing, Some(Fence::WatchdogOnly), false, false),
            (Mode::TimeSlicing, Some(Fence::ClientLimit), true, true),
        ] {
            share.mode = mode;
            let mut policy = Policy::default();
            policy.spec.minimum_fence = minimum;
            state.policy = Some(policy);
            let mut needed = |limits| {
                state.inventory.cards[0].driver_limits = limits;
                driver_limit(&config, &state, &share).map(|limit| limit.needed)
            };
            let row = format!("{mode} {minimum:?}");
            let lost = DriverLimits::Missing("no dmem".into());
            for limits in [DriverLimits::None, DriverLimits::Unknown, lost] {
                assert_eq!(needed(limits), asked.then_some(true), "{row}");
            }
            let kept = needed(DriverLimits::Kept(Backend::Dmem));
            assert_eq!(kept, Some(kept_needs), "{row}");
        }
        // A claim's own minimum counts like the node's.
        state.policy = None;
        state.inventory.cards[0].driver_limits = DriverLimits::None;
        share.wishes.minimum_fence = Some(Fence::DriverLimit);
        assert!(driver_limit(&config, &state, &share).unwrap().needed);
    }

    #[test]
    fn a_slice_is_its_cards_node_and_two_capability_nodes() {
        let root = tempfile::tempdir().unwrap();
        let minors = root.path().join("proc").join(MIG_MINORS);
        std::fs::create_dir_all(minors.parent().unwrap()).unwrap();
        let config = Config {
            driver_root: root.path().to_owned(),
            nvidia_cdi_dirs: vec![root.path().join("none")],
            ..Config::for_node("n1")
        };
        let mut share = Share::from_record(AllocId::new(1), RECORD).unwrap();
        share.mode = Mode::Exclusive;
        share.gpus = vec![GpuUuid::from("MIG-1")];
        std::fs::write(&minors, "gpu0/gi7/access 66\n").unwrap();
        let error = driver_edits(&config, &node(), &share).unwrap_err();
        assert!(error.to_string().contains("no capability nodes"), "{error}");
        let text = "config 1\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu1/gi7/access 201\n";
        std::fs::write(&minors, text).unwrap();
        let edits = driver_edits(&config, &node(), &share).unwrap();
        let nodes: Vec<&str> = edits.device_nodes.iter().map(|n| n.path.as_str()).collect();
        let caps = "/dev/nvidia-caps/nvidia-cap";
        assert_eq!(
            nodes,
            ["/dev/nvidia0", &format!("{caps}66"), &format!("{caps}67")]
        );
    }

    #[test]
    fn without_nvidias_own_spec_too_a_share_is_not_given_what_draws() {
        let root = tempfile::tempdir().unwrap();
        let libraries = root.path().join("usr/lib64");
        std::fs::create_dir_all(&libraries).unwrap();
        for name in ["libcuda.so.1", "libnvidia-eglcore.so.570.1"] {
            std::fs::write(libraries.join(name), "").unwrap();
        }
        let config = Config {
            driver_root: root.path().to_owned(),
            nvidia_cdi_dirs: vec![root.path().join("none")],
            ..Config::for_node("n1")
        };
        let mut share = Share::from_record(AllocId::new(1), RECORD).unwrap();
        for (mode, draws) in [
            (Mode::Mps, false),
            (Mode::MpsIsolated, false),
            (Mode::TimeSlicing, false),
            (Mode::Exclusive, true),
        ] {
            share.mode = mode;
            let edits = driver_edits(&config, &node(), &share).unwrap();
            let has = |name: &str| edits.mounts.iter().any(|m| m.container_path.contains(name));
            assert!(has("libcuda.so.1"), "{mode}");
            assert_eq!(has("libnvidia-eglcore"), draws, "{mode}");
        }
    }
}
