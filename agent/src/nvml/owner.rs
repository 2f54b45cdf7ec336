//! This thread owns NVML and makes no call of it: it decides what is read when, and publishes it.

use super::card::{Answer, Card, CardContext, CardJob, HANGS_AFTER};
use super::driver::DriverJob;
use super::error::{ErrorClass, trouble};
use super::layout::{LayoutOrder, LayoutResult};
use super::observation::{Device, Driver, Identity, Observation, Sample, Watched, Xid};
use super::read;
use super::report::{CardReport, Loaded, Report};
use super::settings::Settings;
use crate::gpu::GpuUuid;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Each wait is cut into pieces of this length, so that the thread notices a stop.
const SLICE: Duration = Duration::from_millis(100);
/// Each wait is this long at most while cards are watched, so that the thread notices a suspicion.
const WATCHING: Duration = Duration::from_millis(20);
/// The first and the longest pause before the library is loaded again.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// After this many full readings without an answer from any card, the library is loaded again.
const SILENT_LOOKS: u32 = 3;
/// While a card is lost, the library is loaded again this often: a card that came back
/// after a reset answers to new handles only.
const LOST_RELOAD: Duration = Duration::from_secs(30);
/// A driver that answered before becomes late first. It is gone when this number of sessions of the
/// library have failed in a row.
const FAILED_SESSIONS: u32 = 2;
/// A driver that answered before is also gone when this time has passed. A driver that is gone
/// costs pods: its tokens are withdrawn, and the kubelet rejects each pod that needs one,
/// permanently.
const GONE_AFTER: Duration = Duration::from_secs(5);
/// When this number of counts have failed in a row, the library is loaded again. Events that occur
/// meanwhile are lost.
const FAILED_COUNTS: u32 = 2;
/// The owner waits this long for the threads of a session to end, unless a call of theirs hangs.
const LEAVE: Duration = Duration::from_secs(1);

/// The text for a card whose XIDs are not heard.
const DEAF: &str = "the driver's call that waits for the card's events does not return";

/// The channels to which the owner publishes.
pub(super) struct Outputs {
    pub observations: watch::Sender<Arc<Observation>>,
    pub samples: channel::Sender<Arc<Sample>>,
    pub xids: channel::Sender<Xid>,
    pub layouts: channel::Sender<LayoutResult>,
}

/// The state of the owner's thread.
pub(super) struct Owner {
    pub settings: Arc<Settings>,
    pub watched: watch::Receiver<Watched>,
    pub out: Outputs,
    pub orders: Receiver<LayoutOrder>,
    pub stop: CancellationToken,
    /// The channel to the thread that makes the calls about the driver.
    pub driver: Sender<DriverJob>,
    /// The channel on which the reports of all threads arrive.
    pub inbox: Receiver<Report>,
    /// The sender that the threads of cards get for their reports.
    pub reports: Sender<Report>,
    pub state: OwnerState,
}

/// The state that outlives a session.
#[derive(Default)]
pub(super) struct OwnerState {
    /// The number of the last session.
    sessions: u64,
    /// The cards of ended sessions with a call that has not returned, by index. Such a card gets no
    /// other threads until these have ended.
    lingering: BTreeMap<u32, Card>,
    /// The card of each index and its slices, as they were identified last.
    identities: BTreeMap<u32, Vec<Identity>>,
    /// The links of each card, as they were read last.
    links: BTreeMap<GpuUuid, Vec<String>>,
    /// The layouts that wait for the thread of their card.
    ordered: Vec<LayoutOrder>,
    /// Says since when the driver has not answered; `None` if it answered last.
    trouble: Option<Trouble>,
}

/// A time in which the driver has not answered.
struct Trouble {
    since: Instant,
    /// The number of sessions that have failed in this time.
    sessions: u32,
}

/// Why a session of the library ended.
enum End {
    Stopped,
    Lost(String),
    Reload,
}

