//! Shares of a card are granted in one of two ways.

/// By which way shares of a card are granted. A card has one at a time, as it has one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// By the scheduler's signed grant, over the kubelet's device-plugin API.
    Plugin,
    /// By a `ResourceClaim`'s allocation, over the kubelet's DRA API.
    Dra,
}

impl Front {
    /// The name in messages and in the `ResourceSlice`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Dra => "dra",
        }
    }
}
