//! What a verb answers, and the five ways to print it.
//!
//! - `table`: columns and rows; `print`: table, wide, JSON, YAML, CSV; `screen`: an answer
//!   that is followed.
//!
//! A verb creates a [`Report`] and never prints; only this module prints, so that every verb
//! supports every format.

mod print;
mod screen;
mod table;

pub(crate) use print::{Format, Output, colours, painted, say};
pub(crate) use screen::{Follow, Screen, clipped, drawable, first_lines, size};
pub(crate) use table::{Cell, Column, Table, Tone};

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
