//! Whether a card works: XIDs, the driver's own verdict, silence; with hysteresis.
//!
//! Pure; time is a value. The classes are those of NVIDIA's XID catalogue. Where the card
//! has field 230 (recovery action), that is the driver's own verdict and clears what an
//! XID latched; else only a driver of another version does, which cannot have been loaded without
//! resetting the cards. That NVML does not answer for a while resets nothing. After a reset by hand
//! under a driver without field 230, the agent is restarted: it knows no XID from before.

use crate::gpu::GpuUuid;
use crate::nvml::{Driver, Observation, Reading, UnreadableCard, Xid};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A card is healthy again this long after its last cause has ended.
pub const RECOVER_AFTER: Duration = Duration::from_secs(10);
/// A card that is not lost and does not answer for this time is unhealthy: one failed reading (a
/// list that grew while it was read, a busy driver) means nothing.
pub const SILENT_AFTER: Duration = Duration::from_secs(3);
/// After this time, its current containers have lost it.
pub const LOST_AFTER: Duration = Duration::from_secs(15);
/// A suspicion that the driver neither confirms nor clears is dropped after this time: a tenant
/// must not be able to close a card permanently.
pub const SUSPECT_FOR: Duration = Duration::from_mins(10);

/// The health of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// The driver reports no fault.
    #[default]
    Healthy,
    /// No new pods are placed on it.
    Unhealthy {
        /// One line.
        reason: String,
        /// Its containers have lost it and should leave. A card that is only slow to answer, or
        /// that answers again and is being observed, is no reason to end a container.
        lasting: bool,
    },
}

impl Health {
    /// True when it works.
    pub fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy)
    }

    /// `Healthy` or `Unhealthy`, the kubelet's words.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Healthy => proto::names::kubelet::HEALTHY,
            Self::Unhealthy { .. } => proto::names::kubelet::UNHEALTHY,
        }
    }

    /// Why not; empty when it works.
    pub fn reason(&self) -> &str {
        match self {
            Self::Healthy => "",
            Self::Unhealthy { reason, .. } => reason,
        }
    }

    /// Returns true if the card's containers should leave it.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Unhealthy { lasting: true, .. })
    }
}

/// What an XID says of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidClass {
    /// A fault of the program: no change.
    Application,
    /// Worth a line, no change.
    Informational,
    /// A link; matters for several cards together only.
    Link,
    /// A program may have done it, or the card is broken: nothing new comes until the driver
    /// says which, and no pod is evicted for it.
    Suspect,
    /// Nothing runs right until the card was reset.
    NeedsReset,
    /// The card is off the bus.
    Gone,
    /// The driver's verdict changed: field 230 says it.
    Verdict,
}

/// NVIDIA's catalogue, as far as it changes what we do. An unknown number is informational:
/// new drivers add numbers, and most are.
pub fn classify(xid: u64) -> XidClass {
    match xid {
        8 | 13 | 31 | 32 | 43 | 45 | 68 | 69 | 94 => XidClass::Application,
        // A context did not leave the SMs in time: a kernel that never ends does that, too.
        109 => XidClass::Suspect,
        46 | 48 | 62 | 64 | 95 | 119 | 120 | 140 | 143 => XidClass::NeedsReset,
        79 => XidClass::Gone,
        154 => XidClass::Verdict,
        74 | 137 | 145..=150 => XidClass::Link,
        _ => XidClass::Informational,
    }
}

/// The known health of every card.
#[derive(Clone, Debug, Default)]
pub struct HealthHistory {
    cards: BTreeMap<GpuUuid, Entry>,
    /// Of the driver that answered last.
    version: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// Set by an XID, cleared by the driver's verdict or by another driver.
    latched: Option<Latched>,
    /// It has answered.
    known: bool,
    /// True if the last reading said that the driver has lost the card.
    lost: bool,
    /// True if the last reading lacked processes.
    unseen: bool,
    /// Result of the last reading.
    cause: Option<Cause>,
    /// The card's silence, since when its readings have had no answer; `None` if it answers.
    silent: Option<Silence>,
    /// The last cause there was, shown while it is not yet gone for long enough.
    last: Option<(String, Instant)>,
}

