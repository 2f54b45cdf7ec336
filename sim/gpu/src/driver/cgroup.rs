//! Memory limits per cgroup (r615 and later): what the driver accepts, and what holds a process.
//!
//! After NVIDIA's page on memory partitioning and the open kernel modules of 615.71.09. The kernel's
//! files are read and written when a limit is set; the limits that hold are kept here. Soft limits
//! read back and reserve nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cuda::nvml;
use crate::hardware::MemoryAccounting;

use super::state::{CardId, CgroupLimits, ConnId, Context, State};

/// A refusal of NVML: its code, its name and a sentence.
type Refused = (u32, &'static str, &'static str);

const NOT_SUPPORTED: Refused = (
    nvml::NOT_SUPPORTED,
    "NVML_ERROR_NOT_SUPPORTED",
    "Not Supported",
);
const NOT_FOUND: Refused = (nvml::NOT_FOUND, "NVML_ERROR_NOT_FOUND", "Not Found");
const INVALID: Refused = (
    nvml::INVALID_ARGUMENT,
    "NVML_ERROR_INVALID_ARGUMENT",
    "Invalid Argument",
);
const NO_CGROUP: Refused = (
    nvml::OPERATING_SYSTEM,
    "NVML_ERROR_OPERATING_SYSTEM",
    "the cgroup cannot be opened",
);

impl State {
    /// The limit with the least room among those that hold the caller, and the memory held under
    /// it.
    pub(super) fn tightest(&self, conn: ConnId, card: CardId) -> Option<(u64, u64)> {
        let own = unified(&self.processes.get(&conn)?.cgroup)?;
        let limits = self.cards[card].cgroup_limits.iter();
        let limits = limits.filter(|(path, limits)| is_within(own, path) && limits.enforced);
        let nearest = limits.clone().map(|(path, _)| path.len()).max();
        limits
            .filter(|(path, limits)| limits.dmem || Some(path.len()) == nearest)
            .filter(|(_, limits)| limits.hard < u64::MAX)
            .map(|(path, limits)| (limits.hard, self.held_in(path, card)))
            .min_by_key(|(limit, held)| limit.saturating_sub(*held))
    }

    /// Returns the memory that the processes of a cgroup hold on a card.
    fn held_in(&self, cgroup: &str, card: CardId) -> u64 {
        self.processes
            .values()
            .filter(|process| unified(&process.cgroup).is_some_and(|own| is_within(own, cgroup)))
            .filter_map(|process| process.contexts.get(&card))
            .map(Context::taken)
            .sum()
    }

    /// Returns true if the kernel's dmem controller has this card's memory. The driver then uses it. A
    /// real driver registers the memory when it loads.
    fn has_dmem(&self, card: CardId) -> bool {
        let accounting = &self.hardware.memory_accounting;
        let capacity = fs::read_to_string(accounting.cgroup.join("dmem.capacity"));
        let region = self.region(card);
        let listed = |text: String| text.lines().any(|line| is_of(line, &region));
        accounting.mode.allows_dmem() && capacity.is_ok_and(listed)
    }

    /// The card's memory, as the dmem controller names it, and a blank.
    fn region(&self, card: CardId) -> String {
        format!("nvidia/{}/vidmem ", self.cards[card].spec.pci_bus_id)
    }

    /// A cgroup's folder, and its path below the root of cgroup v2.
    fn namespace(&mut self, card: CardId, path: &str) -> Result<(PathBuf, String), Refused> {
        let MemoryAccounting { mode, cgroup, .. } = &self.hardware.memory_accounting;
        if !self.hardware.memory_limits() || !mode.is_on() || self.cards[card].spec.mig {
            return Err(NOT_SUPPORTED);
        }
        let below = Path::new(path)
            .strip_prefix(cgroup)
            .map_err(|_| NO_CGROUP)?;
        let folder = cgroup.join(below);
        let is_root = below == Path::new("");
        let below = format!("/{}", below.display());
        // The kernel's files go with their cgroup; what misc has stays.
        let cgroup = cgroup.clone();
        let is_there = |path: &String| cgroup.join(path.trim_start_matches('/')).is_dir();
        let limits = &mut self.cards[card].cgroup_limits;
        limits.retain(|path, limits| !limits.dmem || is_there(path));
        match folder.is_dir() {
            false => Err(NO_CGROUP),
            true if is_root => Err(NOT_SUPPORTED),
            true => Ok((folder, below)),
        }
    }

    /// Sets both limits, in MiB.
    pub(super) fn set_memory_limits(
        &mut self,
        card: CardId,
        path: &str,
        soft: u64,
        hard: u64,
    ) -> Result<(), Refused> {
        let (folder, below) = self.namespace(card, path)?;
        let total = self.cards[card].spec.total_mib;
        if soft > hard || soft > total || (hard > total && hard < u64::MAX) {
            return Err(INVALID);
        }
        let only_reads_back = self.hardware.memory_accounting.only_reads_back;
        let dmem = self.has_dmem(card);
        let mut enforced = !only_reads_back;
        if dmem {
            let file = folder.join("dmem.max");
            let text = fs::read_to_string(&file).map_err(|_| NOT_FOUND)?;
            let region = self.region(card);
            let value = match hard {
                u64::MAX => "max".to_owned(),
                mib => (mib << 20).to_string(),
            };
            let own = format!("{region}{value}");
            let others = text.lines().filter(|line| !is_of(line, &region));
            let lines: Vec<&str> = others.chain([own.as_str()]).collect();
            if enforced {
                fs::write(&file, lines.join("\n") + "\n").map_err(|_| NO_CGROUP)?;
            }
        } else {
            if self.held_in(&below, card) > hard {
                return Err(INVALID);
            }
            // A process is charged in the nearest cgroup that has the misc controller.
            let controllers = fs::read_to_string(folder.join("cgroup.controllers"));
            let has_misc = |text: String| text.split_whitespace().any(|name| name == "misc");
            enforced &= controllers.is_ok_and(has_misc);
        }
        let limits = CgroupLimits {
            soft,
            hard,
            enforced,
            dmem,
        };
        self.cards[card].cgroup_limits.insert(below, limits);
        Ok(())
    }

