//! What such a world is made of: queues, jobs and the steps of what happens.

use proptest::prelude::*;
use scheduler_core::ids::SetName;
use scheduler_core::model::{PodSet, SubGroup};
use std::collections::BTreeMap;

/// One queue; quota and limit in quarters of a GPU.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Among the queues above.
    pub(super) parent: usize,
    /// Of an inner queue: beyond its children's.
    pub(super) quota: u64,
    /// Over the quota; `None`: no limit.
    pub(super) over: Option<u64>,
    pub(super) priority: i32,
    pub(super) weight: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) leaf: usize,
    pub(super) size: u64,
    pub(super) priority: i32,
    pub(super) preemptible: bool,
    pub(super) shape: Shape,
    /// Of each set.
    pub(super) mins: [u32; 3],
    /// Beyond them.
    pub(super) more: [u32; 3],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// Without a group.
    Alone,
    /// One set.
    Flat,
    /// Two sets, all needed.
    Both,
    /// Two sets, one of them needed.
    Either,
    /// A set beside a group of two, of which one is needed.
    Nested,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) what: u8,
    pub(super) which: u8,
    pub(super) size: u16,
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) nodes: Vec<u32>,
    /// A queue above all others.
    pub(super) root: Option<Place>,
    pub(super) middle: Vec<Place>,
    pub(super) leaves: Vec<Place>,
    pub(super) jobs: Vec<Job>,
    /// Nodes, cards, agents and groups come and go as well; limits are not looked at then.
    pub(super) rude: bool,
    pub(super) steps: Vec<Step>,
}

pub(super) fn place(most: u64) -> impl Strategy<Value = Place> {
    let over = prop_oneof![2 => Just(None), 1 => (0_u64..12).prop_map(Some)];
    (0_usize..2, 0..most, over, 100_i32..102, 0_u64..4).prop_map(
        |(parent, quota, over, priority, weight)| Place {
            parent,
            quota,
            over,
            priority,
            weight,
        },
    )
}

pub(super) fn job() -> impl Strategy<Value = Job> {
    let shape = prop::sample::select(vec![
        Shape::Alone,
        Shape::Alone,
        Shape::Flat,
        Shape::Flat,
        Shape::Both,
        Shape::Either,
        Shape::Nested,
    ]);
    let size = prop::sample::select(vec![1_u64, 2, 2, 4, 4, 8]);
    let counts = (
        prop::array::uniform3(1_u32..3),
        prop::array::uniform3(0_u32..2),
    );
    (any::<usize>(), size, 0_i32..3, 0_u8..4, shape, counts).prop_map(
        |(leaf, size, priority, kind, shape, (mins, more))| Job {
            leaf,
            size,
            priority: 50 + priority,
            preemptible: kind > 0,
            shape,
            mins,
            more,
        },
    )
}

pub(super) fn case() -> impl Strategy<Value = Case> {
    let step = (any::<u8>(), any::<u8>(), any::<u16>()).prop_map(|(what, which, size)| Step {
        what,
        which,
        size,
    });
    (
        prop::collection::vec(1_u32..5, 1..4),
        prop::option::of(place(3)),
        prop::collection::vec(place(5), 2),
        prop::collection::vec(place(13), 1..5),
        prop::collection::vec(job(), 1..10),
        0_u8..3,
        prop::collection::vec(step, 1..120),
    )
        .prop_map(|(nodes, root, middle, leaves, mut jobs, rude, steps)| {
            for job in &mut jobs {
                job.leaf %= leaves.len();
            }
            Case {
                nodes,
                root,
                middle,
                leaves,
                jobs,
                rude: rude == 0,
                steps,
            }
        })
}

impl Case {
    /// Names of a job's queues, leaf first.
    pub(super) fn chain(&self, job: &Job) -> Vec<String> {
        let middle = format!("d{}", self.leaves[job.leaf].parent);
        let root = self.root.as_ref().map(|_| "root".to_owned());
        [format!("q{}", job.leaf), middle]
            .into_iter()
            .chain(root)
            .collect()
    }

    /// Name, parent, quota, and what the case says of it; parents first.
    pub(super) fn queues(&self) -> Vec<(String, Option<String>, u64, &Place)> {
        let middle = |index: usize| {
            let leaves = self.leaves.iter().filter(|leaf| leaf.parent == index);
            self.middle[index].quota + leaves.map(|leaf| leaf.quota).sum::<u64>()
        };
        let mut all = Vec::new();
        if let Some(root) = &self.root {
            let quota = root.quota + (0..self.middle.len()).map(middle).sum::<u64>();
            all.push(("root".to_owned(), None, quota, root));
        }
        for (index, place) in self.middle.iter().enumerate() {
            let parent = self.root.as_ref().map(|_| "root".to_owned());
            all.push((format!("d{index}"), parent, middle(index), place));
        }
        for (index, place) in self.leaves.iter().enumerate() {
            let parent = Some(format!("d{}", place.parent));
            all.push((format!("q{index}"), parent, place.quota, place));
        }
        all
    }
}

impl Job {
    pub(super) fn sets(&self) -> &'static [&'static str] {
        match self.shape {
            Shape::Alone | Shape::Flat => &["default"],
            Shape::Both | Shape::Either => &["a", "b"],
            Shape::Nested => &["a", "b", "c"],
        }
    }

    pub(super) fn pods(&self, set: usize) -> u32 {
        if self.shape == Shape::Alone {
            1
        } else {
            self.mins[set] + self.more[set]
        }
    }

    pub(super) fn tree(&self) -> SubGroup {
        let set = |index: usize| PodSet {
            name: SetName::new(self.sets()[index]),
            min: if self.shape == Shape::Alone {
                1
            } else {
                self.mins[index]
            },
            topology: None,
        };
        let of = |sets: Vec<PodSet>, min_children| SubGroup {
            sets,
            min_children,
            ..SubGroup::default()
        };
        match self.shape {
            Shape::Alone | Shape::Flat => of(vec![set(0)], None),
            Shape::Both => of(vec![set(0), set(1)], None),
            Shape::Either => of(vec![set(0), set(1)], Some(1)),
            Shape::Nested => SubGroup {
                groups: vec![SubGroup {
                    name: Some(SetName::new("inner")),
                    ..of(vec![set(1), set(2)], Some(1))
                }],
                ..of(vec![set(0)], None)
            },
        }
    }
}

/// The group has what it needs of these sets.
pub(super) fn is_whole(group: &SubGroup, have: &BTreeMap<&str, u32>) -> bool {
    let sets = group.sets.iter().map(|set| {
        let has = have.get(set.name.as_str()).copied().unwrap_or_default();
        has >= set.min
    });
    let groups = group.groups.iter().map(|inner| is_whole(inner, have));
    let all: Vec<bool> = sets.chain(groups).collect();
    let needed = group.min_children.map_or(all.len(), |min| min as usize);
    all.into_iter().filter(|whole| *whole).count() >= needed
}
