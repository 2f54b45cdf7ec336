//! The kubelet's `PodResources`: the second source of identity, and the only acknowledgement of
//! what was offered.

use crate::gpu::GpuUuid;
use crate::node::offer::Offer;
use crate::node::{Event, Owner, Pool, State};
use crate::resource::Resource;
use api::grant::PodIdentity;
use proto::names::kubelet::HEALTHY;
use proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use proto::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, GetPodResourcesRequest,
    ListPodResourcesRequest, PodResources,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

/// Answers grow with pods and devices; tonic's default is 4 MiB.
const MAX_ANSWER: usize = 16 << 20;
/// The kubelet answers within milliseconds or not at all.
const PATIENCE: Duration = Duration::from_secs(2);
/// First and longest pause while the kubelet does not show what was offered.
const CATCH_UP: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// Interval at which it is read again without a reason.
const IDLE: Duration = Duration::from_secs(30);

/// Queries the kubelet. Connects for every query, because the kubelet creates a new socket at each
/// start.
#[derive(Clone, Debug)]
pub struct Lister {
    socket: PathBuf,
}

/// The kubelet did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ListerError {
    /// No kubelet there.
    #[error("the kubelet's PodResources cannot be reached: {0}")]
    Connect(#[from] tonic::transport::Error),
    /// It answered with an error.
    #[error("the kubelet's PodResources returned an error: {}", .0.message())]
    Call(#[from] Box<tonic::Status>),
}

impl Lister {
    /// Of this socket.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    async fn connect(&self) -> Result<PodResourcesListerClient<Channel>, ListerError> {
        let channel = Endpoint::from_shared(format!("unix://{}", self.socket.display()))?
            .connect_timeout(PATIENCE)
            .timeout(PATIENCE)
            .connect()
            .await?;
        Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_ANSWER))
    }

    /// One pod; `None` when the kubelet does not list it.
    ///
    /// # Errors The kubelet did not answer, or is older than 1.34.
    pub async fn get(&self, pod: &PodIdentity) -> Result<Option<PodResources>, ListerError> {
        let request = GetPodResourcesRequest {
            pod_name: pod.name.clone(),
            pod_namespace: pod.namespace.clone(),
        };
        match self.connect().await?.get(request).await {
            Ok(answer) => Ok(answer.into_inner().pod_resources),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            Err(status) => Err(Box::new(status).into()),
        }
    }

    /// All pods. It can open the window in which the kubelet gives one ID twice: only for
    /// kubelets without `Get`, and without a checkpoint.
    ///
    /// # Errors The kubelet did not answer.
    pub async fn list(&self) -> Result<Vec<PodResources>, ListerError> {
        let request = ListPodResourcesRequest {};
        let answer = self.connect().await?.list(request).await;
        Ok(answer.map_err(Box::new)?.into_inner().pod_resources)
    }

    /// All that containers can get.
    ///
    /// # Errors The kubelet did not answer.
    pub async fn all_allocatable(&self) -> Result<AllocatableResourcesResponse, ListerError> {
        let request = AllocatableResourcesRequest {};
        let mut client = self.connect().await?;
        let answer = client.get_allocatable_resources(request).await;
        Ok(answer.map_err(Box::new)?.into_inner())
    }

    /// The healthy IDs of our resources.
    ///
    /// # Errors The kubelet did not answer.
    pub async fn allocatable(&self) -> Result<BTreeSet<(Resource, String)>, ListerError> {
        let mut ids = BTreeSet::new();
        for devices in self.all_allocatable().await?.devices {
            if let Some(resource) = Resource::parse(&devices.resource_name) {
                ids.extend(devices.device_ids.into_iter().map(|id| (resource, id)));
            }
        }
        Ok(ids)
    }
}

