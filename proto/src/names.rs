//! Every string that two processes must agree on, once.
//!
//! KAI's names are KAI's (`pkg/common/constants/constants.go`); a user's manifests
//! for it mean the same here.

/// Our domain: prefix of our resources, annotations and CDI kind.
pub const DOMAIN: &str = "aliquot.dev";
/// Namespace of everything that Aliquot owns in a cluster.
pub const NAMESPACE: &str = "aliquot-system";

/// Extended resources.
pub mod resource {
    /// One token per container that holds a share; a device-plugin resource.
    pub const SHARE: &str = "aliquot.dev/gpu-share";
    /// Opaque amount: MiB of GPU memory that a container's `gpu-memory` asks for, times its devices.
    pub const MEMORY_MIB: &str = "aliquot.dev/gpu-memory-mib";
    /// Opaque amount: thousandths of a card that a container's `gpu-fraction` asks for, times its devices.
    pub const MILLI: &str = "aliquot.dev/gpu-milli";
    /// Whole GPUs; the agent serves it where NVIDIA's plugin does not.
    pub const GPU: &str = "nvidia.com/gpu";
    /// Before the profile of a MIG slice, `nvidia.com/mig-1g.10gb`.
    pub const MIG_PREFIX: &str = "nvidia.com/mig-";
}

/// What a user writes on a pod. KAI's keys, unchanged, but for [`request::COMPUTE`] and
/// [`request::RUN_TIME`].
pub mod request {
    /// Annotation: MiB of one GPU, a positive decimal integer.
    pub const MEMORY: &str = "gpu-memory";
    /// Annotation: fraction of one GPU, a number in (0, 1).
    pub const FRACTION: &str = "gpu-fraction";
    /// Annotation: how many devices, that much of each.
    pub const NUM_DEVICES: &str = "gpu-fraction-num-devices";
    /// Annotation: which container; init containers too; default the first.
    pub const CONTAINER: &str = "gpu-fraction-container-name";
    /// Annotation: compute ceiling in per cent, 1 to 100, independent of memory.
    pub const COMPUTE: &str = "aliquot.dev/gpu-compute";
    /// Annotation: the time that the pod is expected to run, a Go duration such as `2h30m`, at most a
    /// year. It is used for estimates of start times, and for no decision.
    pub const RUN_TIME: &str = "aliquot.dev/expected-run-time";
    /// Annotation of KAI: only `"true"` with `gpu-fraction` is valid; means mode `mps`.
    pub const MPS: &str = "mps";
    /// Annotation: the most that a share of `gpu-memory` may use, a Kubernetes quantity with a
    /// unit.
    pub const MEMORY_LIMIT: &str = "gpu-memory.limit";
    /// Annotation: the most that a share of `gpu-fraction` may use, a number in (0, 1).
    pub const FRACTION_LIMIT: &str = "gpu-fraction.limit";
    /// Annotation of KAI 0.18, for the whole pod: `time-slicing` or `sm-sharing`.
    pub const COMPUTE_MODE: &str = "kai.scheduler/gpu-compute-sharing-mode";
    /// Prefix of KAI's per-container annotations: `nvidia.com/container.<name>.<what>`.
    pub const CONTAINER_PREFIX: &str = "nvidia.com/container.";
    /// Suffix: memory request, a Kubernetes quantity.
    pub const CONTAINER_MEMORY_REQUEST: &str = ".gpu-memory.request";
    /// Suffix: memory limit, a Kubernetes quantity.
    pub const CONTAINER_MEMORY_LIMIT: &str = ".gpu-memory.limit";
    /// Suffix: `time-slicing` or `sm-sharing`.
    pub const CONTAINER_COMPUTE_MODE: &str = ".gpu-compute.mode";
    /// Suffix: part of each card's compute, a number in (0, 1].
    pub const CONTAINER_COMPUTE_REQUEST: &str = ".gpu-compute.request";
    /// Suffix of an annotation that KAI's binder writes: the cards.
    pub const CONTAINER_DEVICES: &str = ".gpus.devices";
    /// Suffix of an annotation that KAI's binder writes: the part of a card's compute.
    pub const CONTAINER_COMPUTE_PORTION: &str = ".gpu-compute.portion";
    /// Prefix of KAI's own: `kai.scheduler/container.<name>.<what>`.
    pub const KAI_CONTAINER_PREFIX: &str = "kai.scheduler/container.";
    /// Suffix of `kai.scheduler/container.<name>`: the same as `gpu-fraction.limit`.
    pub const KAI_PORTION_LIMIT: &str = ".gpu-memory.portion.limit";
}

