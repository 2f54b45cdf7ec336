//! A report as text. Pure but for one question: is standard output a terminal.

use super::answer::Report;
use super::table::{Cell, Column, Table, Tone};
use crate::failure::Failure;
use api::visible::{is_visible, visible};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

/// How an answer is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Columns that fit a screen.
    #[default]
    Table,
    /// Every column.
    Wide,
    /// One document.
    Json,
    /// One document.
    Yaml,
    /// Every column, RFC 4180, with a line of names.
    Csv,
}

/// Flags of every verb that answers with a report.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Output {
    /// How the answer is printed.
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        value_name = "FORMAT",
        default_value_t,
        global = true
    )]
    pub(crate) format: Format,
    /// Leave out the line of titles.
    #[arg(long)]
    pub(crate) no_headers: bool,
}

impl Output {
    /// Prints the report on standard output.
    pub(crate) fn print(self, report: &Report) -> Result<(), Failure> {
        let text = self.render(report, colours());
        say(&text)
    }

    /// The report as text.
    pub(crate) fn render(self, report: &Report, coloured: bool) -> String {
        match self.format {
            Format::Table | Format::Wide => {
                let wide = self.format == Format::Wide;
                people(report, wide, !self.no_headers, coloured)
            }
            Format::Json => {
                let text = serde_json::to_string_pretty(&document(report));
                text.map_or_else(|error| error.to_string(), |text| escaped(&text) + "\n")
            }
            Format::Yaml => yaml(&document(report)),
            Format::Csv => csv(&report.table, !self.no_headers),
        }
    }
}