#[derive(Clone, Debug)]
struct Silence {
    /// The time of the first of consecutive readings without an answer of that kind.
    since: Instant,
    /// The error of the last of these readings.
    reason: String,
    /// True if a call has not returned. The card's containers may still work, and are not evicted.
    hangs: bool,
}

#[derive(Clone, Debug)]
struct Cause {
    reason: String,
    /// As [`Health::Unhealthy`] has it.
    lasting: bool,
}

impl Cause {
    fn lasting(reason: String) -> Self {
        Self {
            reason,
            lasting: true,
        }
    }
}

#[derive(Clone, Debug)]
struct Latched {
    reason: String,
    since: Instant,
    /// As [`Health::Unhealthy`] has it.
    lasting: bool,
}

impl HealthHistory {
    /// Applies one reading. Cards that were seen before and are not in it take nothing new, and are
    /// lost after [`LOST_AFTER`].
    pub fn observe(&mut self, observation: &Observation, now: Instant) {
        match &observation.driver {
            Driver::Gone { reason } => {
                for entry in self.cards.values_mut() {
                    entry.silent = None;
                    // Its absence is a driver's update more often than a fault.
                    let cause = Cause {
                        reason: format!("the driver does not answer: {reason}"),
                        lasting: false,
                    };
                    entry.set(Some(cause), now);
                }
                return;
            }
            // The last observation of the cards stays in use while the driver is late.
            Driver::Late { .. } => return,
            Driver::Up { version } => {
                let before = self.version.replace(version.clone());
                if before.is_some_and(|before| before != *version) {
                    for entry in self.cards.values_mut() {
                        entry.forget_latched(now);
                    }
                }
            }
        }
        for device in &observation.devices {
            let entry = self.cards.entry(device.identity.uuid.clone()).or_default();
            let lost = device.reading.as_ref().is_err_and(|silence| silence.lost);
            let was_lost = std::mem::replace(&mut entry.lost, lost);
            match &device.reading {
                Err(silence) if lost => {
                    entry.silent = None;
                    let cause = Cause {
                        reason: unanswered(&silence.reason),
                        // One failed call says little, so only the second loss in a row is lasting.
                        lasting: was_lost,
                    };
                    entry.set(Some(cause), now);
                }
                // The last result stays.
                Err(silence) => entry.fall_silent(silence, now),
                Ok(reading) => {
                    let first = !std::mem::replace(&mut entry.known, true);
                    entry.silent = None;
                    entry.unlatch(reading, now);
                    // One incomplete list says little, so it counts at the first reading or when it
                    // repeats.
                    let was_unseen = std::mem::replace(&mut entry.unseen, reading.unseen.is_some());
                    let unseen = reading.unseen.clone().filter(|_| first || was_unseen);
                    let unseen = unseen.map(|reason| Cause {
                        reason,
                        lasting: false,
                    });
                    entry.set(verdict(reading).map(Cause::lasting).or(unseen), now);
                }
            }
        }
        let seen = |uuid: &GpuUuid| observation.devices.iter().any(|d| d.identity.uuid == *uuid);
        for (uuid, entry) in &mut self.cards {
            if !seen(uuid) {
                entry.vanish(now);
            }
        }
    }

    /// Applies a fault.
    pub fn fault(&mut self, xid: &Xid, now: Instant) {
        let (what, lasting) = match classify(xid.number) {
            XidClass::Suspect => ("the card may need a reset", false),
            XidClass::NeedsReset => ("the card needs a reset", true),
            XidClass::Gone => ("the card fell off the bus", true),
            _ => return,
        };
        let entry = self.cards.entry(xid.gpu.clone()).or_default();
        if !lasting && entry.latched.as_ref().is_some_and(|l| l.lasting) {
            return;
        }
        entry.latched = Some(Latched {
            reason: format!("XID {}: {what}", xid.number),
            since: now,
            lasting,
        });
    }

