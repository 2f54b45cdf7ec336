//! What is wrong now: one row for each problem, with the pods that suffer from it and a command.
//!
//! Equal problems share a row, and the worst rows come first. A row names only pods that the reader
//! may list; the others are counted.

use super::cards::{Card, all_cards, cards_of, natural, sees};
use super::health::not_offering;
use super::{NO_AGENT, Rights, Rows};
use crate::page::row::PodRow;
use proto::names::NAMESPACE;
use scheduler_core::units::Duration;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Rows of one answer at most: about a screen.
const MOST: usize = 12;
/// Up to this many cards, nodes or pods with the same problem have a row each.
const EACH: usize = 2;
/// Pods, cards and nodes that one row names.
const NAMED: usize = 3;
/// A pod that the scheduler has not tried for this time has a problem.
const UNTRIED: Duration = Duration::seconds(30);

/// How bad a problem is; the worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Something that ran, or should, does not.
    Bad,
    /// Pods wait, or something was closed on purpose.
    Warn,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Warn => "warn",
        }
    }
}

/// A pod: UID, `namespace/name`.
type PodName<'a> = (&'a str, String);

/// One row.
struct Problem<'a> {
    level: Level,
    /// The problem, in a few words.
    what: String,
    /// The rest of the sentence; may be empty.
    detail: String,
    /// Pods that suffer from it and that the reader may list.
    pods: Vec<PodName<'a>>,
    /// All pods that suffer from it.
    hurt: usize,
    /// A command that does or shows something about it.
    command: Option<String>,
    /// Where the page has more about it.
    link: String,
}

impl Problem<'_> {
    fn json(&self) -> Value {
        let pods = self.pods.iter().take(NAMED);
        let pods: Vec<Value> = pods
            .map(|(uid, name)| json!({"uid": uid, "name": name}))
            .collect();
        json!({
            "level": self.level.as_str(), "what": self.what, "detail": self.detail, "pods": pods,
            "hurt": self.hurt, "command": self.command, "link": self.link,
        })
    }
}

/// The problems, and the number of rows that are left out.
pub(super) fn problems(rights: &Rights, rows: &Rows) -> Value {
    let mut all = Vec::new();
    if rights.cards {
        all.extend(cards(rights, rows));
        all.extend(nodes(rights, rows));
    }
    all.extend(crashes(rights, rows));
    all.extend(waiting(rights, rows));
    if rights.queues {
        all.extend(queues(rows));
    }
    all.sort_by_key(|problem| (problem.level, std::cmp::Reverse(problem.hurt)));
    let left = all.len().saturating_sub(MOST);
    all.truncate(MOST);
    json!({"rows": all.iter().map(Problem::json).collect::<Vec<_>>(), "left": left})
}

/// A command line. `None` if a word of it would not be one plain word in a shell: names come from
/// objects that others write.
fn command(words: &[&str]) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/=:".contains(c);
    let all = words
        .iter()
        .all(|word| !word.is_empty() && word.chars().all(plain));
    all.then(|| words.join(" "))
}

/// The first few of many.
fn few(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn place(card: &Card<'_>) -> String {
    format!("{} / {}", card.node, card.gpu.index)
}

/// Pods that hold a share of one of these cards: those that the reader may list, and the number of
/// all.
fn holders<'a>(cards: &[Card<'a>], rights: &Rights) -> (Vec<PodName<'a>>, usize) {
    let grants = cards.iter().flat_map(|card| &card.gpu.grants);
    let all: BTreeMap<&str, _> = grants
        .map(|grant| (grant.pod_uid.as_str(), grant))
        .collect();
    let seen = all.iter().filter(|(_, grant)| sees(rights, grant));
    let seen = seen.map(|(uid, grant)| (*uid, grant.pod.clone()));
    (seen.collect(), all.len())
}

/// Cards with the same trouble.
fn cards<'a>(rights: &Rights, rows: &'a Rows) -> Vec<Problem<'a>> {
    let mut kinds: BTreeMap<String, Vec<Card<'a>>> = BTreeMap::new();
    for card in all_cards(rows) {
        let trouble = card.trouble();
        if !trouble.is_empty() {
            kinds.entry(kind_of(&trouble)).or_default().push(card);
        }
    }
    let mut found = Vec::new();
    for mut cards in kinds.into_values() {
        cards.sort_by(|a, b| natural(a.node, b.node).then(a.gpu.index.cmp(&b.gpu.index)));
        if cards.len() > EACH {
            let names: Vec<String> = cards.iter().map(place).collect();
            let level = level(&cards);
            let (pods, hurt) = holders(&cards, rights);
            found.push(Problem {
                level,
                what: format!(
                    "{} cards: {}",
                    cards.len(),
                    cards.first().map_or(String::new(), Card::trouble)
                ),
                detail: few(&names),
                pods,
                hurt,
                command: command(&["kubectl", "aliquot", "cards"]),
                link: "#/cards?state=trouble".to_owned(),
            });
            continue;
        }
        for card in cards {
            let (pods, hurt) = holders(&[card], rights);
            found.push(Problem {
                level: level(&[card]),
                what: format!("{}: {}", place(&card), card.trouble()),
                detail: String::new(),
                pods,
                hurt,
                command: card_command(&card),
                link: format!("#/card/{}", card.gpu.uuid),
            });
        }
    }
    found
}

