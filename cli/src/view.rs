//! Cards, their holders, pending pods and their reasons: a snapshot as text.
//!
//! Pure: objects in, lines out. Reads only what every user of the cluster can read,
//! `GpuNode`s and pods.

use crate::report::{Tone, painted};
use api::GpuNode;
use api::gpu_node::GpuStatus;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Of a bar.
const WIDEST: usize = 120;

/// The known state at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterView {
    /// By name.
    pub(crate) nodes: BTreeMap<String, GpuNode>,
    /// By namespace and name.
    pub(crate) pods: BTreeMap<(String, String), Pod>,
}

impl ClusterView {
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.pods.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// UUIDs of the cards on which a pod holds something, by the agents' word.
    pub(crate) fn cards_of(&self, namespace: &str, name: &str) -> Vec<&str> {
        let holder = format!("{namespace}/{name}");
        self.cards()
            .filter(|(_, card)| card.grants.iter().any(|grant| grant.pod == holder))
            .map(|(_, card)| card.uuid.as_str())
            .collect()
    }

    /// Every card, with its node.
    pub(crate) fn cards(&self) -> impl Iterator<Item = (&String, &GpuStatus)> {
        self.nodes.iter().flat_map(|(name, node)| {
            let cards = node.status.as_ref().map(|status| status.gpus.as_slice());
            cards
                .unwrap_or_default()
                .iter()
                .map(move |card| (name, card))
        })
    }

    /// Cards as bars with their shares, then pending pods with their reasons; ends in a newline. No
    /// line of a card is wider than `width`.
    pub(crate) fn render(&self, width: usize, coloured: bool) -> String {
        let mut text = String::new();
        let paint = |text: &str, tone| painted(text, tone, coloured);
        for (node, card) in self.cards() {
            let mode = match card.mode {
                Some(mode) if !card.grants.is_empty() => mode.to_string(),
                _ => "free".to_owned(),
            };
            let head = format!("{node} / {}  {}  {mode}", card.index, card.product);
            let sums = format!(
                "  {} of {} MiB granted, {} used",
                card.granted_mib.0,
                card.grantable_mib.0,
                crate::inventory::used(card)
            );
            let _ = write!(
                text,
                "{}{}",
                paint(&head, Tone::Plain),
                paint(&sums, Tone::Dim)
            );
            let state = match crate::inventory::card_state(card) {
                "ready" => String::new(),
                word if card.health_reason.is_empty() => format!("  {word}"),
                word => format!("  {word}: {}", card.health_reason),
            };
            let _ = writeln!(text, "{}", paint(&state, Tone::Bad));
            let (bar, names) = bar(card, width.clamp(20, WIDEST));
            let _ = writeln!(text, "  {}", paint(&bar, Tone::Good));
            if !names.is_empty() {
                let _ = writeln!(text, "  {}", paint(&names, Tone::Dim));
            }
            for stranger in &card.strangers {
                let line = format!(
                    "no grant: process {} ({})  {} MiB",
                    stranger.pid, stranger.command, stranger.memory_mib.0
                );
                let _ = writeln!(text, "    {}", paint(&line, Tone::Bad));
            }
            for grant in &card.grants {
                let phase = if grant.phase == "Running" {
                    String::new()
                } else {
                    format!(", {}", grant.phase.to_lowercase())
                };
                let fence = grant
                    .fence
                    .map(|fence| format!(", {}", fence.words()))
                    .unwrap_or_default();
                let line = format!("{}  {} MiB{fence}{phase}", grant.pod, grant.memory_mib.0);
                let complaint = match grant.complaint.as_str() {
                    "" => String::new(),
                    complaint => format!("  {complaint}"),
                };
                let (line, complaint) = (paint(&line, Tone::Plain), paint(&complaint, Tone::Bad));
                let _ = writeln!(text, "    {line}{complaint}");
            }
        }
        if self.nodes.is_empty() {
            text.push_str("(no agent has reported yet)\n");
        }
        self.render_others(&mut text, coloured);
        text
    }

