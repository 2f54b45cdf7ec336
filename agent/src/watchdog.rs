//! Which container holds more than its share, and which uses a card past its MPS server.
//!
//! Pure. In: [`Sample`]s, the ledger, time as a value. Out: [`Finding`]s, each at the moment
//! at which something is to be done about it. One sample is never enough: what a process
//! holds is read card by card, list by list, while it starts and ends. Must never judge by
//! an old sample, or a process by anything but its cgroup.

use crate::gpu::GpuUuid;
use crate::ledger::{Ledger, LimitScope, Share};
use crate::mps::plan::server_name;
use crate::nvml::{Process, Sample};
use api::units::Fence;
use api::{Mib, Mode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// A sample that waited longer than this says nothing of now.
pub const STALE: Duration = Duration::from_millis(400);
/// A card without a valid sample for this time is unguarded: limits that only the watchdog enforces
/// are not enforced on it.
pub const BLIND: Duration = Duration::from_secs(5);
/// Number of samples within [`WINDOW`] that convict a container.
const STRIKES: usize = 2;
/// This many are enough even if no process was seen twice.
const MANY_STRIKES: usize = 5;
/// Longer than the period of a tenant that allocates and frees between two samples, and longer than
/// the pause between any two readings: if samples fail, full readings, at most 1 s apart, count as
/// strikes.
const WINDOW: Duration = Duration::from_millis(2500);
/// A process past its server is ended after this time: it is not documented in which of its lists a
/// driver has a client while it connects. Its memory counts in the meantime.
const LISTED_LATE: Duration = Duration::from_millis(500);
/// Every share has at least this many clients, however many shares there are: a program and one
/// that it starts.
const LEAST_CLIENTS: usize = 2;
/// How long after its detection a suspect is sampled more often.
const SOON: Duration = Duration::from_millis(200);
/// Between two actions against the same container for the same thing.
const AGAIN: Duration = Duration::from_secs(1);
/// A container without a violation for this time is no longer suspected.
const FORGIVEN: Duration = Duration::from_secs(10);

/// The violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViolationKind {
    /// Its processes hold more than its limit.
    Memory,
    /// A process of it is no client of the server that its share is held by.
    PastServer,
    /// It has more clients than its part, and others cannot have theirs.
    Clients,
    /// Its processes hold more than is kept for it, and what is kept for others is short.
    Pressure,
}

/// What a container may.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// What the driver's figure of a process may be off by.
    pub slack: Mib,
    /// Clients that one MPS server takes.
    pub client_slots: u32,
}

impl ViolationKind {
    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::PastServer => "past-server",
            Self::Clients => "clients",
            Self::Pressure => "pressure",
        }
    }
}

/// Something is to be done about what a container holds, or what the containers of a claim do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Of which share.
    pub hold: LimitScope,
    /// The claim, `namespace/name`, where several containers have it.
    pub claim: Option<String>,
    /// On which card.
    pub gpu: GpuUuid,
    /// The violation.
    pub wrong: ViolationKind,
    /// What its processes hold on the card.
    pub held: Mib,
    /// Their limit; under pressure, what is kept for them.
    pub limit: Mib,
    /// Its processes on the card.
    pub own: Vec<ShareProcess>,
    /// Those of them that are wrong by themselves. A process that ends while lists are
    /// read is on one of them only, once.
    offenders: Vec<u32>,
    /// False: seen for the first time, and only worth a line.
    pub sure: bool,
}

/// A process of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareProcess {
    /// On the host.
    pub pid: u32,
    /// UID of its pod.
    pub pod_uid: String,
    /// Its container, as its cgroup names it.
    pub container_id: Option<String>,
}

impl ShareProcess {
    fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            pod_uid: process.origin.pod_uid.clone().unwrap_or_default(),
            container_id: process.origin.container_id.clone(),
        }
    }
}

impl Finding {
    /// One sentence.
    pub fn text(&self) -> String {
        match self.wrong {
            ViolationKind::Memory => match &self.claim {
                None => format!(
                    "holds {} of card {}, {} were granted",
                    self.held, self.gpu, self.limit
                ),
                Some(claim) => format!(
                    "is one of the containers of claim {claim}, which hold {} of card {} together, {} were granted",
                    self.held, self.gpu, self.limit
                ),
            },
            ViolationKind::PastServer => format!(
                "uses card {} past its MPS server and holds {}",
                self.gpu, self.held
            ),
            ViolationKind::Clients => format!(
                "has {} processes on the MPS server of card {} and leaves none to others",
                self.own.len(),
                self.gpu
            ),
            ViolationKind::Pressure => format!(
                "holds {} of card {}, {} are kept for it, and the rest is needed for what is kept for the others of the card",
                self.held, self.gpu, self.limit
            ),
        }
    }
}

