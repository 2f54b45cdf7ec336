//! What enforces a share's limit: its mode and what was read back → level, limit, reach.
//!
//! The one table of modes and fences. Pure. Must never claim more than was read back.

use crate::gpu::ComputeMode;
use crate::nvml::settings::LONGEST_LOOK;
use api::units::Fence;
use api::{Mib, Mode};
use cdi::hook::Backend;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A process may have come to its server shortly before it is seen, while the server still
/// had the limit of before: NVML is read each second at least, servers more often.
const SEEN_LATE: Duration = Duration::from_secs(3);

/// What a mode gives, strongest and weakest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// At best.
    pub best: Fence,
    /// Beside any neighbour on the card.
    pub least: Fence,
}

/// What a share in this mode can have by MPS and the watchdog alone; `None` for a whole
/// card, which has no limit. A driver with limits of its own gives [`Fence::DriverLimit`] in
/// each, where the hook has read it back.
pub fn of_mode(mode: Mode) -> Option<Range> {
    let (best, least) = match mode {
        Mode::Exclusive => return None,
        // One server has one default, which is the largest share's.
        Mode::Mps => (Fence::ServerLimit, Fence::ClientLimit),
        Mode::MpsIsolated => (Fence::ServerLimit, Fence::ServerLimit),
        Mode::TimeSlicing => (Fence::WatchdogOnly, Fence::WatchdogOnly),
    };
    Some(Range { best, least })
}

/// The strongest fence that a share in this mode can get; `None` for a whole card.
pub fn best(mode: Mode, driver_limits: bool) -> Option<Fence> {
    let range = of_mode(mode)?;
    Some(if driver_limits {
        Fence::DriverLimit
    } else {
        range.best
    })
}

/// Whether all shares of a card in this mode must have one size, so that none of them is
/// behind a weaker fence than `minimum`.
pub fn needs_one_size(mode: Mode, minimum: Option<Fence>, driver_limits: bool) -> bool {
    // Strongest first.
    let weak = |least| minimum.is_some_and(|minimum| least > minimum);
    !driver_limits && of_mode(mode).is_some_and(|range| weak(range.least))
}

/// The compute mode that a card in this mode is in; `None`: any.
pub fn compute_mode(mode: Mode) -> Option<ComputeMode> {
    match mode {
        Mode::Exclusive => None,
        Mode::Mps => Some(ComputeMode::ExclusiveProcess),
        Mode::MpsIsolated | Mode::TimeSlicing => Some(ComputeMode::Default),
    }
}

/// After this time NVML has read a card's new compute mode: twice its longest interval, and some
/// more.
const MODE_READ: Duration = LONGEST_LOOK
    .saturating_mul(2)
    .saturating_add(Duration::from_millis(500));

/// Whether a card is in the compute mode that the shares on it need, look by look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeModeWatch {
    mode: Mode,
    /// It had it, since the card is in this mode.
    seen_right: bool,
    wrong_since: Option<Instant>,
    told: Option<Instant>,
}

impl ComputeModeWatch {
    /// Of a card that is in this mode from now on.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            seen_right: false,
            wrong_since: None,
            told: None,
        }
    }

    /// Applies NVML's latest reading. Returns whether the mode must be set again, because something
    /// else on the node changed it or it was not set in time.
    pub fn observe(&mut self, is: ComputeMode, now: Instant) -> bool {
        if compute_mode(self.mode).is_none_or(|needed| needed == is) {
            *self = Self {
                seen_right: true,
                ..Self::new(self.mode)
            };
            return false;
        }
        let since = *self.wrong_since.get_or_insert(now);
        let long = |since| now.saturating_duration_since(since) >= MODE_READ;
        let due = (self.seen_right || long(since)) && self.told.is_none_or(long);
        if due {
            self.told = Some(now);
        }
        due
    }

    /// Which mode of sharing it is of.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether it is wrong and has been reported.
    pub fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// `None`: it was just set, and NVML has not read it yet.
    pub fn is_right(&self, now: Instant) -> Option<bool> {
        match self.wrong_since {
            None => Some(true),
            Some(_) if self.seen_right => Some(false),
            Some(since) if now.saturating_duration_since(since) >= MODE_READ => Some(false),
            Some(_) => None,
        }
    }
}

/// What was read back of a share's fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The driver's limit on its cgroup and what keeps it, by the hook.
    pub driver: Option<(Mib, Backend)>,
    /// The default of its MPS server, by the supervisor.
    pub server: Option<Mib>,
    /// The most that a process of it can have come to its server with: above the default
    /// where the default was lowered, or tampered with, while the process ran.
    pub ceiling: Option<Mib>,
    /// Its cards are in the compute mode that its mode needs, by NVML.
    pub compute_mode: bool,
    /// Of the largest of its cards.
    pub total: Mib,
}

