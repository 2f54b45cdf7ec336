//! The state on screen, and the effect of keys. Pure.
//!
//! A view is a table of the cluster, or of what one of its rows leads to: from a node to its
//! cards, from a card to its shares, from a share to its pod. Keys are k9s' where it has one.

use crate::inventory;
use crate::report::{Cell, Column, Table, Tone};
use crate::view::{ClusterView, is_shown, phase, state, why};
use serde_json::Value;
use std::cmp::Ordering;

/// A key, as far as it means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C.
    Interrupt,
}

/// What a table is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    Nodes,
    /// Of one node, or all.
    Cards(Option<String>),
    /// Of one card by UUID, or all.
    Shares(Option<String>),
    /// Pods that do not run.
    Waiting,
    /// One pod, by namespace and name: text, not a table.
    Pod(String, String),
    Help,
}

impl View {
    /// For the title, and in `:` commands.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Cards(_) => "cards",
            Self::Shares(_) => "shares",
            Self::Waiting => "waiting",
            Self::Pod(..) => "pod",
            Self::Help => "help",
        }
    }
}

/// The input line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Typing {
    /// `/`
    Filter(String),
    /// `:`
    Command(String),
}

/// One view and where one is in it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) view: View,
    /// The row, of those that pass the filter.
    pub(super) row: usize,
    pub(super) filter: String,
    /// Column, and whether the largest comes first; `None`: as it is.
    pub(super) sort: Option<(usize, bool)>,
}

impl Place {
    fn new(view: View) -> Self {
        Self {
            view,
            row: 0,
            filter: String::new(),
            sort: None,
        }
    }
}

/// Everything.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) view: ClusterView,
    /// The last is shown; Escape goes back.
    stack: Vec<Place>,
    pub(super) typing: Option<Typing>,
    /// The error, until the next key or update.
    pub(super) said: Option<String>,
    /// Rows that fit.
    pub(super) page: usize,
}

/// The commands.
const VIEWS: [(&str, View); 5] = [
    ("cards", View::Cards(None)),
    ("nodes", View::Nodes),
    ("shares", View::Shares(None)),
    ("waiting", View::Waiting),
    ("help", View::Help),
];

const WAITING: &[Column] = &[
    Column::text("namespace", "NAMESPACE"),
    Column::text("pod", "POD"),
    Column::text("phase", "PHASE"),
    Column::text("why", "WHY"),
];

pub(super) const HELP: &[(&str, &str)] = &[
    ("1 2 3 4", "cards, nodes, shares, pods that wait"),
    (":", "the same by name, such as :shares; :q ends"),
    ("up, down, j, k", "one row up or down"),
    (
        "page up, page down, g, G",
        "a page, the first row, the last row",
    ),
    (
        "enter",
        "open the row: cards of a node, shares of a card, the pod of a share",
    ),
    ("escape", "back; removes a filter first"),
    ("/", "only rows with this text; enter keeps it"),
    ("< >", "sort by the previous or next column"),
    ("r", "sort the other way round"),
    ("?", "this page"),
    ("q, ctrl-c", "end"),
];

impl Model {
    pub(super) fn new(view: ClusterView) -> Self {
        Self {
            view,
            stack: vec![Place::new(View::Cards(None))],
            typing: None,
            said: None,
            page: 20,
        }
    }

    /// The view that is shown.
    pub(super) fn place(&self) -> &Place {
        // There is always one.
        &self.stack[self.stack.len() - 1]
    }

    fn place_mut(&mut self) -> &mut Place {
        let last = self.stack.len() - 1;
        &mut self.stack[last]
    }

    /// The way here, for the title.
    pub(super) fn trail(&self) -> String {
        let names = self.stack.iter().map(|place| match &place.view {
            View::Cards(Some(node)) => format!("cards of {node}"),
            View::Shares(Some(card)) => format!("shares on {}", self.card(card)),
            View::Pod(namespace, name) => format!("{namespace}/{name}"),
            view => view.name().to_owned(),
        });
        names.collect::<Vec<_>>().join(" > ")
    }