    /// The same for programs.
    pub(crate) fn document(&self) -> Value {
        let pods = self.pods.iter().map(|((namespace, name), pod)| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let phase = phase.unwrap_or_else(|| "Pending".to_owned());
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let crash = scheduler::crash::of(pod);
            let runs = phase == "Running" && crash.is_none();
            json!({"namespace": namespace, "name": name, "phase": phase, "crash": crash,
                "node": node, "why": if runs { String::new() } else { why(pod) }})
        });
        let cards = self
            .cards()
            .map(|(node, card)| json!({"node": node, "card": card}));
        json!({"cards": cards.collect::<Vec<_>>(), "pods": pods.collect::<Vec<_>>()})
    }

    fn render_others(&self, text: &mut String, coloured: bool) {
        let paint = |text: &str, tone| painted(text, tone, coloured);
        let mut waiting = String::new();
        let mut over = String::new();
        for ((namespace, name), pod) in &self.pods {
            let why = why(pod);
            match phase(pod) {
                "Pending" => {
                    let pod = paint(&format!("{namespace}/{name}"), Tone::Warn);
                    let _ = writeln!(waiting, "  {pod}");
                    for line in why.lines().filter(|line| !line.trim().is_empty()) {
                        let _ = writeln!(waiting, "      {}", paint(line.trim(), Tone::Plain));
                    }
                }
                "Running" => {
                    if let Some(crash) = scheduler::crash::of(pod) {
                        let crash = paint(&crash, Tone::Bad);
                        let _ = writeln!(over, "  {namespace}/{name}  {crash}");
                    }
                }
                other => {
                    let why = paint(&why, Tone::Plain);
                    let _ = writeln!(over, "  {namespace}/{name}  {other}  {why}");
                }
            }
        }
        if !waiting.is_empty() {
            let _ = write!(text, "\nWAITING\n{waiting}");
        }
        if !over.is_empty() {
            let _ = write!(text, "\nENDED OR CRASHING\n{over}");
        }
    }
}

/// A card as a bar of that width: its shares one after the other, then the free part; and the names
/// of the shares below their parts, where there is room.
fn bar(card: &GpuStatus, width: usize) -> (String, String) {
    let cells = width.saturating_sub(4).max(10) as u64;
    let all = card.grantable_mib.0.max(1);
    let (mut bar, mut names) = (String::new(), String::new());
    let (mut held, mut at) = (0, 0);
    for (number, grant) in card.grants.iter().enumerate() {
        held += grant.request_mib.unwrap_or(grant.memory_mib).0;
        // A share that is there is seen.
        let end = ((held.min(all) * cells).div_ceil(all))
            .max(at + 1)
            .min(cells);
        let part = usize::try_from(end - at).unwrap_or(0);
        bar.push_str(&["█", "▓"][number % 2].repeat(part));
        let name = grant.pod.rsplit('/').next().unwrap_or_default();
        let name: String = if part >= 4 {
            name.chars().take(part - 1).collect()
        } else {
            String::new()
        };
        let _ = write!(names, "{name:part$}");
        at = end;
    }
    bar.push_str(&"░".repeat(usize::try_from(cells - at).unwrap_or(0)));
    (bar, names.trim_end().to_owned())
}

/// Why the scheduler has not placed a pod, if it has reported a reason.
pub(crate) fn reason(pod: &Pod) -> Option<&str> {
    pod.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?
        .message
        .as_deref()
        .filter(|message| !message.is_empty())
}

/// A pod's phase. The API server sets it; a pod that was just made has none yet.
pub(crate) fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

/// Returns the state of a pod that users see: its phase, or why a container of it does not run.
pub(crate) fn state(pod: &Pod) -> String {
    scheduler::crash::of(pod).unwrap_or_else(|| phase(pod).to_owned())
}

/// The best that is known of why a pod does not run.
pub(crate) fn why(pod: &Pod) -> String {
    if let Some(reason) = reason(pod) {
        return reason.to_owned();
    }
    let Some(status) = &pod.status else {
        return "the scheduler has not tried it yet".to_owned();
    };
    if let Some(message) = &status.message {
        return message.clone();
    }
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    for container in containers {
        let Some(state) = &container.state else {
            continue;
        };
        let (what, message) = match (&state.waiting, &state.terminated) {
            (Some(waiting), _) => (waiting.reason.as_deref(), waiting.message.as_deref()),
            (_, Some(ended)) if ended.exit_code != 0 => {
                (ended.reason.as_deref(), ended.message.as_deref())
            }
            _ => continue,
        };
        let what = what.unwrap_or("waits");
        return match message {
            Some(message) => format!("{}: {what}: {message}", container.name),
            None => format!("{}: {what}", container.name),
        };
    }
    let bound = pod
        .spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some());
    match (status.phase.as_deref(), bound) {
        (Some("Succeeded"), _) => String::new(),
        (_, true) => "bound, not started yet".to_owned(),
        (_, false) => "the scheduler has not tried it yet".to_owned(),
    }
}