/// What the scheduler writes on a pod.
pub mod grant {
    /// Annotation: the signed grant.
    pub const GRANT: &str = "aliquot.dev/grant";
    /// Label of KAI: which GPU group; derived from the card's UUID.
    pub const GPU_GROUP: &str = "runai-gpu-group";
    /// Annotation of KAI: `Regular`, `Fraction` or `MigInstance`.
    pub const RECEIVED_TYPE: &str = "received-resource-type";
    /// Keys that the scheduler alone may write.
    pub const PROTECTED: [&str; 3] = [GRANT, GPU_GROUP, RECEIVED_TYPE];
}

/// Queues and names of KAI.
pub mod kai {
    /// The scheduler name in a pod's spec.
    pub const SCHEDULER_NAME: &str = "kai-scheduler";
    /// Label on a pod or an owner: the leaf queue.
    pub const QUEUE_LABEL: &str = "kai.scheduler/queue";
    /// The same before KAI 0.6.
    pub const QUEUE_LABEL_OLD: &str = "runai/queue";
    /// Label of nodes and pods: the shard.
    pub const NODE_POOL_LABEL: &str = "kai.scheduler/node-pool";
    /// Queue of a pod that names none.
    pub const DEFAULT_QUEUE: &str = "default-queue";
    /// Label: name of a `PriorityClass`; overrides the pod's spec.
    pub const PRIORITY_CLASS_LABEL: &str = "priorityClassName";
    /// Label: whether pods of the workload may be evicted: `preemptible`, `semi-preemptible` or
    /// `non-preemptible`.
    pub const PREEMPTIBILITY_LABEL: &str = "kai.scheduler/preemptibility";
    /// Preemptibility: every pod of the workload may be evicted for others.
    pub const PREEMPTIBLE: &str = "preemptible";
    /// Preemptibility: the pods beyond the workload's minimum may be evicted for others.
    pub const SEMI_PREEMPTIBLE: &str = "semi-preemptible";
    /// Preemptibility: no pod of the workload may be evicted for others.
    pub const NON_PREEMPTIBLE: &str = "non-preemptible";
    /// All words for the preemptibility of a workload.
    pub const PREEMPTIBILITIES: [&str; 3] = [PREEMPTIBLE, SEMI_PREEMPTIBLE, NON_PREEMPTIBLE];
    /// Label of a pod: with the value `true` it is background work, which gives way to all other work.
    pub const BACKGROUND_LABEL: &str = "kai.scheduler/background";
    /// Label: the queue where no queue label is set.
    pub const PROJECT_LABEL: &str = "project";
    /// Annotation on a pod: its pod group.
    pub const POD_GROUP: &str = "pod-group-name";
    /// Label on a pod: its pod set of the group.
    pub const SUB_GROUP_LABEL: &str = "kai.scheduler/subgroup-name";
    /// Label on a pod: order inside its group, higher first.
    pub const TASK_PRIORITY_LABEL: &str = "kai.scheduler/task-priority";
    /// Label on a pod of Kubeflow's operators: `master` and `launcher` are placed first.
    pub const JOB_ROLE_LABEL: &str = "training.kubeflow.org/job-role";
    /// Label on a pod of Ray's operator: `head` is placed first.
    pub const RAY_NODE_TYPE_LABEL: &str = "ray.io/node-type";
    /// Annotation on a pod group: when its first pod last started, RFC 3339.
    pub const LAST_START: &str = "kai.scheduler/last-start-timestamp";
    /// Annotation on a pod group: since when it is below its minimum, RFC 3339.
    pub const STALE_SINCE: &str = "kai.scheduler/stale-podgroup-timestamp";
    /// Annotation on a pod group with a preemption delay: when a pod of it was last evicted, RFC
    /// 3339.
    pub const LAST_EVICTION: &str = "kai.scheduler/last-eviction-timestamp";
    /// Annotation on a pod group: a Go duration for which a gang may stay below its minimum before
    /// it is evicted; negative: without end.
    pub const STALENESS_GRACE: &str = "kai.scheduler/staleness-grace-period";
    /// Annotation on a pod group: a Go duration that it waits before it may evict others.
    pub const PREEMPTION_DELAY: &str = "kai.scheduler/preemption-delay";
    /// Annotation on the event `Evict` of a pod group: how many pods are evicted together.
    pub const EVICTED_PODS: &str = "num-evicted-pods";
    /// Annotation on that event: the action that decided it.
    pub const EVICTOR_ACTION: &str = "evictor-action-type";
    /// Annotation on that event: the pod group for which room is made.
    pub const EVICTOR_NAME: &str = "evictor-pod-group-name";
    /// Annotation on that event: that group's namespace.
    pub const EVICTOR_NAMESPACE: &str = "evictor-pod-group-namespace";
    /// The priority classes that KAI and Aliquot install.
    pub const PRIORITY_CLASSES: [&str; 4] = ["train", "build-preemptible", "build", "inference"];
    /// Prefix of KAI's own labels and annotations.
    pub const PREFIX: &str = "kai.scheduler/";
    /// Annotation on a pod group: the owner that it was created for.
    pub const TOP_OWNER: &str = "kai.scheduler/top-owner-metadata";
    /// Annotation of a pod, or of one of its owners: `true` if another program sets its group.
    pub const SKIP_GROUPER: &str = "kai.scheduler/skip-podgrouper";
    /// Annotation of a workload: refused, because no KAI release implements it.
    pub const SAFE_TO_CONSOLIDATE: &str = "kai.scheduler/safe-to-consolidate";
    /// Annotation: the topology of the group's constraint.
    pub const TOPOLOGY: &str = "kai.scheduler/topology";
    /// Annotation: the level in one domain of which the group must be.
    pub const TOPOLOGY_REQUIRED: &str = "kai.scheduler/topology-required-placement";
    /// Annotation: the level in one domain of which the group should be.
    pub const TOPOLOGY_PREFERRED: &str = "kai.scheduler/topology-preferred-placement";
    /// Annotation: pods of a segment.
    pub const SEGMENT: &str = "kai.scheduler/segment-size";
    /// Annotation: the level in one domain of which a segment must be.
    pub const SEGMENT_REQUIRED: &str = "kai.scheduler/segment-topology-required-placement";
    /// Annotation: the level in one domain of which a segment should be.
    pub const SEGMENT_PREFERRED: &str = "kai.scheduler/segment-topology-preferred-placement";
    /// Annotation: the minimum number of pods of a batch workload.
    pub const BATCH_MIN_MEMBER: &str = "kai.scheduler/batch-min-member";
    /// Annotation: the minimum number of pods of a workload.
    pub const MIN_MEMBER: &str = "kai.scheduler/min-member";
}

