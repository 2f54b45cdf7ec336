//! Whether a job's pods may be charged to its queue on top of what it holds: limits and, for
//! non-preemptible jobs, quotas, at the queue and at every ancestor (KAI,
//! `plugins/proportion/capacity_policy`), with KAI's messages.

use crate::action::ReasonKind;
use crate::ids::PodUid;
use crate::model::QueueResource;
use crate::reason::{ReasonKey, WaitReason};
use crate::shares::{QueueAmounts, less};
use crate::state::State;
use crate::state::keys::{JobKey, QueueKey};
use crate::state::rows::TaskRow;
use crate::units::{Bound, Bytes, CpuMilli};
use std::collections::BTreeMap;
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

/// The new total of a pod; for a resource that is left out, its current amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// CPU.
    pub cpu: Option<CpuMilli>,
    /// Memory.
    pub memory: Option<Bytes>,
}

/// Whether a placed pod may have that much: the increase counts on top of what its queues hold and
/// of what `granted` adds to it. A pod that is not placed is checked at its placement. `None`: no
/// such pod.
///
/// `granted`: amounts that were granted to pods before and that they do not show yet. The pod's own
/// entry does not count: its new request replaces it.
pub(crate) fn may_have(
    state: &State,
    pod: &PodUid,
    request: Request,
    granted: &[(PodUid, Request)],
) -> Option<Result<(), Arc<str>>> {
    let key = state.task_of(pod)?;
    let row = state.tasks.get(key)?;
    let Some(job) = row.job.filter(|_| state.cell(key).status.is_active()) else {
        return Some(Ok(()));
    };
    let mut beside = Beside::default();
    for (other, request) in granted.iter().filter(|(other, _)| other != pod) {
        beside.add(state, other, *request);
    }
    let wanted = more(state, row, request)?;
    let job = state.jobs.get(job)?;
    let is_fixed = state.counts_as_fixed(key, row);
    let charged = job.queue.map(|queue| (queue, !is_fixed));
    let over = charged.and_then(|charged| over_beside(state, charged, wanted, Check::All, &beside));
    Some(over.map_or(Ok(()), |why| Err(Arc::clone(&why.line))))
}

/// The increase over the pod's current amount.
fn more(state: &State, row: &TaskRow, request: Request) -> Option<QueueAmounts> {
    let spec = &state.specs.get(row.spec)?.spec;
    let has = [0, spec.cpu.0.into(), spec.memory.0.into()];
    let wants = [
        0,
        request.cpu.unwrap_or(spec.cpu).0.into(),
        request.memory.unwrap_or(spec.memory).0.into(),
    ];
    Some(less(wants, has))
}

/// The increase of the queues' allocations: of all pods, and of non-preemptible ones.
#[derive(Debug, Default)]
struct Beside(BTreeMap<QueueKey, [QueueAmounts; 2]>);

impl Beside {
    fn add(&mut self, state: &State, pod: &PodUid, request: Request) -> Option<()> {
        let key = state.task_of(pod)?;
        let row = state.tasks.get(key)?;
        let job = row.job.filter(|_| state.cell(key).status.is_active())?;
        let job = state.jobs.get(job)?;
        let more = more(state, row, request)?;
        for queue in &state.queues.get(job.queue?)?.chain {
            let [all, kept] = self.0.entry(*queue).or_default();
            *all = plus(*all, more);
            if state.counts_as_fixed(key, row) {
                *kept = plus(*kept, more);
            }
        }
        Some(())
    }

    fn of(&self, queue: QueueKey) -> [QueueAmounts; 2] {
        self.0.get(&queue).copied().unwrap_or_default()
    }
}

fn plus(one: QueueAmounts, other: QueueAmounts) -> QueueAmounts {
    std::array::from_fn(|index| one[index] + other[index])
}

/// `None`: it may.
pub(crate) fn over(
    state: &State,
    job: JobKey,
    wanted: QueueAmounts,
    check: Check,
) -> Option<Arc<WaitReason>> {
    let row = state.jobs.get(job)?;
    let charged = (row.queue?, state.may_exceed_quota(job));
    over_beside(state, charged, wanted, check, &Beside::default())
}

/// Checks the same for any job of that queue. `may_exceed_quota` says whether the job's next pods may.
pub(crate) fn over_in(
    state: &State,
    queue: QueueKey,
    may_exceed_quota: bool,
    wanted: QueueAmounts,
) -> Option<Arc<WaitReason>> {
    let charged = (queue, may_exceed_quota);
    over_beside(state, charged, wanted, Check::All, &Beside::default())
}

