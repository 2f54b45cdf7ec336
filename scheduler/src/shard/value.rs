//! The types of value that several fields of a shard's document have.

use super::remark::{Remark, remark};
use scheduler_core::units::Duration;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;
use std::marker::PhantomData;

/// A map in the order in which it is written. Its keys have their lines.
#[derive(Debug)]
pub(super) struct Pairs<V>(pub(super) Vec<(Spanned<String>, V)>);

impl<V> Default for Pairs<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for All<V> {
            type Value = Pairs<V>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("names with values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(All(PhantomData))
    }
}

/// A duration in the notation of Go.
pub(super) fn duration(text: &Spanned<String>, field: &str) -> Result<Duration, Remark> {
    crate::convert::duration(Some(&text.value)).ok_or_else(|| {
        remark(
            text,
            field,
            format!("{} is not a duration, such as 90s or 5m", text.value),
        )
    })
}
