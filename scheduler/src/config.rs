//! Flags of the scheduler: wiring, and KAI's settings of the core under KAI's names.

use crate::admission::OverSubscription;
use crate::bursts::Bursts;
use crate::group::TypesAt;
use crate::label_selector;
use crate::limits::Limits;
use crate::page_link::PageLink;
use proto::names::{kai, object};
use scheduler_core::units::{Duration, NanoGpu};
use scheduler_core::{Placement, ScaleDown};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Wiring and settings of one scheduler.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Config {
    /// The `schedulerName` of the pods that this scheduler places.
    #[arg(long, default_value = proto::names::kai::SCHEDULER_NAME)]
    pub scheduler_name: String,
    /// KAI's `SchedulingShard`s, and settings without a flag of their own.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Key of the label that names a workload's queue.
    #[arg(long, default_value = proto::names::kai::QUEUE_LABEL)]
    pub queue_label_key: String,
    /// Key of the label of node pools.
    #[arg(long, default_value = proto::names::kai::NODE_POOL_LABEL)]
    pub node_pool_label_key: String,
    /// Only nodes, queues and workloads of this node pool; empty: only those in none. All of
    /// them when unset.
    #[arg(long, conflicts_with = "config")]
    pub node_pool: Option<String>,
    /// Name of the `SchedulingShard` object whose settings override these flags, and may change
    /// while the scheduler runs; by default the node pool's name, and none if the scheduler's name
    /// is not KAI's.
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub shard: Option<String>,
    /// Which parts run in this process; `deploy/` runs each in a process of its own.
    #[arg(long, value_enum, default_value_t = Role::All)]
    pub role: Role,
    /// Where keys, certificates and the lease are kept.
    #[arg(long, default_value = proto::names::NAMESPACE)]
    pub namespace: String,

    /// Listen address of the admission webhook.
    #[arg(long, default_value = "0.0.0.0:8443")]
    pub webhook: SocketAddr,
    /// URL of the webhook for an API server that cannot reach its Service: `https://HOST:PORT`.
    #[arg(long)]
    pub webhook_url: Option<String>,
    /// Namespaces whose pods the webhook does not see, in addition to kube-system and the
    /// scheduler's own.
    #[arg(long, value_delimiter = ',')]
    pub exempt_namespaces: Vec<String>,
    /// Listen address of the telemetry service, to which agents connect.
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub telemetry: SocketAddr,
    /// More names or addresses under which agents and the API server reach this process,
    /// for its certificate.
    #[arg(long, value_delimiter = ',')]
    pub certificate_names: Vec<String>,
    /// Listen address of metrics, health and state; not served when unset.
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
    /// Listen address of the status page, over TLS, for clients with a Kubernetes token; not served
    /// when unset.
    #[arg(long)]
    pub page: Option<SocketAddr>,
    /// Every client that reaches the page may read it, without TLS: for an embedder on loopback alone,
    /// so there is no flag.
    #[arg(skip)]
    pub page_is_open: bool,
    /// URL of Prometheus, or of a server with its API, such as `http://prometheus.monitoring:9090`:
    /// the status page queries it for ranges of time that this process has not recorded.
    #[arg(
        long,
        value_name = "URL",
        env = "ALIQUOT_PROMETHEUS_URL",
        hide_env_values = true
    )]
    pub prometheus_url: Option<String>,
    /// A link on the page of each pod, as `NAME=URL`, such as
    /// `Logs=https://grafana.example/explore?ns={namespace}&pod={name}`. `{namespace}`, `{name}`,
    /// `{uid}`, `{node}` and `{queue}` are replaced by the pod's. Can be repeated.
    #[arg(long, value_name = "NAME=URL")]
    pub page_link: Vec<PageLink>,
    /// OpenTelemetry collector that receives spans by OTLP over gRPC, such as
    /// `http://collector:4317`; no spans when unset.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
    /// Recompute every sum after each decision, and run every search that could be skipped: many
    /// times slower. Contradictions are counted as `contradictions`; a debug build exits.
    #[arg(long)]
    pub verify: bool,

    /// Decide beside the scheduler of this name, write nothing, and report differences: in the log,
    /// and as `/observed` beside the metrics.
    #[arg(long, conflicts_with = "leader_elect")]
    pub observe: bool,
    /// Act only while holding the lease; needed with more than one replica.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub leader_elect: bool,
    /// Name of this replica in the lease; the host's name when unset.
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
    /// Address of this replica, for requests about resizes from admission and other replicas while
    /// it holds the lease; the host of `--webhook-url` when unset.
    #[arg(long, env = "POD_IP", value_name = "IP")]
    pub address: Option<IpAddr>,

    /// How nodes are chosen for pods with GPUs.
    #[arg(long, value_enum, default_value_t = Strategy::Binpack)]
    pub gpu_placement: Strategy,
    /// How nodes are chosen for pods without.
    #[arg(long, value_enum, default_value_t = Strategy::Binpack)]
    pub cpu_placement: Strategy,
    /// Jobs that one consolidation may move; -1: unlimited.
    #[arg(long, default_value_t = 16, allow_negative_numbers = true)]
    pub max_consolidation_preemptees: i64,
    /// Seconds that a job must have run before a consolidation may move it. 0, as in KAI: it may be
    /// moved as soon as it is bound.
    #[arg(long, default_value_t = 60)]
    pub consolidation_min_age_s: u64,
    /// Consolidation also moves pods that have no controller. Such a pod is deleted, and nothing
    /// creates it again. KAI moves them.
    #[arg(long)]
    pub consolidate_bare_pods: bool,
    /// Seconds until a gang below its minimum is evicted; negative: never.
    #[arg(long, default_value_t = 60, allow_negative_numbers = true)]
    pub default_staleness_grace_period_s: i64,

    /// Number of empty nodes to keep: before one of the last of these is used, consolidation is
    /// tried.
    #[arg(long, default_value_t = 0)]
    pub keep_empty_nodes: u32,

    /// Request nodes for pending pods from autoscalers, by placeholder pods; the reason of these
    /// pending pods is `WaitingForCapacity` instead of `Unschedulable`.
    #[arg(long)]
    pub cluster_autoscaling: bool,
    /// Resources of the nodes of each group, in order of preference; for other groups, those of
    /// their most recent node.
    #[arg(long, value_name = "FILE", requires = "cluster_autoscaling")]
    pub node_templates: Option<PathBuf>,
    /// Fraction of a card that a request for GPU memory counts as if the nodes that an autoscaler
    /// may add are unknown.
    #[arg(long, value_name = "RATIO", default_value = "0.1", value_parser = crate::scale_up::ratio)]
    pub gpu_memory_to_fraction_ratio: NanoGpu,
    /// Unknown nodes that are requested at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub max_unknown_nodes: u32,

    /// Seconds after which the pods of an underused node are moved to other nodes in use, if all of
    /// them have a place there, so that the autoscaler removes the node; by default, none is moved.
    #[arg(long, value_name = "SECONDS", requires = "cluster_autoscaling")]
    pub scale_down_delay_s: Option<u64>,
    /// Pods that may be moved off one node for that.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub max_scale_down_pods: u32,

    /// Time for the volumes of a pod to be bound on its node, in seconds, before the binding is
    /// withdrawn.
    #[arg(long, default_value_t = 120)]
    pub volume_binding_timeout_s: u64,
    /// Evict only pods that no `PodDisruptionBudget` protects; try protected ones again later.
    #[arg(long)]
    pub respect_disruption_budgets: bool,
    /// Whether a pod without an owner gets a `PodGroup` object, as under KAI. Without it, the
    /// scheduler sends two API requests fewer for each such pod.
    #[arg(long, value_enum, default_value_t = LonePodGroups::Write)]
    pub lone_pod_groups: LonePodGroups,
    /// Whether all pods of a Deployment are in one `PodGroup`, as under KAI since 0.18, or each in its
    /// own. A Deployment whose pods are in groups of their own when this becomes true keeps them.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub deployment_gang_schedule: bool,
    /// Name of the config map with the default priority class and preemptibility of each type of
    /// workload, as KAI's pod grouper has it; none when unset.
    #[arg(long)]
    pub default_priorities_configmap_name: Option<String>,
    /// Its namespace; that of `--namespace` when unset.
    #[arg(long, requires = "default_priorities_configmap_name")]
    pub default_priorities_configmap_namespace: Option<String>,
    /// Whether a share may hold more than its request, up to a limit that its pod names. With false
    /// each share that is placed from then on is limited to its request.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub bursts: bool,
    /// The largest ratio of a share's limit to its request, such as 2 or 1.5. A share with a higher
    /// limit that is placed from then on is limited to that multiple of its request; the creation
    /// of its pod returns a warning. Unlimited when unset.
    #[arg(long, value_name = "RATIO", value_parser = Bursts::parse)]
    pub max_burst_ratio: Option<Bursts>,
    /// How large pod groups and the tree of queues may be.
    #[command(flatten)]
    pub limits: Limits,

    /// How the webhook treats a queue whose quota, alone or together with its siblings', exceeds
    /// its parent's.
    #[arg(long, value_enum, default_value_t = OverSubscription::None)]
    pub queue_over_subscription: OverSubscription,

    /// Concurrent bindings and evictions.
    #[arg(long, default_value_t = 64)]
    pub writes_at_once: usize,
    /// Time without a change before a decision, milliseconds.
    #[arg(long, default_value_t = 10)]
    pub quiet_ms: u64,
    /// Longest time from the first change to a decision, milliseconds.
    #[arg(long, default_value_t = 100)]
    pub patience_ms: u64,
}

