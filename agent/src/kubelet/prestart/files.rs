//! What a share's container is given: its CDI file and `share.json`.

use crate::Config;
use crate::edit::{self, DriverFiles, MpsDirs, Places, trimmed, without_graphics};
use crate::fence;
use crate::inventory::GpuUuid;
use crate::ledger::{AllocId, Share};
use crate::mps::plan;
use crate::node::{MpsView, State};
use api::Mode;
use cdi::{ContainerEdits, Spec};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(super) enum MakeError {
    #[error("card {0} is not known any more")]
    Card(GpuUuid),
    #[error("the driver's files cannot be listed: {0}")]
    Driver(#[from] io::Error),
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
        Mode::TimeSlicing => edit::hints::of(share, &state.inventory),
        _ => Vec::new(),
    };
    let made = edit::EditInputs {
        driver,
        mps: mps.as_ref(),
        hints,
        limit: driver_limit(config, state, share),
    };
    Ok(edit::spec(share, alloc, made, &places))
}

/// Where the driver may have limits of its own, the hook tries them.
fn driver_limit(config: &Config, state: &State, share: &Share) -> Option<edit::DriverLimit> {
    let minimum = state.policy.as_ref().and_then(|p| p.spec.minimum_fence);
    // Strongest first.
    let least = fence::of_mode(share.mode).map(|range| range.least);
    let weak = |minimum| least.is_some_and(|least| least > minimum);
    state.inventory.driver_limits.then(|| edit::DriverLimit {
        smi: config.driver_root.join("usr/bin/nvidia-smi"),
        needed: minimum.is_some_and(weak),
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
    let minors = share
        .gpus
        .iter()
        .map(|uuid| {
            let card = state.inventory.card(uuid);
            card.map(|card| card.minor)
                .ok_or_else(|| MakeError::Card(uuid.clone()))
        })
        .collect::<Result<Vec<u32>, _>>()?;
    let files = DriverFiles::find(&config.driver_root, config.driver_root_here())?;
    Ok(files.edits(&minors))
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
    use crate::inventory::{InventoryBuilder, Settings};
    use crate::node::Policy;
    use crate::nvml::{Device, Driver, Identity, Observation, Reading};
    use api::Mib;
    use api::units::Fence;
    use std::time::Instant;

    /// A node with one card.
    fn node() -> State {
        let settings = Settings {
            mps_reserve: Mib(0),
            client_slots: 48,
            context_allowance: Mib(0),
            cgroup_v2: true,
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
        };
        let observation = Observation {
            driver: Driver::Up {
                version: "570".into(),
            },
            devices: vec![Device {
                identity,
                reading: Ok(Reading::default()),
            }],
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
        assert!(driver_limit(&config, &state, &share).is_none());
        state.inventory.driver_limits = true;
        for (mode, minimum, needed) in [
            (Mode::Mps, None, false),
            (Mode::Mps, Some(Fence::ClientLimit), false),
            (Mode::Mps, Some(Fence::ServerLimit), true),
            (Mode::MpsIsolated, Some(Fence::ServerLimit), false),
            (Mode::MpsIsolated, Some(Fence::DriverLimit), true),
            (Mode::TimeSlicing, Some(Fence::WatchdogOnly), false),
            (Mode::TimeSlicing, Some(Fence::ClientLimit), true),
        ] {
            share.mode = mode;
            let mut policy = Policy::default();
            policy.spec.minimum_fence = minimum;
            state.policy = Some(policy);
            let limit = driver_limit(&config, &state, &share).unwrap();
            assert_eq!(limit.needed, needed, "{mode} {minimum:?}");
        }
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
