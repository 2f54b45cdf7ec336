//! The core's decisions, as a table: bindings, evictions, promises, and pending pods.

use crate::report::{Cell, Column, Table, Tone};
use scheduler_core::ids::{GpuUuid, PodUid};
use scheduler_core::model::ContainerGrant;
use scheduler_core::{Action, Bind, Decision, DeviceBinding};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    Column::number("round", "ROUND"),
    Column::text("action", "ACTION"),
    Column::text("namespace", "NAMESPACE"),
    Column::text("pod", "POD"),
    Column::text("node", "NODE"),
    Column::text("grants", "GETS"),
    Column::text("why", "WHY"),
    Column::text("uid", "UID").wide(),
];

/// One row per action or reason. Of the last round, the pending pods with their reasons, as far as
/// `about` selects them.
pub(crate) fn table(rounds: &[Decision], about: impl Fn(&PodUid) -> bool) -> Table {
    let mut table = Table::new(COLUMNS, "nothing would be done");
    for (at, decision) in rounds.iter().enumerate() {
        let round = at + 1;
        for action in &decision.actions {
            table.row(match action {
                Action::Bind(bind) => vec![
                    round.into(),
                    Cell::from("bind").tone(Tone::Good),
                    bind.namespace.to_string().into(),
                    bind.name.to_string().into(),
                    bind.node.to_string().into(),
                    gets(bind),
                    if bind.pod.as_str().ends_with(scheduler::trial::RECREATED) {
                        "recreated by its controller".into()
                    } else {
                        "".into()
                    },
                    bind.pod.to_string().into(),
                ],
                Action::Evict(evict) => vec![
                    round.into(),
                    Cell::from("evict").tone(Tone::Bad),
                    evict.namespace.to_string().into(),
                    evict.name.to_string().into(),
                    "".into(),
                    Cell::shown(Value::Array(Vec::new()), ""),
                    match &evict.in_favour_of {
                        Some(group) => {
                            format!("{}, for {group}: {}", evict.cause.as_str(), evict.message)
                        }
                        None => format!("{}: {}", evict.cause.as_str(), evict.message),
                    }
                    .into(),
                    evict.pod.to_string().into(),
                ],
            });
        }
        let last = round == rounds.len();
        for promise in decision.promises.iter().filter(|_| last) {
            let cards: Vec<&str> = promise.cards.iter().map(GpuUuid::as_str).collect();
            table.row(vec![
                round.into(),
                Cell::from("promise").tone(Tone::Warn),
                promise.namespace.to_string().into(),
                promise.name.to_string().into(),
                promise.node.to_string().into(),
                Cell::shown(cards.clone(), cards.join(",")),
                "when the pods that are leaving there have ended".into(),
                promise.pod.to_string().into(),
            ]);
        }
    }
    // Of several words about one pod the last one counts, and none once it has a place.
    let mut said: Vec<_> = Vec::new();
    for decision in rounds {
        for reason in decision.reasons.iter().filter(|said| about(&said.pod)) {
            said.retain(|(_, old): &(_, &scheduler_core::PodReason)| old.pod != reason.pod);
            said.push((reason.pod.clone(), reason));
        }
        for action in &decision.actions {
            if let Action::Bind(bind) = action {
                said.retain(|(pod, _)| *pod != bind.pod);
            }
        }
    }
    for (_, reason) in said {
        table.row(vec![
            rounds.len().into(),
            Cell::from("waits").tone(Tone::Warn),
            reason.namespace.to_string().into(),
            reason.name.to_string().into(),
            "".into(),
            Cell::shown(Value::Array(Vec::new()), ""),
            reason.line.to_string().into(),
            reason.pod.to_string().into(),
        ]);
    }
    table
}

/// What containers get of cards, and claims of devices.
fn gets(bind: &Bind) -> Cell {
    let claim = |claim: &DeviceBinding| {
        let devices: Vec<&str> = claim
            .devices
            .iter()
            .map(|one| one.device.as_str())
            .collect();
        let shown = format!("{} by claim", devices.join(","));
        (shown, json!({"claim": &*claim.name, "devices": devices}))
    };
    let both = bind.grants.iter().map(grant);
    let both = both.chain(bind.devices.iter().map(claim));
    let (shown, values): (Vec<String>, Vec<Value>) = both.unzip();
    Cell::shown(values, shown.join("; "))
}

/// What containers get, for people and programs.
pub(crate) fn grants(grants: &[ContainerGrant]) -> Cell {
    let (shown, values): (Vec<String>, Vec<Value>) = grants.iter().map(grant).unzip();
    Cell::shown(values, shown.join("; "))
}

fn grant(grant: &ContainerGrant) -> (String, Value) {
    let cards: Vec<&str> = grant.cards.iter().map(GpuUuid::as_str).collect();
    let shown = format!(
        "{} {} MiB of {}",
        grant.mode,
        grant.memory.0,
        cards.join(",")
    );
    let value = json!({"container": grant.container.as_str(), "gpus": cards, "memoryMib": grant.memory.0,
        "computePercent": grant.compute.get(), "mode": grant.mode.as_str(), "note": grant.note.as_deref()});
    (shown, value)
}