/// Which parts of a scheduler a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// It admits pods and schedules them.
    All,
    /// It schedules; admission is another process.
    Scheduler,
    /// It admits pods, and works while no scheduler runs.
    Admission,
}

/// `placementStrategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// The fullest that will do.
    Binpack,
    /// The emptiest.
    Spread,
    /// Where least will stay unused.
    Fragmentation,
}

/// Whether pods without an owner get pod groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LonePodGroups {
    /// The scheduler creates a `PodGroup` for each, as KAI does.
    Write,
    /// It creates none, and places each by its own labels and annotations.
    Skip,
}

impl From<Strategy> for Placement {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Binpack => Self::Binpack,
            Strategy::Spread => Self::Spread,
            Strategy::Fragmentation => Self::Fragmentation,
        }
    }
}

impl Default for Config {
    /// Every flag at its default, for an embedded scheduler.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Defaults {
            #[command(flatten)]
            config: Config,
        }
        <Defaults as clap::Parser>::try_parse_from(["scheduler"])
            .expect("every flag has a default")
            .config
    }
}

impl Config {
    /// Settings of the core. `epoch` distinguishes this start's decisions from those of others.
    pub fn core(&self, epoch: u64) -> scheduler_core::Config {
        scheduler_core::Config {
            epoch,
            gpu_placement: self.gpu_placement.into(),
            cpu_placement: self.cpu_placement.into(),
            keep_empty_nodes: self.keep_empty_nodes,
            scale_down: self.scale_down_delay_s.map(|delay| ScaleDown {
                delay: Duration::seconds(delay),
                pods: self.max_scale_down_pods,
            }),
            consolidation_jobs: u32::try_from(self.max_consolidation_preemptees).ok(),
            consolidation_min_age: Duration::seconds(self.consolidation_min_age_s),
            staleness_grace: u64::try_from(self.default_staleness_grace_period_s)
                .ok()
                .map(Duration::seconds),
            verify: self.verify,
            background: Some(label_selector::background()),
            ..scheduler_core::Config::default()
        }
    }

