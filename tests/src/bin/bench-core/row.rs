//! A row of the table: a decision carried out, and its line.

use crate::meter::spread;
use scheduler_core::{Action, Core, Decision, Event, Outcome, OutcomeResult};
use std::time::Duration;

/// Reports to the core that all of it was carried out.
pub(crate) fn carried_out(core: &mut Core, decision: &Decision) {
    for action in &decision.actions {
        core.apply(Event::Outcome(Outcome {
            decision: action.decision(),
            result: OutcomeResult::Confirmed,
        }));
        if let Action::Evict(evict) = action {
            core.apply(Event::PodGone(evict.pod.clone()));
        }
    }
}

/// One row of the table; 1 where it misses its target.
pub(crate) fn line(
    name: &str,
    times: &[Duration],
    target: Option<Duration>,
    kai: &str,
    more: Option<(usize, usize)>,
) -> u32 {
    let (middle, least, most) = spread(times);
    let missed = target.is_some_and(|target| middle > target);
    let judged = match target {
        None => "",
        Some(_) if missed => "MISS",
        Some(_) => "ok",
    };
    let target = target.map_or_else(|| "-".to_owned(), |target| format!("{target:?}"));
    let (allocated, acted) = more.map_or_else(Default::default, |(bytes, acted)| {
        let allocated = if bytes == 0 {
            String::new()
        } else {
            format!("{} KiB", bytes / 1024)
        };
        (allocated, acted.to_string())
    });
    say(&format!(
        "| {name} | {middle:.3?} ({least:.3?} to {most:.3?}) | {target} | {judged} | {kai} | {allocated} | {acted} |"
    ));
    u32::from(missed)
}

/// A line for people.
#[allow(clippy::print_stdout)]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
