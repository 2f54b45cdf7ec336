//! A card has two threads: one makes the calls about it, the other waits for its events.
//!
//! In: one job at a time. Out: one report for each job. Samples, XIDs and results of layouts are
//! sent from here, so that no other card and no call about the driver as a whole delays them. If a
//! call never returns, its thread stays, and the owner starts no other threads for this card.

use super::layout::{self, LayoutOrder, LayoutResult};
use super::observation::{CardSample, Device, Identity, Sample, UnreadableCard, Xid};
use super::origins::Origins;
use super::raw;
use super::read::{self, Identified};
use super::report::{CardReport, Look, Report};
use super::settings::Settings;
use crate::gpu::GpuUuid;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{EventSet, Nvml};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// A call that has not returned for this time counts as hanging, and the owner stops waiting for
/// it. The first calls about a card without persistence mode take about a second.
pub(super) const HANGS_AFTER: Duration = Duration::from_secs(2);
/// A listener waits for events at most this long at a time, so that it notices the end of the
/// session.
const EVENT_WAIT: Duration = Duration::from_millis(100);
/// A listener pauses this long before it tries again to listen to a card's events.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// A job that the owner gives to the thread of a card.
pub(super) enum CardJob {
    /// Identifies the card and its slices.
    Identify,
    /// Reads the card and its slices in full, and samples those of them that are watched.
    Look(BTreeSet<GpuUuid>),
    /// Samples the processes of these cards or slices.
    Sample(Vec<GpuUuid>),
    /// Reads which cards the card is linked with; the map has the known cards by bus id.
    Links(Arc<BTreeMap<String, GpuUuid>>),
    /// Gives the card another MIG layout.
    Make(LayoutOrder),
}

/// The context that the threads of all cards share during a session.
#[derive(Clone)]
pub(super) struct CardContext {
    pub settings: Arc<Settings>,
    pub nvml: Arc<Nvml>,
    /// The number of the session.
    pub session: u64,
    /// The token is cancelled when the session has ended.
    pub over: CancellationToken,
    pub samples: channel::Sender<Arc<Sample>>,
    pub xids: channel::Sender<Xid>,
    pub layouts: channel::Sender<LayoutResult>,
    pub reports: Sender<Report>,
}

/// A card from the owner's side: its threads, and what they have reported.
pub(super) struct Card {
    pub index: u32,
    /// The sender of jobs, which is dropped at the end of the session, so that the thread ends.
    jobs: Option<Sender<CardJob>>,
    threads: Vec<JoinHandle<()>>,
    /// The time of the job that has no report yet.
    asked: Option<Instant>,
    /// The time at which the event thread last began to wait; `None` if there is no such thread.
    waits: Option<Arc<Mutex<Instant>>>,
    /// The identities of the card and its slices; `None` until they have been read.
    pub known: Option<Identified>,
    /// The error that was last logged when the card, or a slice of it, could not be identified.
    pub told: String,
    /// True if the links were requested in this session.
    pub linked: bool,
    /// The card's answer in this round of looks.
    pub answer: Answer,
}

/// The answer of a card in this round of looks.
pub(super) enum Answer {
    /// The card has not answered yet.
    Awaited,
    /// The card cannot be identified.
    Nameless(NvmlError),
    Looked(Look),
}

