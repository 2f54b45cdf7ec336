//! The answer of a verb, before it is printed.

use super::table::{Cell, Table};
use serde_json::Value;

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Lines above the table, for people.
    pub(crate) above: Vec<Cell>,
    /// The rows.
    pub(crate) table: Table,
    /// Lines below the table, for people.
    pub(crate) below: Vec<Cell>,
    /// What JSON and YAML print; the rows as objects where there is none.
    pub(crate) document: Option<Value>,
}

impl From<Table> for Report {
    fn from(table: Table) -> Self {
        Self {
            table,
            ..Self::default()
        }
    }
}
