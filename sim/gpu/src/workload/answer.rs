//! The lines that a script prints about its commands.

use crate::client::CallError;
use crate::client::process::MemoryView;
use crate::cuda::CudaError;
use serde_json::{Map, Value, json};
use std::io::Write as _;

pub(super) fn number(text: &str) -> Result<u64, CallError> {
    text.parse().map_err(|_| {
        CallError::refused(CudaError::InvalidValue, format!("`{text}` is not a number"))
    })
}

pub(super) fn memory(view: &MemoryView) -> Value {
    json!({
        "total_mib": view.total,
        "free_mib": view.free,
        "held_mib": view.held,
        "context_mib": view.context,
        "limit_mib": view.limit,
        "percent": view.percent,
    })
}

pub(super) fn refusal(error: &CallError) -> Map<String, Value> {
    let (name, message) = match error {
        CallError::Refused { name, message, .. } => (name.clone(), message.clone()),
        CallError::Gone(source) => ("DRIVER_GONE".to_owned(), source.to_string()),
    };
    let mut fields = Map::new();
    fields.insert("code".to_owned(), json!(error.code()));
    fields.insert("error".to_owned(), Value::String(name));
    fields.insert("message".to_owned(), Value::String(message));
    fields
}

/// Prints one line of JSON, which is all that the program prints.
pub(super) fn print(value: &Value) {
    println_plain(&value.to_string());
}

pub(super) fn println_plain(line: &str) {
    // A closed standard output is no reason to let go of the memory.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
