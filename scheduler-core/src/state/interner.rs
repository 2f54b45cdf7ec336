//! Texts and labels that many objects have alike, each kept once.
//!
//! Every event brings its own copies of a namespace, a queue's name and labels; with
//! 100,000 pods these would be most of what the core holds. Nothing depends on who
//! shares what: equal is equal.

use crate::model::Labels;
use crate::state::job_row::GroupSpec;
use crate::state::pod_labels::{Pairs, PodLabels};
use crate::state::rows::PodFacts;
use rustc_hash::FxHashSet;
use std::hash::Hash;
use std::sync::Arc;

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interner {
    names: Shared<str>,
    groups: Shared<GroupSpec>,
    pods: Shared<PodFacts>,
    labels: Shared<Pairs>,
}

impl Interner {
    /// The shared copy of a text.
    pub(crate) fn text(&mut self, text: &Arc<str>) -> Arc<str> {
        self.names.of(Arc::clone(text))
    }

    /// The copy of what many groups have alike.
    pub(crate) fn group(&mut self, spec: Arc<GroupSpec>) -> Arc<GroupSpec> {
        self.groups.of(spec)
    }

    /// The copy of what many pods have alike.
    pub(crate) fn pod(&mut self, facts: PodFacts) -> Arc<PodFacts> {
        self.pods.of(Arc::new(facts))
    }

    /// The shared copy of labels.
    pub(crate) fn labels(&mut self, labels: &Labels) -> PodLabels {
        let pairs = labels.iter();
        let shared: Box<[_]> = pairs
            .map(|(key, value)| (self.text(key), self.text(value)))
            .collect();
        PodLabels(self.labels.of(Arc::new(shared)))
    }
}

#[derive(Debug)]
struct Shared<T: ?Sized> {
    known: FxHashSet<Arc<T>>,
    /// How many there may be before unused ones are dropped.
    most: usize,
}

// Not derived: that would ask for one of `T`.
impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self {
            known: self.known.clone(),
            most: self.most,
        }
    }
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self {
            known: FxHashSet::default(),
            most: 64,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Shared<T> {
    fn of(&mut self, one: Arc<T>) -> Arc<T> {
        if let Some(known) = self.known.get(&one) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.most {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.most = 64.max(self.known.len() * 2);
        }
        self.known.insert(Arc::clone(&one));
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_and_those_that_nobody_has_are_let_go() {
        let mut interner = Interner::default();
        let one = interner.text(&Arc::from("team-a"));
        let other = interner.text(&Arc::from("team-a"));
        assert!(Arc::ptr_eq(&one, &other));
        for index in 0..1000 {
            interner.text(&Arc::from(format!("gone-{index}")));
        }
        assert!(interner.names.known.len() <= 64);
        assert!(Arc::ptr_eq(&one, &interner.text(&Arc::from("team-a"))));
    }
}
