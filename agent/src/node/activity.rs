//! How long each share has done no work, counted from one look at the cards to the next.

use api::Mib;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time since when each share has done no work, by its key.
#[derive(Debug)]
pub(super) struct Activities<K>(BTreeMap<K, Watch>);

#[derive(Debug)]
struct Watch {
    /// The container of the share. A new container starts the count again.
    container: String,
    /// The most that its processes held since it last worked.
    used: Mib,
    worked: Instant,
}

impl<K> Default for Activities<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Activities<K> {
    /// Records one look at the share of a running container, and returns for how many whole minutes the
    /// share has done no work. `worked` says whether it worked since the look before; with `None`, the
    /// driver does not tell, the count begins again, and the answer is `None`.
    pub(super) fn follow(
        &mut self,
        key: &K,
        container: &str,
        used: Mib,
        worked: Option<bool>,
        now: Instant,
    ) -> Option<u32> {
        let fresh = || Watch {
            container: container.to_owned(),
            used,
            worked: now,
        };
        let watch = self.0.entry(key.clone()).or_insert_with(fresh);
        if worked != Some(false) || used > watch.used || watch.container != container {
            *watch = fresh();
        }
        let idle = now.saturating_duration_since(watch.worked);
        let minutes = idle.as_secs() / Duration::from_mins(1).as_secs();
        worked.map(|_| u32::try_from(minutes).unwrap_or(u32::MAX))
    }

    /// Forgets a share whose container does not run.
    pub(super) fn forget(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Forgets all shares but those that are there.
    pub(super) fn keep(&mut self, is_there: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| is_there(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_work_begins_again_with_work_memory_doubt_and_another_container() {
        let start = Instant::now();
        let mut all = Activities::default();
        let mut at = |seconds, container: &str, used, seen| {
            let now = start + Duration::from_secs(seconds);
            all.follow(&"u", container, Mib(used), seen, now)
        };
        assert_eq!(at(0, "c", 10, Some(true)), Some(0));
        assert_eq!(at(59, "c", 10, Some(false)), Some(0));
        assert_eq!(at(180, "c", 10, Some(false)), Some(3));
        // It gave memory back, and takes it again.
        assert_eq!(at(181, "c", 5, Some(false)), Some(3));
        assert_eq!(at(182, "c", 10, Some(false)), Some(3));
        assert_eq!(at(183, "c", 11, Some(false)), Some(0));
        assert_eq!(at(243, "c", 11, Some(false)), Some(1));
        assert_eq!(at(244, "c", 11, None), None);
        assert_eq!(at(303, "c", 11, Some(false)), Some(0));
        assert_eq!(at(364, "c", 11, Some(false)), Some(2));
        assert_eq!(at(365, "d", 0, Some(false)), Some(0));
        assert_eq!(at(425, "d", 0, Some(true)), Some(0));
    }
}
