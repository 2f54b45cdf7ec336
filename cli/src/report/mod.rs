//! What a verb answers, and the five ways to print it.
//!
//! - `answer`: a [`Report`]; `table`: columns and rows; `print`: table, wide, JSON, YAML, CSV;
//!   `screen`: an answer that is followed; `wrap`: sentences as lines.
//!
//! A verb creates a [`Report`] and never prints; only this module prints, so that every verb
//! supports every format.

mod answer;
mod print;
mod screen;
mod table;
mod wrap;

pub(crate) use answer::Report;
pub(crate) use print::{Format, Output, colours, painted, say};
pub(crate) use screen::{Follow, Screen, clipped, drawable, first_lines, size};
pub(crate) use table::{Cell, Column, Table, Tone};
pub(crate) use wrap::wrapped;
