//! One thread owns NVML, and other threads make its calls.
//!
//! In: the library's path; which cards are watched; which card is to have which MIG layout. Out: an
//! [`Observation`] on a watch after every full reading, [`Sample`]s of the watched cards' processes
//! in between, an [`Xid`] on a channel when the driver reports one, and a result for each layout.
//! Nothing downstream holds a handle of NVML's. Must never: decide
//! anything, or give up: after the driver has gone away, the library is loaded again.
//!
//! A call of NVML may never return, so the owner makes none, and each of its waits has a deadline.
//! One thread (`driver`) makes the calls about the driver as a whole: it loads the library and
//! counts the cards. Each card has two threads (`card`): one makes the calls about it, one waits
//! for its events. A card has one job at a time. While a call about it hangs, the card gets no job
//! and no other thread, neither in this session of the library nor in later ones, so there are
//! never more than two threads for each card, and two more. The observation then says that the card
//! does not answer; other cards keep their readings, samples and events. Where a call holds a lock
//! of NVIDIA's library, calls about other cards hang with it, and the observation says the same of
//! each of these cards.
//!
//! A single failed call has no consequence: the next look is made as usual. The library is loaded
//! again when no card answers or two counts of the cards fail. Then the driver is late at first
//! ([`Driver::Late`]), and gone if loading it again does not help.

mod card;
mod driver;
mod error;
mod layout;
pub mod observation;
mod origins;
mod owner;
mod raw;
mod read;
mod report;
pub mod settings;

pub use layout::{LayoutOrder, LayoutResult};
pub use observation::{
    CardSample, Counters, Device, Driver, Identity, Observation, Process, Reading, Sample,
    UnreadableCard, Watched, Xid,
};

pub use settings::Settings;

use owner::{Outputs, Owner, OwnerState};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// What the owner gives out.
#[derive(Debug)]
pub struct NvmlChannels {
    /// The last look; `Driver::Gone` before the first.
    pub observations: watch::Receiver<Arc<Observation>>,
    /// Samples; each is of one card.
    pub samples: channel::Receiver<Arc<Sample>>,
    /// Faults, in the driver's order.
    pub xids: channel::Receiver<Xid>,
    /// Results of layouts.
    pub layouts: channel::Receiver<LayoutResult>,
    /// Resolves when the thread has ended, for whatever reason.
    pub ended: oneshot::Receiver<()>,
}

/// Starts the threads. They end soon after `stop`, except those with a call that does not return.
///
/// # Errors
/// When the machine has no thread left.
pub fn start(
    settings: Settings,
    watched: watch::Receiver<Watched>,
    orders: std::sync::mpsc::Receiver<LayoutOrder>,
    lengths: &channel::Lengths,
    stop: CancellationToken,
) -> std::io::Result<NvmlChannels> {
    let (samples_out, samples) = lengths.unbounded("samples");
    let (out, observations) = watch::channel(Arc::new(Observation::default()));
    let (xid_out, xids) = lengths.unbounded("xids");
    let (layouts_out, layouts) = lengths.unbounded("mig_layouts");
    let (end, ended) = oneshot::channel();
    let (driver, jobs) = std::sync::mpsc::channel();
    let (reports, inbox) = std::sync::mpsc::channel();
    let (libraries, answers) = (settings.libraries.clone(), reports.clone());
    std::thread::Builder::new()
        .name("nvml-driver".to_owned())
        .spawn(move || driver::run(&libraries, &jobs, &answers))?;
    let owner = Owner {
        settings: Arc::new(settings),
        watched,
        out: Outputs {
            observations: out,
            samples: samples_out,
            xids: xid_out,
            layouts: layouts_out,
        },
        orders,
        stop,
        driver,
        inbox,
        reports,
        state: OwnerState::default(),
    };
    std::thread::Builder::new()
        .name("nvml".to_owned())
        .spawn(move || {
            owner.run();
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
