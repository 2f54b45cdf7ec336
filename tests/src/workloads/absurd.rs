//! Objects as large as admission lets them be.

use super::{event, nodes, pod, queue};
use scheduler_core::event::Event;
use scheduler_core::ids::{GroupName, QueueName, SetName};
use scheduler_core::model::{PodGroup, PodSet};

/// A tree of queues of this many levels, one in each, and pending pods in the lowest.
pub fn deep(levels: usize, pods: usize) -> Vec<Event> {
    let mut events = nodes(100);
    for level in 0..levels {
        let parent = level.checked_sub(1).map(|above| format!("level-{above}"));
        events.push(queue(&format!("level-{level}"), parent.as_deref(), None, 1));
    }
    let lowest = format!("level-{}", levels - 1);
    for index in 0..pods {
        events.push(event(pod(&format!("p-{index:05}"), &lowest, 1)));
    }
    events
}

/// A group of this many sub-groups that each need one pod and have eight, with room for all.
pub fn elastic_parts(parts: usize) -> Vec<Event> {
    let mut events = nodes(parts);
    events.push(queue("queue-0", None, None, 1));
    let mut group = PodGroup::named("default/parts", 1);
    group.queue = QueueName::new("queue-0");
    let set = |index: usize| PodSet {
        name: SetName::new(format!("part-{index:04}")),
        min: 1,
        topology: None,
    };
    group.root.sets = (0..parts).map(set).collect();
    events.push(Event::Group(group));
    for index in 0..parts * 8 {
        let mut new = pod(&format!("parts-{index:05}"), "queue-0", 1);
        new.group = Some(GroupName::new("default/parts"));
        new.sub_group = Some(SetName::new(format!("part-{:04}", index / 8)));
        events.push(event(new));
    }
    events
}
