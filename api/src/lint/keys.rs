//! Names of annotations, labels and resources, and which of them was meant.

use proto::names::{grant, kai, pod_group, request, resource, scale_down, scale_up};

/// What a share is made of. Only a pod's own annotations count.
pub(super) const OF_SHARES: [&str; 9] = [
    request::MEMORY,
    request::FRACTION,
    request::NUM_DEVICES,
    request::CONTAINER,
    request::COMPUTE,
    request::MPS,
    request::MEMORY_LIMIT,
    request::FRACTION_LIMIT,
    request::COMPUTE_MODE,
];

/// The other annotations of pods and their owners.
const ANNOTATIONS: [&str; 27] = [
    request::RUN_TIME,
    kai::POD_GROUP,
    kai::SKIP_GROUPER,
    kai::SAFE_TO_CONSOLIDATE,
    kai::TOP_OWNER,
    kai::TOPOLOGY,
    kai::TOPOLOGY_REQUIRED,
    kai::TOPOLOGY_PREFERRED,
    kai::SEGMENT,
    kai::SEGMENT_REQUIRED,
    kai::SEGMENT_PREFERRED,
    kai::BATCH_MIN_MEMBER,
    kai::MIN_MEMBER,
    kai::STALENESS_GRACE,
    kai::PREEMPTION_DELAY,
    kai::LAST_START,
    kai::LAST_EVICTION,
    kai::STALE_SINCE,
    pod_group::SUCCEEDED,
    grant::GRANT,
    grant::RECEIVED_TYPE,
    scale_down::SAFE_TO_EVICT,
    scale_down::SAFE_TO_EVICT_AUTOSCALER,
    scale_down::DO_NOT_DISRUPT,
    scale_up::GROUP,
    scale_up::CARDS,
    // KAI's, with no counterpart here.
    "kai.scheduler/ignore-workload-api",
];

/// The labels of pods and their owners, without `project`, a word with other uses.
pub(super) const LABELS: [&str; 7] = [
    kai::QUEUE_LABEL,
    kai::QUEUE_LABEL_OLD,
    kai::PRIORITY_CLASS_LABEL,
    kai::PREEMPTIBILITY_LABEL,
    kai::SUB_GROUP_LABEL,
    kai::TASK_PRIORITY_LABEL,
    kai::NODE_POOL_LABEL,
];

/// Domains under which a name of a share is looked for.
const DOMAINS: [&str; 5] = [
    "aliquot.dev",
    "kai.scheduler",
    "nvidia.com",
    "run.ai",
    "runai",
];
/// What remains of a container's annotation without its prefix and the container's name.
const OF_CONTAINERS: [&str; 4] = [
    request::CONTAINER_MEMORY_REQUEST,
    request::CONTAINER_MEMORY_LIMIT,
    request::CONTAINER_COMPUTE_MODE,
    request::CONTAINER_COMPUTE_REQUEST,
];
/// A longer key is no misspelling of a name of ours, and the time of a comparison grows with it.
const LONGEST: usize = 80;
/// Names that are shorter are near to words that mean something else.
const SHORTEST: usize = 5;
/// Of a name, one letter in this number may be wrong.
const LETTERS_PER_MISTAKE: usize = 5;

/// Whether a key of an annotation is one of a share, by pod or by container.
pub(super) fn is_of_share(key: &str) -> bool {
    OF_SHARES.contains(&key)
        || key.starts_with(request::CONTAINER_PREFIX)
        || key.starts_with(request::KAI_CONTAINER_PREFIX)
}

/// Whether an annotation makes its pod request a share.
pub(super) fn requests(key: &str) -> bool {
    let of_container = || {
        let memory = [
            request::CONTAINER_MEMORY_REQUEST,
            request::CONTAINER_MEMORY_LIMIT,
        ];
        key.starts_with(request::CONTAINER_PREFIX)
            && memory.iter().any(|suffix| key.ends_with(suffix))
    };
    key == request::MEMORY || key == request::FRACTION || of_container()
}

/// Returns the annotation that was meant by a key that is none of ours: `gpu-memroy`. `None` for a
/// key that has nothing to do with us.
pub(super) fn meant_annotation(key: &str) -> Option<String> {
    let known = || OF_SHARES.iter().chain(&ANNOTATIONS).copied();
    if key.len() > LONGEST || is_of_share(key) || known().any(|one| one == key) {
        return None;
    }
    if let Some(suffix) = OF_CONTAINERS.iter().find(|suffix| key.ends_with(*suffix)) {
        return Some(format!("{}NAME{suffix}", request::CONTAINER_PREFIX));
    }
    let (domain, name) = key.split_once('/').unwrap_or(("", key));
    let same = |one: &&&str| one.rsplit('/').next() == Some(name);
    let by_name = OF_SHARES.iter().find(same).filter(|_| {
        // `mps` under another domain is a word of another program.
        name.len() >= SHORTEST && (domain.is_empty() || DOMAINS.contains(&domain))
    });
    let meant = by_name.copied().or_else(|| nearest(key, known()));
    meant.map(str::to_owned)
}

/// Whether a key that nobody reads looks as if it asked for a part of a GPU: `gpu-mem`.
pub(super) fn looks_like_a_share(key: &str) -> bool {
    let key = key.get(..LONGEST).unwrap_or(key).to_lowercase();
    let ours = key.starts_with("aliquot.dev/") && !ANNOTATIONS.contains(&key.as_str());
    ours || key.starts_with("gpu-") || key.starts_with("gpumem")
}

/// Whether a label is one of ours.
pub(super) fn is_label(key: &str) -> bool {
    LABELS.contains(&key)
}

/// Returns the label that was meant by a key that is none of ours.
pub(super) fn meant_label(key: &str) -> Option<&'static str> {
    nearest(key, LABELS.into_iter())
}

/// Returns `nvidia.com/gpu` if a resource is nearly that.
pub(super) fn meant_resource(key: &str) -> Option<&'static str> {
    nearest(key, [resource::GPU].into_iter())
}

/// Returns the priority class that was meant. A name that only goes on where another ends, such as
/// `train-2`, is a name of its own.
pub(super) fn meant_class<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let extends = |one: &str| one.starts_with(name) || name.starts_with(one);
    nearest(name, known.filter(|one| !extends(one)))
}

/// Returns the most similar of these names, if few letters differ and it is another name.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if key.len() > LONGEST {
        return None;
    }
    let key = key.to_lowercase();
    let (domain, name) = key.split_once('/').unwrap_or(("", &key));
    let few = |wrong: &str, right: &str| {
        let most = (right.len() / LETTERS_PER_MISTAKE).max(usize::from(!right.is_empty()));
        let lengths = wrong.len().abs_diff(right.len());
        (lengths <= most)
            .then(|| strsim::osa_distance(wrong, right))
            .filter(|letters| *letters <= most)
    };
    known
        .filter(|one| one.len() >= SHORTEST)
        .filter_map(|one| {
            let (of, right) = one.split_once('/').unwrap_or(("", one));
            Some((few(domain, of)? + few(name, right)?, one))
        })
        .min()
        .map(|(_, one)| one)
}