/// The fence that is active around a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveFence {
    /// How strong it is.
    pub level: Fence,
    /// The limit as it was read back.
    pub limit: Option<Mib>,
    /// What keeps the limit, where it is the driver's.
    pub backend: Option<Backend>,
    /// What one CUDA process of the share can get to per card, by whatever it does inside
    /// its container, until the watchdog ends it.
    pub reach: Mib,
}

/// The fence of a share of `own` MiB by what was read back; `None` for a whole card.
pub fn active(mode: Mode, own: Mib, evidence: &Evidence) -> Option<ActiveFence> {
    of_mode(mode)?;
    if let Some((limit, backend)) = evidence.driver {
        return Some(ActiveFence {
            level: Fence::DriverLimit,
            limit: Some(limit),
            backend: Some(backend),
            reach: limit,
        });
    }
    let server = evidence.server.filter(|_| evidence.compute_mode);
    let level = match (mode, server) {
        (Mode::Mps, Some(server)) if most_of(server, own) >= own => {
            let most = most_of(server, own);
            if most.max(evidence.ceiling.unwrap_or_default()) == own {
                Fence::ServerLimit
            } else {
                Fence::ClientLimit
            }
        }
        (Mode::MpsIsolated, Some(server)) if server == own => Fence::ServerLimit,
        _ => Fence::WatchdogOnly,
    };
    let limit = server.filter(|_| level != Fence::WatchdogOnly);
    Some(ActiveFence {
        level,
        limit,
        backend: None,
        // A client whose environment has a limit that the driver does not understand is under
        // none, the server's included (measured on driver 580.159.04).
        reach: evidence.total,
    })
}

/// The largest server default that reads back like this. A daemon answers in whole GiB, rounded
/// down: a share of more than that may have its own limit there.
fn most_of(server: Mib, own: Mib) -> Mib {
    const GIB: u64 = 1024;
    if server < own && server.0.is_multiple_of(GIB) {
        Mib(server.0.saturating_add(GIB - 1))
    } else {
        server
    }
}

/// The limits under which processes connected to the server of one card. A lowered limit applies
/// only to later processes; existing ones keep theirs.
#[derive(Clone, Debug, Default)]
pub struct Ceilings {
    now: Option<Mib>,
    /// The one before, and when it ended.
    before: Option<(Mib, Instant)>,
    by_pid: BTreeMap<u32, Mib>,
}

impl Ceilings {
    /// Applies the server's default and the processes on the card.
    pub fn observe(&mut self, default: Mib, pids: impl Iterator<Item = u32>, now: Instant) {
        if self.now != Some(default) {
            self.before = self.now.map(|old| (old, now));
            self.now = Some(default);
        }
        let late = |since| now.saturating_duration_since(since) < SEEN_LATE;
        let before = self.before.filter(|(_, until)| late(*until));
        let came_with = before.map_or(default, |(old, _)| default.max(old));
        let known = std::mem::take(&mut self.by_pid);
        let limit = |pid: u32| known.get(&pid).copied().unwrap_or(came_with);
        self.by_pid = pids.map(|pid| (pid, limit(pid))).collect();
    }

