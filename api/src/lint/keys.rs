//! The known names of annotations, labels and resources, and the one that a misspelt name stands for.

use proto::names::{grant, kai, pod_group, request, resource, scale_down, scale_up};

/// The annotations that request a share or describe one. They count on a pod alone.
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
    // This one is KAI's and has no counterpart here.
    "kai.scheduler/ignore-workload-api",
];

/// The labels of pods and their owners. `project` is left out, since it has other uses.
pub(super) const LABELS: [&str; 8] = [
    kai::QUEUE_LABEL,
    kai::QUEUE_LABEL_OLD,
    kai::PRIORITY_CLASS_LABEL,
    kai::PREEMPTIBILITY_LABEL,
    kai::BACKGROUND_LABEL,
    kai::SUB_GROUP_LABEL,
    kai::TASK_PRIORITY_LABEL,
    kai::NODE_POOL_LABEL,
];

/// The domains under which the name of a share's annotation counts as misspelt.
const DOMAINS: [&str; 5] = [
    "aliquot.dev",
    "kai.scheduler",
    "nvidia.com",
    "run.ai",
    "runai",
];
/// The ends of the annotations of containers, behind the prefix and the container's name.
const OF_CONTAINERS: [&str; 4] = [
    request::CONTAINER_MEMORY_REQUEST,
    request::CONTAINER_MEMORY_LIMIT,
    request::CONTAINER_COMPUTE_MODE,
    request::CONTAINER_COMPUTE_REQUEST,
];
/// The most bytes of a key that is compared. A longer key is no misspelling of a known name, and the
/// time of a comparison grows with the key.
const LONGEST: usize = 80;
/// The fewest bytes of a name that may be misspelt. Shorter names are near to words that mean
/// something else.
const SHORTEST: usize = 5;
/// The number of letters in a name for each letter that may be wrong.
const LETTERS_PER_MISTAKE: usize = 5;

/// Returns true if the key of an annotation is one of a share, by pod or by container.
pub(super) fn is_of_share(key: &str) -> bool {
    OF_SHARES.contains(&key)
        || key.starts_with(request::CONTAINER_PREFIX)
        || key.starts_with(request::KAI_CONTAINER_PREFIX)
}

/// Returns true if the annotation counts on a pod and not on its owner.
pub(super) fn counts_on_pods_alone(key: &str) -> bool {
    is_of_share(key) || key == request::RUN_TIME
}

/// Returns true if the annotation requests a share.
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

/// Returns the annotation that an unknown key such as `gpu-memroy` stands for. `None`: the key is a
/// known one, or has nothing to do with GPUs.
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

/// Returns true if an unknown key such as `gpu-mem` looks like a request for a part of a GPU.
pub(super) fn looks_like_a_share(key: &str) -> bool {
    let key = key.get(..LONGEST).unwrap_or(key).to_lowercase();
    let ours = key.starts_with("aliquot.dev/") && !ANNOTATIONS.contains(&key.as_str());
    ours || key.starts_with("gpu-") || key.starts_with("gpumem")
}

/// Returns true if the label is a known one.
pub(super) fn is_label(key: &str) -> bool {
    LABELS.contains(&key)
}

/// Returns the label that an unknown key stands for.
pub(super) fn meant_label(key: &str) -> Option<&'static str> {
    nearest(key, LABELS.into_iter())
}

/// Returns `nvidia.com/gpu` if a resource is nearly that.
pub(super) fn meant_resource(key: &str) -> Option<&'static str> {
    nearest(key, [resource::GPU].into_iter())
}

/// Returns the priority class that an unknown name stands for. A name that begins with another, such
/// as `train-2`, is a name of its own.
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
