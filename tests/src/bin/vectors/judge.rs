//! Is what came one of the accepted outcomes?

use crate::case::{Case, Expected};
use crate::world::State;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// `None`: yes. Else the differences to the nearest accepted outcome.
pub(crate) fn judge(case: &Case, states: &BTreeMap<String, State>) -> Option<String> {
    let mut nearest: Option<Vec<String>> = None;
    for accepted in &case.accepted {
        let wrong: Vec<String> = accepted
            .iter()
            .filter_map(|(uid, expected)| {
                let state = states.get(uid);
                if state.is_some_and(|state| meets(state, expected)) {
                    return None;
                }
                Some(format!(
                    "  {uid}: expected {}, got {}",
                    want(expected),
                    got(state)
                ))
            })
            .collect();
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

fn meets(state: &State, expected: &Expected) -> bool {
    let stands = !["Pending", "Gated", "Failed", "Succeeded"].contains(&expected.status.as_str());
    let groups = |groups: &[String]| {
        let mut groups = groups.to_vec();
        groups.sort();
        groups
    };
    state.status == expected.status
        && (!stands || state.node == expected.node)
        && (!stands
            || expected
                .groups
                .as_ref()
                .is_none_or(|wanted| groups(wanted) == groups(&state.groups)))
}

fn want(expected: &Expected) -> String {
    format!(
        "{} {} {}",
        expected.status,
        expected.node.as_deref().unwrap_or("-"),
        expected
            .groups
            .as_ref()
            .map(|groups| groups.join(","))
            .unwrap_or_default()
    )
}

fn got(state: Option<&State>) -> String {
    state.map_or_else(
        || "nothing".to_owned(),
        |state| {
            format!(
                "{} {} {}",
                state.status,
                state.node.as_deref().unwrap_or("-"),
                state.groups.join(",")
            )
        },
    )
}

/// Where two ways of running a case differ.
pub(crate) fn difference(
    _case: &Case,
    one: &BTreeMap<String, State>,
    other: &BTreeMap<String, State>,
) -> String {
    let mut out = String::new();
    for (uid, state) in one {
        if other.get(uid) != Some(state) {
            let _ = writeln!(
                out,
                "  {uid}: rebuilt {}, lived {}",
                got(Some(state)),
                got(other.get(uid))
            );
        }
    }
    out
}