    /// The limits of a cgroup, and the memory held in it, in MiB.
    pub(super) fn memory_limits(
        &mut self,
        card: CardId,
        path: &str,
    ) -> Result<(CgroupLimits, u64), Refused> {
        let (folder, below) = self.namespace(card, path)?;
        let dmem = self.has_dmem(card);
        let unlimited = CgroupLimits {
            soft: 0,
            hard: u64::MAX,
            enforced: true,
            dmem,
        };
        let known = self.cards[card].cgroup_limits.get(&below).copied();
        let limits = match known {
            _ if dmem && !folder.join("dmem.max").exists() => return Err(NOT_SUPPORTED),
            None if !dmem => return Err(NOT_SUPPORTED),
            known => known.unwrap_or(unlimited),
        };
        Ok((limits, self.held_in(&below, card)))
    }
}

/// Returns true if a line of the dmem controller is about this region, in any case of its digits.
fn is_of(line: &str, region: &str) -> bool {
    let name = line.get(..region.len());
    name.is_some_and(|name| name.eq_ignore_ascii_case(region))
}

/// Returns a process's place in cgroup v2, from `/proc/<pid>/cgroup` with its lines joined.
fn unified(cgroup: &str) -> Option<&str> {
    cgroup.split(';').find_map(|line| line.strip_prefix("0::"))
}

fn is_within(own: &str, cgroup: &str) -> bool {
    own.strip_prefix(cgroup)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{Hardware, MemacctMode, Preset};

    /// A driver, and a cgroup `/pods/a` of files; with dmem in the kernel or without, and with misc
    /// down to the cgroup or not.
    fn machine(dmem: bool, misc: bool, only_reads_back: bool) -> (tempfile::TempDir, State) {
        let folder = tempfile::tempdir().unwrap();
        let leaf = folder.path().join("pods/a");
        fs::create_dir_all(&leaf).unwrap();
        let mut hardware = Hardware::of(Preset::T4, 1);
        hardware.driver_version = "615.71.09".into();
        hardware.memory_accounting.cgroup = folder.path().to_owned();
        hardware.memory_accounting.only_reads_back = only_reads_back;
        let cards = hardware.cards().unwrap();
        let state = State::new(hardware, cards);
        if dmem {
            let region = state.region(CardId::default());
            fs::write(folder.path().join("dmem.capacity"), format!("{region}9\n")).unwrap();
            fs::write(leaf.join("dmem.max"), format!("{region}max\n")).unwrap();
        }
        let controllers = if misc { "cpu misc\n" } else { "cpu\n" };
        fs::write(leaf.join("cgroup.controllers"), controllers).unwrap();
        (folder, state)
    }

    #[test]
    fn a_limit_that_reads_back_holds_unless_the_controller_or_the_driver_fails() {
        let card = CardId::default();
        for (dmem, misc, only_reads_back, holds) in [
            (true, false, false, true),
            (false, true, false, true),
            (false, false, false, false),
            (true, true, true, false),
            (false, true, true, false),
        ] {
            let (folder, mut state) = machine(dmem, misc, only_reads_back);
            let leaf = folder.path().join("pods/a");
            let path = leaf.to_str().unwrap();
            state.set_memory_limits(card, path, 0, 2000).unwrap();
            assert_eq!(state.memory_limits(card, path).unwrap().0.hard, 2000);
            state.connect(1, 7, 0, "tenant".into(), "0::/pods/a".into());
            let row = format!("dmem {dmem}, misc {misc}, fault {only_reads_back}");
            let held = state.tightest(1, card).map(|(limit, _)| limit);
            assert_eq!(held, holds.then_some(2000), "{row}");
            let kernel = fs::read_to_string(leaf.join("dmem.max")).unwrap_or_default();
            assert_eq!(kernel.contains(" 2097152000\n"), dmem && holds, "{row}");
            state.set_memory_limits(card, path, 0, u64::MAX).unwrap();
            assert_eq!(state.tightest(1, card), None, "{row}");
        }
    }

    #[test]
    fn a_limit_in_misc_outlives_its_cgroup_and_one_in_dmem_does_not() {
        let card = CardId::default();
        for dmem in [true, false] {
            let (folder, mut state) = machine(dmem, true, false);
            let leaf = folder.path().join("pods/a");
            let path = leaf.to_str().unwrap();
            state.set_memory_limits(card, path, 0, 2000).unwrap();
            fs::remove_dir_all(&leaf).unwrap();
            assert_eq!(state.memory_limits(card, path), Err(NO_CGROUP));
            let stays = state.cards[card].cgroup_limits.contains_key("/pods/a");
            assert_eq!(stays, !dmem);
        }
        let (folder, mut state) = machine(true, true, false);
        state.hardware.memory_accounting.mode = MemacctMode::Off;
        let path = folder.path().join("pods/a").display().to_string();
        let refused = state.set_memory_limits(card, &path, 0, 2000);
        assert_eq!(refused, Err(NOT_SUPPORTED));
    }
}