    fn card(&self, uuid: &str) -> String {
        let found = self.view.cards().find(|(_, card)| card.uuid == uuid);
        found.map_or_else(
            || uuid.to_owned(),
            |(node, card)| format!("{node}/{}", card.index),
        )
    }

    /// The rows of the view that is shown: filtered, sorted.
    pub(super) fn table(&self) -> Table {
        let place = self.place();
        let nodes: Vec<_> = self.view.nodes.values().cloned().collect();
        let mut table = match &place.view {
            View::Nodes => inventory::nodes_table(&nodes),
            View::Cards(node) => {
                let mut table = inventory::cards_table(&nodes);
                if let Some(node) = node {
                    table.rows.retain(|row| row[0].shown == *node);
                }
                table
            }
            View::Shares(card) => {
                let mut table = inventory::shares_table(&nodes, self.view.pods.values());
                if let Some(card) = card {
                    let uuid = column(&table, "uuid");
                    table.rows.retain(|row| row[uuid].shown == *card);
                }
                table
            }
            View::Waiting => waiting(&self.view),
            View::Pod(..) | View::Help => Table::default(),
        };
        let needle = match &self.typing {
            Some(Typing::Filter(text)) => text.to_lowercase(),
            _ => place.filter.to_lowercase(),
        };
        if !needle.is_empty() {
            table.rows.retain(|row| {
                let mut cells = row.iter();
                cells.any(|cell| cell.shown.to_lowercase().contains(&needle))
            });
        }
        if let Some((column, down)) = place.sort.filter(|(at, _)| *at < table.columns.len()) {
            table.rows.sort_by(|a, b| {
                let order = compare(&a[column], &b[column]);
                if down { order.reverse() } else { order }
            });
        }
        table
    }

    /// Applies new data; the cursor never moves beyond the last row.
    pub(super) fn look(&mut self, view: ClusterView) {
        self.view = view;
        self.said = None;
        self.clamp();
    }

    fn clamp(&mut self) {
        let most = self.table().rows.len().saturating_sub(1);
        let place = self.place_mut();
        place.row = place.row.min(most);
    }

    /// Handles a key; returns whether the program continues.
    pub(super) fn key(&mut self, key: Key) -> bool {
        self.said = None;
        if key == Key::Interrupt {
            return false;
        }
        if self.typing.is_some() {
            return self.typed(key);
        }
        let page = self.page.max(1);
        let rows = self.table().rows.len();
        let place = self.place_mut();
        let last = rows.saturating_sub(1);
        match key {
            Key::Char('q') => return false,
            Key::Up | Key::Char('k') => place.row = place.row.saturating_sub(1),
            Key::Down | Key::Char('j') => place.row = (place.row + 1).min(last),
            Key::PageUp => place.row = place.row.saturating_sub(page),
            Key::PageDown => place.row = (place.row + page).min(last),
            Key::Home | Key::Char('g') => place.row = 0,
            Key::End | Key::Char('G') => place.row = last,
            Key::Enter => self.enter(),
            Key::Escape | Key::Backspace => self.back(),
            Key::Char('/') => {
                self.typing = Some(Typing::Filter(place.filter.clone()));
            }
            Key::Char(':') => self.typing = Some(Typing::Command(String::new())),
            Key::Char('<') => self.sort(false),
            Key::Char('>') => self.sort(true),
            Key::Char('r') => {
                place.sort = place.sort.map(|(column, down)| (column, !down));
            }
            Key::Char('?' | 'h') => self.go(View::Help),
            Key::Char('1') => self.begin(View::Cards(None)),
            Key::Char('2') => self.begin(View::Nodes),
            Key::Char('3') => self.begin(View::Shares(None)),
            Key::Char('4') => self.begin(View::Waiting),
            _ => {}
        }
        self.clamp();
        true
    }

