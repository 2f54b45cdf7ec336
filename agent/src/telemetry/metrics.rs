//! Metrics, in the `OpenMetrics` text format.
//!
//! In: single events, as calls on [`Meters`]; the node's state, read at each scrape, so that no
//! gauge outlives what it measures. Out: text. Labels of cards are those of dcgm-exporter, so that
//! its dashboards join; values per share are the share's own.

use crate::inventory::Card;
use crate::ledger::Share;
use crate::node::{Note, State};
use crate::reconcile::LocalSource;
use crate::telemetry::report;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, LabelValueEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use proto::mps::ServerPhase;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::watch;

/// Of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `Allocate` answers within a millisecond; the kubelet's own limit is far away.
const ALLOCATE: [f64; 9] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.025, 0.1,
];
/// An entry in the ledger and a small file: milliseconds, unless the disk is slow.
const CLAIM_WORK: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0];
/// `PreStartContainer` waits up to 20 s for what is late. Finer where most calls end: the time that
/// the runtime is given to see a new CDI file.
const PRESTART: [f64; 12] = [
    0.005, 0.025, 0.05, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// A server comes back within two seconds of its last client's end.
const MENDED: [f64; 8] = [0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0];

/// One of two words.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: OutcomeWord,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OutcomeWord {
    Ok,
    Error,
}

impl Outcome {
    fn of(ok: bool) -> Self {
        let outcome = if ok {
            OutcomeWord::Ok
        } else {
            OutcomeWord::Error
        };
        Self { outcome }
    }
}

