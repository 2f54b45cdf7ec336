//! The compute mode of a card is the driver's rule about which processes may use it.

/// The number of processes that may have a context on a card at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeMode {
    /// Anyone.
    #[default]
    Default,
    /// One process may have a context.
    ExclusiveProcess,
    /// No one.
    Prohibited,
}

impl ComputeMode {
    /// The name in telemetry and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "Default",
            Self::ExclusiveProcess => "ExclusiveProcess",
            Self::Prohibited => "Prohibited",
        }
    }
}