impl Card {
    /// Starts the thread that makes the calls.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot create a thread.
    pub(super) fn start(index: u32, context: &CardContext) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel();
        let context = context.clone();
        let thread = std::thread::Builder::new()
            .name(format!("nvml-card-{index}"))
            .spawn(move || Caller::new(index, context).run(&inbox))?;
        Ok(Self {
            index,
            jobs: Some(jobs),
            threads: vec![thread],
            asked: None,
            waits: None,
            known: None,
            told: String::new(),
            linked: false,
            answer: Answer::Awaited,
        })
    }

    /// Starts the thread that waits for events of the card and its slices.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot create a thread.
    pub(super) fn listen(&mut self, context: &CardContext) -> std::io::Result<()> {
        let Some(known) = self.known.as_ref().filter(|_| self.waits.is_none()) else {
            return Ok(());
        };
        let waits = Arc::new(Mutex::new(Instant::now()));
        let listener = Listener {
            index: self.index,
            cards: known.cards.clone(),
            waits: Arc::clone(&waits),
            context: context.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("nvml-event-{}", self.index))
            .spawn(move || listener.run())?;
        self.threads.push(thread);
        self.waits = Some(waits);
        Ok(())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_none()
    }

    pub(super) fn ask(&mut self, job: CardJob, now: Instant) {
        if let Some(jobs) = &self.jobs {
            // If the thread has ended, the send fails, and the job counts as one that hangs.
            let _ = jobs.send(job);
            self.asked = Some(now);
        }
    }

    /// Asks for a look, or first for the identity if it is not known in full.
    pub(super) fn look(&mut self, watched: &BTreeSet<GpuUuid>, now: Instant) {
        let known = self.known.as_ref();
        let job = if known.is_some_and(|known| known.incomplete.is_none()) {
            CardJob::Look(watched.clone())
        } else {
            CardJob::Identify
        };
        self.ask(job, now);
    }

    /// Logs why the card, or a slice of it, cannot be identified, unless the last error was the
    /// same.
    pub(super) fn tell(&mut self, error: &str) {
        if self.told != error {
            error.clone_into(&mut self.told);
            tracing::warn!(
                index = self.index,
                error,
                "a card, or a slice of it, cannot be identified"
            );
        }
    }

    /// Notes that the report of the card's job has come.
    pub(super) fn answered(&mut self) {
        self.asked = None;
    }

    /// Returns whether a call about the card has not returned in time.
    pub(super) fn hangs(&self, now: Instant) -> bool {
        let asked = self.asked;
        asked.is_some_and(|asked| now.saturating_duration_since(asked) >= HANGS_AFTER)
    }

    /// Returns whether the wait for the card's events has not returned, so that its XIDs are not
    /// heard.
    pub(super) fn is_deaf(&self, now: Instant) -> bool {
        self.waits.as_ref().is_some_and(|waits| {
            let waits = *waits.lock().unwrap_or_else(PoisonError::into_inner);
            now.saturating_duration_since(waits) >= HANGS_AFTER + LISTEN_AGAIN
        })
    }

    /// Returns the card and its slices, all without a reading because a call hangs.
    pub(super) fn unanswered(&self) -> Vec<Device> {
        let cards = self.known.iter().flat_map(|known| &known.cards);
        let device = |identity: &Identity| Device {
            reading: Err(UnreadableCard {
                reason: format!(
                    "a call of NVML about card {} has not returned for {} s",
                    identity
                        .slice
                        .as_ref()
                        .map_or(&identity.uuid, |s| &s.parent),
                    HANGS_AFTER.as_secs()
                ),
                lost: false,
                hangs: true,
            }),
            identity: identity.clone(),
        };
        cards.map(device).collect()
    }

    /// Returns the UUID of the card, then those of its slices.
    pub(super) fn uuids(&self) -> impl Iterator<Item = &GpuUuid> {
        let cards = self.known.iter().flat_map(|known| &known.cards);
        cards.map(|card| &card.uuid)
    }

    /// Ends the supply of jobs, so that the threads end unless a call hangs.
    pub(super) fn leave(&mut self) {
        self.jobs = None;
    }

    /// Returns whether the card's threads have ended.
    pub(super) fn has_left(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }
}

/// The thread that makes the calls about a card.
struct Caller {
    index: u32,
    context: CardContext,
    cards: Vec<Identity>,
    /// True if a slice of the card cannot be identified.
    incomplete: bool,
    origins: Origins,
}

impl Caller {
    fn new(index: u32, context: CardContext) -> Self {
        Self {
            index,
            context,
            cards: Vec::new(),
            incomplete: false,
            origins: Origins::default(),
        }
    }

    fn run(mut self, jobs: &Receiver<CardJob>) {
        for job in jobs {
            let what = self.work(job);
            let report = Report::Card {
                index: self.index,
                session: self.context.session,
                what,
            };
            if self.context.reports.send(report).is_err() {
                return;
            }
        }
    }

    fn work(&mut self, job: CardJob) -> CardReport {
        let (nvml, slices) = (&*self.context.nvml, self.context.settings.slices);
        match job {
            CardJob::Identify => {
                let found = read::identify(nvml, self.index, slices);
                if let Ok(found) = &found {
                    self.cards.clone_from(&found.cards);
                    self.incomplete = found.incomplete.is_some();
                }
                CardReport::Identified(found)
            }
            CardJob::Look(watched) => CardReport::Looked(self.look(&watched)),
            CardJob::Sample(watched) => {
                for uuid in watched {
                    let at = Instant::now();
                    let proc_root = &self.context.settings.proc_root;
                    let found = read::sample(nvml, &uuid, proc_root, &mut self.origins);
                    if let Some(processes) = found {
                        self.give(CardSample {
                            uuid,
                            at,
                            processes,
                        });
                    }
                }
                CardReport::Sampled
            }
            CardJob::Links(by_bus) => {
                let card = self.cards.first();
                CardReport::Linked(card.and_then(|card| read::links(nvml, card, &by_bus)))
            }
            CardJob::Make(order) => {
                let made = layout::make(nvml, &order);
                match &made {
                    Ok(()) => tracing::info!(?order, "the card has another MIG layout"),
                    Err(error) => {
                        tracing::warn!(?order, error, "the card keeps its MIG layout");
                    }
                }
                // The receiver lives as long as the agent.
                let _ = self.context.layouts.send((order, made));
                CardReport::Made
            }
        }
    }