/// Its state between samples.
#[derive(Clone, Debug, Default)]
pub struct Watchdog {
    suspects: BTreeMap<(LimitScope, GpuUuid, ViolationKind), Suspect>,
    /// Of each watched card, the time of the last sample that was judged, or since when it is
    /// watched.
    judged: BTreeMap<GpuUuid, Instant>,
    /// Samples of single cards that were too old to be judged.
    stale: u64,
}

#[derive(Clone, Debug, Default)]
struct Suspect {
    strikes: VecDeque<(Instant, Vec<u32>)>,
    last: Option<Instant>,
    acted: Option<Instant>,
    text: String,
}

impl Watchdog {
    /// Judges one sample.
    pub fn judge(
        &mut self,
        sample: &Sample,
        ledger: &Ledger,
        allowance: &Allowance,
        now: Instant,
    ) -> Vec<Finding> {
        self.suspects.retain(|(hold, ..), suspect| {
            let recent = suspect
                .last
                .is_some_and(|last| now.saturating_duration_since(last) < FORGIVEN);
            recent && ledger.holders(hold).next().is_some()
        });
        let mut findings = Vec::new();
        for card in &sample.cards {
            if now.saturating_duration_since(card.at) > STALE {
                self.stale = self.stale.saturating_add(1);
                continue;
            }
            self.judged.insert(card.uuid.clone(), card.at);
            let parts = parts(&card.uuid, &card.processes, ledger, allowance.client_slots);
            for share in ledger.holds_on(&card.uuid) {
                let may = ShareLimits {
                    slack: allowance.slack,
                    clients: server_name(share).and_then(|name| parts.get(&name).copied()),
                };
                for finding in against(share, &card.uuid, &card.processes, ledger, &may) {
                    findings.extend(self.strike(finding, card.at));
                }
            }
        }
        findings
    }

    /// Which shares must give back memory that is kept for others, by one sample: on each card
    /// those furthest above what is kept for them, until the rest of the card is enough for all
    /// that is kept and not held yet. Never a share that holds no more than is kept for it. `room`:
    /// the card's memory beyond all that is kept on it.
    pub fn press(
        &mut self,
        sample: &Sample,
        ledger: &Ledger,
        slack: Mib,
        room: impl Fn(&GpuUuid) -> Option<Mib>,
        now: Instant,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for card in &sample.cards {
            let fresh = now.saturating_duration_since(card.at) <= STALE;
            let Some(room) = room(&card.uuid).filter(|_| fresh) else {
                continue;
            };
            for finding in pressing(&card.uuid, &card.processes, ledger, slack, room) {
                findings.extend(self.strike(finding, card.at));
            }
        }
        findings
    }

    /// Samples of these cards are expected from now on, and of no others.
    pub fn watch(&mut self, cards: &BTreeSet<GpuUuid>, now: Instant) {
        self.judged.retain(|card, _| cards.contains(card));
        for card in cards {
            self.judged.entry(card.clone()).or_insert(now);
        }
    }

    /// Watched cards of which nothing could be judged for too long.
    pub fn unjudged(&self, now: Instant) -> impl Iterator<Item = &GpuUuid> {
        let judged = self.judged.iter();
        let blind = judged.filter(move |(_, at)| now.saturating_duration_since(**at) >= BLIND);
        blind.map(|(card, _)| card)
    }

