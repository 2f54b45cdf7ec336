//! The lines that the demo prints.

use crate::report;
use crate::view::ClusterView;
use std::io::Write as _;

pub(super) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

pub(super) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// A view as it is printed.
pub(super) fn picture(view: &ClusterView) -> String {
    view.render(report::size().0, report::colours())
}
