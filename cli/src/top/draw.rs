//! The model as lines of a screen. Pure.

use super::model::{HELP, Model, Typing, View};
use crate::report::{Cell, Column, Table, Tone, clipped, painted};
use crate::view::phase;
use k8s_openapi::api::core::v1::Pod;
use std::fmt::Write as _;

/// Between two columns.
const GAP: usize = 2;

/// The lines, each of them at most so wide; as many as the screen is high.
pub(super) fn lines(model: &mut Model, width: usize, height: usize, coloured: bool) -> Vec<String> {
    let paint = |text: &str, tone| painted(text, tone, coloured);
    let mut lines = vec![title(model, width, coloured)];
    let body = height.saturating_sub(2);
    match model.place().view.clone() {
        View::Help => lines.extend(HELP.iter().map(|(keys, text)| format!("  {keys:26}{text}"))),
        View::Pod(namespace, name) => {
            let pod = model.view.pod(&namespace, &name).cloned();
            lines.extend(pod_lines(model, &namespace, &name, pod.as_ref()));
        }
        _ => {
            let table = model.table();
            model.page = body.saturating_sub(1).max(1);
            lines.extend(rows(model, &table, width, body, coloured));
        }
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), String::new());
    lines.push(match (&model.typing, &model.said) {
        (Some(Typing::Filter(text)), _) => format!("/{text}_"),
        (Some(Typing::Command(text)), _) => format!(":{text}_"),
        (None, Some(said)) => paint(said, Tone::Bad),
        (None, None) => paint(
            "enter opens  esc back  / filter  < > sort  r turn  1-4 views  ? help  q end",
            Tone::Dim,
        ),
    });
    lines.iter().map(|line| clipped(line, width)).collect()
}

fn title(model: &Model, width: usize, coloured: bool) -> String {
    let (cards, shares) = model
        .view
        .cards()
        .fold((0, 0), |(cards, shares), (_, card)| {
            (cards + 1, shares + card.grants.len())
        });
    let pods = model.view.pods.values();
    let pending = pods.filter(|pod| phase(pod) == "Pending");
    let sums = format!(
        "{} nodes  {cards} cards  {shares} shares  {} waiting",
        model.view.nodes.len(),
        pending.count()
    );
    let mut left = model.trail();
    if !model.place().filter.is_empty() {
        let _ = write!(left, "  /{}", model.place().filter);
    }
    let room = width.saturating_sub(left.chars().count() + sums.chars().count());
    if room < 2 {
        return painted(&left, Tone::Good, coloured);
    }
    format!(
        "{}{}{}",
        painted(&left, Tone::Good, coloured),
        " ".repeat(room),
        painted(&sums, Tone::Dim, coloured)
    )
}

/// Titles, and as many rows as fit around the one that is chosen.
fn rows(model: &Model, table: &Table, width: usize, height: usize, coloured: bool) -> Vec<String> {
    if table.rows.is_empty() {
        return vec![table.empty.to_owned()];
    }
    let place = model.place();
    let chosen: Vec<usize> = (0..table.columns.len())
        .filter(|at| !table.columns[*at].wide)
        .collect();
    let widths: Vec<usize> = chosen
        .iter()
        .map(|at| {
            let cells = table.rows.iter().map(|row| row[*at].shown.chars().count());
            // With the arrow of the column that is sorted by.
            cells
                .max()
                .unwrap_or(0)
                .max(table.columns[*at].title.chars().count() + 1)
        })
        .collect();
    let line = |cells: Vec<(String, usize, Tone)>, plain: bool| {
        let mut line = String::new();
        for (at, (text, width, tone)) in cells.into_iter().enumerate() {
            if at > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            let pad = " ".repeat(width.saturating_sub(text.chars().count()));
            let text = if plain {
                painted(&text, Tone::Plain, false)
            } else {
                painted(&text, tone, coloured)
            };
            let right = table.columns[chosen[at]].right;
            let (before, after) = if right {
                (pad, String::new())
            } else {
                (String::new(), pad)
            };
            let _ = write!(line, "{before}{text}{after}");
        }
        line
    };
    let head = chosen.iter().zip(&widths).map(|(at, width)| {
        let Column { title, .. } = table.columns[*at];
        let arrow = match place.sort {
            Some((column, down)) if column == *at => {
                if down {
                    "v"
                } else {
                    "^"
                }
            }
            _ => "",
        };
        (format!("{title}{arrow}"), *width, Tone::Dim)
    });
    let mut lines = vec![line(head.collect(), false)];
    let room = height.saturating_sub(1).max(1);
    let first = place
        .row
        .saturating_sub(room / 2)
        .min(table.rows.len().saturating_sub(room));
    for (at, row) in table.rows.iter().enumerate().skip(first).take(room) {
        let cells = chosen.iter().zip(&widths).map(|(column, width)| {
            let Cell { shown, tone, .. } = &row[*column];
            (shown.clone(), *width, *tone)
        });
        let is_here = at == place.row;
        let text = line(cells.collect(), is_here);
        lines.push(if !is_here {
            text
        } else if coloured {
            let pad = width.saturating_sub(text.chars().count());
            format!("\x1b[7m{}{}\x1b[0m", clipped(&text, width), " ".repeat(pad))
        } else {
            format!("> {text}")
        });
    }
    lines
}

