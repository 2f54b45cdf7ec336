//! Attributes and capacities of a device, by domain and then by name.
//!
//! A domain that the device lacks is an empty map where it is looked up, so that
//! `has(device.attributes["dra.example.com"].name)` needs no test before it; with `in` it is
//! missing.

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Iterator as CelIterator, Sizer};
use cel::common::types::{CelInt, CelMap, CelMapKey, CelString, MAP_TYPE, Type};
use cel::common::value::{CowVal, Val};
use std::collections::{BTreeMap, HashMap};

/// A value of an expression.
pub(super) type Boxed<'v> = Box<dyn Val + 'v>;

/// A map with these entries.
pub(super) fn map<'v>(entries: impl IntoIterator<Item = (&'v str, Boxed<'v>)>) -> CelMap<'v> {
    let entries = entries.into_iter();
    let entries = entries.map(|(key, value)| (CelMapKey::from(key), value));
    CelMap::from(entries.collect::<HashMap<_, _>>())
}

/// By domain.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains<'v> {
    of: CelMap<'v>,
    lacking: CelMap<'v>,
}

impl<'v> Domains<'v> {
    /// By names, whose domain is the driver where they have none.
    pub(super) fn new(
        driver: &'v str,
        entries: impl IntoIterator<Item = (&'v str, Boxed<'v>)>,
    ) -> Self {
        let mut of: BTreeMap<&str, Vec<(&str, Boxed)>> = BTreeMap::new();
        for (name, value) in entries {
            let (domain, name) = name.split_once('/').unwrap_or((driver, name));
            of.entry(domain).or_default().push((name, value));
        }
        let of = of.into_iter();
        Self {
            of: map(of.map(|(domain, entries)| (domain, Box::new(map(entries)) as Boxed))),
            lacking: CelMap::default(),
        }
    }
}

impl Val for Domains<'_> {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(&self.of)
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        self.of.equals(other)
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(self.clone())
    }
}

impl Indexer for Domains<'_> {
    fn get<'b, 'w>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        match self.of.get(key) {
            Err(_) if key.downcast_ref::<CelString>().is_some() => {
                Ok(CowVal::Borrowed(&self.lacking))
            }
            found => found,
        }
    }

    fn steal<'w>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        Ok(self.get(key)?.clone_as_boxed())
    }
}

impl Iterable for Domains<'_> {
    fn iter<'b, 'w>(&'b self) -> Box<dyn CelIterator<'b, 'w> + 'b>
    where
        Self: 'w,
    {
        self.of.iter()
    }
}

impl Sizer for Domains<'_> {
    fn size(&self) -> CelInt {
        self.of.size()
    }
}
