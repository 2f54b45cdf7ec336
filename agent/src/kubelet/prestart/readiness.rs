//! Whether a share's cards are in its mode, by the MPS supervisor's plan and observation.

use crate::gpu::GpuUuid;
use crate::ledger::Share;
use crate::mps::{phase, plan};
use crate::node::MpsView;
use api::Mode;
use proto::mps::ServerPhase;

/// Whether the cards' mode is what the share needs; else what is missing, in one line.
pub(super) fn readiness(mps: &MpsView, share: &Share) -> Result<(), String> {
    for card in &share.gpus {
        let others = mps.seen.servers.iter().any(|server| {
            plan::holds(server, card) && Some(&server.name) != plan::server_name(share).as_ref()
        });
        let planned = mps.applied.servers.iter().any(|s| s.name == card.as_str());
        let own = share.mode == Mode::Mps;
        if share.mode != Mode::MpsIsolated && (others || planned && !own) {
            // One that still holds the card would be all that can use it.
            return Err(format!("an MPS server still holds card {card}"));
        }
        if share.mode == Mode::MpsIsolated && (planned || seen_of_card(mps, card)) {
            return Err(format!("the MPS server of card {card} still holds it"));
        }
    }
    if share.mode == Mode::Exclusive {
        return Ok(());
    }
    if !mps.unreachable.is_empty() {
        return Err(format!(
            "the MPS supervisor does not answer: {}",
            mps.unreachable
        ));
    }
    match plan::server_name(share) {
        Some(name) => served(mps, share, &name),
        None => sliced(mps, share),
    }
}

/// Whether the card's one server is still there.
fn seen_of_card(mps: &MpsView, card: &GpuUuid) -> bool {
    let mut servers = mps.seen.servers.iter();
    servers.any(|server| server.name == card.as_str() && plan::holds(server, card))
}

/// Whether the share's server takes it.
fn served(mps: &MpsView, share: &Share, name: &str) -> Result<(), String> {
    let whose = match share.mode {
        Mode::Mps => format!("of card {name}"),
        _ => "of this share".to_owned(),
    };
    let told = mps.holding.servers.iter().any(|server| {
        let memory = server.default_memory_mib;
        server.name == *name && (memory == 0 || memory >= share.memory.0)
    });
    let seen = mps.seen.servers.iter().find(|s| s.name == *name);
    let (phase, reason) = seen.map_or((ServerPhase::Absent, ""), |s| (s.phase(), &s.reason));
    let word = phase::word(phase);
    match phase {
        ServerPhase::Ready if told => Ok(()),
        ServerPhase::Ready => Err(format!(
            "the MPS server {whose} is not yet told of this share"
        )),
        _ if reason.is_empty() => Err(format!("the MPS server {whose} is {word}")),
        _ => Err(format!("the MPS server {whose} is {word}: {reason}")),
    }
}