fn over_beside(
    state: &State,
    (queue, may_exceed_quota): (QueueKey, bool),
    wanted: QueueAmounts,
    check: Check,
    beside: &Beside,
) -> Option<Arc<WaitReason>> {
    let why = |kind, (queue, index, line): (QueueKey, usize, String)| {
        Arc::new(WaitReason {
            kind,
            line: Arc::from(line),
            about: ReasonKey::Limit(queue, index),
        })
    };
    let chain = &state.queues.get(queue)?.chain;
    if check == Check::All {
        for queue in chain {
            if let Some(over) = over_limit(state, *queue, wanted, beside.of(*queue)[0]) {
                return Some(why(ReasonKind::OverLimit, over));
            }
        }
    }
    if may_exceed_quota {
        return None;
    }
    chain
        .iter()
        .find_map(|queue| over_quota(state, *queue, wanted, beside.of(*queue)[1]))
        .map(|over| why(ReasonKind::NonPreemptibleOverQuota, over))
}

/// KAI checks CPU and memory before GPUs.
const ORDER: [usize; 3] = [1, 2, 0];

/// Which queue, which resource, and the words.
type Over = (QueueKey, usize, String);

fn over_limit(
    state: &State,
    queue: QueueKey,
    wanted: QueueAmounts,
    beside: QueueAmounts,
) -> Option<Over> {
    let limits = bounds(state, queue, |resource| resource.limit)?;
    let used = plus(state.cells.queues.get(queue)?.allocated, beside);
    ORDER.into_iter().find_map(|index| {
        let Bound::Exactly(limit) = limits[index] else {
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

/// This advice follows KAI's sentence about a non-preemptible workload that would be over quota. A
/// workload that serves, such as a Deployment, is non-preemptible by default, and the queue that an
/// installation creates has no quota.
pub(crate) const WAYS_OUT: &str = " Or raise the quota of the queue; a workload is preemptible with the label kai.scheduler/preemptibility: preemptible, or a priority class below 100 such as train.";

fn over_quota(
    state: &State,
    queue: QueueKey,
    wanted: QueueAmounts,
    beside: QueueAmounts,
) -> Option<Over> {
    let quotas = bounds(state, queue, |resource| resource.quota)?;
    let used = plus(state.cells.queues.get(queue)?.non_preemptible, beside);
    ORDER.into_iter().find_map(|index| {
        let Bound::Exactly(quota) = quotas[index] else {
            return None;
        };
        if wanted[index] == 0 || used[index] + wanted[index] <= u128::from(quota) {
            return None;
        }
        let line = format!(
            "Non-preemptible workload is over quota. Workload requested {} {}, but {} quota is {} {}, while {} {} are already allocated for non-preemptible pods. Use a preemptible workload to go over quota.{WAYS_OUT}",
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

fn bounds(state: &State, queue: QueueKey, of: fn(QueueResource) -> Bound) -> Option<[Bound; 3]> {
    Some(state.queues.get(queue)?.queue.as_ref()?.bound3(of))
}

/// A queue as messages call it.
pub(crate) fn name(state: &State, queue: QueueKey) -> String {
    state.queues.get(queue).map_or_else(String::new, |row| {
        row.queue
            .as_ref()
            .and_then(|queue| queue.display_name.as_ref())
            .map_or_else(|| row.name.to_string(), ToString::to_string)
    })
}

/// Nano-GPU as messages write them.
pub(crate) fn gpus(nano: u128) -> String {
    amount(nano, 0)
}

/// At most three decimals, no trailing zeros.
#[allow(clippy::cast_precision_loss)]
fn amount(value: u128, index: usize) -> String {
    let text = format!("{:.3}", value as f64 / UNITS[index]);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Core, text};

    /// `low` holds 3 of 4 cores of its queue, `high` beside it 1 of them and cannot be preempted,
    /// `late` waits. Their department may have 6 cores and 10 GB.
    const CLUSTER: &str = "node n1 cpu=64000 memory=274877906944 pods=110\n\
        queue top cpu=2000/6000/1 memory=-1/10000000000/1\n\
        queue q parent=top cpu=2000/4000/1\n\
        queue other parent=top\n\
        pod low queue=q priority=50 cpu=2000 phase=running on=n1\n\
        pod high queue=q priority=100 cpu=1000 phase=running on=n1\n\
        pod beside queue=other priority=50 cpu=1500 memory=9000000000 phase=running on=n1\n\
        pod late queue=q priority=50 cpu=1000\n";

    #[test]
    fn a_pod_may_have_what_every_queue_above_it_has_left() {
        let mut core = Core::new(Config::verified());
        for event in text::read(CLUSTER).expect("a cluster") {
            assert_eq!(core.apply(event), Vec::new());
        }
        let mut may = |pod: &str, cpu: Option<u64>, memory: Option<u64>| {
            let request = Request {
                cpu: cpu.map(CpuMilli),
                memory: memory.map(Bytes),
            };
            let said = core.may_have(&PodUid::new(pod), request, &[])?;
            Some(said.map_err(|why| why.to_string()))
        };
        assert_eq!(may("low", Some(3000), None), Some(Ok(())));
        let own = may("low", Some(3001), None).unwrap().unwrap_err();
        assert!(
            own.starts_with("q quota has reached the allowable limit of CPU cores. Limit is 4")
        );
        // Its current amount counts once, whatever else it requests.
        assert_eq!(may("low", Some(1000), Some(1_000_000_000)), Some(Ok(())));
        let above = may("low", None, Some(1_000_000_001)).unwrap().unwrap_err();
        assert!(
            above.starts_with("top quota has reached the allowable limit of memory. Limit is 10")
        );
        let both = may("beside", Some(3001), None).unwrap().unwrap_err();
        assert!(
            both.starts_with("top quota has reached the allowable limit of CPU cores. Limit is 6")
        );
        // It cannot be preempted: the quota counts as well.
        assert_eq!(may("high", Some(2000), None), Some(Ok(())));
        let quota = may("high", Some(2001), None).unwrap().unwrap_err();
        assert!(!quota.is_empty());
        // Where it goes is judged then.
        assert_eq!(may("late", Some(64_000), None), Some(Ok(())));
        assert_eq!(may("nobody", Some(1), None), None);
    }

    #[test]
    fn what_others_were_let_have_counts_until_they_show_it() {
        let mut core = Core::new(Config::verified());
        for event in text::read(CLUSTER).expect("a cluster") {
            assert_eq!(core.apply(event), Vec::new());
        }
        let cpu = |cpu: u64| Request {
            cpu: Some(CpuMilli(cpu)),
            memory: None,
        };
        let of = |pod: &str, milli: u64| (PodUid::new(pod), cpu(milli));
        let may = |core: &mut Core, pod: &str, milli: u64, granted: &[(PodUid, Request)]| {
            let said = core.may_have(&PodUid::new(pod), cpu(milli), granted);
            said.expect("a pod").map_err(|why| why.to_string())
        };
        // Each alone may have the core that is left of the queue's 4, and of the department's
        // 6 there is half a one more.
        assert_eq!(may(&mut core, "low", 3000, &[]), Ok(()));
        let high = [of("high", 1500)];
        assert_eq!(may(&mut core, "low", 2500, &high), Ok(()));
        let why = may(&mut core, "low", 2501, &high).unwrap_err();
        assert!(
            why.contains("Limit is 4 CPU cores, currently 3.5 CPU cores allocated"),
            "{why}"
        );
        // In a queue beside it: the department's limit alone is the same.
        let low = [of("low", 2500)];
        assert_eq!(may(&mut core, "beside", 2500, &low), Ok(()));
        let why = may(&mut core, "beside", 2501, &low).unwrap_err();
        assert!(why.starts_with("top quota has reached"), "{why}");
        // Non-preemptible pods count against the quota of 2 cores; preemptible ones do not.
        assert_eq!(may(&mut core, "high", 2000, &low[..0]), Ok(()));
        assert_eq!(may(&mut core, "high", 1500, &low), Ok(()));
        // The pod's own entry is replaced; entries that are already visible, or of no pod, add
        // nothing.
        let own = [
            of("low", 3000),
            of("high", 1000),
            of("nobody", 9000),
            of("late", 9000),
        ];
        assert_eq!(may(&mut core, "low", 3000, &own), Ok(()));
        let shows = text::read("pod high queue=q priority=100 cpu=1500 phase=running on=n1\n");
        for event in shows.expect("a pod") {
            core.apply(event);
        }
        assert_eq!(may(&mut core, "low", 2500, &high), Ok(()));
        assert!(may(&mut core, "low", 2501, &high).is_err());
    }
}
