//! A decision is written for people, and is not read again.

use super::field::{Field, Name, key, line_of};
use super::group::Succeeded;
use super::line::Line;
use super::value::Value;
use crate::action::{Action, Decision, Evict, Promise};
use crate::ids::GroupName;
use crate::units::Time;
use std::fmt::Write as _;

/// Writes the actions of a decision, and the reasons of pending pods.
pub fn decision(decision: &Decision) -> String {
    let mut text = String::new();
    for action in &decision.actions {
        match action {
            Action::Bind(bind) => line_of("bind", bind),
            Action::Evict(evict) => evicts(evict),
        }
        .print(0, &mut text);
    }
    for promise in &decision.promises {
        promises(promise).print(0, &mut text);
    }
    for (group, at) in &decision.started {
        at_time("started", group, "at", Some(*at)).print(0, &mut text);
    }
    for (group, since) in &decision.stale {
        at_time("stale", group, "since", *since).print(0, &mut text);
    }
    for (group, at) in &decision.delayed {
        at_time("delayed", group, "since", Some(*at)).print(0, &mut text);
    }
    for (group, succeeded) in &decision.succeeded {
        let mut line = named("succeeded", group);
        Succeeded.write(succeeded, &mut line);
        line.print(0, &mut text);
    }
    for reason in &decision.reasons {
        let mut line = named("waits", &reason.pod);
        line.push_word(reason.kind.as_str());
        let _ = writeln!(text, "{line}: {}", reason.line);
    }
    if decision.cut_short {
        text.push_str("cut short\n");
    }
    if let Some(at) = decision.wake_at {
        let _ = writeln!(text, "wake {}", at.0);
    }
    text
}

fn named(kind: &str, name: &impl Value) -> Line {
    let mut line = Line::of_kind(kind);
    Name.write(name, &mut line);
    line
}

fn at_time(kind: &str, group: &GroupName, what: &'static str, time: Option<Time>) -> Line {
    let mut line = named(kind, group);
    key(what).write(&time, &mut line);
    line
}

fn evicts(evict: &Evict) -> Line {
    let mut line = named("evict", &evict.decision);
    line.push_pair("pod", &evict.pod);
    line.push_pair("cause", evict.cause.as_str());
    key("for").write(&evict.in_favour_of, &mut line);
    line.push_pair("message", &evict.message);
    line
}

fn promises(promise: &Promise) -> Line {
    let mut line = named("promise", &promise.pod);
    line.push_pair("node", &promise.node);
    key("cards").write(&promise.cards, &mut line);
    line
}
