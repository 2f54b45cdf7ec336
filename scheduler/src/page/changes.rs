//! Which nodes changed since the last read. Pure.
//!
//! Each change has a number; a reader names the last one that it has, and gets what is newer. A
//! number of another process, or one older than the record of removed nodes, means: everything.

use super::row::Live;
use scheduler_core::units::Time;
use std::collections::{BTreeMap, VecDeque};

/// Number of removed nodes that are remembered.
const GONE: usize = 1000;
/// Resolution of the memory in use, as a fraction of a card.
const PARTS: u64 = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct NodeChanges {
    /// When this process began to look: other processes' numbers are not its own.
    epoch: u64,
    last: u64,
    /// Everything that is older has to be read as a whole.
    complete: u64,
    nodes: BTreeMap<String, u64>,
    gone: VecDeque<(u64, String)>,
}

impl NodeChanges {
    pub(super) fn new(now: Time) -> Self {
        Self {
            epoch: now.0,
            last: 1,
            complete: 1,
            nodes: BTreeMap::new(),
            gone: VecDeque::new(),
        }
    }

    /// A node is another than it was.
    pub(super) fn node(&mut self, name: &str) {
        self.last += 1;
        if let Some(number) = self.nodes.get_mut(name) {
            *number = self.last;
        } else {
            self.nodes.insert(name.to_owned(), self.last);
        }
    }

    /// A node is there no more.
    pub(super) fn gone(&mut self, name: &str) {
        self.last += 1;
        self.nodes.remove(name);
        if self.gone.len() >= GONE
            && let Some((number, _)) = self.gone.pop_front()
        {
            self.complete = number;
        }
        self.gone.push_back((self.last, name.to_owned()));
    }

    /// What a reader is to name next time.
    pub(super) fn token(&self, rights: u64) -> String {
        format!("{:x}-{:x}-{:x}", self.epoch, rights, self.last)
    }

    /// The number that a token of this process and these rights has; `None`: everything is new.
    pub(super) fn number(&self, token: &str, rights: u64) -> Option<u64> {
        let mut parts = token
            .split('-')
            .map(|part| u64::from_str_radix(part, 16).ok());
        let same = parts.next()?? == self.epoch && parts.next()?? == rights;
        let number = parts.next()??;
        (same && number >= self.complete).then_some(number)
    }

    /// Whether a node has changed since.
    pub(super) fn is_new(&self, name: &str, since: Option<u64>) -> bool {
        since.is_none_or(|since| self.nodes.get(name).is_none_or(|number| *number > since))
    }

    /// Nodes that went since.
    pub(super) fn gone_since(&self, since: Option<u64>) -> impl Iterator<Item = &str> {
        let newer = move |(number, _): &&(u64, String)| since.is_some_and(|since| *number > since);
        self.gone
            .iter()
            .filter(newer)
            .map(|(_, name)| name.as_str())
    }

    /// Whether a picture of the node would be another.
    pub(super) fn is_seen(before: &Live, now: &Live) -> bool {
        let part = |used: u64, total: u64| used.saturating_mul(PARTS) / total.max(1);
        let cards = before.cards.len() != now.cards.len()
            || now.cards.iter().any(|(uuid, card)| {
                before.cards.get(uuid).is_none_or(|old| {
                    part(old.used, old.total) != part(card.used, card.total)
                        || old.fault != card.fault
                })
            });
        let total = |uuid: Option<&String>| {
            let card = uuid.and_then(|uuid| now.cards.get(uuid));
            card.map_or(1, |card| card.total)
        };
        cards
            || before.shares.len() != now.shares.len()
            || now.shares.iter().any(|(key, share)| {
                let total = total(share.cards.first());
                before.shares.get(key).is_none_or(|old| {
                    part(old.used, total) != part(share.used, total)
                        || old.complaint != share.complaint
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_what_is_newer_and_everything_where_its_token_is_not_ours() {
        let mut changes = NodeChanges::new(Time(77));
        changes.node("a");
        changes.node("b");
        let token = changes.token(5);
        let since = changes.number(&token, 5);
        assert!(since.is_some() && !changes.is_new("a", since) && changes.is_new("new", since));
        changes.node("a");
        changes.gone("b");
        assert!(changes.is_new("a", since));
        assert_eq!(changes.gone_since(since).collect::<Vec<_>>(), ["b"]);
        for (other, rights) in [
            (token.as_str(), 6),
            ("", 5),
            ("4d-5", 5),
            ("4e-5-3", 5),
            ("x", 5),
        ] {
            assert_eq!(changes.number(other, rights), None, "{other}");
        }
        assert_eq!(
            changes.gone_since(None).count(),
            0,
            "everything is sent anyway"
        );
        for at in 0..=GONE {
            changes.gone(&at.to_string());
        }
        assert_eq!(changes.number(&token, 5), None, "too much is gone");
    }
}
