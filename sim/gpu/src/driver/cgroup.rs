//! The driver's own limits per cgroup (r615 and later), and the memory held under each.

use super::state::{CardId, ConnId, Context, State};

impl State {
    /// The limit with the least room among those of the caller's cgroups, and the memory held under
    /// it.
    pub(super) fn tightest(&self, conn: ConnId, card: CardId) -> Option<(u64, u64)> {
        let own = unified(&self.processes.get(&conn)?.cgroup)?;
        let limits = self.cards[card].cgroup_limits.iter();
        limits
            .filter(|(path, _)| is_within(own, path))
            .map(|(path, limit)| (*limit, self.held_in(path, card)))
            .min_by_key(|(limit, held)| limit.saturating_sub(*held))
    }

    /// What the processes of a cgroup hold on a card.
    pub(super) fn held_in(&self, cgroup: &str, card: CardId) -> u64 {
        self.processes
            .values()
            .filter(|process| unified(&process.cgroup).is_some_and(|own| is_within(own, cgroup)))
            .filter_map(|process| process.contexts.get(&card))
            .map(Context::taken)
            .sum()
    }
}

/// A process's place in cgroup v2, of `/proc/<pid>/cgroup` with its lines joined.
fn unified(cgroup: &str) -> Option<&str> {
    cgroup.split(';').find_map(|line| line.strip_prefix("0::"))
}

fn is_within(own: &str, cgroup: &str) -> bool {
    own.strip_prefix(cgroup)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