    /// The health to show at `now`.
    pub fn health(&self, uuid: &GpuUuid, now: Instant) -> Health {
        let Some(entry) = self.cards.get(uuid) else {
            return Health::Healthy;
        };
        let unhealthy = |reason, lasting| Health::Unhealthy { reason, lasting };
        let lasted = |since: Instant| now.saturating_duration_since(since);
        match entry {
            Entry {
                latched: Some(latched),
                cause,
                ..
            } if latched.lasting || !cause.as_ref().is_some_and(|c| c.lasting) => {
                unhealthy(latched.reason.clone(), latched.lasting)
            }
            Entry {
                cause: Some(cause), ..
            } => unhealthy(cause.reason.clone(), cause.lasting),
            // A card that has never answered has no state.
            Entry {
                silent: Some(silence),
                known,
                ..
            } if !known || lasted(silence.since) >= SILENT_AFTER => unhealthy(
                unanswered(&silence.reason),
                !silence.hangs && lasted(silence.since) >= LOST_AFTER,
            ),
            Entry {
                last: Some((last, until)),
                ..
            } if lasted(*until) < RECOVER_AFTER => unhealthy(format!("{last} (recovering)"), false),
            _ => Health::Healthy,
        }
    }
}

impl Entry {
    fn set(&mut self, cause: Option<Cause>, now: Instant) {
        let cause_shown = cause.as_ref().map(|cause| &cause.reason);
        let shown = cause_shown.or(self.latched.as_ref().map(|l| &l.reason));
        if let Some(shown) = shown {
            self.last = Some((shown.clone(), now));
        }
        self.cause = cause;
    }

    fn fall_silent(&mut self, card: &UnreadableCard, now: Instant) {
        // The driver is back.
        self.cause.take_if(|cause| !cause.lasting);
        let same = self.silent.as_ref().filter(|last| last.hangs == card.hangs);
        let since = same.map_or(now, |last| last.since);
        if !self.known || now.saturating_duration_since(since) >= SILENT_AFTER {
            self.last = Some((unanswered(&card.reason), now));
        }
        self.silent = Some(Silence {
            since,
            reason: card.reason.clone(),
            hangs: card.hangs,
        });
    }

    /// The driver lists it no longer. One that starts lists cards one by one, and a card whose name
    /// cannot be read once is not gone.
    fn vanish(&mut self, now: Instant) {
        let reason = "the driver no longer lists the card".to_owned();
        let since = self.silent.as_ref().filter(|last| !last.hangs);
        let since = since.map_or(now, |last| last.since);
        self.silent = Some(Silence {
            since,
            reason: reason.clone(),
            hangs: false,
        });
        let was_lost = self.cause.as_ref().is_some_and(|cause| cause.lasting);
        let lasting = was_lost || now.saturating_duration_since(since) >= LOST_AFTER;
        self.set(Some(Cause { reason, lasting }), now);
    }

    fn forget_latched(&mut self, now: Instant) {
        if let Some(latched) = self.latched.take() {
            self.last = Some((latched.reason, now));
        }
    }

    /// The driver says that nothing is needed, and has had time to say otherwise.
    fn unlatch(&mut self, reading: &Reading, now: Instant) {
        let latched = self.latched.as_ref();
        let lasted = latched.map(|l| now.saturating_duration_since(l.since));
        let settled = lasted.is_some_and(|lasted| lasted >= RECOVER_AFTER);
        let unsaid = reading.counters.recovery_action.is_none()
            && latched.is_some_and(|l| !l.lasting)
            && lasted.is_some_and(|lasted| lasted >= SUSPECT_FOR);
        let cleared = settled && reading.counters.recovery_action == Some(0) || unsaid;
        if cleared {
            self.forget_latched(now);
        }
    }
}

fn unanswered(reason: &str) -> String {
    format!("the card does not answer: {reason}")
}

