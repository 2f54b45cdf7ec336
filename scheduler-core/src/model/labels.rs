//! Labels of an object.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels by key.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;
