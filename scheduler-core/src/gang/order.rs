//! The progress of the members of a gang's tree, and KAI's order of them.

use super::tree::{Branch, Member};
use super::{Gang, Set};
use crate::state::keys::TaskKey;
use std::cmp::Ordering;

impl Gang {
    pub(crate) fn set_at(&self, at: usize) -> Option<&Set> {
        self.sets.get(at)
    }

    fn member_name<'a>(&'a self, member: Member<'a>) -> &'a str {
        let name = match member {
            Member::Group(branch) => branch.group.name.as_ref(),
            Member::Set(at, _) => self.set_at(at).map(|set| &set.name),
        };
        name.map_or("", |name| name.as_str())
    }

    /// How many of its parts a member has, and how many it needs.
    pub(super) fn progress(&self, member: Member) -> (u32, u32) {
        match member {
            Member::Set(at, _) => self
                .set_at(at)
                .map_or((0, 0), |set| (set.allocated(), set.min)),
            Member::Group(branch) => (self.satisfied(branch), branch.needed()),
        }
    }

    pub(super) fn satisfied(&self, branch: Branch) -> u32 {
        let done = branch.members().filter(|member| {
            let (has, needs) = self.progress(*member);
            has >= needs
        });
        u32::try_from(done.count()).unwrap_or(u32::MAX)
    }

    /// Members in KAI's order of sub-groups, of those that `wanted` names: by [`Fill`], then by
    /// name.
    pub(crate) fn ordered<'a>(
        &'a self,
        branch: Branch<'a>,
        wanted: impl FnMut(&Member<'a>) -> bool,
    ) -> Vec<Member<'a>> {
        let members = branch.members().filter(wanted);
        let mut members: Vec<(Fill, Member<'a>)> = members
            .map(|member| (Fill::of(self.progress(member)), member))
            .collect();
        members.sort_by(|one, other| self.order(*one, *other));
        members.into_iter().map(|(_, member)| member).collect()
    }

    /// Returns the members of a group that are in the core of its job, and the others. Members that have
    /// their own minimum come first, then the order is by name. KAI's order of sub-groups would give the places in the core
    /// to members that lack pods.
    pub(super) fn core_members<'a>(
        &'a self,
        branch: Branch<'a>,
    ) -> (Vec<Member<'a>>, Vec<Member<'a>>) {
        let mut members: Vec<Member<'a>> = branch.members().collect();
        members.sort_by_key(|member| {
            let (has, needs) = self.progress(*member);
            (has < needs, self.member_name(*member))
        });
        let core = members.len().min(branch.needed() as usize);
        let others = members.split_off(core);
        (members, others)
    }

    fn order(&self, (fill, one): (Fill, Member), (their, other): (Fill, Member)) -> Ordering {
        fill.order(their).then_with(|| match (one, other) {
            // Sets are in order of name.
            (Member::Set(one, _), Member::Set(other, _)) => one.cmp(&other),
            _ => self.member_name(one).cmp(self.member_name(other)),
        })
    }

    /// The pods of the first member, in that order, that has any. Members are not sorted for one
    /// of them.
    pub(super) fn first_of(
        &self,
        branch: Branch,
        pods: impl Fn(Member) -> Vec<TaskKey>,
    ) -> Vec<TaskKey> {
        let mut first: Option<((Fill, Member), Vec<TaskKey>)> = None;
        for member in branch.members() {
            let place = (Fill::of(self.progress(member)), member);
            let is_behind = |(first, _): &(_, _)| self.order(place, *first).is_ge();
            if first.as_ref().is_some_and(is_behind) {
                continue;
            }
            let pods = pods(member);
            if !pods.is_empty() {
                first = Some((place, pods));
            }
        }
        first.map(|(_, pods)| pods).unwrap_or_default()
    }

    /// As many members as it needs meet what `ready` says of sets.
    pub(super) fn is_branch_ready(&self, branch: Branch, ready: &dyn Fn(&Set) -> bool) -> bool {
        let members = branch.members().filter(|member| match member {
            Member::Set(at, _) => self.set_at(*at).is_some_and(ready),
            Member::Group(inner) => self.is_branch_ready(*inner, ready),
        });
        members.count() >= branch.needed() as usize
    }
}

/// What orders members before their names: below the minimum first; then those that must be there
/// before those that need not, the relatively emptier first. Below the minimum all are alike.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fill {
    is_filled: bool,
    is_optional: bool,
    has: u32,
    /// At least one.
    needs: u32,
}

impl Fill {
    fn of((has, needs): (u32, u32)) -> Self {
        let is_filled = has >= needs;
        Self {
            is_filled,
            is_optional: is_filled && needs == 0,
            has: if is_filled { has } else { 0 },
            needs: if is_filled { needs.max(1) } else { 1 },
        }
    }

    fn order(self, other: Self) -> Ordering {
        // has / needs, without dividing.
        let part = u64::from(self.has) * u64::from(other.needs);
        let their = u64::from(other.has) * u64::from(self.needs);
        (self.is_filled, self.is_optional, part).cmp(&(other.is_filled, other.is_optional, their))
    }
}