    /// Name of the lease: schedulers of different names or node pools act beside each other, as
    /// under KAI (`<scheduler>-<node pool>`).
    pub fn lease(&self) -> String {
        let mut name = object::LEASE.to_owned();
        if self.scheduler_name != kai::SCHEDULER_NAME {
            name.push('.');
            name.push_str(&subdomain(&self.scheduler_name));
        }
        if let Some(pool) = self.node_pool.as_deref().filter(|pool| !pool.is_empty()) {
            name.push('-');
            name.push_str(&subdomain(pool));
        }
        name
    }

    /// How far above its request a share may be held.
    pub fn bursts(&self) -> Bursts {
        let most = self.max_burst_ratio.unwrap_or(Bursts::ANY);
        if self.bursts { most } else { Bursts::NONE }
    }

    /// Whether `SchedulingShard` objects are this scheduler's: they do not say whose they are.
    pub fn reads_shards(&self) -> bool {
        self.shard.is_some() || self.scheduler_name == proto::names::kai::SCHEDULER_NAME
    }

    /// Where the defaults of types of workloads are.
    pub fn types(&self) -> Option<TypesAt> {
        let name = self.default_priorities_configmap_name.clone()?;
        let namespace = self.default_priorities_configmap_namespace.as_ref();
        let namespace = namespace.unwrap_or(&self.namespace).clone();
        Some(TypesAt { namespace, name })
    }

