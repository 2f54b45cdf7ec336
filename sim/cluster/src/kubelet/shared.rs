//! The state that all parts of one kubelet share.

use super::config::Config;
use super::plugins::Plugins;
use super::table::PodTable;
use crate::runtime::Runtime;
use kube::Client;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The state that all parts of one kubelet share.
pub(super) struct Node {
    pub(super) config: Arc<Config>,
    pub(super) client: Client,
    pub(super) runtime: Runtime,
    pub(super) plugins: Arc<Plugins>,
    pub(super) pods: Arc<PodTable>,
    pub(super) stop: CancellationToken,
}
