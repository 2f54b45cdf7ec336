//! Grants that this node did not honour, for as long as a scheduler may need to hear of
//! them.
//!
//! Pure. In: refusals, time as a value. Out: those a stream has not sent yet. A stream that
//! connects is sent all that are kept: a replica that was restarted, or was cut off when it
//! happened, knows none of them. It recognizes stale ones by the decision's id.

use proto::telemetry::Refusal;
use std::collections::VecDeque;
use std::time::Duration;

/// A grant that is still refused after this time counts as a new refusal: the kubelet retries.
const KEPT: Duration = Duration::from_mins(2);
/// More at once than a node has containers with shares.
const MOST: usize = 256;

/// The last refusals, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    kept: VecDeque<Entry>,
    last: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    number: u64,
    at: Duration,
    refusal: Refusal,
}

impl Refusals {
    /// Adds one. If it repeats, it is reported once more.
    pub fn add(&mut self, now: Duration, refusal: Refusal) {
        self.kept
            .retain(|entry| entry.at + KEPT > now && entry.refusal != refusal);
        if self.kept.len() == MOST {
            self.kept.pop_front();
        }
        self.last += 1;
        self.kept.push_back(Entry {
            number: self.last,
            at: now,
            refusal,
        });
    }

    /// Those after number `sent` that are not too old, oldest first, and the number up to
    /// which a stream has then sent.
    pub fn after(&self, now: Duration, sent: u64) -> (Vec<Refusal>, u64) {
        let fresh = self
            .kept
            .iter()
            .filter(|entry| entry.number > sent && entry.at + KEPT > now)
            .map(|entry| entry.refusal.clone())
            .collect();
        (fresh, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(pod: &str) -> Refusal {
        Refusal {
            pod_uid: pod.to_owned(),
            ..Refusal::default()
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pods(refusals: &Refusals, now: u64, sent: u64) -> Vec<String> {
        let (fresh, _) = refusals.after(at(now), sent);
        fresh.into_iter().map(|refusal| refusal.pod_uid).collect()
    }

    #[test]
    fn a_stream_gets_each_refusal_once_and_a_new_one_gets_all() {
        let mut refusals = Refusals::default();
        refusals.add(at(0), refusal("a"));
        refusals.add(at(1), refusal("b"));
        assert_eq!(pods(&refusals, 1, 0), ["a", "b"]);
        let (_, sent) = refusals.after(at(1), 0);
        assert!(pods(&refusals, 1, sent).is_empty());
        refusals.add(at(2), refusal("c"));
        assert_eq!(pods(&refusals, 2, sent), ["c"]);
        assert_eq!(pods(&refusals, 2, 0), ["a", "b", "c"]);
    }

    #[test]
    fn the_same_refusal_again_is_told_again_and_kept_once() {
        let mut refusals = Refusals::default();
        refusals.add(at(0), refusal("a"));
        let (_, sent) = refusals.after(at(0), 0);
        refusals.add(at(1), refusal("a"));
        assert_eq!(pods(&refusals, 1, sent), ["a"]);
        assert_eq!(pods(&refusals, 1, 0), ["a"]);
    }

    #[test]
    fn old_ones_and_too_many_are_forgotten() {
        let mut refusals = Refusals::default();
        refusals.add(at(0), refusal("old"));
        assert!(pods(&refusals, 120, 0).is_empty());
        for number in 0..300 {
            refusals.add(at(200), refusal(&number.to_string()));
        }
        let kept = pods(&refusals, 200, 0);
        assert_eq!((kept.len(), kept[0].as_str()), (256, "44"));
    }
}
