//! Capabilities: dropped at start but for the few that the agent uses.

use crate::gpu::MigStrategy;
use caps::{CapSet, Capability};
use std::collections::HashSet;

/// `/proc` of other users' processes, files of other owners under the kubelet's root, and
/// the end of containers that take more than their share.
const KEPT: [Capability; 4] = [
    Capability::CAP_KILL,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_SYS_PTRACE,
];

/// Above everything that a node runs by default: while the watchdog waits for a CPU, tenants can
/// exceed their shares. Below what the kernel itself does.
const NICENESS: i32 = -10;

/// Gives this thread, and those that it starts later, their turn before those of others of
/// the same weight. Call it before any thread is started, and before capabilities are dropped.
///
/// # Errors The kernel refused; the process continues unchanged.
pub fn raise_priority() -> std::io::Result<()> {
    Ok(rustix::process::setpriority_process(None, NICENESS)?)
}

/// The kernel refused.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Of a capability.
    #[error("capabilities cannot be dropped: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    /// Of the promise that no program gets more.
    #[error("no_new_privs cannot be set: {0}")]
    NoNewPrivileges(#[from] nix::errno::Errno),
}

/// What is kept: with slices also what the driver wants of a process that looks at MIG instances
/// that it was not given.
fn kept(strategy: MigStrategy) -> HashSet<Capability> {
    let slices = (strategy != MigStrategy::None).then_some(Capability::CAP_SYS_ADMIN);
    KEPT.into_iter().chain(slices).collect()
}

/// Drops every capability of this thread, and of those that it starts later, but the few that the
/// agent needs, from the bounding set as well, and lets no program that it starts gain any.
/// Call it before any thread is started.
///
/// # Errors
/// The kernel refused; nothing is guaranteed then.
pub fn drop_all_but_needed(strategy: MigStrategy) -> Result<(), PrivilegeError> {
    let have = caps::read(None, CapSet::Permitted)?;
    let keep: HashSet<Capability> = &kept(strategy) & &have;
    // No program that it might start gets them back: it starts none.
    if have.contains(&Capability::CAP_SETPCAP) {
        for cap in caps::read(None, CapSet::Bounding)?.difference(&keep) {
            caps::drop(None, CapSet::Bounding, *cap)?;
        }
    }
    nix::sys::prctl::set_no_new_privs()?;
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Inheritable, &HashSet::new())?;
    caps::set(None, CapSet::Effective, &keep)?;
    caps::set(None, CapSet::Permitted, &keep)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_gone_from_the_thread_and_its_children() {
        for strategy in [MigStrategy::None, MigStrategy::Mixed] {
            // Capabilities are per thread: the others of this test keep theirs.
            std::thread::spawn(move || {
                let may = caps::has_cap(None, CapSet::Permitted, Capability::CAP_SETPCAP).unwrap();
                drop_all_but_needed(strategy).unwrap();
                let kept = kept(strategy);
                let slices = kept.contains(&Capability::CAP_SYS_ADMIN);
                assert_eq!(slices, strategy == MigStrategy::Mixed);
                let left = || caps::read(None, CapSet::Permitted).unwrap();
                assert!(left().is_subset(&kept));
                let bounding = caps::read(None, CapSet::Bounding).unwrap();
                assert!(!may || bounding.is_subset(&kept));
                assert!(nix::sys::prctl::get_no_new_privs().unwrap());
                let child = std::thread::spawn(move || left().is_subset(&kept));
                assert!(child.join().unwrap());
            })
            .join()
            .unwrap();
        }
    }
}
