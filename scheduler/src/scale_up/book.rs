//! State between two plans.

use super::links::Asked;
use jiff::Timestamp;
use scheduler_core::ids::{NodeName, PodUid};
use scheduler_core::scale_up::{NewNode, Shortage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An agent's node that offers no GPU after this time counts as failed: other nodes are requested.
/// The cluster autoscaler gives a node 15 minutes (`max-node-provision-time`), Karpenter as long.
const STARTS_WITHIN: Duration = Duration::from_mins(15);

/// Nodes that start, and pods that nodes were asked for.
#[derive(Debug, Default)]
pub(super) struct Book {
    starting: BTreeMap<NodeName, Instant>,
    since: BTreeMap<PodUid, Timestamp>,
}

impl Book {
    /// The shortage without nodes that have been starting for too long.
    pub(super) fn without_late(&mut self, shortage: Shortage, now: Instant) -> Shortage {
        let there = shortage.without_cards.iter().map(|node| &node.name);
        self.starting = there
            .map(|name| {
                let since = self.starting.get(name).copied();
                (name.clone(), since.unwrap_or(now))
            })
            .collect();
        shortage.without(&|name| {
            let since = self.starting.get(name);
            since.is_some_and(|since| now.duration_since(*since) >= STARTS_WITHIN)
        })
    }

    /// One sentence for each pod that a node was asked for, or that a node which starts is for.
    pub(super) fn tell<'a>(
        &mut self,
        asked: impl Iterator<Item = (&'a PodUid, &'a str)>,
        starting: &BTreeMap<NodeName, NewNode>,
        now: Timestamp,
    ) -> Asked {
        let mut since = BTreeMap::new();
        let mut told = BTreeMap::new();
        for (pod, group) in asked {
            let at = *self.since.get(pod).unwrap_or(&now);
            since.insert(pod.clone(), at);
            let text = format!("a node like {group} would let it run: asked for since {at:.0}");
            told.insert(pod.clone(), Arc::from(text));
        }
        let starting = starting.iter();
        for (pod, name) in
            starting.flat_map(|(name, node)| node.pods.iter().map(move |pod| (pod, name)))
        {
            since.insert(pod.clone(), *self.since.get(pod).unwrap_or(&now));
            let text = format!("node {name} is starting, and will have room for it");
            told.insert(pod.clone(), Arc::from(text));
        }
        self.since = since;
        Asked(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::model::Node;
    use scheduler_core::units::{Bytes, CpuMilli};

    fn starting(names: &[&str]) -> Shortage {
        Shortage {
            without_cards: names.iter().map(|name| Node::named(name)).collect(),
            ..Shortage::default()
        }
    }

    fn names(shortage: &Shortage) -> Vec<&str> {
        let nodes = shortage.without_cards.iter();
        nodes.map(|node| node.name.as_str()).collect()
    }

    #[test]
    fn a_node_has_a_quarter_of_an_hour_from_when_it_was_first_seen() {
        let mut book = Book::default();
        let begin = Instant::now();
        let after = |minutes: u64| begin + Duration::from_secs(minutes * 60);
        let first = book.without_late(starting(&["a"]), begin);
        assert_eq!(names(&first), ["a"]);
        let second = book.without_late(starting(&["a", "b"]), after(14));
        assert_eq!(names(&second), ["a", "b"]);
        let third = book.without_late(starting(&["a", "b"]), after(15));
        assert_eq!(names(&third), ["b"]);
        // One that went away and came back is another one.
        book.without_late(starting(&["b"]), after(16));
        let last = book.without_late(starting(&["a"]), after(17));
        assert_eq!(names(&last), ["a"]);
    }

    #[test]
    fn a_pod_is_told_since_when_its_node_was_asked_for() {
        let mut book = Book::default();
        let pod = PodUid::new("p");
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let (early, late) = (at("2026-01-01T10:00:00Z"), at("2026-01-01T10:05:00Z"));
        let nothing = BTreeMap::new();
        book.tell([(&pod, "l4")].into_iter(), &nothing, early);
        let told = book.tell([(&pod, "l4")].into_iter(), &nothing, late);
        assert_eq!(
            &*told.0[&pod],
            "a node like l4 would let it run: asked for since 2026-01-01T10:00:00Z"
        );
        let node = NewNode {
            template: Some(0),
            cards: 1,
            cpu: CpuMilli(0),
            memory: Bytes(0),
            pods: vec![pod.clone()],
        };
        let node = [(NodeName::new("n1"), node)].into();
        let told = book.tell(std::iter::empty(), &node, late);
        assert_eq!(
            &*told.0[&pod],
            "node n1 is starting, and will have room for it"
        );
    }
}
