//! One card that processes use side by side without a server: the task that owns its
//! compute mode and its time slice.
//!
//! In: what the plan says of it. Out: a [`CardState`] whenever it changed. Must never touch
//! a card that a server holds: the plan names such a card under its server alone.

use super::backoff::backoff;
use super::smi::{Smi, SmiError};
use crate::gpu::ComputeMode;
use backon::BackoffBuilder as _;
use proto::mps::CardState;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

/// The driver's own slice.
const DRIVERS_OWN: u32 = 0;
/// Between two tries, doubled up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// The wanted state of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredCardState {
    /// Compute mode DEFAULT, and this slice; `None`: the slice it has. With how often the mode
    /// was seen to be another one.
    Sliced(Option<u32>, u32),
    /// Nothing any more: a slice that was set is taken back.
    Nothing,
}

/// Keeps the card in this state until it is no longer needed. A card that cannot be set is tried
/// again; callers that wait for it get the reason.
pub async fn run(
    uuid: String,
    smi: Smi,
    mut orders: watch::Receiver<DesiredCardState>,
    reports: mpsc::Sender<CardState>,
) -> String {
    let mut changed_slice = false;
    let backoff = backoff(RETRY);
    let mut pauses = backoff.build();
    loop {
        let wanted = *orders.borrow_and_update();
        let done = match wanted {
            DesiredCardState::Sliced(slice, _) => {
                changed_slice |= slice.is_some_and(|slice| slice != DRIVERS_OWN);
                set(&smi, &uuid, slice).await
            }
            DesiredCardState::Nothing if changed_slice => {
                match smi.set_time_slice(&uuid, DRIVERS_OWN).await {
                    // It took the setting, and no share waits to see it.
                    Err(SmiError::NotUnderstood { .. }) => Ok(()),
                    done => done,
                }
            }
            DesiredCardState::Nothing => Ok(()),
        };
        let reason = done.as_ref().err().map(ToString::to_string);
        if let Some(reason) = &reason {
            warn!(card = uuid, reason, "cannot be set");
        } else {
            info!(card = uuid, ?wanted, "card");
        }
        let state = CardState {
            uuid: uuid.clone(),
            ready: reason.is_none(),
            reason: reason.clone().unwrap_or_default(),
        };
        // A supervisor that has ended does not need it.
        let _ = reports.send(state).await;
        if wanted == DesiredCardState::Nothing && reason.is_none() {
            return uuid;
        }
        let again = async {
            match reason {
                Some(_) => tokio::time::sleep(pauses.next().unwrap_or(RETRY.1)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = orders.changed() => match changed {
                Ok(()) => pauses = backoff.build(),
                // The supervisor ends; the settings stay for the card's users.
                Err(_) => return uuid,
            },
            () = again => {}
        }
    }
}

async fn set(smi: &Smi, uuid: &str, slice: Option<u32>) -> Result<(), SmiError> {
    smi.set_compute_mode(uuid, ComputeMode::Default).await?;
    match slice {
        Some(slice) => smi.set_time_slice(uuid, slice).await,
        None => Ok(()),
    }
}