/// A session: the library from one load to the next.
struct Session {
    context: CardContext,
    version: String,
    counted: u32,
    /// The cards by index.
    cards: BTreeMap<u32, Card>,
    /// True if the driver thread has not reported the last count yet.
    counting: bool,
    failed_counts: u32,
    silent: u32,
    lost_since: Option<Instant>,
    /// True if the cards have been asked for a look, and not all have answered.
    in_round: bool,
}

impl Owner {
    /// Runs until `stop`.
    pub(super) fn run(mut self) {
        let mut pause = RETRY.0;
        let mut old = None;
        while !self.stop.is_cancelled() {
            let started = Instant::now();
            let end = match self.load(old.take()) {
                None => End::Stopped,
                Some(Err(error)) => End::Lost(error.to_string()),
                Some(Ok(loaded)) => {
                    let (end, nvml) = self.session(loaded);
                    old = Some(nvml);
                    end
                }
            };
            match end {
                End::Stopped => break,
                End::Reload => continue,
                End::Lost(reason) => self.late(&reason, Instant::now(), 1),
            }
            if started.elapsed() > RETRY.1 {
                pause = RETRY.0;
            }
            self.sleep(pause);
            pause = (pause * 2).min(RETRY.1);
        }
        if let Some(nvml) = old {
            // Unloading the library is a call of NVML too, so the driver thread does it.
            let _ = self.driver.send(DriverJob::End(nvml));
        }
    }

