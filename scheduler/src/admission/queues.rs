//! The queues that are there, by name, with their parents: what a new one is checked against.

use super::invalid::Invalid;
use super::over_subscription::OverSubscription;
use crate::watch::{Key as _, Seen};
use api::Queue;
use kube::ResourceExt as _;
use proto::names::queue::QUOTA_BY_PRODUCT;
use std::collections::{BTreeMap, BTreeSet};

/// GPUs, CPU and memory, in the units of their fields; -1 is unlimited.
type Quotas = [f64; 3];

const NAMES: [&str; 3] = ["GPU", "CPU", "Memory"];
const UNLIMITED: f64 = -1.0;

/// Which queue is below which.
#[derive(Clone, Debug, Default)]
pub struct QueueTree {
    parents: BTreeMap<String, Option<String>>,
    children: BTreeMap<String, BTreeSet<String>>,
    quotas: BTreeMap<String, Quotas>,
}

/// The parent that a queue names; an empty name is none.
pub(super) fn parent(queue: &Queue) -> Option<&str> {
    let parent = queue.spec.parent_queue.as_deref();
    parent.filter(|parent| !parent.is_empty())
}

/// What the queue says of single GPU products.
pub(super) fn by_product(queue: &Queue) -> Option<&str> {
    let text = queue.metadata.annotations.as_ref()?.get(QUOTA_BY_PRODUCT)?;
    Some(text)
}

/// What the quota of this queue is to its parent's and its children's.
pub(super) fn judge_quotas(
    queue: &Queue,
    queues: &QueueTree,
    said: OverSubscription,
) -> Result<Vec<String>, Invalid> {
    let over = match said {
        OverSubscription::None => Vec::new(),
        OverSubscription::Warning | OverSubscription::Block => queues.over_subscribed(queue),
    };
    if said == OverSubscription::Block && !over.is_empty() {
        return Err(Invalid::OverSubscription(over.join("; ")));
    }
    Ok(over)
}

fn quotas(queue: &Queue) -> Quotas {
    let resources = queue.spec.resources.clone().unwrap_or_default();
    [resources.gpu, resources.cpu, resources.memory].map(|one| one.quota)
}

/// Nothing exceeds what is unlimited, and what is exceeds everything else.
fn exceeds(quota: f64, limit: f64) -> bool {
    limit != UNLIMITED && (quota == UNLIMITED || quota > limit)
}

fn plus(one: f64, other: f64) -> f64 {
    if one == UNLIMITED || other == UNLIMITED {
        UNLIMITED
    } else {
        one + other
    }
}

fn shown(quota: f64) -> String {
    if quota == UNLIMITED {
        "unlimited".to_owned()
    } else {
        quota.to_string()
    }
}

impl QueueTree {
    /// As a watch says it.
    pub fn note(&mut self, seen: &Seen<Queue>) {
        match seen {
            Seen::There(queue) => {
                let name = queue.key();
                self.forget(&name);
                let parent = parent(queue).map(str::to_owned);
                if let Some(parent) = &parent {
                    let children = self.children.entry(parent.clone()).or_default();
                    children.insert(name.clone());
                }
                self.quotas.insert(name.clone(), quotas(queue));
                self.parents.insert(name, parent);
            }
            Seen::Gone(name) => self.forget(name),
            Seen::Listing | Seen::Listed => {}
        }
    }

