//! Reports go from the threads that call NVML to the thread that owns it.

use super::observation::Device;
use super::read::Identified;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The library after it was loaded.
pub(super) struct Loaded {
    pub nvml: Arc<Nvml>,
    /// The version of the driver.
    pub version: String,
    /// The number of cards that the driver counts.
    pub counted: u32,
}

/// One look at a card and its slices.
pub(super) struct Look {
    pub devices: Vec<Device>,
    /// The UUIDs of the card's current MIG devices; `None` if they cannot be listed.
    pub listed: Option<BTreeSet<String>>,
    /// True if a call was answered with an error of the driver as a whole.
    pub driver_gone: bool,
}

/// A report of one of a card's threads.
pub(super) enum CardReport {
    /// The answer to `CardJob::Identify`.
    Identified(Result<Identified, NvmlError>),
    /// The answer to `CardJob::Look`.
    Looked(Look),
    /// The answer to `CardJob::Links`; `None` if the links cannot be read.
    Linked(Option<Vec<String>>),
    /// A sample was taken and given out.
    Sampled,
    /// A layout was made, or could not be.
    Made,
    /// The driver reported an event, so the next look should come soon.
    Event,
}

/// A report of any thread.
pub(super) enum Report {
    /// The answer to `DriverJob::Load`.
    Loaded(Result<Loaded, NvmlError>),
    /// The answer to `DriverJob::Count`.
    Counted(Result<u32, NvmlError>),
    /// A report about the card of this index.
    Card {
        index: u32,
        /// The number of the session that it belongs to: a call may return long after its session
        /// has ended.
        session: u64,
        what: CardReport,
    },
}
