//! May a job's pods be counted on top of what its queue holds: limits and, for work that
//! cannot be preempted, quotas, at the queue and at every ancestor (KAI,
//! `plugins/proportion/capacity_policy`), in KAI's words.

use crate::action::ReasonKind;
use crate::reason::{About, Why};
use crate::shares::{Shares, Three};
use crate::state::State;
use crate::state::rows::{JobKey, QueueKey};
use crate::units::Bound;
use std::sync::Arc;

const NAMES: [&str; 3] = ["GPUs", "CPU cores", "memory"];
/// Units in messages: GPUs, cores, GB.
const UNITS: [f64; 3] = [1e9, 1e3, 1e9];

/// What kind of check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Limits, then quota.
    All,
    /// Quota alone.
    QuotaOnly,
}

/// `None`: it may.
pub(crate) fn over(
    state: &State,
    shares: &Shares,
    job: JobKey,
    wanted: Three,
    check: Check,
) -> Option<Arc<Why>> {
    let row = state.jobs.get(job)?;
    let why = |kind, (queue, index, line): (QueueKey, usize, String)| {
        Arc::new(Why {
            kind,
            line: Arc::from(line),
            about: About::Limit(queue, index),
        })
    };
    let preemptible = row.is_preemptible(state);
    let chain = &state.queues.get(row.queue?)?.chain;
    if check == Check::All {
        for queue in chain {
            if let Some(over) = over_limit(state, shares, *queue, wanted) {
                return Some(why(ReasonKind::OverLimit, over));
            }
        }
    }
    if preemptible {
        return None;
    }
    chain
        .iter()
        .find_map(|queue| over_quota(state, shares, *queue, wanted))
        .map(|over| why(ReasonKind::NonPreemptibleOverQuota, over))
}

/// KAI looks at CPU and memory before GPUs.
const ORDER: [usize; 3] = [1, 2, 0];

/// Which queue, which resource, and the words.
type Over = (QueueKey, usize, String);

fn over_limit(state: &State, shares: &Shares, queue: QueueKey, wanted: Three) -> Option<Over> {
    let share = shares.of.get(queue)?;
    let used = state.queue_use.get(queue)?.allocated;
    ORDER.into_iter().find_map(|index| {
        let Bound::Exactly(limit) = share.limit[index] else {
            return None;
        };
        if wanted[index] == 0 || used[index] + wanted[index] <= u128::from(limit) {
            return None;
        }
        let line = format!(
            "{} quota has reached the allowable limit of {}. Limit is {} {}, currently {} {} allocated and workload requested {} {}",
            name(state, queue),
            NAMES[index],
            amount(u128::from(limit), index),
            NAMES[index],
            amount(used[index], index),
            NAMES[index],
            amount(wanted[index], index),
            NAMES[index],
        );
        Some((queue, index, line))
    })
}

fn over_quota(state: &State, shares: &Shares, queue: QueueKey, wanted: Three) -> Option<Over> {
    let share = shares.of.get(queue)?;
    let used = state.queue_use.get(queue)?.non_preemptible;
    ORDER.into_iter().find_map(|index| {
        let Bound::Exactly(quota) = share.quota[index] else {
            return None;
        };
        if wanted[index] == 0 || used[index] + wanted[index] <= u128::from(quota) {
            return None;
        }
        let line = format!(
            "Non-preemptible workload is over quota. Workload requested {} {}, but {} quota is {} {}, while {} {} are already allocated for non-preemptible pods. Use a preemptible workload to go over quota.",
            amount(wanted[index], index),
            NAMES[index],
            name(state, queue),
            amount(u128::from(quota), index),
            NAMES[index],
            amount(used[index], index),
            NAMES[index],
        );
        Some((queue, index, line))
    })
}

fn name(state: &State, queue: QueueKey) -> String {
    state.queues.get(queue).map_or_else(String::new, |row| {
        row.queue
            .as_ref()
            .and_then(|queue| queue.display_name.as_ref())
            .map_or_else(|| row.name.to_string(), ToString::to_string)
    })
}

/// At most three decimals, no trailing zeros.
#[allow(clippy::cast_precision_loss)]
fn amount(value: u128, index: usize) -> String {
    let text = format!("{:.3}", value as f64 / UNITS[index]);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