    /// How many samples of single cards were too old to be judged.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    fn strike(&mut self, mut finding: Finding, at: Instant) -> Option<Finding> {
        let name = (finding.hold.clone(), finding.gpu.clone(), finding.wrong);
        let suspect = self.suspects.entry(name).or_default();
        let fresh = suspect.last.is_none();
        suspect.last = Some(at);
        suspect.text = finding.text();
        suspect
            .strikes
            .retain(|(strike, _)| at.saturating_duration_since(*strike) < WINDOW);
        let offenders = std::mem::take(&mut finding.offenders);
        let late = match finding.wrong {
            ViolationKind::PastServer => LISTED_LATE,
            ViolationKind::Memory | ViolationKind::Clients | ViolationKind::Pressure => {
                Duration::ZERO
            }
        };
        let mut old = suspect
            .strikes
            .iter()
            .filter(|(strike, _)| at.saturating_duration_since(*strike) >= late)
            .peekable();
        let lasts = old.peek().is_some();
        let seen = |pid: &u32| old.clone().any(|(_, before)| before.contains(pid));
        let again = finding.wrong != ViolationKind::PastServer || offenders.iter().any(seen);
        suspect.strikes.push_back((at, offenders));
        let strikes = suspect.strikes.len();
        finding.sure = lasts && (strikes >= STRIKES && again || strikes >= MANY_STRIKES);
        let rested = suspect
            .acted
            .is_none_or(|acted| at.saturating_duration_since(acted) >= AGAIN);
        if finding.sure && rested {
            suspect.acted = Some(at);
            return Some(finding);
        }
        fresh.then_some(finding)
    }

    /// Whether a container was just seen to do wrong and nothing was done about it yet: the
    /// next sample is worth having soon.
    pub fn suspects(&self, now: Instant) -> bool {
        self.suspects.values().any(|suspect| {
            let acted = suspect
                .acted
                .is_some_and(|acted| now.saturating_duration_since(acted) < FORGIVEN);
            let last = suspect.last;
            !acted && last.is_some_and(|last| now.saturating_duration_since(last) < SOON)
        })
    }

    /// The complaints about a share, one sentence each; none if there are none.
    pub fn complaints(&self, hold: &LimitScope) -> impl Iterator<Item = (ViolationKind, &str)> {
        let suspects = self.suspects.iter();
        let acted = suspects.filter(move |((of, ..), one)| of == hold && one.acted.is_some());
        acted.map(|((.., wrong), suspect)| (*wrong, suspect.text.as_str()))
    }
}

/// How many clients each share of a server may have, by the server's name, where it does not
/// take enough for all of its shares; a share that has fewer can then not have its own. The
/// only share of a server takes from no other.
fn parts(
    card: &GpuUuid,
    processes: &[Process],
    ledger: &Ledger,
    slots: u32,
) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for share in ledger
        .holds_on(card)
        .filter(|share| share.alloc_id.is_some())
    {
        if let Some(name) = server_name(share) {
            let count = clients(share, processes, ledger).count();
            counts.entry(name).or_default().push(count);
        }
    }
    let slots = usize::try_from(slots).unwrap_or(usize::MAX);
    let part = |counts: Vec<usize>| {
        let free = slots.saturating_sub(counts.iter().sum());
        // One for each that has none yet, and one for the next process of any share.
        let wanted = counts.iter().filter(|count| **count == 0).count().max(1);
        let part = slots.checked_div(counts.len())?.max(LEAST_CLIENTS);
        (counts.len() > 1 && free < wanted).then_some(part)
    };
    let parts = counts.into_iter();
    parts
        .filter_map(|(name, counts)| Some((name, part(counts)?)))
        .collect()
}

fn clients<'a>(
    share: &'a Share,
    processes: &'a [Process],
    ledger: &'a Ledger,
) -> impl Iterator<Item = &'a Process> {
    own(share, processes, ledger).filter(|process| process.mps_client)
}

/// Processes that count for a share, whichever of its containers they are of.
fn own<'a>(
    share: &'a Share,
    processes: &'a [Process],
    ledger: &'a Ledger,
) -> impl Iterator<Item = &'a Process> {
    let hold = share.limit_scope();
    let rows: Vec<&Share> = (ledger.shares())
        .filter(|row| row.limit_scope() == hold)
        .collect();
    processes
        .iter()
        .filter(move |process| rows.iter().any(|row| is_of(process, row, ledger)))
}

/// Shares of a card that hold more than is kept for them, and how much more: the most first.
fn above(
    card: &GpuUuid,
    processes: &[Process],
    ledger: &Ledger,
    slack: Mib,
) -> Vec<(Mib, Finding)> {
    let mut above: Vec<(Mib, Finding)> = Vec::new();
    for share in ledger
        .holds_on(card)
        .filter(|share| share.kept < share.memory)
    {
        let own: Vec<&Process> = own(share, processes, ledger).collect();
        let held = held_by(&own);
        if held.0 <= share.kept.0.saturating_add(slack.0) {
            continue;
        }
        let finding = Finding {
            limit: share.kept,
            ..found(share, card, ViolationKind::Pressure, held, &own, ledger)
        };
        above.push((held.saturating_sub(share.kept), finding));
    }
    above.sort_by(|(one, a), (other, b)| other.cmp(one).then_with(|| a.hold.cmp(&b.hold)));
    above
}

fn sum(above: &[(Mib, Finding)]) -> Mib {
    let amounts = above.iter().map(|(above, _)| above.0);
    Mib(amounts.fold(0, u64::saturating_add))
}