    fn look(&mut self, watched: &BTreeSet<GpuUuid>) -> Look {
        let (nvml, settings) = (&*self.context.nvml, &self.context.settings);
        let card = self.cards.first();
        let listed = match card {
            Some(card) if settings.slices => read::layout(nvml, card),
            _ => Some(BTreeSet::new()),
        };
        let mut look = Look {
            devices: Vec::with_capacity(self.cards.len()),
            driver_gone: false,
            listed,
        };
        for card in &self.cards {
            let at = Instant::now();
            let (mut device, gone) = read::device(
                nvml,
                card,
                settings.slices,
                &settings.proc_root,
                &mut self.origins,
            );
            look.driver_gone |= gone;
            if let Ok(reading) = &mut device.reading {
                reading.slices_unknown =
                    reading.mig && settings.slices && (look.listed.is_none() || self.incomplete);
                // The look counts as a sample too, unless its lists are incomplete.
                if reading.unseen.is_none() && watched.contains(&card.uuid) {
                    self.give(CardSample {
                        uuid: card.uuid.clone(),
                        at,
                        processes: reading.processes.clone(),
                    });
                }
            }
            look.devices.push(device);
        }
        self.origins.keep(&look.devices);
        look
    }

    fn give(&self, sample: CardSample) {
        // The receiver lives as long as the agent.
        let cards = vec![sample];
        let _ = self.context.samples.send(Arc::new(Sample { cards }));
    }
}

/// The thread that waits for the events of a card.
struct Listener {
    index: u32,
    /// The card, followed by its slices.
    cards: Vec<Identity>,
    waits: Arc<Mutex<Instant>>,
    context: CardContext,
}

impl Listener {
    fn run(self) {
        let mut told = false;
        while !self.context.over.is_cancelled() {
            self.waits();
            let error = match self.listen() {
                Ok(events) => return self.hear(&events),
                Err(error) => error,
            };
            // One failed call says little, so the listener tries again, and logs only the first
            // failure.
            if !std::mem::replace(&mut told, true) {
                let gpu = self.cards.first().map(|card| &card.uuid);
                tracing::warn!(?gpu, %error, "no XID events");
            }
            let again = Instant::now() + LISTEN_AGAIN;
            while !self.context.over.is_cancelled() && Instant::now() < again {
                std::thread::sleep(EVENT_WAIT);
            }
        }
        // The time lies far ahead, so that a listener that has ended does not count as deaf.
        let never = Instant::now() + Duration::from_hours(24 * 365 * 100);
        *self.waits.lock().unwrap_or_else(PoisonError::into_inner) = never;
    }

    fn waits(&self) {
        *self.waits.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Creates an event set of the card, which also receives the events of its slices. The counters
    /// that every look reads show some of the same faults, a little later.
    fn listen(&self) -> Result<EventSet<'_>, NvmlError> {
        let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
        let card = self.cards.first().ok_or(NvmlError::NotFound)?;
        let device = self.context.nvml.device_by_uuid(card.uuid.as_str())?;
        let types = device.supported_event_types()? & wanted;
        let set = self.context.nvml.create_event_set()?;
        device
            .register_events(types, set)
            .map_err(|error| error.error)
    }

    fn hear(&self, events: &EventSet<'_>) {
        let millis = u32::try_from(EVENT_WAIT.as_millis()).unwrap_or(u32::MAX);
        while !self.context.over.is_cancelled() {
            self.waits();
            match raw::wait(&self.context.nvml, events, millis) {
                Ok(event) => {
                    if let (Some(number), Some(card)) = (event.xid, self.cards.first()) {
                        let gpu = at_fault(&self.cards, card, event.instance);
                        // The receiver lives as long as the agent.
                        let _ = self.context.xids.send(Xid { gpu, number });
                    }
                    let _ = self.context.reports.send(Report::Card {
                        index: self.index,
                        session: self.context.session,
                        what: CardReport::Event,
                    });
                }
                Err(NvmlError::Timeout) => {}
                Err(error) => {
                    // The next full reading shows the cause; the pause keeps this loop from
                    // spinning.
                    tracing::debug!(%error, "waiting for events failed");
                    std::thread::sleep(EVENT_WAIT);
                }
            }
        }
    }
}

/// Returns the slice that an event concerns, or the card if that slice is not known.
fn at_fault(cards: &[Identity], card: &Identity, instance: Option<raw::InstanceIds>) -> GpuUuid {
    let slice = cards.iter().find(|device| {
        let slice = device.slice.as_ref();
        slice.is_some_and(|slice| instance == Some((slice.gpu_instance, slice.compute_instance)))
    });
    slice.unwrap_or(card).uuid.clone()
}