    fn sleep(&self, total: Duration) {
        let until = Instant::now() + total;
        while !self.stop.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    /// Loads the library; returns `None` if the owner is stopped first.
    fn load(&mut self, old: Option<Arc<Nvml>>) -> Option<Result<Loaded, NvmlError>> {
        let asked = Instant::now();
        // The driver thread lives as long as this one.
        let _ = self.driver.send(DriverJob::Load(old));
        while !self.stop.is_cancelled() {
            match self.inbox.recv_timeout(SLICE) {
                Ok(Report::Loaded(loaded)) => return Some(loaded),
                Ok(_) => {}
                Err(_) if asked.elapsed() >= HANGS_AFTER => {
                    let reason = "a call of NVML about the driver has not returned";
                    self.late(reason, asked, 0);
                }
                Err(_) => {}
            }
        }
        None
    }

    /// Publishes that the driver has not answered since then, for this reason: it is late, then
    /// gone.
    fn late(&mut self, reason: &str, since: Instant, sessions: u32) {
        let trouble = self
            .state
            .trouble
            .get_or_insert(Trouble { since, sessions: 0 });
        trouble.sessions = trouble.sessions.saturating_add(sessions);
        let is_late = trouble.sessions < FAILED_SESSIONS && trouble.since.elapsed() < GONE_AFTER;
        let reason = reason.to_owned();
        let last = self.out.observations.borrow().driver.clone();
        let driver = match last.version() {
            Some(version) if is_late => Driver::Late {
                version: version.to_owned(),
                reason,
            },
            _ => Driver::Gone { reason },
        };
        if last != driver {
            tracing::warn!(?driver, "NVML does not answer; loading it again");
            self.out.observations.send_replace(Arc::new(Observation {
                driver,
                devices: Vec::new(),
            }));
        }
    }

    /// Runs one session. Returns how it ended, and the library, which the driver thread has to
    /// unload.
    fn session(&mut self, loaded: Loaded) -> (End, Arc<Nvml>) {
        self.state.sessions += 1;
        let nvml = Arc::clone(&loaded.nvml);
        let context = CardContext {
            settings: Arc::clone(&self.settings),
            nvml: loaded.nvml,
            session: self.state.sessions,
            over: CancellationToken::new(),
            samples: self.out.samples.clone(),
            xids: self.out.xids.clone(),
            layouts: self.out.layouts.clone(),
            reports: self.reports.clone(),
        };
        self.state
            .identities
            .retain(|index, _| *index < loaded.counted);
        let mut session = Session {
            context,
            version: loaded.version,
            counted: loaded.counted,
            cards: BTreeMap::new(),
            counting: false,
            failed_counts: 0,
            silent: 0,
            lost_since: None,
            in_round: false,
        };
        let end = self.serve(&mut session);
        self.leave(session);
        (end, nvml)
    }

    fn serve(&mut self, session: &mut Session) -> End {
        let mut next_look = Instant::now();
        let mut next_sample = next_look;
        // True if an event or a new layout makes the next look due at once.
        let mut soon = false;
        loop {
            if self.stop.is_cancelled() {
                return End::Stopped;
            }
            self.make_layouts(session);
            let now = Instant::now();
            let watched = self.watched.borrow().clone();
            if !session.in_round && (soon || now >= next_look) {
                soon = false;
                self.begin_round(session, &watched.cards, now);
            }
            if session.in_round && session.has_answered(now) {
                if let Some(end) = self.finish_round(session, now) {
                    return end;
                }
                next_look = now + self.settings.interval;
                // The look counts as a sample too.
                next_sample = now + self.settings.sample_interval;
            }
            if watched.closely {
                next_sample = next_sample.min(now);
            }
            let watches = !watched.cards.is_empty();
            if watches && now >= next_sample {
                session.sample(&watched.cards, now);
                // The next time follows from the last due time, so that the pace does not slip; a
                // missed sample is not made up for.
                next_sample = (next_sample + self.settings.sample_interval).max(now);
            }
            let mut wait = SLICE;
            if watches {
                let due = next_sample.saturating_duration_since(now);
                wait = due.min(WATCHING);
            }
            if !session.in_round {
                wait = wait.min(next_look.saturating_duration_since(now));
            }
            let Ok(report) = self.inbox.recv_timeout(wait) else {
                continue;
            };
            match self.take(session, report, &watched.cards) {
                Ok(happened) => soon |= happened,
                Err(end) => return end,
            }
        }
    }

    /// Asks all cards for a look, and the driver for their number; starts threads for new cards.
    fn begin_round(&mut self, session: &mut Session, watched: &BTreeSet<GpuUuid>, now: Instant) {
        session.in_round = true;
        if !session.counting {
            let job = DriverJob::Count(Arc::clone(&session.context.nvml));
            session.counting = self.driver.send(job).is_ok();
        }
        self.state.lingering.retain(|_, card| !card.has_left());
        for index in 0..session.counted {
            let there = session.cards.contains_key(&index);
            if there || self.state.lingering.contains_key(&index) {
                continue;
            }
            match Card::start(index, &session.context) {
                Ok(card) => drop(session.cards.insert(index, card)),
                // The next round tries again.
                Err(error) => tracing::warn!(index, %error, "a card has no thread"),
            }
        }
        for card in session.cards.values_mut() {
            card.answer = Answer::Awaited;
            if card.is_idle() {
                card.look(watched, now);
            }
        }
    }

    /// Publishes what the cards have answered. Returns how the session ends, if it does.
    fn finish_round(&mut self, session: &mut Session, now: Instant) -> Option<End> {
        session.in_round = false;
        let mut devices: BTreeMap<u32, Vec<Device>> = BTreeMap::new();
        for (index, card) in &self.state.lingering {
            devices.insert(*index, card.unanswered());
        }
        let mut hanging = !devices.is_empty();
        // True if a card or a slice that should be there has no reading.
        let mut missing = false;
        let mut driver_gone = false;
        for (index, card) in &mut session.cards {
            let deaf = card.is_deaf(now);
            let mut found = match std::mem::replace(&mut card.answer, Answer::Awaited) {
                Answer::Awaited => {
                    hanging = true;
                    card.unanswered()
                }
                Answer::Nameless(error) => {
                    missing = true;
                    driver_gone |= trouble(&error) == ErrorClass::DriverGone;
                    let last = self.state.identities.get(index);
                    let last = last.into_iter().flatten();
                    last.map(|identity| read::unreadable(identity, &error))
                        .collect()
                }
                Answer::Looked(look) => {
                    let known = card.known.as_ref();
                    // A card that cannot list its MIG devices counts as unchanged.
                    if look.listed.is_some() && known.is_some_and(|k| k.layout != look.listed) {
                        tracing::info!("the MIG instances of a card have changed");
                        return Some(End::Reload);
                    }
                    driver_gone |= look.driver_gone;
                    missing |= known.is_some_and(|known| known.incomplete.is_some());
                    missing |= look.devices.iter().any(|device| device.reading.is_err());
                    look.devices
                }
            };
            for device in &mut found {
                let own = &device.identity;
                let card = own.slice.as_ref().map_or(&own.uuid, |slice| &slice.parent);
                let links = self.state.links.get(card).cloned();
                device.identity.nvlink_peers = links.unwrap_or_default();
                if let Ok(reading) = &mut device.reading
                    && deaf
                {
                    reading.unseen = Some(DEAF.to_owned());
                }
            }
            devices.insert(*index, found);
        }
        let mut devices: Vec<Device> = devices.into_values().flatten().collect();
        // A card that was read at another index is dropped where its old index has no reading.
        let read = devices.iter().filter(|device| device.reading.is_ok());
        let read: BTreeSet<GpuUuid> = read.map(|d| d.identity.uuid.clone()).collect();
        devices.retain(|d| d.reading.is_ok() || !read.contains(&d.identity.uuid));
        let answered = devices.iter().any(|device| device.reading.is_ok());
        if !answered && driver_gone {
            return Some(End::Lost("it does not answer about any card".to_owned()));
        }
        let nothing = !answered && !hanging && !devices.is_empty();
        session.silent = if nothing { session.silent + 1 } else { 0 };
        self.state.trouble = None;
        self.out.observations.send_replace(Arc::new(Observation {
            driver: Driver::Up {
                version: session.version.clone(),
            },
            devices,
        }));
        if session.silent >= SILENT_LOOKS {
            return Some(End::Lost("no card answers".to_owned()));
        }
        if hanging || !missing {
            // While a call hangs the library is in use, so loading it again would change nothing.
            session.lost_since = None;
        } else if session.lost_since.get_or_insert(now).elapsed() > LOST_RELOAD {
            return Some(End::Reload);
        }
        self.listen(session, now);
        None
    }

    /// Reads the links of cards and listens to their events. Both may be slow, so they come after
    /// the first full reading has been published.
    fn listen(&mut self, session: &mut Session, now: Instant) {
        let lingering = self.state.lingering.values();
        let known = session.cards.values().chain(lingering);
        let known = known.filter_map(|card| card.known.as_ref()?.cards.first());
        let by_bus: BTreeMap<String, GpuUuid> = known
            .map(|card| (card.pci.clone(), card.uuid.clone()))
            .collect();
        let by_bus = Arc::new(by_bus);
        for card in session.cards.values_mut() {
            if card.known.is_none() || !card.is_idle() {
                continue;
            }
            if !std::mem::replace(&mut card.linked, true) {
                card.ask(CardJob::Links(Arc::clone(&by_bus)), now);
            }
            if let Err(error) = card.listen(&session.context) {
                tracing::warn!(index = card.index, %error, "no XID events yet");
            }
        }
    }

    /// Takes a report. Returns whether the cards should be read now, or how the session ends.
    fn take(
        &mut self,
        session: &mut Session,
        report: Report,
        watched: &BTreeSet<GpuUuid>,
    ) -> Result<bool, End> {
        let (index, what) = match report {
            Report::Loaded(_) => return Ok(false),
            Report::Counted(counted) => return session.counted(counted).map_or(Ok(false), Err),
            Report::Card { session: of, .. } if of != session.context.session => return Ok(false),
            Report::Card { index, what, .. } => (index, what),
        };
        let Some(card) = session.cards.get_mut(&index) else {
            return Ok(false);
        };
        let happened = matches!(what, CardReport::Event | CardReport::Made);
        if !matches!(what, CardReport::Event) {
            card.answered();
        }
        match what {
            CardReport::Event | CardReport::Made | CardReport::Sampled => {}
            CardReport::Identified(Ok(known)) => {
                let before = card.known.as_ref();
                if before.is_some_and(|b| b.incomplete.is_some()) && known.incomplete.is_none() {
                    tracing::info!(index, "all slices of a card can be identified");
                    return Err(End::Reload);
                }
                if let Some(error) = &known.incomplete {
                    card.tell(error);
                }
                self.state.identities.insert(index, known.cards.clone());
                card.known = Some(known);
                card.ask(CardJob::Look(watched.clone()), Instant::now());
            }
            CardReport::Identified(Err(error)) => {
                card.tell(&error.to_string());
                card.answer = Answer::Nameless(error);
            }
            CardReport::Looked(look) => card.answer = Answer::Looked(look),
            CardReport::Linked(links) => {
                if let (Some(links), Some(uuid)) = (links, card.uuids().next()) {
                    self.state.links.insert(uuid.clone(), links);
                }
            }
        }
        if session.in_round && card.is_idle() && matches!(card.answer, Answer::Awaited) {
            card.look(watched, Instant::now());
        }
        Ok(happened)
    }

    /// Passes the ordered layouts on to the threads of their cards.
    fn make_layouts(&mut self, session: &mut Session) {
        self.state.ordered.extend(self.orders.try_iter());
        let now = Instant::now();
        for order in std::mem::take(&mut self.state.ordered) {
            let is_its = |card: &&mut Card| card.uuids().next() == Some(&order.card);
            match session.cards.values_mut().find(is_its) {
                Some(card) if card.is_idle() => card.ask(CardJob::Make(order), now),
                // The card's thread is busy, or the cards are still being identified.
                _ => self.state.ordered.push(order),
            }
        }
    }

    /// Ends the threads of a session; cards with a call that does not return are kept as lingering.
    fn leave(&mut self, session: Session) {
        session.context.over.cancel();
        let mut cards = session.cards;
        for card in cards.values_mut() {
            card.leave();
        }
        let until = Instant::now() + LEAVE;
        loop {
            let now = Instant::now();
            let waits = |card: &Card| !card.has_left() && !card.hangs(now);
            if now >= until || !cards.values().any(waits) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        cards.retain(|_, card| !card.has_left());
        self.state.lingering.append(&mut cards);
    }
}

impl Session {
    /// Returns whether all cards have answered in this round, or hang.
    fn has_answered(&self, now: Instant) -> bool {
        let mut cards = self.cards.values();
        cards.all(|card| !matches!(card.answer, Answer::Awaited) || card.hangs(now))
    }

    /// Asks the idle ones of the watched cards for a sample.
    fn sample(&mut self, watched: &BTreeSet<GpuUuid>, now: Instant) {
        for card in self.cards.values_mut().filter(|card| card.is_idle()) {
            let uuids: Vec<GpuUuid> = card
                .uuids()
                .filter(|uuid| watched.contains(uuid))
                .cloned()
                .collect();
            if !uuids.is_empty() {
                card.ask(CardJob::Sample(uuids), now);
            }
        }
    }

    /// Takes the driver's count of its cards. Returns how the session ends, if it does.
    fn counted(&mut self, counted: Result<u32, NvmlError>) -> Option<End> {
        self.counting = false;
        match counted {
            Ok(counted) => {
                self.failed_counts = 0;
                let differs = counted != self.counted && self.lost_since.is_none();
                differs.then_some(End::Reload)
            }
            Err(error) => {
                self.failed_counts += 1;
                let lost = self.failed_counts >= FAILED_COUNTS;
                lost.then(|| End::Lost(error.to_string()))
            }
        }
    }
}
