//! A device, as an expression sees it.

use std::collections::BTreeMap;

/// A device, as an expression sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The driver, and the domain of names that have none.
    pub driver: String,
    /// `allowMultipleAllocations`.
    pub shared: bool,
    /// By name, with or without a domain.
    pub attributes: BTreeMap<String, Attribute>,
    /// The same, in billionths.
    pub capacity: BTreeMap<String, i128>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
    /// Words.
    Text(String),
    /// A semantic version.
    Version(String),
    /// Of a kind that is not known: no expression is evaluated for a device with one.
    Unknown,
}
