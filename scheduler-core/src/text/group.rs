//! This file has the tables of pod groups and topologies.

use super::field::{
    Below, Field, Map, Name, NameIn, Object, Present, always, always_or, fields, flag, key, needed,
    not, or, same_as_name,
};
use super::line::{Line, Read};
use crate::ids::{QueueName, SetName};
use crate::model::{PodGroup, PodSet, Preemptibility, SubGroup, Topology, TopologyRule};
use std::collections::BTreeMap;

fields!(Topology {
    name: Name,
    levels: always("levels"),
    aliases: Map("alias"),
});

fields!(PodGroup {
    name: Name,
    uid: same_as_name("uid"),
    queue: or("queue", QueueName::new("default-queue")),
    priority: or("priority", 50),
    preemptibility: PreemptibilityWord,
    created: key("created"),
    mark_unschedulable: not("no-mark"),
    parked: key("parked"),
    last_start: key("last-start"),
    stale_since: key("stale-since"),
    succeeded: Succeeded,
    staleness_grace: key("grace"),
    preemption_delay: key("delay"),
    last_evicted: key("last-evicted"),
    never_preempts: flag("never-preempts"),
    root: Root,
});

fields!(SubGroup {
    name: NameIn("sub-group"),
    min_children: key("min-children"),
    topology: Present(&["topology"]),
    sets: Below("set"),
    groups: Below("sub-group"),
});

fields!(PodSet {
    name: Name,
    min: always_or("min", 1),
    topology: Present(&["topology"]),
});

fields!(TopologyRule {
    topology: needed("topology"),
    required: key("required"),
    preferred: key("preferred"),
});

/// A group without lines for sets has one set, unless its own line says `no-sets`.
struct Root;

impl Field<SubGroup> for Root {
    fn read(&self, line: &Line) -> Read<SubGroup> {
        let mut root = SubGroup::read(line)?;
        if !line.flag("no-sets") && root.sets.is_empty() && root.groups.is_empty() {
            root.sets.push(PodSet {
                name: SetName::new("default"),
                min: always_or("min", 1).read(line)?,
                topology: None,
            });
        }
        Ok(root)
    }

    fn write(&self, root: &SubGroup, line: &mut Line) {
        flag("no-sets").write(&(root.sets.is_empty() && root.groups.is_empty()), line);
        root.write(line);
    }
}

/// A preemptible object has neither of the two words.
pub(super) struct PreemptibilityWord;

impl PreemptibilityWord {
    const WORDS: [(Preemptibility, &str); 2] = [
        (Preemptibility::SemiPreemptible, "semi-preemptible"),
        (Preemptibility::NonPreemptible, "non-preemptible"),
    ];
}

impl Field<Preemptibility> for PreemptibilityWord {
    fn read(&self, line: &Line) -> Read<Preemptibility> {
        let there = Self::WORDS.iter().filter(|(_, word)| line.flag(word));
        let mut there = there.map(|(preemptibility, _)| *preemptibility);
        let first = there.next().unwrap_or_default();
        match there.next() {
            None => Ok(first),
            Some(_) => {
                Err(line
                    .error("the line says both semi-preemptible and non-preemptible".to_owned()))
            }
        }
    }

    fn write(&self, preemptibility: &Preemptibility, line: &mut Line) {
        for (one, word) in Self::WORDS {
            flag(word).write(&(one == *preemptibility), line);
        }
    }
}

/// Each set is written as `succeeded=set:count`.
pub(super) struct Succeeded;

impl Succeeded {
    const KEY: &str = "succeeded";
}

impl Field<BTreeMap<SetName, u32>> for Succeeded {
    fn read(&self, line: &Line) -> Read<BTreeMap<SetName, u32>> {
        let pairs = line.all(Self::KEY).map(|pair| {
            let (set, count) = pair
                .split_once(':')
                .ok_or_else(|| line.error(format!("{pair} is not set:count")))?;
            Ok((SetName::new(set), line.parsed(Self::KEY, count)?))
        });
        pairs.collect()
    }

    fn write(&self, succeeded: &BTreeMap<SetName, u32>, line: &mut Line) {
        for (set, count) in succeeded {
            line.push_pair(Self::KEY, format!("{set}:{count}"));
        }
    }
}