    /// Whether pods without an owner wait for their group: their type may have a default, and
    /// the group is to have it.
    pub fn lone_pods_wait(&self) -> bool {
        self.default_priorities_configmap_name.is_some()
            && self.lone_pod_groups == LonePodGroups::Write
    }

    /// Where admission and other replicas reach this one, whose webhook listens on that port.
    /// `None`: unknown.
    pub fn own_url(&self, port: u16) -> Option<String> {
        let address = self
            .address
            .map(|ip| format!("https://{}", SocketAddr::new(ip, port)));
        let alone = self.role == Role::All;
        address.or_else(|| self.webhook_url.clone().filter(|_| alone))
    }

    /// Names under which this process is reached, for its certificate.
    pub fn names(&self) -> Vec<String> {
        use object::{PAGE_SERVICE, TELEMETRY_SERVICE, WEBHOOK_SERVICE};
        let mut names = Vec::new();
        let page = self.page.map(|_| PAGE_SERVICE);
        // Clients of a port-forward use this name.
        names.extend(page.map(|_| "localhost".to_owned()));
        for service in [WEBHOOK_SERVICE, TELEMETRY_SERVICE].into_iter().chain(page) {
            let base = format!("{service}.{}.svc", self.namespace);
            names.push(format!("{base}.cluster.local"));
            names.push(format!("{service}.{}", self.namespace));
            names.push(base);
        }
        names.extend(self.certificate_names.iter().cloned());
        let host = self.webhook_url.as_deref().and_then(|url| {
            let url: http::Uri = url.parse().ok()?;
            url.host()
                .map(|host| host.trim_matches(['[', ']']).to_owned())
        });
        names.extend(host);
        names
    }
}

/// A name as the name of an object; one that cannot be one ends with its digest (FNV-1a).
fn subdomain(text: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    if text.chars().all(fits) {
        return text.to_owned();
    }
    let lower = text.to_ascii_lowercase();
    let plain = lower.replace(|c| !fits(c), "-");
    let digest = text.bytes().fold(0x811c_9dc5_u32, |sum, byte| {
        (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{plain}-{digest:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheduler_and_node_pool_has_a_lease_of_its_own() {
        let lease = |scheduler: &str, pool: Option<&str>| {
            let config = Config {
                scheduler_name: scheduler.to_owned(),
                node_pool: pool.map(str::to_owned),
                ..Config::default()
            };
            config.lease()
        };
        assert_eq!(lease("kai-scheduler", None), "aliquot-scheduler");
        assert_eq!(lease("kai-scheduler", Some("")), "aliquot-scheduler");
        assert_eq!(lease("kai-scheduler", Some("a")), "aliquot-scheduler-a");
        assert_eq!(lease("other", Some("a")), "aliquot-scheduler.other-a");
        let odd = ["A_b", "a_b", "a-b"].map(|pool| lease("kai-scheduler", Some(pool)));
        for (at, name) in odd.iter().enumerate() {
            assert!(!odd[..at].contains(name), "{odd:?}");
            assert!(
                !name.contains(|c: char| c.is_uppercase() || c == '_'),
                "{name}"
            );
        }
    }

    #[test]
    fn the_certificate_carries_the_services_and_the_urls_host() {
        let config = Config {
            webhook_url: Some("https://10.99.0.1:8443".into()),
            ..Config::default()
        };
        let names = config.names();
        assert!(names.contains(&"aliquot-telemetry.aliquot-system.svc".to_owned()));
        assert!(names.contains(&"10.99.0.1".to_owned()));
    }

    #[test]
    fn negative_numbers_lift_a_bound() {
        let config = Config {
            max_consolidation_preemptees: -1,
            default_staleness_grace_period_s: -1,
            ..Config::default()
        };
        let core = config.core(7);
        assert_eq!(
            (core.epoch, core.consolidation_jobs, core.staleness_grace),
            (7, None, None)
        );
    }
}
