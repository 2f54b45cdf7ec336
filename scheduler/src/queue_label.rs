//! The queue that an object names by its labels. The scheduler, its grouper and the status page read
//! it in this way alone.

use proto::names::kai;
use std::collections::BTreeMap;

/// Returns the value of the first of these labels that is not empty: `key`, by which the admin has
/// queues named (`--queue-label-key`), then KAI's own and its older ones. Returns
/// [`kai::DEFAULT_QUEUE`] if there is none.
pub(crate) fn queue_of<'a>(labels: &'a BTreeMap<String, String>, key: &str) -> &'a str {
    [
        key,
        kai::QUEUE_LABEL,
        kai::QUEUE_LABEL_OLD,
        kai::PROJECT_LABEL,
    ]
    .into_iter()
    .filter_map(|key| labels.get(key))
    .find(|name| !name.is_empty())
    .map_or(kai::DEFAULT_QUEUE, String::as_str)
}
