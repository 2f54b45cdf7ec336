//! The device that an expression is evaluated for.

use std::collections::BTreeMap;

/// A device, with the fields that expressions may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The name of the driver. It is also the domain of names that have none.
    pub driver: String,
    /// True if several claims may have the device (`allowMultipleAllocations`).
    pub shared: bool,
    /// The attributes by name, with or without a domain.
    pub attributes: BTreeMap<String, Attribute>,
    /// The capacities by name, in billionths of their unit.
    pub capacity: BTreeMap<String, i128>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The value is a number.
    Int(i64),
    /// The value is true or false.
    Bool(bool),
    /// The value is text.
    Text(String),
    /// The value is a semantic version.
    Version(String),
    /// The value is of an unknown kind. No expression is evaluated for a device that has one.
    Unknown,
}