/// How much of what is kept on a card its shares hold above what is kept for each of them.
/// `room`: what the card has beside all that is kept on it.
pub fn lacking(
    card: &GpuUuid,
    processes: &[Process],
    ledger: &Ledger,
    slack: Mib,
    room: Mib,
) -> Mib {
    sum(&above(card, processes, ledger, slack)).saturating_sub(room)
}

/// The shares that must give memory back, in order of the excess over what is kept for them.
fn pressing(
    card: &GpuUuid,
    processes: &[Process],
    ledger: &Ledger,
    slack: Mib,
    room: Mib,
) -> Vec<Finding> {
    let above = above(card, processes, ledger, slack);
    let mut taken = sum(&above);
    let mut findings = Vec::new();
    for (above, finding) in above {
        if taken <= room {
            break;
        }
        taken = taken.saturating_sub(above);
        findings.push(finding);
    }
    findings
}

fn held_by(own: &[&Process]) -> Mib {
    own.iter()
        .filter_map(|process| process.memory)
        .fold(Mib(0), |sum, one| Mib(sum.0.saturating_add(one.0)))
}

fn found(
    share: &Share,
    card: &GpuUuid,
    wrong: ViolationKind,
    held: Mib,
    own: &[&Process],
    ledger: &Ledger,
) -> Finding {
    let hold = share.limit_scope();
    let several = ledger.holders(&hold).nth(1).is_some();
    Finding {
        hold,
        claim: share.claim_name().filter(|_| several),
        gpu: card.clone(),
        wrong,
        held,
        limit: share.memory,
        own: own
            .iter()
            .map(|process| ShareProcess::of(process))
            .collect(),
        offenders: Vec::new(),
        sure: false,
    }
}

/// What a share may on a card.
struct ShareLimits {
    slack: Mib,
    clients: Option<usize>,
}

/// What one share's processes on one card are found to do wrong.
fn against(
    share: &Share,
    card: &GpuUuid,
    processes: &[Process],
    ledger: &Ledger,
    may: &ShareLimits,
) -> Vec<Finding> {
    if share.mode == Mode::Exclusive {
        return Vec::new();
    }
    let own: Vec<&Process> = own(share, processes, ledger).collect();
    let held = held_by(&own);
    let finding = |wrong, offenders| Finding {
        offenders,
        ..found(share, card, wrong, held, &own, ledger)
    };
    let served = share.is_served();
    let mut findings = Vec::new();
    let past: Vec<u32> = own
        .iter()
        .filter(|process| served && !process.mps_client)
        .map(|process| process.pid)
        .collect();
    if !past.is_empty() {
        findings.push(finding(ViolationKind::PastServer, past));
    }
    let slack = may.slack.max(rounding(share));
    if held.0 > share.memory.0.saturating_add(slack.0) {
        findings.push(finding(ViolationKind::Memory, Vec::new()));
    }
    let clients: Vec<ShareProcess> = clients(share, processes, ledger)
        .map(ShareProcess::of)
        .collect();
    if may.clients.is_some_and(|part| clients.len() > part) {
        findings.push(Finding {
            own: clients,
            ..finding(ViolationKind::Clients, Vec::new())
        });
    }
    findings
}

/// What a program may hold beyond a limit that MPS keeps it to. The limit counts the bytes that
/// are asked for, and NVML the pages of 2 MiB that they take: on driver 580.159.04 a program that
/// was refused by its limit, with allocations of 449 MiB, held 64 MiB more by NVML. Without this
/// it would be ended for it. Larger buffers than 64 MiB on average stay within.
fn rounding(share: &Share) -> Mib {
    const PART: u64 = 64;
    let kept = share
        .fence
        .is_some_and(|fence| matches!(fence.level, Fence::ServerLimit | Fence::ClientLimit));
    Mib(if kept { share.memory.0 / PART } else { 0 })
}

/// Whether a process counts for a share, as one of its containers has it. Where a pod has one
/// share, every process of the pod does: a container that just started again has another id
/// than was written down.
pub fn is_of(process: &Process, share: &Share, ledger: &Ledger) -> bool {
    if process.origin.pod_uid.as_deref() != Some(share.pod.uid.as_str()) {
        return false;
    }
    let hold = share.limit_scope();
    let mut others = ledger
        .shares()
        .filter(|other| other.pod.uid == share.pod.uid && other.limit_scope() != hold);
    if others.next().is_none() {
        return true;
    }
    match (&process.origin.container_id, &share.container_id) {
        (Some(its), Some(known)) => its == known,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
