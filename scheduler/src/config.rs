//! Flags of the scheduler: wiring, and KAI's settings of the core under KAI's names.

use crate::admission::OverSubscription;
use crate::bursts::Bursts;
use crate::group::TypesAt;
use crate::limits::Limits;
use proto::names::{kai, object};
use scheduler_core::Placement;
use scheduler_core::units::{Duration, NanoGpu};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Wiring and settings of one scheduler.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Config {
    /// Pods that name this scheduler are ours.
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
    /// Name of the `SchedulingShard` object whose settings count over these flags, and change
    /// while the scheduler runs; the node pool's when unset, and none where the scheduler has
    /// another name than KAI's.
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub shard: Option<String>,
    /// What this process does; `deploy/` runs both parts apart.
    #[arg(long, value_enum, default_value_t = Role::All)]
    pub role: Role,
    /// Where keys, certificates and the lease are kept.
    #[arg(long, default_value = proto::names::NAMESPACE)]
    pub namespace: String,

    /// Where the admission webhook listens.
    #[arg(long, default_value = "0.0.0.0:8443")]
    pub webhook: SocketAddr,
    /// How the API server reaches the webhook, where it cannot by its Service:
    /// `https://HOST:PORT`.
    #[arg(long)]
    pub webhook_url: Option<String>,
    /// Namespaces whose pods the webhook does not see, beside kube-system and our own.
    #[arg(long, value_delimiter = ',')]
    pub exempt_namespaces: Vec<String>,
    /// Where agents are heard.
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub telemetry: SocketAddr,
    /// More names or addresses under which agents and the API server reach this process,
    /// for its certificate.
    #[arg(long, value_delimiter = ',')]
    pub certificate_names: Vec<String>,
    /// Where metrics, health and the state are served; nowhere when unset.
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
    /// Where the status page is served, over TLS, to clients with a Kubernetes token;
    /// nowhere when unset.
    #[arg(long)]
    pub page: Option<SocketAddr>,
    /// Every client that reaches the page may read it, without TLS: for an embedder on loopback alone,
    /// so there is no flag.
    #[arg(skip)]
    pub page_is_open: bool,
    /// Prometheus, or what speaks its API, such as `http://prometheus.monitoring:9090`: the status
    /// page takes from it the ranges of time that this process does not remember.
    #[arg(
        long,
        value_name = "URL",
        env = "ALIQUOT_PROMETHEUS_URL",
        hide_env_values = true
    )]
    pub prometheus_url: Option<String>,
    /// Where an OpenTelemetry collector takes spans by OTLP over gRPC, such as
    /// `http://collector:4317`; none are made when unset.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
    /// Recompute every sum after each change, and make every search that could be skipped:
    /// many times slower. What contradicts itself is counted as `contradictions`; a debug
    /// build ends.
    #[arg(long)]
    pub verify: bool,

    /// Decide beside the scheduler that has this name, write nothing at all, and report where
    /// it would be done otherwise: in the log, and as `/observed` beside the metrics.
    #[arg(long, conflicts_with = "leader_elect")]
    pub observe: bool,
    /// Act only while holding the lease: needed with more than one replica.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub leader_elect: bool,
    /// Name of this replica in the lease; the host's name when unset.
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
    /// Address of this replica, at which admission and other replicas ask it about resizes while
    /// it holds the lease; the host of `--webhook-url` when unset.
    #[arg(long, env = "POD_IP", value_name = "IP")]
    pub address: Option<IpAddr>,

    /// How nodes are chosen for pods with GPUs.
    #[arg(long, value_enum, default_value_t = Strategy::Binpack)]
    pub gpu_placement: Strategy,
    /// How nodes are chosen for pods without.
    #[arg(long, value_enum, default_value_t = Strategy::Binpack)]
    pub cpu_placement: Strategy,
    /// Jobs that one consolidation may move; -1: no bound.
    #[arg(long, default_value_t = 16, allow_negative_numbers = true)]
    pub max_consolidation_preemptees: i64,
    /// Seconds until what is left of a broken gang is evicted; negative: never.
    #[arg(long, default_value_t = 60, allow_negative_numbers = true)]
    pub default_staleness_grace_period_s: i64,

    /// Before one of the last so many empty nodes is opened, moving others is tried.
    #[arg(long, default_value_t = 0)]
    pub keep_empty_nodes: u32,

    /// Ask autoscalers for nodes where pods wait that new nodes would have room for, by placeholder
    /// pods; the pods that wait say `WaitingForCapacity` instead of `Unschedulable`.
    #[arg(long)]
    pub cluster_autoscaling: bool,
    /// What nodes of each group have, in order of preference; groups that are not in it are known
    /// by the last node that they had.
    #[arg(long, value_name = "FILE", requires = "cluster_autoscaling")]
    pub node_templates: Option<PathBuf>,
    /// Part of a card that a request for GPU memory counts as, where nothing is known of the
    /// nodes that may come.
    #[arg(long, value_name = "RATIO", default_value = "0.1", value_parser = crate::scale_up::ratio)]
    pub gpu_memory_to_fraction_ratio: NanoGpu,
    /// Nodes that are asked for at once, where nothing is known of them.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub max_unknown_nodes: u32,

    /// So long a pod's volumes may take to be bound where it goes, before that is taken back.
    #[arg(long, default_value_t = 120)]
    pub volume_binding_timeout_s: u64,
    /// Evict only what no `PodDisruptionBudget` protects; what one does is asked again later.
    #[arg(long)]
    pub respect_disruption_budgets: bool,
    /// Whether a pod without an owner gets a `PodGroup` object, as under KAI. Without it, the
    /// scheduler sends two API requests fewer for each such pod.
    #[arg(long, value_enum, default_value_t = LonePodGroups::Write)]
    pub lone_pod_groups: LonePodGroups,
    /// Name of the config map with the default priority class and preemptibility of each type of
    /// workload, as KAI's pod grouper has it; none when unset.
    #[arg(long)]
    pub default_priorities_configmap_name: Option<String>,
    /// Its namespace; that of `--namespace` when unset.
    #[arg(long, requires = "default_priorities_configmap_name")]
    pub default_priorities_configmap_namespace: Option<String>,
    /// Whether a share may hold more than its request, up to a limit that its pod names. With
    /// false each share that is placed from then on is held to its request.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub bursts: bool,
    /// The largest ratio of a share's limit to its request, such as 2 or 1.5. Each share with a
    /// higher limit that is placed from then on is held to so many times its request; its pod is
    /// warned of that when it is created. Whatever a pod names when unset.
    #[arg(long, value_name = "RATIO", value_parser = Bursts::parse)]
    pub max_burst_ratio: Option<Bursts>,
    /// How large pod groups and the tree of queues may be.
    #[command(flatten)]
    pub limits: Limits,

    /// What the webhook says of a queue whose quota its parent's does not cover, alone or with
    /// its siblings'.
    #[arg(long, value_enum, default_value_t = OverSubscription::None)]
    pub queue_over_subscription: OverSubscription,

    /// Bindings and evictions under way at once.
    #[arg(long, default_value_t = 64)]
    pub writes_at_once: usize,
    /// So long without a change before deciding, milliseconds.
    #[arg(long, default_value_t = 10)]
    pub quiet_ms: u64,
    /// At most so long after the first change before deciding, milliseconds.
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
    /// It admits pods, and goes on while no scheduler runs.
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
    /// Settings of the core. `epoch` tells this start's decisions from those of others.
    pub fn core(&self, epoch: u64) -> scheduler_core::Config {
        scheduler_core::Config {
            epoch,
            gpu_placement: self.gpu_placement.into(),
            cpu_placement: self.cpu_placement.into(),
            keep_empty_nodes: self.keep_empty_nodes,
            consolidation_jobs: u32::try_from(self.max_consolidation_preemptees).ok(),
            staleness_grace: u64::try_from(self.default_staleness_grace_period_s)
                .ok()
                .map(Duration::seconds),
            verify: self.verify,
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
    /// `None`: nobody knows.
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
        // Who forwards a port comes by this name.
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
