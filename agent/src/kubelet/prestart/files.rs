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
    let made = edit::Made {
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

/// NVIDIA's own edits where every card has them, else what is found under the driver root.
fn driver_edits(
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
        let theirs = trimmed(theirs);
        return Ok(match share.mode {
            Mode::Exclusive => theirs,
            _ => without_graphics(theirs),
        });
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
