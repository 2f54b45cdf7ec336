//! Rows and columns. A cell has a value for programs and a text for people.

use serde_json::{Map, Value};

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// In JSON, YAML and CSV.
    pub(crate) key: &'static str,
    /// In tables.
    pub(crate) title: &'static str,
    /// In tables only with `-o wide`.
    pub(crate) wide: bool,
    /// Numbers are right-aligned.
    pub(crate) right: bool,
}

impl Column {
    pub(crate) const fn text(key: &'static str, title: &'static str) -> Self {
        Self {
            key,
            title,
            wide: false,
            right: false,
        }
    }

    pub(crate) const fn number(key: &'static str, title: &'static str) -> Self {
        Self {
            key,
            title,
            wide: false,
            right: true,
        }
    }

    pub(crate) const fn wide(self) -> Self {
        Self {
            key: self.key,
            title: self.title,
            wide: true,
            right: self.right,
        }
    }
}

/// What a cell means, for its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
    Dim,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    /// For people.
    pub(crate) shown: String,
    /// For programs.
    pub(crate) value: Value,
    /// Its colour.
    pub(crate) tone: Tone,
}

impl Cell {
    /// A text for people beside a value for programs.
    pub(crate) fn shown(value: impl Into<Value>, shown: impl Into<String>) -> Self {
        Self {
            shown: shown.into(),
            value: value.into(),
            tone: Tone::Plain,
        }
    }

    #[must_use]
    pub(crate) fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::shown(text, text)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::shown(text.clone(), text)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::shown(number, number.to_string())
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::from(u64::from(number))
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<api::Mib> for Cell {
    fn from(mib: api::Mib) -> Self {
        Self::from(mib.0)
    }
}

impl From<bool> for Cell {
    fn from(yes: bool) -> Self {
        Self::shown(yes, if yes { "yes" } else { "no" })
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(maybe: Option<T>) -> Self {
        maybe.map_or_else(|| Self::shown(Value::Null, "-"), Into::into)
    }
}

/// Rows under columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    /// In the order of tables.
    pub(crate) columns: &'static [Column],
    /// As many cells as columns.
    pub(crate) rows: Vec<Vec<Cell>>,
    /// What a table without rows says instead.
    pub(crate) empty: &'static str,
}

impl Table {
    pub(crate) fn new(columns: &'static [Column], empty: &'static str) -> Self {
        Self {
            columns,
            rows: Vec::new(),
            empty,
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Each row as an object.
    pub(crate) fn objects(&self) -> Value {
        let object = |row: &Vec<Cell>| {
            let fields = self.columns.iter().zip(row);
            let fields = fields.map(|(column, cell)| (column.key.to_owned(), cell.value.clone()));
            Value::Object(fields.collect::<Map<_, _>>())
        };
        Value::Array(self.rows.iter().map(object).collect())
    }
}
