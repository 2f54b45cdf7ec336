//! A verb's answer, which is printed in the format that the user chose.

use super::table::{Cell, Table};
use serde_json::Value;

/// The answer of a verb: a table, and lines above and below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The lines above the table, for people.
    pub(crate) above: Vec<Cell>,
    /// The rows of the table.
    pub(crate) table: Table,
    /// The lines below the table, for people.
    pub(crate) below: Vec<Cell>,
    /// The value that JSON and YAML print. `None`: they print the rows as objects.
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