impl EncodeLabelValue for OutcomeWord {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let word = match self {
            Self::Ok => "ok",
            Self::Error => "error",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabels {
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    r#final: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(non_snake_case, reason = "dcgm-exporter's label")]
struct XidLabels {
    UUID: String,
    xid: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ViolationLabels {
    wrong: &'static str,
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerFailureLabels {
    state: &'static str,
}

/// The counters.
#[derive(Debug)]
pub struct Meters {
    allocate: Histogram,
    prestart: Histogram,
    claims: Family<Outcome, Histogram>,
    claims_work: Family<Outcome, Histogram>,
    start_to_registered: Family<ResourceLabels, Gauge<f64, AtomicU64>>,
    registrations: Family<ResourceLabels, Counter>,
    refusals: Family<RefusalLabels, Counter>,
    prepared: Family<Outcome, Counter>,
    limits_lost: Counter,
    compute_modes: Counter,
    freed: Counter,
    unproven: Counter,
    ungranted: Counter,
    xids: Family<XidLabels, Counter>,
    violations: Family<ViolationLabels, Counter>,
    servers_broke: Family<ServerFailureLabels, Counter>,
    servers_mended: Histogram,
    streams: Gauge,
    connects: Counter,
    status_writes: Family<Outcome, Counter>,
}

impl Meters {
    /// Makes all metrics at zero and registers them, with the lengths of the agent's channels.
    pub fn new(registry: &mut Registry, lengths: &channel::Lengths) -> Self {
        let help = "Items queued inside the agent, by channel";
        lengths.register(registry, "aliquot_queued", help);
        let meters = Self {
            allocate: Histogram::new(ALLOCATE),
            prestart: Histogram::new(PRESTART),
            claims: Family::new_with_constructor(|| Histogram::new(PRESTART)),
            claims_work: Family::new_with_constructor(|| Histogram::new(CLAIM_WORK)),
            start_to_registered: Family::default(),
            registrations: Family::default(),
            refusals: Family::default(),
            prepared: Family::default(),
            limits_lost: Counter::default(),
            compute_modes: Counter::default(),
            freed: Counter::default(),
            unproven: Counter::default(),
            ungranted: Counter::default(),
            xids: Family::default(),
            violations: Family::default(),
            servers_broke: Family::default(),
            servers_mended: Histogram::new(MENDED),
            streams: Gauge::default(),
            connects: Counter::default(),
            status_writes: Family::default(),
        };
        registry.register(
            "aliquot_allocate_seconds",
            "Duration of Allocate calls",
            meters.allocate.clone(),
        );
        registry.register(
            "aliquot_prestart_seconds",
            "Duration of PreStartContainer calls, waits included",
            meters.prestart.clone(),
        );
        registry.register(
            "aliquot_claim_prepare_seconds",
            "Time to prepare or refuse a claim, waits and API requests included",
            meters.claims.clone(),
        );
        registry.register(
            "aliquot_claim_prepare_work_seconds",
            "The part of aliquot_claim_prepare_seconds in which the agent did not wait for the API server, the MPS server or the container runtime",
            meters.claims_work.clone(),
        );
        registry.register(
            "aliquot_start_to_registered_seconds",
            "Time from the agent's start until the kubelet had accepted a resource",
            meters.start_to_registered.clone(),
        );
        registry.register(
            "aliquot_registrations",
            "Registrations that the kubelet accepted; all but the first are after its restart",
            meters.registrations.clone(),
        );
        registry.register(
            "aliquot_refusals",
            "Grants that were refused",
            meters.refusals.clone(),
        );
        registry.register(
            "aliquot_containers_prepared",
            "PreStartContainer calls, by outcome; with outcome ok the CDI file was written",
            meters.prepared.clone(),
        );
        registry.register(
            "aliquot_driver_limits_lost",
            "Cards that had the driver's memory limits and lost them, by probes",
            meters.limits_lost.clone(),
        );
        registry.register(
            "aliquot_compute_mode_changes",
            "Corrections of a card's compute mode to the one that its shares need",
            meters.compute_modes.clone(),
        );
        registry.register(
            "aliquot_shares_freed",
            "Shares that were freed because their holder had ended",
            meters.freed.clone(),
        );
        registry.register(
            "aliquot_unproven_containers",
            "Containers that started without running the OCI hook",
            meters.unproven.clone(),
        );
        registry.register(
            "aliquot_ungranted_containers",
            "Containers that held devices for too long without a grant",
            meters.ungranted.clone(),
        );
        registry.register(
            "aliquot_xid_errors",
            "Faults that the driver reported",
            meters.xids.clone(),
        );
        registry.register(
            "aliquot_violations",
            "Containers that held more than their share, bypassed their MPS server, or had no grant, by action taken",
            meters.violations.clone(),
        );
        registry.register(
            "aliquot_mps_servers_broke",
            "MPS servers that faulted, crashed, or exited and were restarted",
            meters.servers_broke.clone(),
        );
        registry.register(
            "aliquot_mps_mended_seconds",
            "Time until a broken MPS server accepted clients again",
            meters.servers_mended.clone(),
        );
        registry.register(
            "aliquot_telemetry_streams",
            "Open streams to schedulers",
            meters.streams.clone(),
        );
        registry.register(
            "aliquot_telemetry_connects",
            "Streams to schedulers that were accepted",
            meters.connects.clone(),
        );
        registry.register(
            "aliquot_status_writes",
            "Writes of the GpuNode's status",
            meters.status_writes.clone(),
        );
        // Families show nothing before their first use: those with known labels start at zero.
        for outcome in [OutcomeWord::Ok, OutcomeWord::Error] {
            drop(meters.prepared.get_or_create(&Outcome { outcome }));
            drop(meters.claims.get_or_create(&Outcome { outcome }));
            drop(meters.claims_work.get_or_create(&Outcome { outcome }));
            drop(meters.status_writes.get_or_create(&Outcome { outcome }));
        }
        for wrong in ["memory", "past-server", "clients"] {
            for action in ["warned", "reported", "evicted", "killed"] {
                drop(
                    meters
                        .violations
                        .get_or_create(&ViolationLabels { wrong, action }),
                );
            }
        }
        for state in ["ServerFault", "Ended"] {
            drop(
                meters
                    .servers_broke
                    .get_or_create(&ServerFailureLabels { state }),
            );
        }
        for r#final in [false, true] {
            drop(meters.refusals.get_or_create(&RefusalLabels { r#final }));
        }
        meters
    }

    /// Counts it.
    pub fn note(&self, note: &Note) {
        match note {
            Note::Refused(refusal) => {
                let r#final = refusal.is_final;
                self.refusals
                    .get_or_create(&RefusalLabels { r#final })
                    .inc();
            }
            Note::Allocated { took } => self.allocate.observe(took.as_secs_f64()),
            Note::PreStarted { took, granted } => {
                self.prestart.observe(took.as_secs_f64());
                count(&self.prepared, *granted);
            }
            Note::Claimed {
                took,
                waited,
                granted,
            } => {
                let outcome = Outcome::of(*granted);
                let claims = self.claims.get_or_create(&outcome);
                claims.observe(took.as_secs_f64());
                let work = self.claims_work.get_or_create(&outcome);
                work.observe(took.saturating_sub(*waited).as_secs_f64());
            }
            Note::Registered {
                resource,
                since_start,
            } => {
                let resource = resource.clone();
                let label = ResourceLabels { resource };
                let before = self.registrations.get_or_create(&label).inc();
                if before == 0 {
                    self.start_to_registered
                        .get_or_create(&label)
                        .set(since_start.as_secs_f64());
                }
            }
            Note::Xid { gpu, xid } => {
                let label = XidLabels {
                    UUID: gpu.to_string(),
                    xid: *xid,
                };
                self.xids.get_or_create(&label).inc();
            }
            Note::Violation { wrong, action, .. } => {
                let label = ViolationLabels { wrong, action };
                self.violations.get_or_create(&label).inc();
            }
            Note::Stranger { action, .. } => {
                let label = ViolationLabels {
                    wrong: "no-grant",
                    action,
                };
                self.violations.get_or_create(&label).inc();
            }
            Note::ServerBroke { state, .. } => {
                let label = ServerFailureLabels { state };
                self.servers_broke.get_or_create(&label).inc();
            }
            Note::ServerMended { after, .. } => self.servers_mended.observe(after.as_secs_f64()),
            // A gauge has it.
            Note::Health { .. } => {}
            Note::LimitsLost { .. } => {
                self.limits_lost.inc();
            }
            Note::ComputeMode { .. } => {
                self.compute_modes.inc();
            }
            Note::Freed { .. } => {
                self.freed.inc();
            }
            Note::Ungranted(_) => {
                self.ungranted.inc();
            }
            Note::Unproven { .. } => {
                self.unproven.inc();
            }
        }
    }

    /// A stream was accepted.
    pub fn connected(&self) {
        self.connects.inc();
        self.streams.inc();
    }

    /// A stream that was accepted ended.
    pub fn disconnected(&self) {
        self.streams.dec();
    }

    /// The status was written, or was not.
    pub fn status_written(&self, ok: bool) {
        count(&self.status_writes, ok);
    }
}

fn count(family: &Family<Outcome, Counter>, ok: bool) {
    family.get_or_create(&Outcome::of(ok)).inc();
}

/// Reads the node's state at each scrape.
#[derive(Debug)]
pub struct NodeCollector {
    /// The node.
    pub state: watch::Receiver<Arc<State>>,
}

/// dcgm-exporter's labels; namespace, pod and container are empty for a card as a whole. A slice has
/// its card's, and two of its own.
fn labels(state: &State, card: &Card, share: Option<&Share>) -> Vec<(&'static str, String)> {
    let (namespace, pod, container) = share.map_or(("", "", ""), |share| {
        (
            share.pod.namespace.as_str(),
            share.pod.name.as_str(),
            share.container.as_str(),
        )
    });
    let mut labels = vec![
        ("gpu", card.index.to_string()),
        ("UUID", card.uuid.to_string()),
        ("device", format!("nvidia{}", card.minor)),
        ("modelName", card.product.clone()),
        ("Hostname", state.node.name.clone()),
        ("namespace", namespace.to_owned()),
        ("pod", pod.to_owned()),
        ("container", container.to_owned()),
    ];
    if let Some(slice) = &card.slice {
        labels.push(("GPU_I_PROFILE", card.mig_profile()));
        labels.push(("GPU_I_ID", slice.gpu_instance.to_string()));
    }
    labels
}

type CardValue = fn(&State, &Card) -> u64;
type ShareValue = fn(&Share) -> u64;
/// A value of a share; `None`: it is not known.
type KnownShareValue = fn(&Share) -> Option<u32>;

const CARD_GAUGES: [(&str, &str, Option<Unit>, CardValue); 12] = [
    (
        "aliquot_gpu_memory_total",
        "Memory of the card",
        Some(Unit::Bytes),
        |_, card| bytes(card.total),
    ),
    (
        "aliquot_gpu_memory_reserved",
        "Reserved by driver, MPS server and administrator",
        Some(Unit::Bytes),
        |_, card| bytes(card.reserved),
    ),
    (
        "aliquot_gpu_memory_used",
        "In use by the driver's account, strangers and contexts included",
        Some(Unit::Bytes),
        |_, card| bytes(card.used),
    ),
    (
        "aliquot_gpu_memory_granted",
        "Sum of what is kept for the shares: their limits, or requests where those are less",
        Some(Unit::Bytes),
        |state, card| bytes(state.ledger.granted(&card.uuid)),
    ),
    (
        "aliquot_gpu_memory_grantable",
        "The most that limits may sum to",
        Some(Unit::Bytes),
        |state, card| bytes(state.ledger.grantable(card)),
    ),
    (
        "aliquot_gpu_memory_strangers",
        "Held by processes without a grant",
        Some(Unit::Bytes),
        |_, card| {
            card.strangers
                .iter()
                .fold(0, |sum, one| sum.saturating_add(bytes(one.memory)))
        },
    ),
    (
        "aliquot_gpu_healthy",
        "1 when the card works",
        None,
        |_, card| card.health.is_healthy().into(),
    ),
    (
        "aliquot_gpu_driver_limits",
        "1 when the driver limits the memory of cgroups on the card, by the last probes",
        None,
        |_, card| card.driver_limits.backend().is_some().into(),
    ),
    (
        "aliquot_gpu_ready",
        "1 when a container with a grant on the card can be started, if only once its MPS server accepts clients",
        None,
        |state, card| report::is_ready(state, card).into(),
    ),
    (
        "aliquot_gpu_mps_ready",
        "1 when the card's MPS server accepts clients",
        None,
        |state, card| (report::mps_phase(state, &card.uuid) == ServerPhase::Ready).into(),
    ),
    (
        "aliquot_gpu_mps_clients",
        "Processes that use the card's MPS server",
        None,
        |state, card| {
            let servers = report::mps_servers(state, &card.uuid);
            servers.map(|server| server.clients.len() as u64).sum()
        },
    ),
    (
        "aliquot_gpu_mps_restarts",
        "Restarts of the card's MPS daemon since its supervisor started",
        None,
        |state, card| {
            let servers = report::mps_servers(state, &card.uuid);
            servers.map(|server| u64::from(server.restarts)).sum()
        },
    ),
];

const SHARE_GAUGES: [(&str, &str, Option<Unit>, ShareValue); 5] = [
    (
        "aliquot_share_memory_limit",
        "The share's limit on this card",
        Some(Unit::Bytes),
        |share| bytes(share.memory),
    ),
    (
        "aliquot_share_memory_reach",
        "Memory that one process of the share can allocate on this card until the watchdog ends it; 0 if unknown",
        Some(Unit::Bytes),
        |share| share.fence.map_or(0, |fence| bytes(fence.reach)),
    ),
    (
        "aliquot_share_memory_used",
        "What the share's processes hold, over all its cards",
        Some(Unit::Bytes),
        |share| bytes(share.used),
    ),
    (
        "aliquot_share_compute_percent",
        "The share's compute ceiling",
        None,
        |share| share.compute_percent.into(),
    ),
    (
        "aliquot_share_running",
        "1 when the hook let the container start",
        None,
        |share| (share.phase == crate::ledger::SharePhase::Running).into(),
    ),
];

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = Arc::clone(&self.state.borrow());
        for (name, help, unit, value) in &CARD_GAUGES {
            let mut metric =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for card in &state.inventory.cards {
                metric
                    .encode_family(&labels(&state, card, None))?
                    .encode_gauge(&value(&state, card))?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "aliquot_node_unreadable",
            "1 for a part of the node that cannot be read; its last known state stays in use",
            None,
            MetricType::Gauge,
        )?;
        for part in LocalSource::ALL {
            let value = u64::from(state.unreadable.contains(&part));
            metric
                .encode_family(&[("part", part.as_str())])?
                .encode_gauge(&value)?;
        }
        encoder
            .encode_descriptor(
                "aliquot_node_stale_samples",
                "Samples of a card's processes that were too old to be evaluated, since the agent's start",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&state.stale_samples)?;
        let by_share: [(&str, &str, KnownShareValue); 2] = [
            (
                "aliquot_share_sm_percent",
                "SM time of the share's processes in the last 1.5 s, over all its cards; absent where the driver attributes none",
                |share| share.sm_percent,
            ),
            (
                "aliquot_share_idle_minutes",
                "Whole minutes for which the share's container has done no work; absent where the driver does not tell",
                |share| share.idle_minutes,
            ),
        ];
        for (name, help, value) in by_share {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for share in state.ledger.shares() {
                let Some(value) = value(share) else {
                    continue;
                };
                for card in share.gpus.iter().filter_map(|g| state.inventory.card(g)) {
                    let labels = labels(&state, card, Some(share));
                    metric
                        .encode_family(&labels)?
                        .encode_gauge(&u64::from(value))?;
                }
            }
        }
        let mut metric = encoder.encode_descriptor(
            "aliquot_share_fence",
            "1 for the fence that is active around the share, with its strength: Hard, Guarded or Watched",
            None,
            MetricType::Gauge,
        )?;
        for share in state.ledger.shares() {
            let Some(fence) = share.fence else { continue };
            for card in share.gpus.iter().filter_map(|g| state.inventory.card(g)) {
                let mut all = labels(&state, card, Some(share));
                all.push(("fence", fence.level.as_str().to_owned()));
                all.push(("strength", fence.level.strength().as_str().to_owned()));
                metric.encode_family(&all)?.encode_gauge(&1_u64)?;
            }
        }
        for (name, help, unit, value) in &SHARE_GAUGES {
            let mut metric =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for share in state.ledger.shares() {
                for card in share.gpus.iter().filter_map(|g| state.inventory.card(g)) {
                    let labels = labels(&state, card, Some(share));
                    metric.encode_family(&labels)?.encode_gauge(&value(share))?;
                }
            }
        }
        Ok(())
    }
}

fn bytes(mib: api::Mib) -> u64 {
    mib.bytes().unwrap_or(u64::MAX)
}