/// The scheduler writes these annotations on a pod group beside KAI's.
pub mod pod_group {
    /// Annotation on a pod group: how many members of each pod set have succeeded and are gone, as
    /// a JSON object such as `{"default":2}`. They count towards the minimum.
    pub const SUCCEEDED: &str = "aliquot.dev/succeeded-members";
}

/// What an admin writes on a queue beside KAI's fields.
pub mod queue {
    /// Annotation: what the queue gets of single GPU products, a JSON object such as
    /// `{"NVIDIA-L4": {"quota": 2, "limit": 4}}`.
    pub const QUOTA_BY_PRODUCT: &str = "aliquot.dev/gpu-quota-by-product";
    /// Condition of a queue with that annotation: False where a part of it is not used.
    pub const QUOTA_CONDITION: &str = "GpuQuotaByProduct";
    /// Annotation: after how long without work a pod of the queue gives way to pods that wait, a duration
    /// such as `30m`, or `never`. Queues below inherit it.
    pub const IDLE_AFTER: &str = "aliquot.dev/idle-after";
    /// Annotation beside [`IDLE_AFTER`]: pods of this priority or a higher one never give way.
    pub const IDLE_EXEMPT_PRIORITY: &str = "aliquot.dev/idle-exempt-priority";
    /// Condition of a queue with one of these: False where it is not used.
    pub const IDLE_CONDITION: &str = "IdleRule";
    /// The conditions of a queue that the scheduler writes.
    pub const CONDITIONS: [&str; 2] = [QUOTA_CONDITION, IDLE_CONDITION];
}

