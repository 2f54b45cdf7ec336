//! The agent serves these extended resources.

use crate::gpu::Profile;
use proto::names;
use std::borrow::Cow;

/// An extended resource of the agent's device plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Tokens, `<GPU-UUID>::<n>`.
    Share,
    /// Whole cards, by UUID; in the strategy `single` slices of cards.
    Whole,
    /// Slices of this profile, by UUID.
    Slice(Profile),
}

impl Resource {
    /// Its name in Kubernetes.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Share => names::resource::SHARE.into(),
            Self::Whole => names::resource::GPU.into(),
            Self::Slice(profile) => format!("{}{profile}", names::resource::MIG_PREFIX).into(),
        }
    }

    /// The resource of this name, if it is one of ours.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            names::resource::SHARE => Some(Self::Share),
            names::resource::GPU => Some(Self::Whole),
            _ => {
                let profile = name.strip_prefix(names::resource::MIG_PREFIX)?;
                Profile::parse(profile).map(Self::Slice)
            }
        }
    }

    /// Returns true if its IDs are those of the devices themselves.
    pub fn is_of_devices(self) -> bool {
        self != Self::Share
    }
}
