//! When an MPS server breaks, its clients lose their work, and the server waits for them to end. This
//! file determines who lost work, and which clients are left. Pure.

use super::cards::Cards;
use super::event::Effect;
use super::note::Note;
use crate::ledger::{HolderKey, Ledger, Share};
use crate::mps::plan::server_name;
use crate::nvml::Process;
use crate::termination::Termination;
use crate::watchdog::is_of;
use api::Mode;
use proto::mps::{Observation, ServerPhase, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A client of a server that broke may still end by itself.
const LEFTOVER_GRACE: Duration = Duration::from_millis(1500);
/// Between two actions against the same.
const AGAIN: Duration = Duration::from_secs(2);
/// For so long at least a container's complaint says that its server broke.
const TOLD: Duration = Duration::from_secs(10);

/// The servers that do not take clients any more, by name.
#[derive(Debug, Default)]
pub(super) struct BrokenServers(BTreeMap<String, BrokenServer>);

/// A server that does not take clients any more.
#[derive(Debug)]
struct BrokenServer {
    since: Instant,
    /// Its clients when it broke.
    clients: BTreeSet<u32>,
    acted: Option<Instant>,
    mended: bool,
    /// Containers that had clients of it.
    lost: BTreeSet<HolderKey>,
    /// The sentence about these containers.
    text: String,
}

/// The evidence by which a client is attributed to a share.
#[derive(Clone, Copy)]
pub(super) struct Clients<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) cards: &'a Cards,
    /// The processes that ran on watched cards in the last moments.
    pub(super) sampled: &'a [&'a Process],
}

impl BrokenServers {
    /// Reports the servers that broke and those that recovered between two observations.
    pub(super) fn compare(
        &mut self,
        last: &Observation,
        seen: &Observation,
        clients: Clients<'_>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        // Another supervisor counts from 0 again.
        let goes_on = seen.supervisor_started == last.supervisor_started;
        for server in &seen.servers {
            let mut before = last.servers.iter();
            let before = before.find(|old| old.name == server.name);
            let more = |old: &&ServerState| server.losses > if goes_on { old.losses } else { 0 };
            if let Some(before) = before.filter(more) {
                let broken = clients.lost_with(server, before, now);
                effects.push(Effect::Tell(Note::ServerBroke {
                    server: server.name.clone(),
                    state: match server.phase() {
                        ServerPhase::ServerFault => "ServerFault",
                        _ => "Ended",
                    },
                    blamed: clients.blamed(server),
                    reason: server.reason.clone(),
                }));
                self.0.insert(server.name.clone(), broken);
            } else if server.phase() == ServerPhase::Ready
                && let Some(broken) = self.0.get_mut(&server.name)
                && !broken.mended
            {
                broken.mended = true;
                effects.push(Effect::Tell(Note::ServerMended {
                    server: server.name.clone(),
                    after: now.saturating_duration_since(broken.since),
                }));
            }
        }
    }

    /// Ends clients that a broken server left: their work is lost, and a faulted server accepts no
    /// client until they have ended.
    pub(super) fn mend(
        &mut self,
        ledger: &Ledger,
        cards: &Cards,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        self.0.retain(|name, broken| {
            let left = broken.leftovers(name, ledger, cards);
            if left.is_empty() {
                // A server that no share needs any more does not come back.
                let mut shares = ledger.shares();
                let needed = shares.any(|share| server_name(share).as_ref() == Some(name));
                return needed && !(broken.mended && now >= broken.since + TOLD);
            }
            let due = broken
                .acted
                .map_or(broken.since + LEFTOVER_GRACE, |at| at + AGAIN);
            if now >= due {
                broken.acted = Some(now);
                for (share, pids) in left {
                    effects.push(Effect::End(Termination {
                        pod_uid: share.pod.uid.clone(),
                        container_id: None,
                        pids,
                        server: Some(name.clone()),
                        reason: format!(
                            "MPS server {name} failed, and waits for its old clients to end"
                        ),
                    }));
                }
            }
            true
        });
    }

    /// Returns the complaint about a container that lost its work with its server.
    pub(super) fn complaint(&self, share: &Share) -> Option<&str> {
        let broken = self.0.get(&server_name(share)?)?;
        let has_lost = broken.lost.contains(&share.key());
        has_lost.then_some(broken.text.as_str())
    }
}

impl Clients<'_> {
    /// Determines who loses work with a server. The supervisor's list may lack new clients, and the
    /// latest sample may lack clients that have just ended, so both count.
    fn lost_with(self, server: &ServerState, before: &ServerState, now: Instant) -> BrokenServer {
        let Self {
            ledger,
            cards,
            sampled,
        } = self;
        let shares = ledger.shares();
        let its: Vec<&Share> = shares
            .filter(|share| server_name(share).as_ref() == Some(&server.name))
            .collect();
        let of_its = |process: &Process| its.iter().any(|share| is_of(process, share, ledger));
        let came_last = sampled.iter().filter(|process| of_its(process));
        let listed = before.clients.iter().chain(&server.clients);
        let clients: BTreeSet<u32> = listed
            .map(|client| client.pid)
            .chain(came_last.map(|process| process.pid))
            .collect();
        let had_clients = |share: &&&Share| {
            let mut seen = cards.beside(share).chain(sampled.iter().copied());
            seen.any(|process| clients.contains(&process.pid) && is_of(process, share, ledger))
        };
        let how = match (server.phase(), self.blamed(server).as_str()) {
            (ServerPhase::ServerFault, "unknown") => "faulted".to_owned(),
            (ServerPhase::ServerFault, pod) => format!("faulted, by a process of pod {pod}"),
            _ => "ended".to_owned(),
        };
        BrokenServer {
            since: now,
            lost: its
                .iter()
                .filter(had_clients)
                .map(|share| share.key())
                .collect(),
            text: format!("lost its work on the GPU: its MPS server {how}"),
            clients,
            acted: None,
            mended: false,
        }
    }

    /// Returns the pod whose client caused a fault, or `unknown`. A server of one share has no other; of several, the server names
    /// its pid.
    fn blamed(self, server: &ServerState) -> String {
        let own = self.ledger.shares().find(|share| {
            share.mode == Mode::MpsIsolated && server_name(share).as_ref() == Some(&server.name)
        });
        let by_pid = || {
            self.ledger.shares().find(|share| {
                self.cards.beside(share).any(|process| {
                    process.pid == server.blamed_pid && is_of(process, share, self.ledger)
                })
            })
        };
        let faulted = server.phase() == ServerPhase::ServerFault;
        own.or_else(by_pid)
            .filter(|_| faulted)
            .map_or_else(|| "unknown".to_owned(), |share| share.pod.to_string())
    }
}

impl BrokenServer {
    /// Returns the clients of the server that are still there, by share.
    fn leftovers<'a>(
        &self,
        name: &str,
        ledger: &'a Ledger,
        cards: &Cards,
    ) -> Vec<(&'a Share, Vec<u32>)> {
        let shares = ledger.shares();
        let its = shares.filter(|share| server_name(share).as_deref() == Some(name));
        let left = its.map(|share| {
            let pids: BTreeSet<u32> = cards
                .beside(share)
                .filter(|process| self.clients.contains(&process.pid))
                .filter(|process| is_of(process, share, ledger))
                .map(|process| process.pid)
                .collect();
            (share, pids.into_iter().collect::<Vec<u32>>())
        });
        left.filter(|(_, pids)| !pids.is_empty()).collect()
    }
}
