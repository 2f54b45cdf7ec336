//! This file has the table of settings: `config gpu=spread without=minruntime`.

use super::field::{All, Apart, Field, Map, Object, Present, fields, key, needed, or};
use super::line::{Line, Read};
use super::value::Value;
use crate::config::{Config, Workers};

fields!(Config, usual = Config::default(), {
    epoch: Apart(usual.epoch),
    gpu_placement: or("gpu", usual.gpu_placement),
    cpu_placement: or("cpu", usual.cpu_placement),
    card_placement: key("cards"),
    without: All("without"),
    gpu_job_order: key("gpu-job-order"),
    background: key("background"),
    workers: Present(&["gpu-workers"]),
    actions: or("actions", usual.actions),
    keep_empty_nodes: or("keep-empty", usual.keep_empty_nodes),
    scale_down: key("scale-down"),
    k_value: or("k-value", usual.k_value),
    consolidation_jobs: Most("consolidation-jobs", usual.consolidation_jobs),
    consolidation_min_age: or("consolidation-min-age", usual.consolidation_min_age),
    most_favoured: Most("most-favoured", usual.most_favoured),
    staleness_grace: Most("staleness-grace", usual.staleness_grace),
    preempt_min_runtime: or("preempt-min-runtime", usual.preempt_min_runtime),
    reclaim_min_runtime: or("reclaim-min-runtime", usual.reclaim_min_runtime),
    reclaim_resolve: key("reclaim-resolve"),
    queue_priority_in_quota: key("queue-priority-in-quota"),
    saturation_multiplier: or("saturation", usual.saturation_multiplier),
    budget: or("budget", usual.budget),
    backoff_first: or("backoff-first", usual.backoff_first),
    backoff_longest: or("backoff-longest", usual.backoff_longest),
    bases: Map("base"),
    most_counted: Apart(usual.most_counted),
    verify: Apart(usual.verify),
});

fields!(Workers {
    gpu: needed("gpu-workers"),
    cpu: needed("cpu-workers"),
});

/// The field is a number or `none`, and is left out if it is the usual bound.
struct Most<T>(&'static str, Option<T>);

impl<T: Value + Clone + PartialEq> Field<Option<T>> for Most<T> {
    fn read(&self, line: &Line) -> Read<Option<T>> {
        if line.get(self.0) == Some("none") {
            return Ok(None);
        }
        Ok(line.value(self.0)?.or_else(|| self.1.clone()))
    }

    fn write(&self, bound: &Option<T>, line: &mut Line) {
        if *bound != self.1 {
            let text = bound.as_ref().map(Value::text);
            line.push_pair(self.0, text.as_deref().unwrap_or("none"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{read, write};
    use super::*;
    use crate::Event;
    use crate::config::{GpuJobOrder, Placement, Plugin, Resolve, ScaleDown, Step};
    use crate::model::{Operator, Requirement};
    use crate::units::Duration;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn every_setting_is_written_and_read_again_as_it_was() {
        let all = Config {
            backoff_first: Duration(1),
            backoff_longest: Duration(2),
            bases: BTreeMap::from([("NVIDIA L4".to_owned(), 23_034)]),
            budget: 3,
            actions: vec![Step::Preempt, Step::Allocate],
            gpu_placement: Placement::Spread,
            cpu_placement: Placement::Fragmentation,
            card_placement: Some(Placement::Binpack),
            without: Plugin::ALL.map(|(plugin, _)| plugin).into(),
            gpu_job_order: Some(GpuJobOrder::PreferSmaller),
            background: Some(vec![Requirement {
                key: "role".into(),
                operator: Operator::In(vec!["check".into(), "probe".into()]),
            }]),
            workers: Some(Workers::default()),
            keep_empty_nodes: 4,
            scale_down: Some(ScaleDown {
                delay: Duration(4),
                pods: 5,
            }),
            k_value: 5,
            consolidation_jobs: None,
            consolidation_min_age: Duration(9),
            most_favoured: Some(6),
            staleness_grace: None,
            preempt_min_runtime: Duration(7),
            reclaim_min_runtime: Duration(8),
            reclaim_resolve: Resolve::Queue,
            queue_priority_in_quota: true,
            saturation_multiplier: 9,
            ..Config::default()
        };
        let none = Config {
            actions: Vec::new(),
            without: BTreeSet::new(),
            ..all.clone()
        };
        for config in [all, none, Config::default()] {
            let events = [Event::Config(Box::new(config))];
            let text = write(&events);
            assert_eq!(read(&text).as_deref(), Ok(events.as_slice()), "{text}");
        }
        let wrong = read("config gpu=thin\n").map_err(|error| error.what);
        assert_eq!(wrong, Err("thin is no setting".to_owned()));
    }
}
