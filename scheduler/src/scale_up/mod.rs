//! New nodes for pods that wait: placeholder pods that autoscalers act on.
//!
//! Autoscalers know nothing of shares. So the scheduler plans which nodes would let its pods run,
//! and creates for each such node one pod that never runs and asks for that node's whole GPUs.
//!
//! - `links`: what the cycle and the planner tell each other. In: `Look`, what a cycle has found
//!   no room for.
//! - `templates`: what nodes of a group have, as a person wrote it or as the last one had it.
//! - `book`: nodes that start, and since when each pod has had a node asked for. Pure.
//! - `placeholder`: the pods, and the fewest writes to have the right ones. Pure.
//! - `run`: plans apart from decisions, and writes. Out: placeholders, `Asked`.
//!
//! A crash leaves placeholders behind; the next leader lists them, keeps those that are still
//! needed and deletes the others.

mod book;
mod links;
mod meters;
mod placeholder;
mod run;
mod templates;

pub(crate) use links::{Asked, Links, Look};
pub use meters::ScaleUpMeters;
pub(crate) use run::run;
pub use templates::TemplateError;

use crate::Config;
use scheduler_core::scale_up::{Groups, NodeTemplate, Unknown};
use scheduler_core::units::{Mib, NanoGpu};
use std::sync::Arc;
use tokio::sync::watch;

/// Time between two checks of a cycle for pods without room.
pub(crate) const PACE: std::time::Duration = std::time::Duration::from_secs(2);
/// The same after pods that nodes were asked for have their place. Short beside the ten seconds
/// between two checks of an autoscaler, and long enough that a burst of bindings is one check.
pub(crate) const PACE_AFTER_BIND: std::time::Duration = std::time::Duration::from_millis(100);
/// Most pods in one check, the first in the queue.
pub(crate) const MOST_PODS: usize = 1_000;
/// A card of a cluster without cards and without templates: requests for GPU memory count over
/// it towards quotas. The largest card that is sold in numbers.
pub(crate) const ANY_CARD: Mib = Mib(81_920);

/// How new nodes are requested.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What a person wrote of groups, in order of preference.
    templates: Vec<NodeTemplate>,
    unknown: Unknown,
}

impl Settings {
    /// `None`: no nodes are requested.
    ///
    /// # Errors The error in the file of templates.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, TemplateError> {
        if !config.cluster_autoscaling {
            return Ok(None);
        }
        let templates = match &config.node_templates {
            Some(file) => templates::read(file)?,
            None => Vec::new(),
        };
        Ok(Some(Self {
            templates,
            unknown: Unknown {
                memory_counts_as: config.gpu_memory_to_fraction_ratio,
                most: config.max_unknown_nodes,
            },
        }))
    }
}

/// The task that requests nodes, for every shard.
pub(crate) struct ScaleUp {
    pub(crate) settings: Settings,
    /// Writes only while leading.
    pub(crate) client: kube::Client,
    pub(crate) meters: Arc<ScaleUpMeters>,
}

impl ScaleUp {
    /// Nodes of them come and go.
    pub(crate) fn groups(&self) -> Groups {
        templates::NodeGroups::new(self.settings.templates.clone()).groups()
    }

    /// One for the shard of that node pool.
    pub(crate) fn line(&self, wall: crate::clock::Wall, pool: String) -> (Line, Links) {
        let (settings, client) = (self.settings.clone(), self.client.clone());
        Line::new(settings, client, wall, self.meters.clone(), pool)
    }
}

/// The cycle's end.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) groups: Groups,
    /// Memory of a card where none is known.
    pub(crate) card: Mib,
    pub(crate) looks: watch::Sender<Option<Look>>,
    pub(crate) asked: watch::Receiver<Asked>,
}

impl Line {
    /// One with its other end.
    pub(crate) fn new(
        settings: Settings,
        client: kube::Client,
        wall: crate::clock::Wall,
        meters: Arc<ScaleUpMeters>,
        pool: String,
    ) -> (Self, Links) {
        let (looks, looks_in) = watch::channel(None);
        let (asked_out, asked) = watch::channel(Asked::default());
        let cards = settings.templates.iter().flat_map(|group| &group.cards);
        let card = cards.map(|card| card.total).min().unwrap_or(ANY_CARD);
        let known = templates::NodeGroups::new(settings.templates);
        let line = Self {
            groups: known.groups(),
            card,
            looks,
            asked,
        };
        let links = Links {
            known,
            unknown: settings.unknown,
            looks: looks_in,
            asked: asked_out,
            client,
            wall,
            meters,
            pool,
        };
        (line, links)
    }
}

/// Parses `--gpu-memory-to-fraction-ratio`.
///
/// # Errors
/// A sentence, for what is not above 0 and at most 1.
pub(crate) fn ratio(text: &str) -> Result<NanoGpu, String> {
    let ratio: f64 = text.parse().map_err(|_| "it must be a number".to_owned())?;
    if !(ratio > 0.0 && ratio <= 1.0) {
        return Err("it must be above 0 and at most 1".to_owned());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "1 to 1,000,000,000"
    )]
    let nano = (ratio * 1e9).round().max(1.0) as u64;
    Ok(NanoGpu(nano))
}
