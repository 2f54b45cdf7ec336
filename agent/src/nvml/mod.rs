//! One thread owns NVML.
//!
//! In: the library's path; which cards are watched; which card is to have which MIG layout. Out: an
//! [`Observation`] on a watch after every full reading, a [`Sample`] of the watched cards' processes
//! in between, an [`Xid`] on a channel when the driver reports one, and a result for each layout.
//! Nothing downstream holds a handle of NVML's. Must never: decide
//! anything, or give up: after the driver has gone away, the library is loaded again.

mod error;
mod layout;
pub mod observation;
mod raw;
mod read;

pub use layout::{LayoutOrder, LayoutResult};
pub use observation::{
    CardSample, Counters, Device, Driver, Identity, Observation, Process, Reading, Sample,
    UnreadableCard, Watched, Xid,
};

use crate::inventory::GpuUuid;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// A wait for events is cut into pieces of this length, so that a stop is noticed.
const SLICE: Duration = Duration::from_millis(100);
/// And of this one while cards are watched, so that a suspicion is.
const WATCHING: Duration = Duration::from_millis(20);
/// First and longest pause before the library is loaded again.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// After this many full readings without an answer from any card, the library is loaded again.
const SILENT_LOOKS: u32 = 3;
/// While a card is lost, the library is loaded again this often: a card that came back
/// after a reset answers to new handles only.
const LOST_RELOAD: Duration = Duration::from_secs(30);

/// What the owner needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The library.
    pub library: PathBuf,
    /// Time between two full readings.
    pub interval: Duration,
    /// Between two samples of the cards that are watched.
    pub sample_interval: Duration,
    /// Where processes are looked up.
    pub proc_root: PathBuf,
    /// Whether the slices of cards in MIG mode are read.
    pub slices: bool,
}

/// What the owner gives out.
#[derive(Debug)]
pub struct NvmlChannels {
    /// The last look; `Driver::Gone` before the first.
    pub observations: watch::Receiver<Arc<Observation>>,
    /// The last sample; `None` before the first.
    pub samples: watch::Receiver<Option<Arc<Sample>>>,
    /// Faults, in the driver's order.
    pub xids: mpsc::UnboundedReceiver<Xid>,
    /// Results of layouts.
    pub layouts: mpsc::UnboundedReceiver<LayoutResult>,
    /// Resolves when the thread has ended, for whatever reason.
    pub ended: oneshot::Receiver<()>,
}