/// Admission policies.
pub mod guard {
    /// Label of a namespace that the policies leave alone, with [`EXEMPT`]; an admin sets it.
    pub const LABEL: &str = "aliquot.dev/guard";
    /// Value of [`LABEL`].
    pub const EXEMPT: &str = "exempt";
}

/// Container device interface.
pub mod cdi {
    /// Vendor and class of our devices; a device is named by its `alloc_id`.
    pub const KIND: &str = "aliquot.dev/grant";
    /// File name prefix in the CDI directory; `_<alloc_id>.json` follows.
    pub const FILE_PREFIX: &str = "aliquot.dev-grant_";
}

/// Environment in a container.
pub mod env {
    /// CUDA's own list of visible devices, UUIDs.
    pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
    /// MPS: where the control daemon listens.
    pub const MPS_PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";
    /// MPS: `<device>=<n>M`.
    pub const MPS_PINNED_DEVICE_MEM_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    /// MPS: per cent of the SMs.
    pub const MPS_ACTIVE_THREAD_PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    /// NVIDIA's container runtime; `void` disables it.
    pub const NVIDIA_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
    /// How the variables begin from which NVIDIA's toolkit sets a driver's memory limit.
    pub const NVIDIA_GPU_MEMORY: &str = "NVIDIA_GPU_MEMORY_";
    /// For humans: the share's limit in MiB.
    pub const MEMORY_MIB: &str = "ALIQUOT_GPU_MEMORY_MIB";
}

/// Places inside a container.
pub mod container {
    /// MPS pipe directory; never `/tmp/nvidia-mps`.
    pub const MPS_PIPE: &str = "/run/aliquot/mps/pipe";
    /// The directory that is mounted; it contains only the pipe directory.
    pub const MPS: &str = "/run/aliquot/mps";
    /// The container's share, for humans, read-only.
    pub const SHARE_FILE: &str = "/run/aliquot/share.json";
}

