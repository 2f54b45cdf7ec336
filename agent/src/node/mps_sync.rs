//! Keeps the MPS supervisor at the plan: on every change of what the node holds, and now and then
//! to observe the result.

use super::event::Event;
use super::owner::Owner;
use super::state::State;
use crate::mps::SupervisorClient;
use futures::TryStreamExt as _;
use proto::mps::ServerPhase;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// While all is as planned.
const IDLE: Duration = Duration::from_secs(5);
/// While something is on its way, or the supervisor does not answer.
const SOON: Duration = Duration::from_millis(100);

/// Between two tries to hear of changes.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Runs until `stop`.
pub async fn run(
    socket: PathBuf,
    mut state: watch::Receiver<Arc<State>>,
    owner: Owner,
    stop: CancellationToken,
) {
    let client = match SupervisorClient::new(&socket) {
        Ok(client) => client,
        Err(error) => {
            // A path that no socket can have: shares are refused with this reason.
            let _ = owner.tell(Event::MpsSilent(error.to_string()));
            return stop.cancelled().await;
        }
    };
    tokio::select! {
        () = keep(&client, &mut state, &owner) => {}
        () = listen(&client, &owner) => {}
        () = stop.cancelled() => {}
    }
}

/// What changes by itself: a fault, a client, the end of a server.
async fn listen(client: &SupervisorClient, owner: &Owner) {
    loop {
        if let Ok(mut changes) = client.watch().await {
            while let Ok(Some(seen)) = changes.try_next().await {
                if owner.tell(Event::MpsSeen(seen)).is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

async fn keep(client: &SupervisorClient, state: &mut watch::Receiver<Arc<State>>, owner: &Owner) {
    // A plan made of a ledger that was not rebuilt would end servers whose tenants run.
    if state.wait_for(|state| state.restored).await.is_err() {
        return;
    }
    let mut applied = proto::mps::Plan::default();
    loop {
        let plan = state.borrow_and_update().plan();
        // The answer comes when the plan is settled; a newer one does not wait for that.
        let answer = tokio::select! {
            answer = client.ensure(plan.clone()) => answer,
            changed = another(state, &plan) => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let (event, settled) = match answer {
            Ok(seen) => {
                applied.clone_from(&plan);
                let settled = is_settled(&plan, &seen);
                (Event::Mps(plan, seen), settled)
            }
            // What it has done stays; servers outlive it. Without shares, no share waits for a
            // supervisor.
            Err(error) => {
                let wants =
                    |plan: &proto::mps::Plan| !plan.servers.is_empty() || !plan.cards.is_empty();
                let idle = !wants(&applied) && !wants(&plan);
                (Event::MpsSilent(error.to_string()), idle)
            }
        };
        if owner.tell(event).is_err() {
            return;
        }
        tokio::select! {
            changed = another(state, &applied) => if changed.is_err() { return },
            () = tokio::time::sleep(if settled { IDLE } else { SOON }) => {}
        }
    }
}

/// Until the node needs another plan than this. Most changes are of what cards report, not
/// of what they need.
async fn another(
    state: &mut watch::Receiver<Arc<State>>,
    plan: &proto::mps::Plan,
) -> Result<(), watch::error::RecvError> {
    loop {
        state.changed().await?;
        if state.borrow_and_update().plan() != *plan {
            return Ok(());
        }
    }
}

/// Every planned server is ready, and no other is left.
fn is_settled(plan: &proto::mps::Plan, seen: &proto::mps::Observation) -> bool {
    let planned = |name: &str| plan.servers.iter().any(|server| server.name == name);
    let ready = plan.servers.iter().all(|server| {
        let mut seen = seen.servers.iter();
        seen.any(|seen| seen.name == server.name && seen.phase() == ServerPhase::Ready)
    });
    let sliced = plan.cards.iter().all(|card| {
        let mut seen = seen.cards.iter();
        seen.any(|seen| seen.uuid == card.uuid && seen.ready)
    });
    let cards = |uuid: &str| plan.cards.iter().any(|card| card.uuid == uuid);
    ready
        && sliced
        && seen.servers.iter().all(|seen| planned(&seen.name))
        && seen.cards.iter().all(|seen| cards(&seen.uuid))
}
