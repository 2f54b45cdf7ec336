//! An event is a line whose first word is its kind.

use super::field::{
    All, Below, Else, Field, Flag, Map, Name, Object, Terms, Whole, always, always_or, fields,
    flag, key, needed, or,
};
use super::group::Succeeded;
use super::line::{Line, Read, TextError, parse};
use crate::action::{Bind, Received};
use crate::event::{
    Activity, Backoff, CardPause, Event, EvictRequest, Evicted, Evicting, Given, Life, Namespace,
    Outcome, OutcomeResult, Picked, Refusal, Rest,
};
use crate::model::Front;
use std::sync::Arc;

/// Reads all events of a text.
pub fn read(text: &str) -> Read<Vec<Event>> {
    parse(text)?.iter().map(of_line).collect()
}

/// Reads a text that has exactly one event.
pub fn event(text: &str) -> Read<Event> {
    match parse(text)?.as_slice() {
        [line] => of_line(line),
        _ => Err(TextError {
            line: 1,
            what: "exactly one event is wanted".to_owned(),
        }),
    }
}

/// Writes events one after another.
pub fn write(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        append(&mut text, event);
    }
    text
}

/// Appends an event to a text.
pub fn append(text: &mut String, event: &Event) {
    to_line(event).print(0, text);
}

/// Makes the reader and the writer of events. Each row has a kind, its variant, and how the content
/// of the variant is written.
macro_rules! events {
    ($($kind:literal $event:ident: $how:expr,)*) => {
        fn of_line(line: &Line) -> Read<Event> {
            let event = match line.kind() {
                $($kind => Event::$event($how.read(line)?),)*
                other => return Err(line.error(format!("{other} is no event"))),
            };
            line.finish()?;
            Ok(event)
        }

        fn to_line(event: &Event) -> Line {
            match event {
                $(Event::$event(content) => {
                    let mut line = Line::of_kind($kind);
                    $how.write(content, &mut line);
                    line
                })*
            }
        }
    };
}

events! {
    "tick" Tick: Name,
    "sequence" Sequence: Name,
    "config" Config: Whole,
    "node" Node: Whole,
    "node-gone" NodeGone: Name,
    "cards" Cards: Whole,
    "agent-lost" AgentLost: Name,
    "queue" Queue: Whole,
    "queue-gone" QueueGone: Name,
    "group" Group: Whole,
    "group-gone" GroupGone: Name,
    "topology" Topology: Whole,
    "topology-gone" TopologyGone: Name,
    "namespace" Namespace: Whole,
    "namespace-gone" NamespaceGone: Name,
    "volume" Volume: Whole,
    "volume-gone" VolumeGone: Name,
    "devices" Devices: Whole,
    "devices-gone" DevicesGone: Name,
    "allocated" Allocated: Whole,
    "freed" Freed: Name,
    "picked" Picked: Whole,
    "given" Given: Whole,
    "pod" Pod: Whole,
    "pod-gone" PodGone: Name,
    "outcome" Outcome: Whole,
    "refusal" Refusal: Whole,
    "activity" Activity: Whole,
    "refused" Refused: Whole,
    "evict-request" EvictRequest: Whole,
    "evicting" Evicting: Whole,
    "assumed" Assumed: Whole,
    "backoff" Backoff: Whole,
    "card-pause" CardPause: Whole,
    "evicted" Evicted: Whole,
    "rest" Rest: Whole,
    "life" Life: Whole,
}

fields!(Namespace {
    name: Name,
    labels: Map("label"),
});

fields!(Given {
    claim: Name,
    node: needed("node"),
    volume: key("volume"),
});

fields!(Picked {
    claim: Name,
    nodes: Terms,
    devices: Below("device"),
});

fields!(Outcome {
    decision: Name,
    result: Whole,
});

impl Object for OutcomeResult {
    fn read(line: &Line) -> Read<Self> {
        match line.name(2)? {
            "confirmed" => Ok(Self::Confirmed),
            "stays" => Ok(Self::Stays),
            "refused" => Ok(Self::Refused {
                reason: always("reason").read(line)?,
                retryable: line.flag("retryable"),
            }),
            other => Err(line.error(format!("{other} is no outcome"))),
        }
    }

    fn write(&self, line: &mut Line) {
        match self {
            Self::Confirmed => line.push_word("confirmed"),
            Self::Stays => line.push_word("stays"),
            Self::Refused { reason, retryable } => {
                line.push_word("refused");
                line.push_pair("reason", reason);
                flag("retryable").write(retryable, line);
            }
        }
    }
}

fields!(Refusal {
    pod: Name,
    node: needed("node"),
    decision: key("decision"),
    reason: always("reason"),
    last_word: flag("last-word"),
});

fields!(EvictRequest {
    pod: Name,
    node: needed("node"),
    reason: always("reason"),
});

fields!(Activity {
    pod: Name,
    idle_since: key("idle-since"),
});

fields!(Evicting {
    decision: Name,
    pod: needed("pod"),
    cause: needed("cause"),
    in_favour_of: key("for"),
    stays: flag("stays"),
    settled: flag("settled"),
});

fields!(Bind {
    decision: Name,
    pod: needed("pod"),
    namespace: or("ns", Arc::from("default")),
    name: Else("name", |line| needed("pod").read(line)),
    node: needed("node"),
    node_uid: Else("node-uid", |line| needed("node").read(line)),
    received: or("received", Received::Nothing),
    front: Flag("by-claim", Front::Claim, Front::Plugin),
    queue: key("queue"),
    group: key("group"),
    claims: Below("claim"),
    devices: Below("devices"),
    grants: Below("grant"),
});

fields!(Backoff {
    pod: Name,
    refusals: always("refusals"),
    until: key("until"),
    reason: always("reason"),
    in_favour_of: key("for"),
    avoid: All("avoid"),
});

fields!(CardPause {
    card: Name,
    node: needed("node"),
    refusals: always_or("refusals", 1),
    until: always("until"),
    reason: always("reason"),
});

fields!(Evicted {
    by: Name,
    active: always("active"),
    times: always_or("times", 1),
    until: always("until"),
});

fields!(Rest {
    of: Name,
    cause: needed("cause"),
    until: always("until"),
    steps: always("steps"),
});

fields!(Life {
    of: Name,
    last_start: key("last-start"),
    stale_since: key("stale-since"),
    last_evicted: key("last-evicted"),
    gave_way: key("gave-way"),
    succeeded: Succeeded,
    unreported: flag("untold"),
});