    fn typed(&mut self, key: Key) -> bool {
        let Some(typing) = &mut self.typing else {
            return true;
        };
        let (Typing::Filter(text) | Typing::Command(text)) = typing;
        match key {
            Key::Char(character) => text.push(character),
            Key::Backspace => {
                text.pop();
            }
            Key::Escape => self.typing = None,
            Key::Enter => match self.typing.take() {
                Some(Typing::Filter(text)) => self.place_mut().filter = text,
                Some(Typing::Command(text)) => return self.command(text.trim()),
                None => {}
            },
            _ => {}
        }
        self.clamp();
        true
    }

    fn command(&mut self, text: &str) -> bool {
        if ["q", "quit"].contains(&text) {
            return false;
        }
        let found = VIEWS
            .iter()
            .find(|(name, _)| !text.is_empty() && name.starts_with(text));
        match found {
            Some((_, view)) => self.begin(view.clone()),
            None => {
                let names = VIEWS.map(|(name, _)| name).join(", ");
                self.said = Some(format!("there is no {text}: {names}, q"));
            }
        }
        true
    }

    fn begin(&mut self, view: View) {
        self.stack = vec![Place::new(view)];
    }

    fn go(&mut self, view: View) {
        if self.place().view != view {
            self.stack.push(Place::new(view));
        }
    }

    fn back(&mut self) {
        let place = self.place_mut();
        if !place.filter.is_empty() {
            place.filter.clear();
        } else if self.stack.len() > 1 {
            self.stack.pop();
        }
    }

    /// Where the row leads.
    fn enter(&mut self) {
        let table = self.table();
        let Some(row) = table.rows.get(self.place().row) else {
            return;
        };
        let text = |key: &str| row[column(&table, key)].shown.clone();
        let next = match self.place().view {
            View::Nodes => View::Cards(Some(text("node"))),
            View::Cards(_) => View::Shares(Some(text("uuid"))),
            View::Shares(_) | View::Waiting => View::Pod(text("namespace"), text("pod")),
            View::Pod(..) | View::Help => return,
        };
        self.go(next);
    }

    fn sort(&mut self, forward: bool) {
        let columns = self.table().columns;
        let shown: Vec<usize> = (0..columns.len()).filter(|at| !columns[*at].wide).collect();
        let place = self.place_mut();
        let now = place
            .sort
            .and_then(|(column, _)| shown.iter().position(|at| *at == column));
        let next = match (now, forward) {
            (None, true) => Some(0),
            (None, false) => shown.len().checked_sub(1),
            (Some(at), true) => Some(at + 1).filter(|at| *at < shown.len()),
            (Some(at), false) => at.checked_sub(1),
        };
        // For numbers the largest come first.
        place.sort = next.map(|at| (shown[at], columns[shown[at]].right));
    }
}

/// Which column has this key; the first where none has.
fn column(table: &Table, key: &str) -> usize {
    let found = table.columns.iter().position(|column| column.key == key);
    found.unwrap_or(0)
}

fn compare(a: &Cell, b: &Cell) -> Ordering {
    match (&a.value, &b.value) {
        (Value::Number(a), Value::Number(b)) => {
            let of = |number: &serde_json::Number| number.as_f64().unwrap_or(0.0);
            of(a).total_cmp(&of(b))
        }
        // Missing values come last.
        (Value::Null, Value::Null) => Ordering::Equal,
        (Value::Null, _) => Ordering::Less,
        (_, Value::Null) => Ordering::Greater,
        _ => a.shown.cmp(&b.shown),
    }
}