/// Objects in [`NAMESPACE`].
pub mod object {
    /// Secret: the scheduler's Ed25519 key, `key.pk8` (PKCS#8 v2, DER).
    pub const GRANT_KEY_SECRET: &str = "aliquot-grant-key";
    /// Entry of [`GRANT_KEY_SECRET`].
    pub const GRANT_KEY_ENTRY: &str = "key.pk8";
    /// Secret: certificate and key of webhook and telemetry, with their CA.
    pub const TLS_SECRET: &str = "aliquot-tls";
    /// `ConfigMap`: the keys and the CA that agents trust.
    pub const TRUST_CONFIG_MAP: &str = "aliquot-trust";
    /// Entry of [`TRUST_CONFIG_MAP`]: PEM.
    pub const TRUST_CA: &str = "ca.crt";
    /// Entry of [`TRUST_CONFIG_MAP`]: JSON object, key id to base64 public key.
    pub const TRUST_KEYS: &str = "grant-keys.json";
    /// Entry of [`TRUST_CONFIG_MAP`]: id of the key that signs now.
    pub const TRUST_SIGNING_KEY: &str = "signing-key";
    /// Entry of [`TRUST_CONFIG_MAP`]: the UID of the kube-system namespace.
    pub const TRUST_CLUSTER_ID: &str = "cluster-id";
    /// `ServiceAccount` of the agents.
    pub const AGENT_ACCOUNT: &str = "aliquot-agent";
    /// `ServiceAccount` of the scheduler.
    pub const SCHEDULER_ACCOUNT: &str = "aliquot-scheduler";
    /// `ServiceAccount` of admission.
    pub const ADMISSION_ACCOUNT: &str = "aliquot-admission";
    /// Headless Service that names every scheduler replica.
    pub const TELEMETRY_SERVICE: &str = "aliquot-telemetry";
    /// Service of the status page.
    pub const PAGE_SERVICE: &str = "aliquot-page";
    /// Service of the webhook.
    pub const WEBHOOK_SERVICE: &str = "aliquot-webhook";
    /// Both webhook configurations.
    pub const WEBHOOK_CONFIGURATION: &str = "aliquot";
    /// Lease of the deciding replica.
    pub const LEASE: &str = "aliquot-scheduler";
    /// Annotation of the lease: where its holder serves requests to the core, `https://HOST:PORT`.
    pub const LEASE_ADDRESS: &str = "aliquot.dev/address";
}

/// Of this program, the same for all that are built together.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The status page.
pub mod page {
    /// Audience of tokens that are good for the page and for nothing else.
    pub const AUDIENCE: &str = "aliquot.dev/page";
}

/// Telemetry over gRPC.
pub mod telemetry {
    /// Audience that a projected token must carry.
    pub const AUDIENCE: &str = "aliquot.dev/telemetry";
    /// Port of the schedulers.
    pub const PORT: u16 = 9443;
    /// Key in a token's `extra` that names the node it is bound to.
    pub const NODE_NAME_EXTRA: &str = "authentication.kubernetes.io/node-name";
}

/// The kubelet's fixed names.
pub mod kubelet {
    /// Version string of the device-plugin API.
    pub const VERSION: &str = "v1beta1";
    /// The kubelet's own socket in the device-plugin directory.
    pub const SOCKET: &str = "kubelet.sock";
    /// What it remembers of its allocations.
    pub const CHECKPOINT: &str = "kubelet_internal_checkpoint";
    /// Our socket for [`super::resource::SHARE`].
    pub const SHARE_SOCKET: &str = "aliquot-share.sock";
    /// Our socket for [`super::resource::GPU`].
    pub const GPU_SOCKET: &str = "aliquot-gpu.sock";
    /// Before the profile in the name of our socket for [`super::resource::MIG_PREFIX`].
    pub const MIG_SOCKET_PREFIX: &str = "aliquot-mig-";
    /// Annotation of the object that mirrors a static pod.
    pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
    /// Annotation: the UID that the kubelet made of a static pod's file.
    pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
    /// `Device.health`.
    pub const HEALTHY: &str = "Healthy";
    /// `Device.health`.
    pub const UNHEALTHY: &str = "Unhealthy";
}

/// Pod conditions that the scheduler writes.
pub mod condition {
    /// Whether a share's fence is Hard; its reason says how strong the fence is, and its message has the
    /// observed limit.
    pub const ISOLATION_VERIFIED: &str = "aliquot.dev/IsolationVerified";
    /// Whether a pod without work gives way soon or now, by the rule of its queue; its message has the
    /// times.
    pub const IDLE: &str = "aliquot.dev/Idle";
}

/// Labels of a node.
pub mod node_label {
    /// Label of a node, `"true"`: the agent serves its GPUs.
    pub const AGENT: &str = "aliquot.dev/agent";
}

/// Conditions of a `GpuNode`, which its agent writes.
pub mod node_condition {
    /// The node offers shares, or the message says why not.
    pub const OFFERING: &str = "Offering";
    /// Whether the driver limits the memory of cgroups, and which part is missing.
    pub const DRIVER_LIMITS: &str = "DriverLimits";
}