/// An admin cordons a card on purpose; anything else is a fault.
fn level(cards: &[Card<'_>]) -> Level {
    let wish = |card: &Card<'_>| card.gpu.cordoned && card.gpu.health != "Unhealthy";
    if cards.iter().all(wish) {
        Level::Warn
    } else {
        Level::Bad
    }
}

/// What an admin types about a card with trouble.
fn card_command(card: &Card<'_>) -> Option<String> {
    let (node, gpu) = (card.node, card.gpu);
    let at = format!("{node}/{}", gpu.index);
    let on_node = format!("spec.nodeName={node}");
    if gpu.health == "Unhealthy" && !gpu.cordoned {
        command(&["kubectl", "aliquot", "cordon", &at])
    } else if gpu.health != "Unhealthy" && gpu.cordoned {
        command(&["kubectl", "aliquot", "uncordon", &at])
    } else if !gpu.strangers.is_empty() {
        command(&["kubectl", "get", "pods", "-A", "--field-selector", &on_node])
    } else {
        command(&["kubectl", "describe", "gpunode", node])
    }
}

/// Nodes that offer nothing, by the reason.
fn nodes<'a>(rights: &Rights, rows: &'a Rows) -> Vec<Problem<'a>> {
    let mut kinds: BTreeMap<String, Vec<(&'a str, String)>> = BTreeMap::new();
    for (name, node) in rows.nodes.iter() {
        let silent = || (!rows.live.contains_key(name)).then(|| NO_AGENT.to_owned());
        if let Some(why) = not_offering(node).or_else(silent) {
            kinds.entry(kind_of(&why)).or_default().push((name, why));
        }
    }
    let mut found = Vec::new();
    for mut nodes in kinds.into_values() {
        nodes.sort_by(|(a, _), (b, _)| natural(a, b));
        let Some((first, why)) = nodes.first().cloned() else {
            continue;
        };
        let objects = nodes
            .iter()
            .filter_map(|(name, _)| Some((*name, rows.nodes.get(*name)?)));
        let cards = objects.flat_map(|(name, object)| cards_of(name, object, rows));
        let (pods, hurt) = holders(&cards.collect::<Vec<_>>(), rights);
        let named: Vec<String> = nodes.iter().map(|(name, _)| (*name).to_owned()).collect();
        let (what, detail) = match named.as_slice() {
            [one] => (format!("{one}: {why}"), String::new()),
            many => (format!("{} nodes: {why}", many.len()), few(many)),
        };
        let on_node = format!("spec.nodeName={first}");
        let namespace = ["-n", NAMESPACE];
        let words = [
            "kubectl",
            namespace[0],
            namespace[1],
            "get",
            "pods",
            "--field-selector",
        ];
        found.push(Problem {
            level: Level::Bad,
            what,
            detail,
            pods,
            hurt,
            command: command(&[&words[..], &[on_node.as_str()]].concat()),
            link: "#/health".to_owned(),
        });
    }
    found
}

/// Pods with a grant and a container that does not run.
fn crashes<'a>(rights: &Rights, rows: &'a Rows) -> Vec<Problem<'a>> {
    if !rows.has_crashes() {
        return Vec::new();
    }
    let grants = all_cards(rows).flat_map(|card| &card.gpu.grants);
    let holding = grants.map(|grant| (grant.pod_uid.as_str(), grant.pod.clone()));
    let starting = rows.pods.iter();
    let starting =
        starting.map(|(uid, pod)| (uid.as_str(), format!("{}/{}", pod.namespace, pod.name)));
    let named: BTreeMap<&str, String> = holding.chain(starting).collect();
    let mut found = Vec::new();
    for (uid, pod) in named {
        let Some((namespace, name)) = pod.split_once('/') else {
            continue;
        };
        let Some((container, words)) = rows.crashes_of(uid).filter(|_| rights.sees(namespace))
        else {
            continue;
        };
        found.push(Problem {
            level: Level::Bad,
            what: format!("{pod} does not run"),
            detail: format!("{words} (container {container})"),
            command: command(&[
                "kubectl",
                "-n",
                namespace,
                "logs",
                name,
                "-c",
                container,
                "--previous",
            ]),
            pods: vec![(uid, pod.clone())],
            hurt: 1,
            link: format!("#/pod/{uid}?in={pod}"),
        });
    }
    if found.len() <= EACH * 2 {
        return found;
    }
    let pods: Vec<PodName<'a>> = found.into_iter().flat_map(|problem| problem.pods).collect();
    vec![Problem {
        level: Level::Bad,
        what: format!("{} pods do not run", pods.len()),
        detail: String::new(),
        hurt: pods.len(),
        pods,
        command: command(&["kubectl", "get", "pods", "-A"]),
        link: "#/workloads?state=trouble".to_owned(),
    }]
}