/// Whether colours are wanted: on a terminal, unless `NO_COLOR` is set.
pub(crate) fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Writes to standard output; a reader that has gone away is no failure.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::no(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn document(report: &Report) -> Value {
    let rows = || report.table.objects();
    report.document.clone().unwrap_or_else(rows)
}

/// Writes each invisible character of a JSON text as its number. Apart from line breaks, such
/// characters occur only in strings.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || is_visible(c) {
            text.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

fn yaml(document: &Value) -> String {
    serde_saphyr::to_string(&shown(document)).unwrap_or_else(|error| error.to_string())
}

/// Escapes the invisible characters of a text except its line breaks.
fn lines(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

/// Escapes the invisible characters of a document, which YAML would write as they are.
fn shown(document: &Value) -> Value {
    match document {
        Value::String(text) => Value::String(lines(text)),
        Value::Array(items) => items.iter().map(shown).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            Value::Object(
                fields
                    .map(|(key, value)| (visible(key), shown(value)))
                    .collect(),
            )
        }
        other => other.clone(),
    }
}

fn people(report: &Report, wide: bool, titles: bool, coloured: bool) -> String {
    let mut text = String::new();
    for line in &report.above {
        text.push_str(&painted(&line.shown, line.tone, coloured));
        text.push('\n');
    }
    if !report.table.columns.is_empty() {
        if !report.above.is_empty() {
            text.push('\n');
        }
        text.push_str(&table(&report.table, wide, titles, coloured));
    }
    if !report.below.is_empty() && !text.is_empty() {
        text.push('\n');
    }
    for line in &report.below {
        text.push_str(&painted(&line.shown, line.tone, coloured));
        text.push('\n');
    }
    text
}

fn table(table: &Table, wide: bool, titles: bool, coloured: bool) -> String {
    if table.rows.is_empty() {
        return format!("{}\n", table.empty);
    }
    let chosen: Vec<(usize, &Column)> = table
        .columns
        .iter()
        .enumerate()
        .filter(|(_, column)| wide || !column.wide)
        .collect();
    let widths: Vec<usize> = chosen
        .iter()
        .map(|(at, column)| {
            let title = if titles {
                column.title.chars().count()
            } else {
                0
            };
            let cells = table.rows.iter().map(|row| width(&row[*at].shown));
            cells.max().unwrap_or(0).max(title)
        })
        .collect();
    let line = |cells: Vec<(&str, Tone)>| {
        let mut line = String::new();
        for (place, (text, tone)) in cells.into_iter().enumerate() {
            if place > 0 {
                line.push_str("  ");
            }
            let pad = " ".repeat(widths[place].saturating_sub(width(text)));
            let text = painted(text, tone, coloured);
            if chosen[place].1.right {
                line.push_str(&pad);
                line.push_str(&text);
            } else {
                line.push_str(&text);
                line.push_str(&pad);
            }
        }
        let kept = line.trim_end().len();
        line.truncate(kept);
        line.push('\n');
        line
    };
    let mut text = String::new();
    if titles {
        let titles = chosen.iter().map(|(_, column)| (column.title, Tone::Dim));
        text.push_str(&line(titles.collect()));
    }
    for row in &table.rows {
        let cells = chosen
            .iter()
            .map(|(at, _)| (row[*at].shown.as_str(), row[*at].tone));
        text.push_str(&line(cells.collect()));
    }
    text
}

/// The most characters of a cell or a line that people are shown. A message may be as long as its
/// object, and would push everything else off the screen.
const LONGEST: usize = 4096;

/// Returns the width of a text as [`painted`] shows it.
fn width(text: &str) -> usize {
    let each = text.chars().map(|c| {
        if is_visible(c) {
            1
        } else {
            c.escape_unicode().count()
        }
    });
    each.sum::<usize>().min(LONGEST + 1)
}

/// Colours a text, and escapes invisible characters, because names and messages are untrusted. What
/// is longer than a screen is cut.
pub(crate) fn painted(text: &str, tone: Tone, coloured: bool) -> String {
    let mut text = visible(text);
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    let code = match tone {
        _ if !coloured || text.is_empty() => return text,
        Tone::Plain => return text,
        Tone::Good => "32",
        Tone::Warn => "33",
        Tone::Bad => "31",
        Tone::Dim => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Writes a table as RFC 4180 defines CSV, with invisible characters escaped.
fn csv(table: &Table, titles: bool) -> String {
    let mut writer = csv::WriterBuilder::new()
        .terminator(csv::Terminator::CRLF)
        .from_writer(Vec::new());
    let titles = titles.then(|| table.columns.iter().map(|column| column.key.to_owned()));
    let titles = titles.map(Iterator::collect::<Vec<String>>);
    let rows = table.rows.iter().map(|row| row.iter().map(field).collect());
    for row in titles.into_iter().chain(rows) {
        // Into memory, as many fields in each row: it cannot fail.
        let _ = writer.write_record(&row);
    }
    let text = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

fn field(cell: &Cell) -> String {
    match &cell.value {
        Value::Null => String::new(),
        Value::String(text) => lines(text),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const COLUMNS: &[Column] = &[
        Column::text("name", "NAME"),
        Column::number("held", "HELD"),
        Column::text("why", "WHY").wide(),
    ];

    fn report() -> Report {
        let mut table = Table::new(COLUMNS, "nothing");
        table.row(vec!["a".into(), 12_u64.into(), Cell::from("x, \"y\"")]);
        table.row(vec![
            Cell::from("longer").tone(Tone::Bad),
            Cell::from(None::<u64>),
            "".into(),
        ]);
        Report {
            below: vec!["a note".into()],
            ..Report::from(table)
        }
    }

    fn printed(format: Format) -> String {
        let output = Output {
            format,
            no_headers: false,
        };
        output.render(&report(), false)
    }

    /// A tenant chooses the names of its pod's annotations and the texts of its conditions.
    #[test]
    fn what_a_terminal_would_obey_is_escaped_in_every_format() {
        const SLY: &str = "a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}b\u{2066}\u{200b}\u{e0041}\r\u{2028}c";
        const SHOWN: &str =
            "a\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{202e}b\\u{2066}\\u{200b}\\u{e0041}\\u{d}\\u{2028}c";
        let mut table = Table::new(COLUMNS, "nothing");
        table.row(vec![SLY.into(), 12_u64.into(), SLY.into()]);
        table.row(vec![SHOWN.into(), 1_u64.into(), "".into()]);
        let report = Report {
            above: vec![SLY.into()],
            below: vec![SLY.into()],
            ..Report::from(table)
        };
        for format in [
            Format::Table,
            Format::Wide,
            Format::Json,
            Format::Yaml,
            Format::Csv,
        ] {
            let output = Output {
                format,
                no_headers: false,
            };
            let text = output.render(&report, false);
            let unseen = text
                .chars()
                .find(|c| !matches!(c, '\r' | '\n') && !is_visible(*c));
            assert_eq!(unseen, None, "{format:?}: {text:?}");
            if format == Format::Wide {
                let lines: Vec<&str> = text.lines().collect();
                assert_eq!(lines[3], format!("{SHOWN}    12  {SHOWN}"));
                assert_eq!(lines[4], format!("{SHOWN}     1"));
            }
            if format == Format::Json {
                let read: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(read[0]["name"], SLY);
            }
        }
    }

    /// A tenant writes the message of a condition.
    #[test]
    fn a_text_as_long_as_its_object_fills_no_screen() {
        let mut table = Table::new(COLUMNS, "nothing");
        table.row(vec!["x".repeat(1 << 20).into(), 12_u64.into(), "".into()]);
        let report = Report {
            above: vec!["ö".repeat(1 << 20).into()],
            ..Report::from(table)
        };
        let text = Output::default().render(&report, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].chars().count(), LONGEST + 1);
        assert!(lines[0].ends_with('…') && lines[3].ends_with("…    12"));
        assert!(lines.iter().all(|line| line.chars().count() < LONGEST + 10));
    }

    #[test]
    fn one_report_in_five_formats() {
        assert_eq!(
            printed(Format::Table),
            "NAME    HELD\na         12\nlonger     -\n\na note\n"
        );
        assert_eq!(
            printed(Format::Wide),
            "NAME    HELD  WHY\na         12  x, \"y\"\nlonger     -\n\na note\n"
        );
        let read: Value = serde_json::from_str(&printed(Format::Json)).unwrap();
        assert_eq!(
            read,
            json!([{"name": "a", "held": 12, "why": "x, \"y\""}, {"name": "longer", "held": null, "why": ""}])
        );
        assert_eq!(
            serde_saphyr::from_str::<Value>(&printed(Format::Yaml)).unwrap(),
            read
        );
        assert_eq!(
            printed(Format::Csv),
            "name,held,why\r\na,12,\"x, \"\"y\"\"\"\r\nlonger,,\r\n"
        );
    }

    #[test]
    fn colours_are_only_where_they_are_wanted_and_move_nothing() {
        let output = Output::default();
        let plain = output.render(&report(), false);
        assert!(!plain.contains('\x1b'));
        let coloured = output.render(&report(), true);
        assert!(
            coloured.contains("\x1b[31mlonger\x1b[0m     -"),
            "{coloured}"
        );
    }

    #[test]
    fn a_table_without_rows_says_so_and_documents_are_empty() {
        let report = Report::from(Table::new(COLUMNS, "no rows here"));
        let output = |format| Output {
            format,
            no_headers: true,
        };
        assert_eq!(
            output(Format::Table).render(&report, false),
            "no rows here\n"
        );
        assert_eq!(output(Format::Json).render(&report, false), "[]\n");
        assert_eq!(output(Format::Csv).render(&report, false), "");
    }
}