fn waiting(view: &ClusterView) -> Table {
    let mut table = Table::new(WAITING, "every pod runs");
    for ((namespace, name), pod) in &view.pods {
        let phase = phase(pod);
        let crash = scheduler::crash::of(pod);
        let runs = phase == "Running" && crash.is_none();
        if runs || phase == "Succeeded" || !is_shown(pod) {
            continue;
        }
        let why = why(pod);
        let first = why.lines().next().unwrap_or_default().to_owned();
        let tone = if phase == "Failed" || crash.is_some() {
            Tone::Bad
        } else {
            Tone::Warn
        };
        table.row(vec![
            namespace.clone().into(),
            name.clone().into(),
            Cell::from(state(pod)).tone(tone),
            first.into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt as _;

    /// `n1` with two shares on its first card, `n2` with one card, and a pod that waits.
    fn model() -> Model {
        let nodes = inventory::tests::nodes();
        let pod = serde_json::json!({"metadata": {"name": "late", "namespace": "team-b"}, "status": {"phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "no card\nn1: full"}]}});
        let pod = serde_json::from_value(pod).unwrap();
        Model::new(ClusterView {
            nodes: nodes
                .into_iter()
                .map(|node| (node.name_any(), node))
                .collect(),
            pods: [(("team-b".to_owned(), "late".to_owned()), pod)].into(),
        })
    }

    fn press(model: &mut Model, keys: &str) {
        for character in keys.chars() {
            let key = match character {
                '\n' => Key::Enter,
                '\u{1b}' => Key::Escape,
                other => Key::Char(other),
            };
            assert!(model.key(key), "{keys}: it ended");
        }
    }

    fn first(model: &Model, key: &str) -> Vec<String> {
        let table = model.table();
        let at = column(&table, key);
        table.rows.iter().map(|row| row[at].shown.clone()).collect()
    }

    #[test]
    fn rows_lead_from_a_node_to_a_pod_and_escape_leads_back() {
        let mut model = model();
        press(&mut model, "2\n");
        assert_eq!(model.trail(), "nodes > cards of n1");
        assert_eq!(first(&model, "gpu"), ["0", "1"]);
        press(&mut model, "\n");
        assert_eq!(model.trail(), "nodes > cards of n1 > shares on n1/0");
        press(&mut model, "j\n");
        assert_eq!(model.place().view, View::Pod("team-a".into(), "b".into()));
        press(&mut model, "\u{1b}");
        assert_eq!(model.place().row, 1, "where one was");
        press(&mut model, "\u{1b}\u{1b}\u{1b}\u{1b}");
        assert_eq!(model.trail(), "nodes");
        press(&mut model, "4");
        assert_eq!(first(&model, "why"), ["no card"]);
    }

    #[test]
    fn rows_are_filtered_while_one_types_and_sorted_by_any_column() {
        let mut model = model();
        press(&mut model, "/N2");
        assert_eq!(first(&model, "node"), ["n2"], "before enter");
        press(&mut model, "\n");
        assert_eq!(
            (first(&model, "node").len(), model.typing.is_none()),
            (1, true)
        );
        press(&mut model, "\u{1b}");
        assert_eq!(first(&model, "node").len(), 3);
        press(&mut model, "/nothing\u{1b}");
        assert_eq!(
            first(&model, "node").len(),
            3,
            "escape takes back what was typed"
        );
        // The sixth column: granted, the most first.
        press(&mut model, ">>>>>>");
        assert_eq!(first(&model, "grantedMib"), ["12000", "0", "0"]);
        press(&mut model, "r");
        assert_eq!(first(&model, "grantedMib"), ["0", "0", "12000"]);
        press(&mut model, "<<<<<<");
        assert_eq!(model.place().sort, None);
        press(&mut model, "G");
        assert_eq!(model.place().row, 2);
        let mut view = model.view.clone();
        view.nodes.remove("n2");
        model.look(view);
        assert_eq!(model.place().row, 1, "the row is gone");
    }

    #[test]
    fn commands_name_views_and_what_is_none_is_said() {
        let mut model = model();
        press(&mut model, ":sh\n");
        assert_eq!(model.place().view, View::Shares(None));
        press(&mut model, ":nonsense\n");
        let said = model.said.clone().unwrap();
        assert!(
            said.starts_with("there is no nonsense: cards, nodes"),
            "{said}"
        );
        press(&mut model, "?");
        assert_eq!(model.trail(), "shares > help");
        assert!(!model.key(Key::Char('q')));
        press(&mut model, ":");
        assert!(model.key(Key::Char('q')) && !model.key(Key::Enter));
        assert!(!model.key(Key::Interrupt));
    }
}
