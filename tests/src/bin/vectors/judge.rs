//! Is what came one of the accepted outcomes?
//!
//! A shared GPU has a name in KAI and is a card here, and neither says anything about the other.
//! The comparison is about which pods share a GPU. A GPU that all pods leave is a new one to KAI
//! for later pods, and the same card here: so a leaving and an arriving pod count as sharing only
//! if another pod stays.

use crate::recorded::{Case, Expected, Task};
use crate::task_state::State;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A GPU: the holders of its parts, in order of uid.
type Holders = Vec<String>;
/// By uid: the GPUs that the pod holds a part of, in order.
type Sharing = BTreeMap<String, Vec<Holders>>;

/// `None`: yes. Else the differences to the nearest accepted outcome.
pub(crate) fn judge(case: &Case, states: &BTreeMap<String, State>) -> Option<String> {
    let tasks: BTreeMap<&str, &Task> = case
        .tasks
        .iter()
        .map(|task| (task.pod.uid.as_str(), task))
        .collect();
    let shares = |uid: &str| tasks.get(uid).is_some_and(|task| task.shares > 0);
    let got_sharing = sharing(states.iter().flat_map(|(uid, state)| {
        let there = there(&state.status).filter(|_| shares(uid));
        let cards = state.cards.iter();
        cards.filter_map(move |card| Some((uid, there?, card.clone())))
    }));
    let impossible: Vec<String> = case
        .tasks
        .iter()
        .filter_map(|task| impossible(task, states))
        .collect();
    let mut nearest: Option<Vec<String>> = None;
    for accepted in &case.accepted {
        let wanted_sharing = sharing(accepted.iter().flat_map(|(uid, expected)| {
            let there = there(&expected.status).filter(|_| shares(uid));
            let groups = expected.groups.iter().flatten();
            let node = expected.node.as_deref().unwrap_or_default();
            groups.filter_map(move |group| Some((uid, there?, format!("{node} {group}"))))
        }));
        let mut wrong = impossible.clone();
        for (uid, expected) in accepted {
            let (wanted, got) = (wanted_sharing.get(uid), got_sharing.get(uid));
            let state = states.get(uid);
            if state.is_some_and(|state| meets(state, expected)) && wanted == got {
                continue;
            }
            let core = |core: bool| if core { "core " } else { "" };
            wrong.push(format!(
                "  {uid}: expected {}{}, got {}{}",
                core(expected.core == Some(true)),
                place(&expected.status, expected.node.as_deref(), wanted),
                state.map_or("", |state| core(state.core)),
                state.map_or_else(
                    || "nothing".to_owned(),
                    |state| place(&state.status, state.node.as_deref(), got)
                )
            ));
        }
        if wrong.is_empty() {
            return None;
        }
        if nearest
            .as_ref()
            .is_none_or(|nearest| wrong.len() < nearest.len())
        {
            nearest = Some(wrong);
        }
    }
    nearest.map(|lines| lines.join("\n"))
}

/// Whether a pod that has a place is there already, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Stays,
    Leaves,
    /// Once others have left.
    Comes,
}

/// `None`: a pod of this status has no place.
fn there(status: &str) -> Option<There> {
    match status {
        "Pending" | "Gated" | "Failed" | "Succeeded" => None,
        "Releasing" | "StuckInReleasing" => Some(There::Leaves),
        "Pipelined" => Some(There::Comes),
        _ => Some(There::Stays),
    }
}

fn meets(state: &State, expected: &Expected) -> bool {
    let stands = there(&expected.status).is_some();
    let is_core = expected.core.is_none_or(|core| core == state.core);
    state.status == expected.status && (!stands || state.node == expected.node) && is_core
}

/// From the holders of each GPU's parts.
fn sharing<'a>(held: impl Iterator<Item = (&'a String, There, String)>) -> Sharing {
    let mut gpus: BTreeMap<String, Vec<(&String, There)>> = BTreeMap::new();
    for (uid, there, gpu) in held {
        gpus.entry(gpu).or_default().push((uid, there));
    }
    let mut sharing = Sharing::new();
    for on_it in gpus.values() {
        let one_stays = on_it.iter().any(|(_, there)| *there == There::Stays);
        for (uid, there) in on_it {
            let with = on_it
                .iter()
                .filter(|(_, theirs)| one_stays || theirs == there);
            let mut holders: Holders = with.map(|(other, _)| (*other).clone()).collect();
            holders.sort();
            sharing.entry((*uid).clone()).or_default().push(holders);
        }
    }
    for gpus in sharing.values_mut() {
        gpus.sort();
    }
    sharing
}

/// Holds for every accepted outcome: a pod holds as many cards as it requests, and a whole one
/// alone. Leaving pods may hold it too.
fn impossible(task: &Task, states: &BTreeMap<String, State>) -> Option<String> {
    let uid = task.pod.uid.as_str();
    let state = states.get(uid)?;
    let asked = match there(&state.status) {
        None => 0,
        // Which whole ones is chosen later.
        Some(There::Comes) => task.shares,
        Some(There::Stays | There::Leaves) => task.whole + task.shares,
    };
    if state.cards.len() != asked {
        let held = state.cards.len();
        return Some(format!("  {uid}: holds {held} cards and asks for {asked}"));
    }
    if task.whole == 0 {
        return None;
    }
    let leaves = |state: &State| there(&state.status) == Some(There::Leaves);
    states.iter().find_map(|(other, theirs)| {
        let beside = other != uid && !leaves(theirs) && !leaves(state);
        let card = state.cards.iter().find(|card| theirs.cards.contains(card));
        let card = card.filter(|_| beside)?;
        Some(format!("  {uid}: holds {card} whole, and so does {other}"))
    })
}

/// `Running node0 [one two] [one]`: a bracket is a GPU with the holders of its parts.
fn place(status: &str, node: Option<&str>, gpus: Option<&Vec<Holders>>) -> String {
    let mut text = format!("{status} {}", node.unwrap_or("-"));
    for holders in gpus.into_iter().flatten() {
        let _ = write!(text, " [{}]", holders.join(" "));
    }
    text
}

/// Where two ways of running a case differ, card by card.
pub(crate) fn difference(
    one: (&str, &BTreeMap<String, State>),
    other: (&str, &BTreeMap<String, State>),
) -> String {
    let got = |state: Option<&State>| {
        state.map_or_else(
            || "nothing".to_owned(),
            |state| {
                let node = state.node.as_deref().unwrap_or("-");
                format!("{} {node} {}", state.status, state.cards.join(","))
            },
        )
    };
    let mut out = String::new();
    for (uid, state) in one.1 {
        let theirs = other.1.get(uid);
        if theirs != Some(state) {
            let _ = writeln!(
                out,
                "  {uid}: {} {}, {} {}",
                one.0,
                got(Some(state)),
                other.0,
                got(theirs)
            );
        }
    }
    out
}
