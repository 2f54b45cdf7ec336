//! The queues that are there, by name, with their parents: what a new one is checked against.

use crate::watch::Seen;
use api::Queue;
use kube::ResourceExt as _;
use std::collections::{BTreeMap, BTreeSet};

/// Who is below whom.
#[derive(Clone, Debug, Default)]
pub struct QueueTree {
    parents: BTreeMap<String, Option<String>>,
    children: BTreeMap<String, BTreeSet<String>>,
    /// Not named yet by the listing that is under way.
    unnamed: Option<BTreeSet<String>>,
}

/// The parent that a queue names; an empty name is none.
pub(super) fn parent(queue: &Queue) -> Option<&str> {
    let parent = queue.spec.parent_queue.as_deref();
    parent.filter(|parent| !parent.is_empty())
}

impl QueueTree {
    /// As a watch says it.
    pub fn note(&mut self, seen: &Seen<Queue>) {
        match seen {
            Seen::Listing => self.unnamed = Some(self.parents.keys().cloned().collect()),
            Seen::There(queue) => {
                let name = queue.name_any();
                if let Some(unnamed) = &mut self.unnamed {
                    unnamed.remove(&name);
                }
                self.forget(&name);
                let parent = parent(queue).map(str::to_owned);
                if let Some(parent) = &parent {
                    let children = self.children.entry(parent.clone()).or_default();
                    children.insert(name.clone());
                }
                self.parents.insert(name, parent);
            }
            Seen::Gone(queue) => self.forget(&queue.name_any()),
            Seen::Listed => {
                for name in self.unnamed.take().into_iter().flatten() {
                    self.forget(&name);
                }
            }
        }
    }

    fn forget(&mut self, name: &str) {
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
        // A chain longer than all queues goes round.
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
    /// beyond `most` are not all counted. A parent that is not there yet counts as one level.
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
    fn a_queue_that_is_gone_moved_or_not_listed_again_is_forgotten() {
        let mut tree = QueueTree::default();
        tree.note(&Seen::Listing);
        for (name, parent) in [("a", ""), ("b", "a"), ("c", "b"), ("d", "c")] {
            tree.note(&Seen::There(queue(name, parent)));
        }
        tree.note(&Seen::Listed);
        assert_eq!((tree.len(), tree.depth("a", None, 16)), (4, 4));
        tree.note(&Seen::There(queue("c", "a")));
        assert_eq!(tree.depth("a", None, 16), 3);
        tree.note(&Seen::Gone(queue("d", "c")));
        assert_eq!((tree.len(), tree.depth("a", None, 16)), (3, 2));
        tree.note(&Seen::Listing);
        tree.note(&Seen::There(queue("a", "")));
        tree.note(&Seen::Listed);
        assert_eq!((tree.len(), tree.depth("a", None, 16)), (1, 1));
        assert!(tree.children.is_empty());
    }
}
