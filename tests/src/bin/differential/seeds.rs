//! The seeds of a comparison, and the objects of one.

use anyhow::Result;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Each seed is a case.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Seeds {
    /// The number of seeds.
    #[arg(long, default_value_t = 2000)]
    pub(crate) seeds: u64,
    /// The first.
    #[arg(long, default_value_t = 1)]
    pub(crate) base: u64,
}

impl Seeds {
    pub(crate) fn all(&self) -> std::ops::Range<u64> {
        self.base..self.base.saturating_add(self.seeds)
    }
}

pub(crate) fn objects<K: DeserializeOwned>(list: &Value) -> Result<Vec<Box<K>>> {
    let list = list.as_array().into_iter().flatten();
    list.map(|object| Ok(Box::new(serde_json::from_value(object.clone())?)))
        .collect()
}
