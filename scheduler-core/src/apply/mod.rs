//! Events into the state: one function per kind of event, none of which can fail.
//!
//! In: an [`Event`]. Out: changed rows and cells, and the [`Problem`]s. Never decides.

mod group;
mod node;
mod outcome;
mod pod;
mod queue;

use crate::config::Config;
use crate::event::Event;
use crate::problem::Problem;
use crate::state::State;
use crate::state::devices::Picked as Devices;
use crate::state::rows::{Evicted, Rest};

/// Takes one event in.
pub(crate) fn event(state: &mut State, config: &Config, event: Event) -> Vec<Problem> {
    let mut problems = Vec::new();
    match event {
        // Handled by the core itself, which is rebuilt.
        Event::Config(_) => {}
        Event::Tick(now) => {
            if now < state.now {
                problems.push(Problem::TimeWentBack);
            } else {
                state.now = now;
            }
        }
        Event::Node(node) => node::upsert(state, config, node),
        Event::NodeGone(name) => node::gone(state, config, &name, &mut problems),
        Event::Cards(cards) => node::cards(state, config, cards, &mut problems),
        Event::AgentLost(name) => node::agent_lost(state, &name, &mut problems),
        Event::Queue(queue) => queue::upsert(state, queue, &mut problems),
        Event::QueueGone(name) => queue::gone(state, &name, &mut problems),
        Event::Group(group) => group::upsert(state, group, &mut problems),
        Event::GroupGone(name) => group::gone(state, &name, &mut problems),
        Event::Topology(topology) => {
            state.topologies.insert(topology.name.clone(), topology);
            state.changes.capacity_grew();
        }
        Event::TopologyGone(name) => {
            if state.topologies.remove(&name).is_none() {
                problems.push(Problem::Unknown {
                    what: "topology",
                    name: name.shared(),
                });
            }
            state.changes.capacity_grew();
        }
        Event::Namespace(namespace) => state.namespace(&namespace.name, Some(namespace.labels)),
        Event::NamespaceGone(name) => state.namespace(&name, None),
        Event::Volume(volume) => state.volume(volume),
        Event::VolumeGone(name) => {
            if !state.volume_gone(&name) {
                problems.push(Problem::Unknown {
                    what: "volume",
                    name: name.shared(),
                });
            }
        }
        Event::Devices(pool) => state.device_pool(pool),
        Event::DevicesGone(name) => {
            if !state.device_pool_gone(&name) {
                problems.push(Problem::Unknown {
                    what: "pool of devices",
                    name: name.to_string().into(),
                });
            }
        }
        Event::Allocated(allocation) => state.claim_allocated(allocation),
        Event::Freed(claim) => {
            if !state.claim_freed(&claim) {
                problems.push(Problem::Unknown {
                    what: "allocated claim",
                    name: claim.shared(),
                });
            }
        }
        Event::Picked(picked) => {
            let (devices, nodes) = (picked.devices, picked.nodes);
            state.pick(&picked.claim, Devices { devices, nodes });
        }
        Event::Given(given) => {
            if let Some(node) = state.names.nodes.get(&given.node).copied() {
                state.give(&given.claim, node, given.volume.as_ref());
            }
        }
        Event::Pod(pod) => pod::upsert(state, config, *pod, &mut problems),
        Event::PodGone(uid) => pod::gone(state, &uid, &mut problems),
        Event::Outcome(outcome) => outcome::outcome(state, config, outcome, &mut problems),
        Event::Refusal(refusal) => outcome::refusal(state, config, refusal, &mut problems),
        Event::EvictRequest(request) => outcome::evict_request(state, request, &mut problems),
        Event::Activity(said) => pod::activity(state, &said, &mut problems),
        Event::Refused(refusal) => outcome::refused(state, refusal, &mut problems),
        Event::Evicting(evicting) => outcome::evicting(state, &evicting, &mut problems),
        Event::Assumed(bind) => outcome::assumed(state, config, &bind, &mut problems),
        Event::Backoff(backoff) => outcome::backoff(state, backoff, &mut problems),
        Event::CardPause(pause) => outcome::card_pause(state, pause, &mut problems),
        Event::Evicted(evicted) => {
            let (active, times, until) = (evicted.active, evicted.times, evicted.until);
            let last = Evicted {
                active,
                times,
                until,
            };
            state.pauses.evicted.insert(evicted.by, last);
        }
        Event::Rest(rest) => {
            let (until, allowance) = (rest.until, rest.steps);
            let rest = (rest.of, rest.cause);
            state
                .pauses
                .searches
                .insert(rest, Rest { until, allowance });
        }
        Event::Life(life) => group::life(state, &life),
        Event::Sequence(sequence) => state.open.sequence = state.open.sequence.max(sequence),
    }
    state.settle_subjects();
    problems
}
