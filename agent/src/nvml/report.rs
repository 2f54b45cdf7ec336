//! What the threads that call NVML tell the one that owns it.

use super::observation::Device;
use super::read::Identified;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A library that was loaded.
pub(super) struct Loaded {
    pub nvml: Arc<Nvml>,
    /// Of the driver.
    pub version: String,
    /// How many cards the driver counts.
    pub counted: u32,
}

/// One look at a card and its slices.
pub(super) struct Look {
    pub devices: Vec<Device>,
    /// UUIDs of its MIG devices now; `None`: it does not list them.
    pub listed: Option<BTreeSet<String>>,
    /// A call was answered with an error of the driver as a whole.
    pub driver_gone: bool,
}

/// What a card's threads tell.
pub(super) enum CardReport {
    /// The answer to `CardJob::Identify`.
    Identified(Result<Identified, NvmlError>),
    /// The answer to `Look`.
    Looked(Look),
    /// The answer to `Links`; `None`: they cannot be read.
    Linked(Option<Vec<String>>),
    /// A sample was taken and given out.
    Sampled,
    /// A layout was made, or not.
    Made,
    /// The driver reported an event: the next look should come soon.
    Event,
}

/// What a thread tells.
pub(super) enum Report {
    /// The answer to a load.
    Loaded(Result<Loaded, NvmlError>),
    /// The answer to a count.
    Counted(Result<u32, NvmlError>),
    /// Of a card, by its index.
    Card {
        index: u32,
        /// The session that it belongs to: a call may return when that has long ended.
        session: u64,
        what: CardReport,
    },
}
