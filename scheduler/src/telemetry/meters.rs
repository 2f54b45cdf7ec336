//! Metrics about agents' messages.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    why: &'static str,
}

/// All of them.
#[derive(Debug, Default)]
pub struct AgentMeters {
    waiting: Gauge,
    replaced: Counter,
    refused: Family<RefusalLabels, Counter>,
}

impl AgentMeters {
    /// New ones, in this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let meters = Self::default();
        let registry = registry.sub_registry_with_prefix("aliquot_scheduler_agents");
        registry.register(
            "waiting",
            "Nodes with reports that have not been applied yet",
            meters.waiting.clone(),
        );
        registry.register(
            "replaced",
            "Messages of agents that were replaced by later ones of the same node before they were applied",
            meters.replaced.clone(),
        );
        registry.register(
            "refused",
            "Streams of agents that were refused or closed, by reason",
            meters.refused.clone(),
        );
        meters
    }

    pub(super) fn waiting(&self, nodes: usize) {
        self.waiting.set(i64::try_from(nodes).unwrap_or(i64::MAX));
    }

    pub(super) fn replaced(&self) {
        self.replaced.inc();
    }

    /// A stream was refused or ended with that status.
    pub(super) fn refused(&self, code: tonic::Code) {
        let why = match code {
            tonic::Code::InvalidArgument => "malformed",
            tonic::Code::Aborted | tonic::Code::FailedPrecondition => "order",
            tonic::Code::PermissionDenied => "another-node",
            tonic::Code::Unauthenticated => "token",
            tonic::Code::ResourceExhausted => "too-many",
            tonic::Code::DeadlineExceeded => "silent",
            _ => "other",
        };
        self.refused.get_or_create(&RefusalLabels { why }).inc();
    }
}