    fn forget(&mut self, name: &str) {
        self.quotas.remove(name);
        let Some(Some(parent)) = self.parents.remove(name) else {
            return;
        };
        if let Some(children) = self.children.get_mut(&parent) {
            children.remove(name);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
    }

    /// Where the quotas of a parent do not cover those of its children, were this queue as it is
    /// here: in KAI's words (`queue_validator.go`), which sums up GPUs and memory only where the
    /// parent is written. A missing parent is not checked.
    pub(super) fn over_subscribed(&self, queue: &Queue) -> Vec<String> {
        let (name, own) = (queue.name_any(), quotas(queue));
        let mut over = Vec::new();
        let others = |parent: &str| {
            let children = self.children.get(parent).into_iter().flatten();
            children
                .filter(|child| **child != name)
                .collect::<Vec<&String>>()
        };
        let sum = |parent: &str, own: Quotas| {
            let all = others(parent)
                .into_iter()
                .filter_map(|child| self.quotas.get(child));
            all.fold(own, |sum, quotas| {
                [0, 1, 2].map(|at| plus(sum[at], quotas[at]))
            })
        };
        let above = parent(queue);
        if let Some((above, its)) = above.and_then(|above| Some((above, self.quotas.get(above)?))) {
            let total = sum(above, own);
            for at in 0..3 {
                let limit = format!(
                    "parent queue {above} {} quota ({})",
                    NAMES[at],
                    shown(its[at])
                );
                if exceeds(own[at], its[at]) {
                    let quota = shown(own[at]);
                    over.push(format!(
                        "child queue {} quota ({quota}) exceeds {limit}",
                        NAMES[at]
                    ));
                }
                if exceeds(total[at], its[at]) {
                    let quota = shown(total[at]);
                    over.push(format!(
                        "total children {} quota ({quota}) exceeds {limit}",
                        NAMES[at]
                    ));
                }
            }
        }
        let total = sum(&name, [0.0; 3]);
        for at in 0..3 {
            let limit = format!("parent {} quota ({})", NAMES[at], shown(own[at]));
            for child in others(&name) {
                let quota = self.quotas.get(child).map_or(0.0, |quotas| quotas[at]);
                if exceeds(quota, own[at]) {
                    over.push(format!(
                        "child queue {child} {} quota ({}) exceeds {limit}",
                        NAMES[at],
                        shown(quota)
                    ));
                }
            }
            if exceeds(total[at], own[at]) {
                let quota = shown(total[at]);
                over.push(format!(
                    "total children {} quota ({quota}) exceeds {limit}",
                    NAMES[at]
                ));
            }
        }
        over
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.parents.len()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.parents.contains_key(name)
    }

    pub(super) fn parent(&self, name: &str) -> Option<&str> {
        self.parents.get(name)?.as_deref()
    }

    /// Whether the other one is this one or among its ancestors.
    pub(super) fn is_below(&self, name: &str, other: &str) -> bool {
        let mut at = Some(name);
        // A chain longer than the number of queues is a cycle.
        for _ in 0..=self.len() {
            match at {
                Some(queue) if queue == other => return true,
                Some(queue) => at = self.parent(queue),
                None => return false,
            }
        }
        false
    }

    /// Levels of the tree down to the lowest queue below this one, if it had this parent; those
    /// beyond `most` are not all counted. A missing parent counts as one level.
    pub(super) fn depth(&self, name: &str, parent: Option<&str>, most: usize) -> usize {
        let mut depth = 1;
        let mut above = parent;
        while let Some(queue) = above
            && depth <= most
        {
            depth += 1;
            above = self.parent(queue);
        }
        let mut level: Vec<&str> = vec![name];
        loop {
            let below = level.iter().filter_map(|queue| self.children.get(*queue));
            level = below.flatten().map(String::as_str).collect();
            if level.is_empty() || depth > most {
                return depth;
            }
            depth += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn queue(name: &str, parent: &str) -> Box<Queue> {
        let queue = json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
            "spec": {"parentQueue": parent},
        });
        Box::new(serde_json::from_value(queue).unwrap())
    }

    #[test]
    fn levels_above_and_below_count_and_rings_end() {
        let mut tree = QueueTree::default();
        for (name, parent) in [("a", ""), ("b", "a"), ("d", "c"), ("e", "d"), ("f", "d")] {
            tree.note(&Seen::There(queue(name, parent)));
        }
        assert_eq!(tree.depth("x", None, 16), 1);
        assert_eq!(tree.depth("x", Some("b"), 16), 3);
        assert_eq!(tree.depth("x", Some("missing"), 16), 2);
        // It comes between `b` and those that named it before it was there.
        assert_eq!(tree.depth("c", Some("b"), 16), 5);
        assert_eq!(tree.depth("c", Some("b"), 3), 4);
        assert_eq!(tree.depth("d", None, 16), 2);
        tree.note(&Seen::There(queue("a", "b")));
        assert_eq!(tree.depth("x", Some("a"), 16), 17);
        assert_eq!(tree.depth("a", Some("b"), 16), 17);
    }

    #[test]
    fn a_queue_that_is_gone_or_moved_is_forgotten() {
        let mut tree = QueueTree::default();
        for (name, parent) in [("a", ""), ("b", "a"), ("c", "b"), ("d", "c")] {
            tree.note(&Seen::There(queue(name, parent)));
        }
        assert_eq!((tree.len(), tree.depth("a", None, 16)), (4, 4));
        tree.note(&Seen::There(queue("c", "a")));
        assert_eq!(tree.depth("a", None, 16), 3);
        tree.note(&Seen::Gone("d".into()));
        assert_eq!((tree.len(), tree.depth("a", None, 16)), (3, 2));
        for name in ["b", "c"] {
            tree.note(&Seen::Gone(name.into()));
        }
        assert_eq!((tree.len(), tree.depth("a", None, 16)), (1, 1));
        assert!(tree.children.is_empty());
    }

    fn with_quotas(name: &str, parent: &str, gpu: f64, cpu: f64) -> Box<Queue> {
        let mut queue = queue(name, parent);
        let mut resources = api::kai::QueueResources::default();
        (resources.gpu.quota, resources.cpu.quota) = (gpu, cpu);
        queue.spec.resources = Some(resources);
        queue
    }

    #[test]
    fn quotas_beyond_the_parents_are_named_for_each_resource_alone_and_together() {
        let mut tree = QueueTree::default();
        for (name, parent, gpu, cpu) in [
            ("top", "", 4.0, -1.0),
            ("a", "top", 3.0, 1000.0),
            ("b", "top", 1.0, 1000.0),
        ] {
            tree.note(&Seen::There(with_quotas(name, parent, gpu, cpu)));
        }
        let over = |name: &str, parent: &str, gpu: f64, cpu: f64| {
            tree.over_subscribed(&with_quotas(name, parent, gpu, cpu))
        };
        let none = Vec::<String>::new();
        // As they are; the one that is being written counts once.
        assert_eq!(over("a", "top", 3.0, 1000.0), none);
        assert_eq!(over("top", "", 4.0, -1.0), none);
        assert_eq!(over("c", "later", 9.0, 9.0), none);
        let total = "total children GPU quota (4.5) exceeds parent queue top GPU quota (4)";
        assert_eq!(over("c", "top", 0.5, -1.0), [total]);
        assert_eq!(
            over("b", "top", -1.0, 0.0),
            [
                "child queue GPU quota (unlimited) exceeds parent queue top GPU quota (4)",
                "total children GPU quota (unlimited) exceeds parent queue top GPU quota (4)",
            ]
        );
        assert_eq!(
            over("top", "", 2.0, 1500.0),
            [
                "child queue a GPU quota (3) exceeds parent GPU quota (2)",
                "total children GPU quota (4) exceeds parent GPU quota (2)",
                "total children CPU quota (2000) exceeds parent CPU quota (1500)",
            ]
        );
    }
}