/// Pods of users: not those that belong to the system.
pub(crate) fn is_shown(pod: &Pod) -> bool {
    pod.namespace().is_none_or(|namespace| {
        !namespace.starts_with("kube-") && namespace != proto::names::NAMESPACE
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::walkthrough::{Role, Want, missing};
    use api::{Mib, Mode};
    use serde_json::json;

    fn pod(name: &str, status: &serde_json::Value) -> ((String, String), Pod) {
        let pod = json!({"metadata": {"name": name, "namespace": "demo"}, "status": status});
        (
            ("demo".into(), name.into()),
            serde_json::from_value(pod).unwrap(),
        )
    }

    fn card(index: u32, grants: &[(&str, u64)]) -> GpuStatus {
        GpuStatus {
            uuid: format!("GPU-{index}"),
            index,
            product: "NVIDIA L4".into(),
            granted_mib: Mib(grants.iter().map(|(_, mib)| mib).sum()),
            grantable_mib: Mib(20_000),
            used_mib: Mib(grants.len() as u64 * 1500),
            ready: true,
            mode: Some(Mode::Mps),
            health: "Healthy".into(),
            grants: grants
                .iter()
                .map(|(pod, mib)| api::gpu_node::GrantStatus {
                    pod: format!("demo/{pod}"),
                    memory_mib: Mib(*mib),
                    phase: "Running".into(),
                    ..Default::default()
                })
                .collect(),
            ..GpuStatus::default()
        }
    }

    fn sample_view() -> ClusterView {
        let mut node = GpuNode::new("node-1", api::GpuNodeSpec::default());
        node.status = Some(api::GpuNodeStatus {
            gpus: vec![card(0, &[("a", 2000), ("b", 10_000)]), card(1, &[])],
            ..Default::default()
        });
        let waiting = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "no card is free\n  node-1/0: shared"}]});
        ClusterView {
            nodes: [("node-1".to_owned(), node)].into(),
            pods: [
                pod("a", &json!({"phase": "Running"})),
                pod("b", &json!({"phase": "Running"})),
                pod("c", &waiting),
            ]
            .into(),
        }
    }

    #[test]
    fn a_scene_shows_cards_holders_and_reasons() {
        assert_eq!(
            sample_view().render(44, false),
            "\
node-1 / 0  NVIDIA L4  mps  12000 of 20000 MiB granted, ~3000 used
  ████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░░░░░░
  a   b
    demo/a  2000 MiB
    demo/b  10000 MiB
node-1 / 1  NVIDIA L4  free  0 of 20000 MiB granted, <65 used
  ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░

WAITING
  demo/c
      no card is free
      node-1/0: shared
"
        );
        let coloured = sample_view().render(44, true);
        assert!(coloured.contains("\x1b[32m████▓"), "{coloured}");
        // Many small shares are all seen, and no bar is longer than it may be.
        let many: Vec<(String, u64)> = (0..60).map(|at| (format!("p{at}"), 10)).collect();
        let many: Vec<(&str, u64)> = many
            .iter()
            .map(|(name, mib)| (name.as_str(), *mib))
            .collect();
        let (long, _) = bar(&card(0, &many), 44);
        assert_eq!(long.chars().count(), 40);
    }

    #[test]
    fn what_is_not_as_told_is_named() {
        let role = |name: &str, want| Role {
            namespace: "demo".into(),
            name: name.into(),
            want,
        };
        let told = [
            role("a", Want::Share),
            role("b", Want::Share),
            role("c", Want::Waits),
        ];
        assert!(missing(&told, &sample_view()).is_empty());
        let other = [
            role("a", Want::Whole(2)),
            role("b", Want::Waits),
            role("c", Want::Runs),
            role("d", Want::Runs),
        ];
        let missing = missing(&other, &sample_view());
        assert_eq!(missing.len(), 4, "{missing:?}");
        assert!(missing[2].contains("no card is free"), "{missing:?}");
        assert_eq!(missing[3], "demo/d: is not there");
    }

    #[test]
    fn shares_on_different_cards_are_not_as_told() {
        let mut view = sample_view();
        let status = view
            .nodes
            .get_mut("node-1")
            .unwrap()
            .status
            .as_mut()
            .unwrap();
        status.gpus = vec![card(0, &[("a", 2000)]), card(1, &[("b", 2000)])];
        let role = |name: &str| Role {
            namespace: "demo".into(),
            name: name.into(),
            want: Want::Share,
        };
        assert_eq!(
            missing(&[role("a"), role("b")], &view),
            ["the shares are on different cards"]
        );
    }
}
