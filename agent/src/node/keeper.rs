//! Keeps the MPS supervisor at the plan: on every change of what the node holds, and now
//! and then to see what became of it.

use super::core::Event;
use super::owner::Owner;
use super::state::{MpsView, State};
use crate::mps::{self, Client, ClientError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// While all is as planned.
const IDLE: Duration = Duration::from_secs(5);
/// While something is on its way, or the supervisor does not answer.
const SOON: Duration = Duration::from_millis(100);

/// Runs until `stop`.
pub async fn run(
    socket: PathBuf,
    mut state: watch::Receiver<Arc<State>>,
    owner: Owner,
    stop: CancellationToken,
) {
    let client = match Client::new(&socket) {
        Ok(client) => client,
        Err(error) => {
            // A path that no socket can have: shares are refused with this reason.
            let view = MpsView {
                unreachable: error.to_string(),
                ..MpsView::default()
            };
            let _ = owner.tell(Event::Mps(view));
            return stop.cancelled().await;
        }
    };
    let mut last = MpsView::default();
    loop {
        let plan = mps::plan(&state.borrow_and_update());
        // The answer comes when the plan is settled; a newer one does not wait for that.
        let answer = tokio::select! {
            answer = client.ensure(plan.clone()) => answer,
            changed = another(&mut state, &plan) => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            () = stop.cancelled() => return,
        };
        let plan_is_empty = plan.servers.is_empty();
        let view = view(plan, answer, &last);
        // Where nothing is shared, nobody waits for a supervisor.
        let idle = view.applied.servers.is_empty() && plan_is_empty;
        let settled = if view.unreachable.is_empty() {
            is_settled(&view)
        } else {
            idle
        };
        last = view.clone();
        if owner.tell(Event::Mps(view)).is_err() {
            return;
        }
        tokio::select! {
            changed = another(&mut state, &last.applied) => if changed.is_err() { return },
            () = tokio::time::sleep(if settled { IDLE } else { SOON }) => {}
            () = stop.cancelled() => return,
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
        if mps::plan(&state.borrow_and_update()) != *plan {
            return Ok(());
        }
    }
}

fn view(
    plan: proto::mps::Plan,
    answer: Result<proto::mps::Observation, ClientError>,
    last: &MpsView,
) -> MpsView {
    match answer {
        Ok(seen) => MpsView {
            applied: plan,
            seen,
            unreachable: String::new(),
        },
        // What it had done stands; servers outlive it.
        Err(error) => MpsView {
            unreachable: error.to_string(),
            ..last.clone()
        },
    }
}

/// Every planned server is ready, and no other is left.
fn is_settled(view: &MpsView) -> bool {
    let planned = |name: &str| {
        view.applied
            .servers
            .iter()
            .any(|server| server.name == name)
    };
    let ready = view.applied.servers.iter().all(|server| {
        view.seen
            .servers
            .iter()
            .any(|seen| seen.name == server.name && seen.state == "Ready")
    });
    ready && view.seen.servers.iter().all(|seen| planned(&seen.name))
}