/// Whether the cards take processes side by side.
fn sliced(mps: &MpsView, share: &Share) -> Result<(), String> {
    for card in &share.gpus {
        let told = mps.holding.cards.iter().any(|c| c.uuid == card.as_str());
        let seen = mps.seen.cards.iter().find(|c| c.uuid == card.as_str());
        match seen {
            Some(seen) if seen.ready && told => {}
            Some(seen) if !seen.reason.is_empty() => {
                return Err(format!(
                    "card {card} cannot be time-sliced: {}",
                    seen.reason
                ));
            }
            _ => return Err(format!("card {card} is not yet set to time-slicing")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::AllocId;
    use proto::mps::{Observation, Plan, Server, ServerState};

    fn share(mode: &str) -> Share {
        let record = format!(
            r#"{{"version":1,"pod":{{"uid":"u","namespace":"n","name":"p"}},"container":"c",
               "gpus":["GPU-0"],"memoryMib":2000,"computePercent":100,"mode":"{mode}","decision":"d"}}"#
        );
        Share::from_record(AllocId::new(1), &record).unwrap()
    }

    fn view(planned: Option<u64>, phase: Option<ServerPhase>) -> MpsView {
        let applied = Plan {
            servers: planned
                .map(|mib| Server {
                    name: "GPU-0".into(),
                    default_memory_mib: mib,
                    ..Server::default()
                })
                .into_iter()
                .collect(),
            ..Plan::default()
        };
        MpsView {
            holding: applied.clone(),
            applied,
            asked: true,
            seen: Observation {
                servers: phase
                    .map(|phase| ServerState {
                        name: "GPU-0".into(),
                        phase: phase.into(),
                        ..ServerState::default()
                    })
                    .into_iter()
                    .collect(),
                ..Observation::default()
            },
            unreachable: String::new(),
        }
    }

    #[test]
    fn a_share_waits_for_a_server_that_knows_of_it() {
        let share = share("mps");
        for (view, expected) in [
            (view(Some(2000), Some(ServerPhase::Ready)), ""),
            (view(Some(0), Some(ServerPhase::Ready)), ""),
            (
                view(Some(1000), Some(ServerPhase::Ready)),
                "the MPS server of card GPU-0 is not yet told of this share",
            ),
            (view(None, None), "the MPS server of card GPU-0 is Absent"),
            (
                view(Some(2000), Some(ServerPhase::Starting)),
                "the MPS server of card GPU-0 is Starting",
            ),
        ] {
            assert_eq!(readiness(&view, &share).err().unwrap_or_default(), expected);
        }
        // It has got another plan since, with an unknown result.
        let other = MpsView {
            holding: Plan::default(),
            ..view(Some(2000), Some(ServerPhase::Ready))
        };
        assert_eq!(
            readiness(&other, &share).unwrap_err(),
            "the MPS server of card GPU-0 is not yet told of this share"
        );
        let silent = MpsView {
            unreachable: "connection refused".into(),
            ..view(Some(2000), Some(ServerPhase::Ready))
        };
        assert_eq!(
            readiness(&silent, &share).unwrap_err(),
            "the MPS supervisor does not answer: connection refused"
        );
    }

    #[test]
    fn an_isolated_share_waits_for_its_own_server_and_for_the_cards_to_leave() {
        let share = share("mps-isolated");
        let name = AllocId::new(1).to_string();
        let mut own = view(Some(2000), Some(ServerPhase::Ready));
        own.applied.servers[0].name.clone_from(&name);
        own.holding = own.applied.clone();
        own.seen.servers[0].name.clone_from(&name);
        own.seen.servers[0].gpu_uuids = vec!["GPU-0".into()];
        assert_eq!(readiness(&own, &share), Ok(()));
        assert_eq!(
            readiness(&MpsView::default(), &share).unwrap_err(),
            "the MPS server of this share is Absent"
        );
        own.seen.servers.push(ServerState {
            name: "GPU-0".into(),
            phase: ServerPhase::Draining.into(),
            ..ServerState::default()
        });
        assert_eq!(
            readiness(&own, &share).unwrap_err(),
            "the MPS server of card GPU-0 still holds it"
        );
    }

    #[test]
    fn a_slice_waits_for_the_cards_mode_and_for_servers_to_leave() {
        let share = share("time-slicing");
        let card = |ready, reason: &str| {
            let mut view = MpsView::default();
            view.applied.cards = vec![proto::mps::Card {
                uuid: "GPU-0".into(),
                time_slice: None,
                compute_mode_faults: 0,
            }];
            view.holding = view.applied.clone();
            view.seen.cards = vec![proto::mps::CardState {
                uuid: "GPU-0".into(),
                ready,
                reason: reason.into(),
            }];
            view
        };
        assert_eq!(readiness(&card(true, ""), &share), Ok(()));
        for (view, expected) in [
            (
                MpsView::default(),
                "card GPU-0 is not yet set to time-slicing",
            ),
            (
                card(false, "no permission"),
                "card GPU-0 cannot be time-sliced: no permission",
            ),
            (
                view(None, Some(ServerPhase::Draining)),
                "an MPS server still holds card GPU-0",
            ),
        ] {
            assert_eq!(readiness(&view, &share).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_whole_card_waits_for_the_server_to_leave() {
        let share = share("exclusive");
        assert!(readiness(&view(None, None), &share).is_ok());
        assert!(readiness(&view(None, Some(ServerPhase::Absent)), &share).is_ok());
        for view in [view(None, Some(ServerPhase::Draining)), view(Some(1), None)] {
            assert_eq!(
                readiness(&view, &share).unwrap_err(),
                "an MPS server still holds card GPU-0"
            );
        }
        // A node that never shared anything needs no supervisor.
        let silent = MpsView {
            unreachable: "no socket".into(),
            ..MpsView::default()
        };
        assert!(readiness(&silent, &share).is_ok());
    }
}