/// Where each card is, by the IDs that the kubelet can allocate.
pub fn pools(
    cards: impl Iterator<Item = GpuUuid>,
    ids: &BTreeSet<(Resource, String)>,
) -> BTreeMap<GpuUuid, Pool> {
    let shared: BTreeSet<&str> = ids
        .iter()
        .filter(|(resource, _)| *resource == Resource::Share)
        .filter_map(|(_, id)| id.split_once("::").map(|(card, _)| card))
        .collect();
    let devices = ids
        .iter()
        .filter(|(resource, _)| resource.is_of_devices())
        .map(|(_, id)| id.as_str());
    let devices: BTreeSet<&str> = devices.collect();
    cards
        .map(|card| {
            let whole = devices.contains(card.as_str());
            let pool = match (whole, shared.contains(card.as_str())) {
                (true, true) => Pool::Whole,
                (true, false) => Pool::WholeOnly,
                (false, true) => Pool::Shared,
                (false, false) => Pool::None,
            };
            (card, pool)
        })
        .collect()
}

/// Follows what the kubelet shows, until `stop`. `serves_whole` is true if this agent offers whole
/// cards. If it does not, another plugin may, and the kubelet shows devices that are in no offer of
/// this agent.
pub async fn follow(
    lister: Lister,
    serves_whole: bool,
    mut offer: watch::Receiver<Arc<Offer>>,
    state: watch::Receiver<Arc<State>>,
    owner: Owner,
    stop: CancellationToken,
) {
    let mut pause = CATCH_UP.0;
    loop {
        let expected = healthy(&offer.borrow_and_update());
        let shown = lister.allocatable().await;
        let caught_up = match &shown {
            Ok(ids) => {
                let state = state.borrow().clone();
                let cards = state.inventory.cards.iter().map(|card| card.uuid.clone());
                if owner.tell(Event::Pools(pools(cards, ids))).is_err() {
                    return;
                }
                shows(ids, &expected, serves_whole)
            }
            Err(error) => {
                tracing::debug!(%error, "the kubelet's allocatable devices cannot be read");
                false
            }
        };
        let wait = if caught_up { IDLE } else { pause };
        pause = if caught_up {
            CATCH_UP.0
        } else {
            (pause * 2).min(CATCH_UP.1)
        };
        tokio::select! {
            changed = offer.changed() => {
                if changed.is_err() {
                    return;
                }
                pause = CATCH_UP.0;
                // The kubelet reads our message before it shows it.
                tokio::time::sleep(CATCH_UP.0).await;
            }
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Returns true if the kubelet shows exactly the devices that were offered. Resources that this agent
/// does not serve are ignored.
fn shows(
    ids: &BTreeSet<(Resource, String)>,
    expected: &BTreeSet<(Resource, String)>,
    serves_whole: bool,
) -> bool {
    let ours = ids
        .iter()
        .filter(|(resource, _)| serves_whole || *resource != Resource::Whole);
    ours.eq(expected)
}

fn healthy(offer: &Offer) -> BTreeSet<(Resource, String)> {
    offer
        .resources()
        .flat_map(|resource| {
            offer
                .list(resource)
                .iter()
                .filter(|device| device.health == HEALTHY)
                .map(move |device| (resource, device.id.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_another_plugin_are_not_waited_for() {
        let ids = |all: &[(Resource, &str)]| {
            let all = all.iter();
            all.map(|(resource, id)| (*resource, (*id).to_owned()))
                .collect::<BTreeSet<_>>()
        };
        let ours = ids(&[(Resource::Share, "A::0")]);
        let both = ids(&[(Resource::Share, "A::0"), (Resource::Whole, "A")]);
        assert!(shows(&both, &ours, false) && !shows(&both, &ours, true));
        assert!(shows(&both, &both, true) && !shows(&BTreeSet::new(), &ours, false));
    }

    #[test]
    fn a_card_is_where_the_kubelet_can_allocate_it() {
        let cards = ["A", "B", "C", "D"].map(GpuUuid::from);
        let ids = BTreeSet::from([
            (Resource::Whole, "A".to_owned()),
            (Resource::Share, "A::0".to_owned()),
            (Resource::Share, "B::7".to_owned()),
            (Resource::Whole, "C".to_owned()),
        ]);
        let pools: Vec<Pool> = pools(cards.into_iter(), &ids).into_values().collect();
        assert_eq!(
            pools,
            [Pool::Whole, Pool::Shared, Pool::WholeOnly, Pool::None]
        );
    }
}