/// Starts the thread. It ends soon after `stop`.
///
/// # Errors
/// When the machine has no thread left.
pub fn start(
    settings: Settings,
    watched: watch::Receiver<Watched>,
    orders: std::sync::mpsc::Receiver<LayoutOrder>,
    stop: CancellationToken,
) -> std::io::Result<NvmlChannels> {
    let (samples_out, samples) = watch::channel(None);
    let (out, observations) = watch::channel(Arc::new(Observation::default()));
    let (xid_out, xids) = mpsc::unbounded_channel();
    let (layouts_out, layouts) = mpsc::unbounded_channel();
    let (end, ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("nvml".to_owned())
        .spawn(move || {
            Owner {
                settings,
                watched,
                out,
                samples: samples_out,
                xids: xid_out,
                orders,
                layouts: layouts_out,
                stop,
            }
            .run();
            drop(end);
        })?;
    Ok(NvmlChannels {
        observations,
        samples,
        xids,
        layouts,
        ended,
    })
}

struct Owner {
    settings: Settings,
    watched: watch::Receiver<Watched>,
    out: watch::Sender<Arc<Observation>>,
    samples: watch::Sender<Option<Arc<Sample>>>,
    xids: mpsc::UnboundedSender<Xid>,
    orders: std::sync::mpsc::Receiver<LayoutOrder>,
    layouts: mpsc::UnboundedSender<LayoutResult>,
    stop: CancellationToken,
}

/// Why one loaded library was left.
enum End {
    Stopped,
    Lost(String),
    Reload,
}

impl Owner {
    fn run(&self) {
        let mut pause = RETRY.0;
        while !self.stop.is_cancelled() {
            let started = Instant::now();
            let reason = match self.session() {
                Ok(End::Stopped) => return,
                Ok(End::Reload) => continue,
                Ok(End::Lost(reason)) => reason,
                Err(error) => error.to_string(),
            };
            let gone = Driver::Gone { reason };
            if self.out.borrow().driver != gone {
                tracing::warn!(?gone, "NVML does not answer; loading it again");
            }
            self.out.send_replace(Arc::new(Observation {
                driver: gone,
                devices: Vec::new(),
            }));
            if started.elapsed() > RETRY.1 {
                pause = RETRY.0;
            }
            self.sleep(pause);
            pause = (pause * 2).min(RETRY.1);
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

    /// From load to loss.
    fn session(&self) -> Result<End, NvmlError> {
        let nvml = Nvml::builder()
            .lib_path(self.settings.library.as_os_str())
            .init()?;
        let version = nvml.sys_driver_version()?;
        let counted = nvml.device_count()?;
        let mut known = read::identities(&nvml, self.settings.slices)?;
        // A lost card may still be counted, and a slice listed. It is asked for its name after the
        // usual pause: reloading the library at once would never end.
        let whole = known
            .cards
            .iter()
            .filter(|card| card.slice.is_none())
            .count();
        let nameless = usize::try_from(counted).is_ok_and(|counted| counted > whole)
            || !known.incomplete.is_empty();
        let mut origins = read::Origins::default();
        // The first full reading is published before any slow call.
        self.look(&nvml, &version, &known, &known.layout, &mut origins)?;
        let links = read::links(&nvml, &known.cards);
        for (card, peers) in known.cards.iter_mut().zip(links) {
            card.nvlink_peers = peers;
        }
        let read::Identified { cards, layout, .. } = &known;
        let events = listen(&nvml, cards);
        tracing::info!(driver = version, cards = cards.len(), "NVML is up");
        let mut silent = 0;
        let mut lost_since: Option<Instant> = None;
        loop {
            if nvml.device_count()? != counted && lost_since.is_none() {
                return Ok(End::Reload);
            }
            let listed = if self.settings.slices {
                read::layout(&nvml, cards)
            } else {
                read::Layout::new()
            };
            // A card that does not list its devices has what it had.
            let is_new = |(card, devices)| layout.get(card) != Some(devices);
            if listed.iter().any(is_new) {
                tracing::info!("the MIG instances of a card have changed");
                return Ok(End::Reload);
            }
            let answered = self.look(&nvml, &version, &known, &listed, &mut origins)?;
            silent = if answered == 0 && !cards.is_empty() {
                silent + 1
            } else {
                0
            };
            if silent >= SILENT_LOOKS {
                return Ok(End::Lost("no card answers".to_owned()));
            }
            if answered == cards.len() && !nameless {
                lost_since = None;
            } else if lost_since.get_or_insert_with(Instant::now).elapsed() > LOST_RELOAD {
                return Ok(End::Reload);
            }
            let until = Instant::now() + self.settings.interval;
            // The look was a sample too.
            let mut next_sample = Instant::now() + self.settings.sample_interval;
            loop {
                if self.stop.is_cancelled() {
                    return Ok(End::Stopped);
                }
                if self.make_layouts(&nvml) {
                    break;
                }
                let now = Instant::now();
                let left = until.saturating_duration_since(now);
                if left.is_zero() {
                    break;
                }
                let (watches, closely) = {
                    let watched = self.watched.borrow();
                    (!watched.cards.is_empty(), watched.closely)
                };
                if closely {
                    next_sample = next_sample.min(now);
                }
                if watches && now >= next_sample {
                    self.sample(&nvml, &mut origins)?;
                    // From the last one's due time, so that the pace does not slip; a late
                    // one is not made up for.
                    next_sample = (next_sample + self.settings.sample_interval).max(now);
                }
                let mut slice = left.min(SLICE);
                if watches {
                    let due = next_sample.saturating_duration_since(now);
                    slice = slice.min(due).min(WATCHING);
                }
                // NVML counts whole milliseconds.
                let slice = slice.max(Duration::from_millis(1));
                if self.wait(&nvml, cards, events.as_ref(), slice) {
                    break;
                }
            }
        }
    }

    /// Makes the layouts that were ordered. Answers whether there were some: instances may be others.
    fn make_layouts(&self, nvml: &Nvml) -> bool {
        let mut some = false;
        while let Ok(order) = self.orders.try_recv() {
            let made = layout::make(nvml, &order);
            match &made {
                Ok(()) => tracing::info!(?order, "the card has another MIG layout"),
                Err(error) => tracing::warn!(?order, error, "the card keeps its MIG layout"),
            }
            // The receiver lives as long as the agent.
            let _ = self.layouts.send((order, made));
            some = true;
        }
        some
    }

    /// The processes of the cards that are watched.
    fn sample(&self, nvml: &Nvml, origins: &mut read::Origins) -> Result<(), NvmlError> {
        let watched = self.watched.borrow().cards.clone();
        let mut cards = Vec::with_capacity(watched.len());
        for uuid in watched {
            let at = Instant::now();
            let found = read::sample(nvml, &uuid, &self.settings.proc_root, origins)?;
            cards.extend(found.map(|processes| CardSample {
                uuid,
                at,
                processes,
            }));
        }
        self.samples.send_replace(Some(Arc::new(Sample { cards })));
        Ok(())
    }

    /// Publishes one look; answers how many cards answered. `listed`: the MIG devices of the cards that
    /// list them now.
    fn look(
        &self,
        nvml: &Nvml,
        version: &str,
        known: &read::Identified,
        listed: &read::Layout,
        origins: &mut read::Origins,
    ) -> Result<usize, NvmlError> {
        let mut asked = Vec::with_capacity(known.cards.len());
        let mut devices = (known.cards.iter())
            .map(|card| {
                asked.push(Instant::now());
                let (slices, proc_root) = (self.settings.slices, &self.settings.proc_root);
                read::device(nvml, card, slices, proc_root, origins)
            })
            .collect::<Result<Vec<_>, _>>()?;
        for device in &mut devices {
            let card = &device.identity.uuid;
            if let Ok(reading) = &mut device.reading
                && reading.mig
            {
                reading.slices_unknown = self.settings.slices
                    && (!listed.contains_key(card) || known.incomplete.contains(card));
            }
        }
        origins.keep(&devices);
        let watched = self.watched.borrow().cards.clone();
        if !watched.is_empty() {
            let read = devices.iter().zip(asked).filter_map(|(device, at)| {
                let reading = device.reading.as_ref().ok()?;
                let reading = Some(reading).filter(|reading| reading.unseen.is_none())?;
                let uuid = device.identity.uuid.clone();
                watched.contains(&uuid).then(|| CardSample {
                    uuid,
                    at,
                    processes: reading.processes.clone(),
                })
            });
            let cards = read.collect();
            self.samples.send_replace(Some(Arc::new(Sample { cards })));
        }
        let answered = devices.iter().filter(|d| d.reading.is_ok()).count();
        self.out.send_replace(Arc::new(Observation {
            driver: Driver::Up {
                version: version.to_owned(),
            },
            devices,
        }));
        Ok(answered)
    }

    /// Waits for a fault; true when one came and the cards should be read now.
    fn wait(
        &self,
        nvml: &Nvml,
        cards: &[Identity],
        events: Option<&nvml_wrapper::EventSet<'_>>,
        slice: Duration,
    ) -> bool {
        let Some(events) = events else {
            std::thread::sleep(slice);
            return false;
        };
        let millis = u32::try_from(slice.as_millis()).unwrap_or(u32::MAX);
        match raw::wait(nvml, events, millis) {
            Ok(event) => {
                // A card that fell off the bus no longer reports its UUID; the full reading shows
                // that.
                if let (Some(number), Some(uuid)) = (event.xid, event.card) {
                    let gpu = at_fault(cards, &uuid, event.instance);
                    // The receiver lives as long as the agent.
                    let _ = self.xids.send(Xid { gpu, number });
                }
                true
            }
            Err(NvmlError::Timeout) => false,
            Err(error) => {
                // The next full reading shows the cause; until then this must not spin.
                tracing::debug!(%error, "waiting for events failed");
                std::thread::sleep(slice);
                false
            }
        }
    }
}

/// The slice that an event is of, where it is of one that is known; else its card.
fn at_fault(cards: &[Identity], card: &str, instance: Option<raw::InstanceIds>) -> GpuUuid {
    let slice = cards.iter().find(|device| {
        let slice = device.slice.as_ref();
        slice.is_some_and(|slice| {
            slice.parent.as_str() == card
                && instance == Some((slice.gpu_instance, slice.compute_instance))
        })
    });
    slice.map_or_else(|| GpuUuid::from(card), |slice| slice.uuid.clone())
}

/// An event set over all cards that have events; `None` where none has. The counters that every look
/// reads say some of the same, a little later.
fn listen<'nvml>(nvml: &'nvml Nvml, cards: &[Identity]) -> Option<nvml_wrapper::EventSet<'nvml>> {
    let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
    let without = |card: &Identity, error: &NvmlError| {
        tracing::warn!(gpu = %card.uuid, %error, "no XID events");
    };
    let mut heard = Vec::new();
    // A card's set hears of its slices too.
    for card in cards.iter().filter(|card| card.slice.is_none()) {
        let device = nvml.device_by_uuid(card.uuid.as_str());
        let found = device.and_then(|device| Ok((device.supported_event_types()?, device)));
        match found {
            Ok((supported, device)) => heard.push((card, device, supported & wanted)),
            Err(error) => without(card, &error),
        }
    }
    // A failed registration consumes the set: it is begun again without that card.
    while !heard.is_empty() {
        let set = nvml.create_event_set().ok()?;
        let registered = (heard.iter().enumerate()).try_fold(set, |set, (at, one)| {
            let (card, device, types) = one;
            device.register_events(*types, set).map_err(|error| {
                without(card, &error.error);
                at
            })
        });
        match registered {
            Ok(set) => return Some(set),
            Err(at) => drop(heard.remove(at)),
        }
    }
    None
}