/// Everything that is known of a pod.
fn pod_lines(model: &Model, namespace: &str, name: &str, pod: Option<&Pod>) -> Vec<String> {
    let holder = format!("{namespace}/{name}");
    let mut lines = Vec::new();
    let mut fact = |key: &str, value: &str| {
        if !value.is_empty() {
            lines.push(format!("  {key:12}{}", painted(value, Tone::Plain, false)));
        }
    };
    let Some(pod) = pod else {
        return vec!["  It no longer exists.".to_owned()];
    };
    let status = pod.status.as_ref();
    fact("phase", &crate::view::state(pod));
    fact("uid", pod.metadata.uid.as_deref().unwrap_or_default());
    let spec = pod.spec.as_ref();
    fact(
        "node",
        spec.and_then(|spec| spec.node_name.as_deref())
            .unwrap_or_default(),
    );
    for (node, card) in model.view.cards() {
        for grant in card.grants.iter().filter(|grant| grant.pod == holder) {
            let fence = grant
                .fence
                .map(|fence| format!(", {}", fence.words()))
                .unwrap_or_default();
            fact(
                "share",
                &format!(
                    "{} MiB of {node}/{} for {}{fence}, {}",
                    grant.memory_mib.0, card.index, grant.container, grant.phase
                ),
            );
            fact("complaint", &grant.complaint);
        }
    }
    let conditions = status.and_then(|status| status.conditions.as_ref());
    for condition in conditions.into_iter().flatten() {
        let message = condition.message.as_deref().unwrap_or_default();
        let mut told = message.lines();
        let first = told.next().unwrap_or_default();
        fact(
            "condition",
            &format!("{} {} {first}", condition.type_, condition.status),
        );
        for line in told {
            fact("", line);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::model::Key;
    use super::*;
    use crate::view::ClusterView;
    use kube::ResourceExt as _;

    fn model() -> Model {
        let nodes = crate::inventory::tests::nodes();
        let pod = serde_json::json!({"metadata": {"name": "a", "namespace": "team-a", "uid": "u"}, "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "aliquot.dev/IsolationVerified", "status": "True", "message": "held\u{1b}[2J\nby it"}]}});
        Model::new(ClusterView {
            nodes: nodes
                .into_iter()
                .map(|node| (node.name_any(), node))
                .collect(),
            pods: [(
                ("team-a".to_owned(), "a".to_owned()),
                serde_json::from_value(pod).unwrap(),
            )]
            .into(),
        })
    }

    #[test]
    fn a_screen_is_full_and_no_line_is_wider() {
        let mut model = model();
        for (width, height) in [(120, 30), (80, 10), (41, 5)] {
            for coloured in [true, false] {
                let lines = lines(&mut model, width, height, coloured);
                assert_eq!(lines.len(), height);
                let plain = |line: &String| {
                    let mut text = String::new();
                    let mut inside = false;
                    for character in line.chars() {
                        match character {
                            '\x1b' => inside = true,
                            'm' if inside => inside = false,
                            _ if inside => {}
                            other => text.push(other),
                        }
                    }
                    text.chars().count()
                };
                assert!(lines.iter().all(|line| plain(line) <= width), "{lines:#?}");
            }
        }
    }

    #[test]
    fn the_chosen_row_is_marked_and_a_pod_is_told_without_what_steers_a_terminal() {
        let mut model = model();
        let shown = lines(&mut model, 120, 10, false);
        assert!(
            shown[0].starts_with("cards")
                && shown[0].ends_with("2 nodes  3 cards  2 shares  0 waiting"),
            "{shown:#?}"
        );
        assert!(shown[1].starts_with("NODE"), "{shown:#?}");
        assert!(shown[2].starts_with("> n1"), "{shown:#?}");
        model.key(Key::Down);
        assert!(lines(&mut model, 120, 10, false)[3].starts_with("> n1"));
        for key in [Key::Home, Key::Enter, Key::Enter] {
            model.key(key);
        }
        let shown = lines(&mut model, 120, 12, false).join("\n");
        assert!(
            shown
                .contains("share       2000 MiB of n1/0 for main, Guarded by ClientLimit, Running"),
            "{shown}"
        );
        assert!(
            shown.contains("aliquot.dev/IsolationVerified True held\\u{1b}[2J\n"),
            "{shown}"
        );
        assert!(!shown.contains('\x1b'));
    }
}