/// Dynamic resource allocation.
pub mod dra {
    /// Our driver.
    pub const DRIVER: &str = super::DOMAIN;
    /// `DeviceClass` of shares.
    pub const SHARE_CLASS: &str = "share.aliquot.dev";
    /// `PluginInfo.type` of a DRA driver.
    pub const PLUGIN_TYPE: &str = "DRAPlugin";
    /// The service that we serve, as `PluginInfo.supported_versions` names it.
    pub const SERVICE_V1: &str = "v1.DRAPlugin";
    /// The service of health, in the same list.
    pub const SERVICE_HEALTH: &str = "v1alpha1.DRAResourceHealth";
    /// Capacity of a device: memory, bytes.
    pub const MEMORY: &str = "memory";
    /// Capacity of a device: containers that may hold a share of it.
    pub const SLOTS: &str = "slots";
    /// Taint of a device: its card is unhealthy or lost.
    pub const TAINT_UNHEALTHY: &str = "aliquot.dev/unhealthy";
    /// Taint of a device: cordoned by the admin.
    pub const TAINT_CORDONED: &str = "aliquot.dev/cordoned";
    /// Taint of a device: its card is granted in another way now; the value says which.
    pub const TAINT_FRONT: &str = "aliquot.dev/front";
    /// Taint of a device: its node offers nothing now, or its card cannot be shared.
    pub const TAINT_NOT_OFFERING: &str = "aliquot.dev/not-offering";
}

/// What `GpuNode.status` says and a scheduler acts on.
pub mod gpu_node {
    /// `migLayoutMessage` of a card whose slices are being destroyed and created.
    pub const LAYOUT_CHANGES: &str = "the card is being given another MIG layout";
}

/// Of pods and nodes that an autoscaler, or the scheduler for it, may evict and remove.
pub mod scale_down {
    /// Annotation of a pod, `"true"` or `"false"`: whether the scheduler may evict it so that an
    /// autoscaler removes its node. Unset: as the cluster autoscaler's annotation says.
    pub const SAFE_TO_EVICT: &str = "aliquot.dev/safe-to-evict";
    /// Annotation of a pod: the same for evictions by the cluster autoscaler.
    pub const SAFE_TO_EVICT_AUTOSCALER: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    /// Annotation of a pod or a node, Karpenter's: `"true"` if it is to be left alone.
    pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
    /// Annotation of a node, the cluster autoscaler's: `"true"` if it is to stay.
    pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
}

/// Placeholder pods, by which autoscalers see that a node is needed.
pub mod scale_up {
    /// Their namespace, which holds nothing else.
    pub const NAMESPACE: &str = "aliquot-scale-up";
    /// Value of `app.kubernetes.io/name`.
    pub const APP: &str = "aliquot-placeholder";
    /// Their scheduler: there is none of that name, so that they never run.
    pub const SCHEDULER: &str = "aliquot.dev-placeholder";
    /// Priority -10, the least that the cluster autoscaler adds a node for.
    pub const PRIORITY_CLASS: &str = "aliquot-placeholder";
    /// Label: a digest of the rules that say which nodes will do.
    pub const RULES: &str = "aliquot.dev/scale-up-rules";
    /// Label: the node pool of the scheduler that made it; empty: none.
    pub const POOL: &str = "aliquot.dev/scale-up-pool";
    /// Annotation: name of the group of nodes, for people.
    pub const GROUP: &str = "aliquot.dev/scale-up-group";
    /// Annotation: how many cards the node is to have.
    pub const CARDS: &str = "aliquot.dev/scale-up-cards";
    /// Annotation: millicores that its pods ask for.
    pub const CPU: &str = "aliquot.dev/scale-up-cpu";
    /// Annotation: bytes that its pods ask for.
    pub const BYTES: &str = "aliquot.dev/scale-up-bytes";
    /// `PodScheduled=False` of pods of ours that wait, if placeholders stand for nodes: autoscalers
    /// act on `Unschedulable` alone.
    pub const WAITING: &str = "WaitingForCapacity";
}
