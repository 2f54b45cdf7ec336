//! Pods of a `LeaderWorkerSet`: one group per leader with its workers.

use super::draft::{Draft, part, raise};
use super::kubeflow::{MOST_SEGMENTS, SEGMENT, index, segment_constraint, segment_size};
use super::object::Object;
use super::rule::RuleError;
use api::kai::SubGroup;
use serde_json::Value;

const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
const LEADER: &str = "leader";
const WORKERS: &str = "workers";

/// Leader and workers are sub-groups, or segments are.
pub(super) fn draft(set: &Object, mut draft: Draft, pod: &Object) -> Result<Draft, RuleError> {
    let size = set
        .number(&["spec", "leaderWorkerTemplate", "size"])
        .filter(|size| *size > 0)
        .ok_or_else(|| RuleError::of(set, "no leaderWorkerTemplate.size from 1 on"))?;
    let leads = pod.label(WORKER_INDEX) == Some("0");
    let size = match set.text(&["spec", "startupPolicy"]) {
        None | Some("LeaderCreated") => size,
        Some("LeaderReady") => {
            let placed = pod.text(&["spec", "nodeName"]).is_some();
            if leads && !placed {
                // Its workers are created when it is ready.
                1
            } else {
                pod.annotation(SIZE)
                    .and_then(|text| text.parse().ok())
                    .filter(|size| *size > 0)
                    .unwrap_or(size)
            }
        }
        Some(other) => return Err(RuleError::of(set, format!("unknown startupPolicy {other}"))),
    };
    draft.min = size;
    if let Some(group) = pod
        .label(GROUP_INDEX)
        .and_then(|text| text.parse::<u32>().ok())
    {
        draft.name = format!("{}-group-{group}", draft.name);
    }
    match segments(set)? {
        // A leader that starts first is alone, however its workers are split.
        Some(segment) if size > 1 => segmented(set, draft, pod, size, segment),
        _ => {
            draft.sub_groups.push(part(LEADER, 1));
            if size > 1 {
                draft.sub_groups.push(part(WORKERS, size - 1));
            }
            draft.part = Some(if leads { LEADER } else { WORKERS }.to_owned());
            Ok(draft)
        }
    }
}

/// Pods in a segment: from the set's policy, then its annotation, then its template's annotation.
fn segments(set: &Object) -> Result<Option<i64>, RuleError> {
    let template = ["spec", "leaderWorkerTemplate", "workerTemplate"];
    let size = set.number(&[
        "spec",
        "leaderWorkerTemplate",
        "subGroupPolicy",
        "subGroupSize",
    ]);
    if let Some(size) = size {
        return Ok(Some(size.max(1)));
    }
    let text = set.annotation(SEGMENT).or_else(|| {
        set.at(&template)
            .and_then(|template| super::draft::template_annotation(template, SEGMENT))
    });
    segment_size(set, text)
}

/// The leader is in the first segment, as an extra pod if the workers fill whole segments, or alone.
fn segmented(
    set: &Object,
    mut draft: Draft,
    pod: &Object,
    size: i64,
    segment: i64,
) -> Result<Draft, RuleError> {
    if segment > size {
        return Err(RuleError::of(
            set,
            format!("segments of {segment} pods, but groups of {size}"),
        ));
    }
    let even = (size - 1) % segment == 0;
    let segment_of = |worker: i64| match (worker, even) {
        (0, _) => 0,
        (worker, true) => (worker - 1) / segment,
        (worker, false) => worker / segment,
    };
    let count = segment_of(size - 1) + 1;
    if count > MOST_SEGMENTS {
        return Err(RuleError::of(
            set,
            format!("{count} segments, more than {MOST_SEGMENTS}"),
        ));
    }
    let template = set
        .at(&["spec", "leaderWorkerTemplate", "workerTemplate"])
        .unwrap_or(&Value::Null);
    let constraint = segment_constraint(set, pod, template);
    let named = |at: i64, min: i64| -> SubGroup {
        let mut part = part(&format!("segment-{at}"), min);
        part.topology_constraint.clone_from(&constraint);
        part
    };
    let worker = index(pod, WORKER_INDEX)?;
    let apart = set.text(&[
        "spec",
        "leaderWorkerTemplate",
        "subGroupPolicy",
        "subGroupPolicyType",
    ]) == Some("LeaderExcluded");
    if apart {
        if !even {
            return Err(RuleError::of(
                set,
                format!(
                    "LeaderExcluded with {} workers in segments of {segment}",
                    size - 1
                ),
            ));
        }
        draft.sub_groups.push(part(LEADER, 1));
        draft
            .sub_groups
            .extend((0..count).map(|at| named(at, segment)));
        draft.part = Some(match worker {
            0 => LEADER.to_owned(),
            worker => format!("segment-{}", segment_of(worker)),
        });
        return Ok(draft);
    }
    for at in 0..count {
        let members = (0..size).filter(|worker| segment_of(*worker) == at).count();
        draft
            .sub_groups
            .push(named(at, i64::try_from(members).unwrap_or(segment)));
    }
    // The leader is always needed, even if the first segment may lack a worker.
    let first = draft.sub_groups.first().and_then(|part| part.min_member);
    let first = i64::from(first.unwrap_or(1));
    let inner = [(LEADER, 1), (WORKERS, first - 1)];
    for (name, min) in inner.into_iter().filter(|(_, min)| *min > 0) {
        let mut inner = part(name, min);
        inner.parent = Some("segment-0".to_owned());
        draft.sub_groups.push(inner);
    }
    raise(&mut draft.sub_groups);
    draft.part = Some(match (worker, segment_of(worker)) {
        (0, _) => LEADER.to_owned(),
        (_, 0) => WORKERS.to_owned(),
        (_, at) => format!("segment-{at}"),
    });
    Ok(draft)
}