    /// The most that one of these processes came with.
    pub fn highest(&self, pids: impl Iterator<Item = u32>) -> Option<Mib> {
        pids.filter_map(|pid| self.by_pid.get(&pid).copied()).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Evidence = Evidence {
        driver: None,
        server: Some(Mib(2000)),
        ceiling: None,
        compute_mode: true,
        total: Mib(49140),
    };

    #[test]
    fn a_fence_is_what_was_read_back_and_its_reach_goes_with_it() {
        use Fence::{ClientLimit, DriverLimit, ServerLimit, WatchdogOnly};
        use Mode::{Mps, MpsIsolated, TimeSlicing};
        let larger = Evidence {
            server: Some(Mib(8000)),
            ..READ
        };
        let earlier = Evidence {
            ceiling: Some(Mib(8000)),
            ..READ
        };
        let rounded = Evidence {
            server: Some(Mib(1024)),
            ..READ
        };
        let smaller = Evidence {
            server: Some(Mib(1900)),
            ..READ
        };
        let unread = Evidence {
            server: None,
            ..READ
        };
        let open = Evidence {
            compute_mode: false,
            ..READ
        };
        let driver = Evidence {
            driver: Some((Mib(2000), Backend::Dmem)),
            ..open
        };
        for (mode, evidence, level, limit, reach) in [
            (Mps, READ, ServerLimit, 2000, 49140),
            (Mps, larger, ClientLimit, 8000, 49140),
            (Mps, earlier, ClientLimit, 2000, 49140),
            (Mps, rounded, ClientLimit, 1024, 49140),
            (Mps, smaller, WatchdogOnly, 0, 49140),
            (Mps, unread, WatchdogOnly, 0, 49140),
            (Mps, open, WatchdogOnly, 0, 49140),
            (Mps, driver, DriverLimit, 2000, 2000),
            (MpsIsolated, READ, ServerLimit, 2000, 49140),
            (MpsIsolated, larger, WatchdogOnly, 0, 49140),
            (MpsIsolated, unread, WatchdogOnly, 0, 49140),
            (MpsIsolated, open, WatchdogOnly, 0, 49140),
            (MpsIsolated, driver, DriverLimit, 2000, 2000),
            (TimeSlicing, READ, WatchdogOnly, 0, 49140),
            (TimeSlicing, driver, DriverLimit, 2000, 2000),
        ] {
            let active = active(mode, Mib(2000), &evidence).unwrap();
            let expected = ActiveFence {
                level,
                limit: (limit > 0).then_some(Mib(limit)),
                backend: (level == DriverLimit).then_some(Backend::Dmem),
                reach: Mib(reach),
            };
            assert_eq!(active, expected, "{mode} {evidence:?}");
        }
        assert_eq!(active(Mode::Exclusive, Mib(2000), &READ), None);
    }

    #[test]
    fn a_mode_is_offered_by_its_best_and_needs_one_size_by_its_least() {
        for (mode, minimum, offered, one_size) in [
            (Mode::Mps, Fence::ClientLimit, true, false),
            (Mode::Mps, Fence::ServerLimit, true, true),
            (Mode::Mps, Fence::DriverLimit, false, true),
            (Mode::MpsIsolated, Fence::ServerLimit, true, false),
            (Mode::TimeSlicing, Fence::WatchdogOnly, true, false),
        ] {
            let best = best(mode, false).unwrap();
            assert_eq!(best <= minimum, offered, "{mode} {minimum}");
            let needs = |limits| needs_one_size(mode, Some(minimum), limits);
            assert_eq!(needs(false), one_size, "{mode} {minimum}");
            assert!(!needs(true));
        }
        assert!(!needs_one_size(Mode::Mps, None, false));
        assert_eq!(best(Mode::TimeSlicing, true), Some(Fence::DriverLimit));
    }

    #[test]
    fn a_compute_mode_that_turns_wrong_is_reported_at_once_and_until_it_is_right() {
        use ComputeMode::{Default, ExclusiveProcess};
        let start = Instant::now();
        let mut watch = ComputeModeWatch::new(Mode::Mps);
        for (millis, is, told, right) in [
            // Set, and not read yet.
            (0, Default, false, None),
            (1000, Default, false, None),
            (2000, ExclusiveProcess, false, Some(true)),
            (3000, Default, true, Some(false)),
            (4000, Default, false, Some(false)),
            (5500, Default, true, Some(false)),
            (6000, ExclusiveProcess, false, Some(true)),
        ] {
            let now = start + Duration::from_millis(millis);
            assert_eq!(watch.observe(is, now), told, "{millis}");
            assert_eq!(watch.is_right(now), right, "{millis}");
        }
        let mut watch = ComputeModeWatch::new(Mode::Mps);
        assert!(!watch.observe(Default, start));
        let late = start + MODE_READ;
        assert!(watch.observe(Default, late), "it was not set in time");
        assert_eq!(watch.is_right(late), Some(false));
    }

    #[test]
    fn who_came_to_a_server_with_a_higher_limit_keeps_it_until_it_ends() {
        let mut ceilings = Ceilings::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        ceilings.observe(Mib(8000), [1].into_iter(), at(0));
        ceilings.observe(Mib(2000), [1, 2].into_iter(), at(10));
        ceilings.observe(Mib(2000), [1, 2, 3].into_iter(), at(14));
        let of = |pid: u32| ceilings.highest([pid].into_iter());
        // The second may have come just before the limit was lowered.
        assert_eq!(of(1), Some(Mib(8000)));
        assert_eq!(of(2), Some(Mib(8000)));
        assert_eq!(of(3), Some(Mib(2000)));
        ceilings.observe(Mib(2000), [3].into_iter(), at(15));
        assert_eq!(ceilings.highest([1, 2].into_iter()), None);
    }
}
