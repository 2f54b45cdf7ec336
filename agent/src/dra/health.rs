//! The health of cards, for the status of the pods that have claims on them (KEP-4680).
//!
//! The kubelet holds one stream for each connection to the driver, and forgets states that were not
//! repeated for 30 s.

use super::slice;
use crate::inventory::Health;
use crate::node::State;
use crate::node::claims::parts::device_name;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use proto::dra_health::dra_resource_health_server::DraResourceHealth;
use proto::dra_health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Between two messages that say the same.
const REFRESH: Duration = Duration::from_secs(10);

/// Reports the health of this node's cards to the kubelet.
#[derive(Clone, Debug)]
pub struct Monitor {
    /// Their known state.
    pub state: watch::Receiver<Arc<State>>,
    /// Ends all streams: a server that shuts down waits for them.
    pub stop: CancellationToken,
}

/// Each device of the node's slice: name, health, and why it is not healthy.
fn devices(state: &State) -> Vec<(String, HealthStatus, String)> {
    let health = |health: &Health| match health {
        Health::Healthy => HealthStatus::Healthy,
        Health::Unhealthy { .. } => HealthStatus::Unhealthy,
    };
    slice::cards(state)
        .map(|card| {
            let name = device_name(&card.uuid);
            (name, health(&card.health), card.health.reason().to_owned())
        })
        .collect()
}

fn message(pool: &str, devices: &[(String, HealthStatus, String)]) -> NodeWatchResourcesResponse {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let device = |(name, health, reason): &(String, HealthStatus, String)| DeviceHealth {
        device: Some(DeviceIdentifier {
            pool_name: pool.to_owned(),
            device_name: name.clone(),
        }),
        health: (*health).into(),
        last_updated_time: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        // The kubelet's own.
        health_check_timeout_seconds: 0,
        message: reason.clone(),
    };
    NodeWatchResourcesResponse {
        devices: devices.iter().map(device).collect(),
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Monitor {
    type NodeWatchResourcesStream = BoxStream<'static, Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let messages = stream::unfold((self.state.clone(), None), |(mut state, told)| async move {
            let (pool, now) = loop {
                let now = state.borrow_and_update().clone();
                let devices = devices(&now);
                if told.as_ref() != Some(&devices) {
                    break (now.node.name.clone(), devices);
                }
                match tokio::time::timeout(REFRESH, state.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    Err(_) => break (now.node.name.clone(), devices),
                }
            };
            let message = message(&pool, &now);
            Some((Ok(message), (state, Some(now))))
        });
        let until = self.stop.clone().cancelled_owned();
        Ok(Response::new(messages.take_until(until).boxed()))
    }
}
