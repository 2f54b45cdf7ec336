//! This program as `aliquot-hook`: the runtimes of the demo run it under that name.
//! The same library as the static program that real nodes have.

use crate::failure::Failure;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

/// The name under which it is started.
pub(crate) const NAME: &str = "aliquot-hook";

/// Whether this start is the hook's.
pub(crate) fn is_meant(args: &[String]) -> bool {
    args.first()
        .and_then(|name| Path::new(name).file_name())
        .is_some_and(|name| name == NAME)
}

/// Runs it; the refusal is one line on standard error.
pub(crate) fn run(args: &[String]) -> ExitCode {
    let rest = args.get(1..).unwrap_or_default();
    match aliquot_hook::create_runtime(rest, std::io::stdin().lock(), SystemTime::now()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            // The refusal may contain a tenant's text, so it is made one visible line.
            let refusal = Failure::no(refusal).sentence;
            let _ = writeln!(std::io::stderr(), "aliquot: {refusal}");
            ExitCode::FAILURE
        }
    }
}