/// A reason with other numbers is the same reason.
fn kind_of(why: &str) -> String {
    let mut kind = String::with_capacity(why.len());
    for c in why.chars() {
        if !c.is_ascii_digit() {
            kind.push(c);
        } else if !kind.ends_with('#') {
            kind.push('#');
        }
    }
    kind
}

/// Pods that wait, by queue and reason; the oldest first.
fn waiting<'a>(rights: &Rights, rows: &'a Rows) -> Vec<Problem<'a>> {
    let mut kinds: BTreeMap<(String, &str), Vec<&'a PodRow>> = BTreeMap::new();
    for (_, pod) in rows.pods.iter() {
        if pod.node.is_some() || !rights.sees(&pod.namespace) {
            continue;
        }
        let old = u64::try_from(pod.created).unwrap_or_default();
        if pod.why.is_empty() && rows.now.0.saturating_sub(old) < UNTRIED.0 {
            continue;
        }
        let kind = kind_of(pod.reason());
        kinds.entry((kind, rows.queue(pod))).or_default().push(pod);
    }
    let mut found = Vec::new();
    for ((_, queue), mut pods) in kinds {
        pods.sort_by_key(|pod| (pod.created, &pod.uid));
        let Some(oldest) = pods.first() else { continue };
        let why = match oldest.reason() {
            "" => "the scheduler has not tried it yet",
            why => why,
        };
        let wait = if pods.len() == 1 {
            "pod waits"
        } else {
            "pods wait"
        };
        let name = |pod: &PodRow| format!("{}/{}", pod.namespace, pod.name);
        found.push(Problem {
            level: Level::Warn,
            what: format!("{} {wait} in queue {queue}", pods.len()),
            detail: why.to_owned(),
            hurt: pods.len(),
            command: command(&["kubectl", "aliquot", "explain", &name(oldest)]),
            link: format!("#/workloads?state=waiting&queue={queue}"),
            pods: pods
                .iter()
                .map(|pod| (pod.uid.as_str(), name(pod)))
                .collect(),
        });
    }
    found
}

/// Queues whose parent does not exist: none of their pods is placed.
fn queues(rows: &Rows) -> Vec<Problem<'static>> {
    let lost = rows.queues.iter();
    let lost = lost.filter(|view| view.fair.is_none() && view.parent.is_some());
    let found = lost.map(|view| {
        let parent = view.parent.as_ref().map_or("", |parent| parent.as_str());
        Problem {
            level: Level::Bad,
            what: format!("queue {}: its parent {parent} does not exist", view.queue),
            detail: String::new(),
            pods: Vec::new(),
            hurt: view.waiting as usize,
            command: command(&["kubectl", "get", "queues.scheduling.run.ai"]),
            link: format!("#/queue/{}", view.queue),
        }
    });
    found.take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A person copies the command into a shell.
    #[test]
    fn a_command_has_plain_words_alone() {
        let words = [
            "kubectl",
            "-n",
            "a",
            "logs",
            "x-1",
            "--field-selector=a.b/c",
        ];
        assert_eq!(command(&words), Some(words.join(" ")));
        for sly in [
            "x; rm -rf /",
            "$(id)",
            "a b",
            "a\nb",
            "",
            "`id`",
            "a\u{202e}b",
            "*",
        ] {
            assert_eq!(command(&["kubectl", sly]), None, "{sly}");
        }
    }

    #[test]
    fn reasons_that_differ_in_numbers_are_one_kind() {
        let of = |nodes: u32| kind_of(&format!("{nodes} node(s) had 4{nodes} MiB"));
        assert_eq!(of(1), of(123));
        assert_ne!(of(1), kind_of("2 node(s) had no MiB"));
    }
}