/// What one look at a card that answers says against it.
fn verdict(reading: &Reading) -> Option<String> {
    let action = match reading.counters.recovery_action {
        Some(1) => "a reset of the card",
        Some(2) => "a reboot of the node",
        Some(3) => "draining the card's peers",
        Some(4) => "draining and a reset of the card",
        Some(other) if other > 0 => "a recovery action",
        _ if reading.counters.remap_failed == Some(true) => {
            return Some("a memory row could not be remapped".to_owned());
        }
        _ => return None,
    };
    Some(format!("the driver asks for {action}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::{Counters, Device, Identity};

    fn uuid() -> GpuUuid {
        GpuUuid::from("GPU-1")
    }

    fn look(reading: Result<Reading, UnreadableCard>) -> Observation {
        Observation {
            driver: Driver::Up {
                version: "570".into(),
            },
            devices: vec![Device {
                identity: Identity {
                    uuid: uuid(),
                    index: 0,
                    minor: 0,
                    product: String::new(),
                    pci: String::new(),
                    compute_capability: String::new(),
                    numa: None,
                    nvlink_peers: Vec::new(),
                    slice: None,
                },
                reading,
            }],
        }
    }

    fn fine(action: Option<u32>) -> Observation {
        look(Ok(Reading {
            counters: Counters {
                recovery_action: action,
                ..Counters::default()
            },
            ..Reading::default()
        }))
    }

    fn silent(reason: &str, lost: bool) -> Observation {
        look(Err(UnreadableCard {
            reason: reason.to_owned(),
            lost,
            hangs: false,
        }))
    }

    fn xid(number: u64) -> Xid {
        Xid {
            gpu: uuid(),
            number,
        }
    }

    #[test]
    fn faults_of_programs_change_nothing() {
        let (mut builder, now) = (HealthHistory::default(), Instant::now());
        for number in [13, 31, 43, 45, 94, 63, 74, 154, 4711] {
            builder.fault(&xid(number), now);
            builder.observe(&fine(Some(0)), now);
            assert!(builder.health(&uuid(), now).is_healthy(), "XID {number}");
        }
    }

    #[test]
    fn a_card_that_needs_a_reset_stays_unhealthy_until_the_driver_says_otherwise() {
        let (mut builder, start) = (HealthHistory::default(), Instant::now());
        builder.observe(&fine(Some(0)), start);
        builder.fault(&xid(48), start);
        assert_eq!(
            builder.health(&uuid(), start).reason(),
            "XID 48: the card needs a reset"
        );
        // Too early: the driver may not have made up its mind.
        builder.observe(&fine(Some(0)), start + Duration::from_secs(1));
        assert!(
            !builder
                .health(&uuid(), start + Duration::from_secs(1))
                .is_healthy()
        );
        builder.observe(&fine(Some(1)), start + Duration::from_mins(1));
        let later = start + Duration::from_mins(2);
        builder.observe(&fine(Some(0)), later);
        assert!(!builder.health(&uuid(), later).is_healthy(), "recovering");
        assert!(builder.health(&uuid(), later + RECOVER_AFTER).is_healthy());
    }

    #[test]
    fn what_a_tenant_may_have_done_to_a_card_evicts_nobody_until_the_driver_says_so() {
        for (action, lasting) in [(Some(0), false), (Some(1), true), (None, false)] {
            let (mut builder, start) = (HealthHistory::default(), Instant::now());
            builder.fault(&xid(109), start);
            builder.observe(&fine(action), start);
            let health = builder.health(&uuid(), start);
            assert!(!health.is_healthy());
            assert_eq!(health.is_lasting(), lasting, "{action:?}");
            let later = start + SUSPECT_FOR;
            builder.observe(&fine(action), later);
            let health = builder.health(&uuid(), later + RECOVER_AFTER);
            assert_eq!(health.is_healthy(), action != Some(1), "{action:?}");
        }
    }

    #[test]
    fn a_card_whose_processes_are_not_told_takes_nothing_new() {
        let (mut builder, start) = (HealthHistory::default(), Instant::now());
        let reason = "the driver does not tell its MPS processes: not supported";
        let blind = look(Ok(Reading {
            unseen: Some(reason.into()),
            ..Reading::default()
        }));
        builder.observe(&blind, start);
        let health = builder.health(&uuid(), start);
        assert_eq!(health.reason(), reason);
        assert!(!health.is_lasting());
        builder.observe(&fine(None), start);
        assert!(builder.health(&uuid(), start + RECOVER_AFTER).is_healthy());
    }

    #[test]
    fn without_the_drivers_verdict_only_another_driver_clears() {
        let (mut builder, start) = (HealthHistory::default(), Instant::now());
        builder.observe(&fine(None), start);
        builder.fault(&xid(79), start);
        let later = start + Duration::from_hours(1);
        builder.observe(&fine(None), later);
        assert!(!builder.health(&uuid(), later).is_healthy());
        // A session of NVML that ends resets no card.
        builder.observe(&Observation::default(), later);
        let later = later + Duration::from_hours(1);
        builder.observe(&fine(None), later);
        let health = builder.health(&uuid(), later + RECOVER_AFTER);
        assert_eq!(health.reason(), "XID 79: the card fell off the bus");
        assert!(health.is_lasting());
        builder.observe(&Observation::default(), later);
        let other = Observation {
            driver: Driver::Up {
                version: "580".into(),
            },
            ..fine(None)
        };
        builder.observe(&other, later);
        assert!(!builder.health(&uuid(), later).is_healthy(), "recovering");
        assert!(builder.health(&uuid(), later + RECOVER_AFTER).is_healthy());
    }

    #[test]
    fn a_card_that_blinks_does_not_flap() {
        let (mut builder, start) = (HealthHistory::default(), Instant::now());
        let mut now = start;
        for _ in 0..5 {
            builder.observe(&silent("GPU is lost", true), now);
            assert!(!builder.health(&uuid(), now).is_healthy());
            now += Duration::from_secs(3);
            builder.observe(&fine(Some(0)), now);
            assert!(!builder.health(&uuid(), now).is_healthy());
            now += Duration::from_secs(3);
        }
        builder.observe(&fine(Some(0)), now + RECOVER_AFTER);
        assert!(builder.health(&uuid(), now + RECOVER_AFTER).is_healthy());
    }

    #[test]
    fn a_card_that_does_not_answer_at_once_costs_nobody_anything() {
        let (mut builder, start) = (HealthHistory::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        builder.observe(&fine(Some(0)), start);
        for second in 1..=2 {
            builder.observe(&silent("insufficient size", false), at(second));
            assert!(builder.health(&uuid(), at(second)).is_healthy(), "{second}");
            builder.observe(&fine(Some(0)), at(3));
        }
        // From here on it stays silent.
        for second in 10..=25 {
            builder.observe(&silent("timeout", false), at(second));
            let health = builder.health(&uuid(), at(second));
            assert_eq!(health.is_healthy(), second < 13, "{second}");
            assert_eq!(health.is_lasting(), second == 25, "{second}");
        }
        // It answers again: its containers stay, and it takes no new ones yet.
        builder.observe(&fine(Some(0)), at(26));
        let health = builder.health(&uuid(), at(26));
        assert!(!health.is_healthy() && !health.is_lasting());
        assert_eq!(
            health.reason(),
            "the card does not answer: timeout (recovering)"
        );
        assert!(builder.health(&uuid(), at(40)).is_healthy());
    }

    #[test]
    fn a_card_that_never_answered_is_unhealthy_at_once() {
        let (mut builder, now) = (HealthHistory::default(), Instant::now());
        builder.observe(&silent("timeout", false), now);
        let health = builder.health(&uuid(), now);
        assert!(!health.is_healthy() && !health.is_lasting());
    }

    #[test]
    fn a_driver_that_is_back_and_a_card_that_is_slow_evict_nobody_at_once() {
        let (mut builder, start) = (HealthHistory::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        builder.observe(&fine(Some(0)), start);
        builder.observe(&Observation::default(), at(1));
        assert!(!builder.health(&uuid(), at(1)).is_healthy());
        assert!(!builder.health(&uuid(), at(1)).is_lasting());
        for second in 2..=17 {
            builder.observe(&silent("timeout", false), at(second));
            let health = builder.health(&uuid(), at(second));
            assert!(!health.is_healthy(), "{second}");
            assert_eq!(health.is_lasting(), second == 17, "{second}");
        }
    }

    #[test]
    fn a_card_that_two_looks_find_lost_is_so_for_all_and_by_one_it_takes_nothing_new() {
        let (mut builder, now) = (HealthHistory::default(), Instant::now());
        for between in [fine(Some(0)), silent("timeout", false)] {
            builder.observe(&between, now);
            builder.observe(&silent("GPU is lost", true), now);
            let health = builder.health(&uuid(), now);
            assert!(!health.is_healthy() && !health.is_lasting());
        }
        builder.observe(&silent("GPU is lost", true), now);
        assert!(builder.health(&uuid(), now).is_lasting());
    }

    #[test]
    fn a_card_with_a_call_that_hangs_takes_nothing_new_and_evicts_nobody_however_long_it_does() {
        let (mut builder, start) = (HealthHistory::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let hanging = look(Err(UnreadableCard {
            reason: "hangs".into(),
            lost: false,
            hangs: true,
        }));
        builder.observe(&fine(None), start);
        for second in 1..=60 {
            builder.observe(&hanging, at(second));
            let health = builder.health(&uuid(), at(second));
            assert_eq!(health.is_healthy(), second < 4, "{second}");
            assert!(!health.is_lasting(), "{second}");
        }
        // The call now returns an error, so the time without an answer is counted from here again.
        builder.observe(&silent("timeout", false), at(61));
        assert!(!builder.health(&uuid(), at(61)).is_lasting());
        builder.observe(&fine(None), at(62));
        assert!(!builder.health(&uuid(), at(62)).is_lasting());
        assert!(builder.health(&uuid(), at(72)).is_healthy());
    }

    #[test]
    fn while_the_driver_is_late_every_card_is_what_it_was() {
        let (mut builder, start) = (HealthHistory::default(), Instant::now());
        let late = Observation {
            driver: Driver::Late {
                version: "570".into(),
                reason: "unknown error".into(),
            },
            devices: Vec::new(),
        };
        builder.observe(&fine(Some(0)), start);
        builder.observe(&late, start + Duration::from_secs(1));
        let health = builder.health(&uuid(), start + Duration::from_secs(1));
        assert_eq!(health, Health::Healthy);
    }

    #[test]
    fn a_card_that_is_not_listed_takes_nothing_new_and_evicts_nobody_at_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let unlisted = Observation {
            devices: Vec::new(),
            ..fine(None)
        };
        let mut builder = HealthHistory::default();
        builder.observe(&fine(Some(0)), start);
        for second in 1..=16 {
            builder.observe(&unlisted, at(second));
            let health = builder.health(&uuid(), at(second));
            assert!(!health.is_healthy(), "{second}");
            assert_eq!(health.is_lasting(), second == 16, "{second}");
        }
        builder.observe(&fine(Some(0)), at(17));
        assert!(!builder.health(&uuid(), at(17)).is_lasting());
        assert!(builder.health(&uuid(), at(27)).is_healthy());
        // One that was lost before stays lost.
        builder.observe(&silent("GPU is lost", true), at(29));
        builder.observe(&silent("GPU is lost", true), at(30));
        builder.observe(&unlisted, at(31));
        assert!(builder.health(&uuid(), at(31)).is_lasting());
    }

    #[test]
    fn a_card_that_vanished_is_unhealthy_and_a_driver_that_vanished_takes_all() {
        let (mut builder, now) = (HealthHistory::default(), Instant::now());
        builder.observe(&fine(Some(0)), now);
        let empty = Observation {
            devices: Vec::new(),
            ..fine(None)
        };
        builder.observe(&empty, now);
        assert_eq!(
            builder.health(&uuid(), now).reason(),
            "the driver no longer lists the card"
        );
        builder.observe(&Observation::default(), now);
        assert!(
            builder
                .health(&uuid(), now)
                .reason()
                .starts_with("the driver does not answer")
        );
    }
}
