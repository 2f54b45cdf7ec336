//! Shares of a card are granted in one of two ways.

/// The way in which shares of a card are granted. A card has one front at a time, as it has one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// The scheduler signs a grant, and the kubelet asks over its device-plugin API.
    Plugin,
    /// A `ResourceClaim` is allocated, and the kubelet asks over its DRA API.
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
