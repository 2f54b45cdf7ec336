//! Settings ↔ text: `config gpu=spread without=minruntime`. Omitted settings have their defaults;
//! values of the process are not written.

use super::line::Line;
use super::read::{Read, list, parsed};
use super::write::Text;
use crate::config::{Config, Placement, Plugin, Resolve, ScaleDown, Step, Workers};
use crate::units::Duration;
use std::fmt::Display;
use std::sync::Arc;

/// Where a number bounds something: nothing does.
const NONE: &str = "none";
const STEPS: [(Step, &str); 5] = [
    (Step::Allocate, "allocate"),
    (Step::Consolidation, "consolidation"),
    (Step::Reclaim, "reclaim"),
    (Step::Preempt, "preempt"),
    (Step::StaleGangEviction, "stalegangeviction"),
];
const RESOLVES: [(Resolve, &str); 2] = [(Resolve::Lca, "lca"), (Resolve::Queue, "queue")];
const TRUTHS: [(bool, &str); 2] = [(true, "true"), (false, "false")];
const PLACEMENTS: [(Placement, &str); 3] = [
    (Placement::Binpack, "binpack"),
    (Placement::Spread, "spread"),
    (Placement::Fragmentation, "fragmentation"),
];

fn name<T: PartialEq>(names: &[(T, &'static str)], of: &T) -> &'static str {
    let found = names.iter().find(|(one, _)| one == of);
    found.map_or("", |(_, name)| *name)
}

fn named<T: Copy>(line: &Line, names: &[(T, &'static str)], text: &str) -> Read<T> {
    let found = names.iter().find(|(_, name)| *name == text);
    found
        .map(|(one, _)| *one)
        .ok_or_else(|| line.error(format!("{text} is no setting")))
}

impl Text {
    pub(super) fn config(&mut self, config: &Config) {
        // Each field by name: one that is added must be written, too.
        let Config {
            epoch: _,
            backoff_first,
            backoff_longest,
            bases,
            budget,
            actions,
            gpu_placement,
            cpu_placement,
            card_placement,
            without,
            workers,
            keep_empty_nodes,
            scale_down,
            k_value,
            consolidation_jobs,
            consolidation_min_age,
            most_favoured,
            staleness_grace,
            preempt_min_runtime,
            reclaim_min_runtime,
            reclaim_resolve,
            queue_priority_in_quota,
            saturation_multiplier,
            most_counted: _,
            verify: _,
        } = config;
        let usual = Config::default();
        self.bare("config");
        let gpu = name(&PLACEMENTS, gpu_placement);
        self.unless("gpu", gpu, name(&PLACEMENTS, &usual.gpu_placement));
        let cpu = name(&PLACEMENTS, cpu_placement);
        self.unless("cpu", cpu, name(&PLACEMENTS, &usual.cpu_placement));
        self.some("cards", card_placement.map(|of| name(&PLACEMENTS, &of)));
        for plugin in without {
            self.pair("without", name(&Plugin::ALL, plugin));
        }
        if let Some(Workers { gpu, cpu }) = workers {
            self.pair("gpu-workers", gpu);
            self.pair("cpu-workers", cpu);
        }
        if *actions != usual.actions {
            let steps: Vec<&str> = actions.iter().map(|step| name(&STEPS, step)).collect();
            self.pair("actions", steps.join(","));
        }
        self.unless("keep-empty", *keep_empty_nodes, usual.keep_empty_nodes);
        if let Some(ScaleDown { delay, pods }) = scale_down {
            self.pair("scale-down", format!("{}/{pods}", delay.0));
        }
        self.unless("k-value", *k_value, usual.k_value);
        self.bound(
            "consolidation-jobs",
            *consolidation_jobs,
            usual.consolidation_jobs,
        );
        self.unless(
            "consolidation-min-age",
            consolidation_min_age.0,
            usual.consolidation_min_age.0,
        );
        self.bound("most-favoured", *most_favoured, usual.most_favoured);
        let millis = |time: Option<Duration>| time.map(|time| time.0);
        self.bound(
            "staleness-grace",
            millis(*staleness_grace),
            millis(usual.staleness_grace),
        );
        self.unless(
            "preempt-min-runtime",
            preempt_min_runtime.0,
            usual.preempt_min_runtime.0,
        );
        self.unless(
            "reclaim-min-runtime",
            reclaim_min_runtime.0,
            usual.reclaim_min_runtime.0,
        );
        if *reclaim_resolve == Resolve::Queue {
            self.pair("reclaim-resolve", "queue");
        }
        if *queue_priority_in_quota {
            self.pair("queue-priority-in-quota", true);
        }
        self.unless(
            "saturation",
            *saturation_multiplier,
            usual.saturation_multiplier,
        );
        self.unless("budget", *budget, usual.budget);
        self.unless("backoff-first", backoff_first.0, usual.backoff_first.0);
        self.unless(
            "backoff-longest",
            backoff_longest.0,
            usual.backoff_longest.0,
        );
        for (product, mib) in bases {
            self.pair(&format!("base.{product}"), mib);
        }
        self.end();
    }

    fn bound<T: PartialEq + Display>(&mut self, key: &str, value: Option<T>, usual: Option<T>) {
        if value == usual {
            return;
        }
        match value {
            Some(value) => self.pair(key, value),
            None => self.pair(key, NONE),
        }
    }
}

pub(super) fn config(line: &Line) -> Read<Config> {
    let mut config = Config::default();
    let number = |key: &str, to: &mut u64| -> Read<()> {
        if let Some(value) = line.number(key)? {
            *to = value;
        }
        Ok(())
    };
    if let Some(text) = line.get("gpu") {
        config.gpu_placement = named(line, &PLACEMENTS, text)?;
    }
    if let Some(text) = line.get("cpu") {
        config.cpu_placement = named(line, &PLACEMENTS, text)?;
    }
    if let Some(text) = line.get("cards") {
        config.card_placement = Some(named(line, &PLACEMENTS, text)?);
    }
    for text in line.all("without") {
        config.without.insert(named(line, &Plugin::ALL, text)?);
    }
    if let (Some(gpu), Some(cpu)) = (line.get("gpu-workers"), line.get("cpu-workers")) {
        let (gpu, cpu) = (Arc::from(gpu), Arc::from(cpu));
        config.workers = Some(Workers { gpu, cpu });
    }
    if let Some(text) = line.get("actions") {
        let steps = list(Some(text));
        let steps = steps.iter().map(|text| named(line, &STEPS, text));
        config.actions = steps.collect::<Read<_>>()?;
    }
    if let Some(count) = line.number("keep-empty")? {
        config.keep_empty_nodes = count;
    }
    if let Some(text) = line.get("scale-down") {
        let (delay, pods) = text.split_once('/').unwrap_or((text, ""));
        config.scale_down = Some(ScaleDown {
            delay: Duration(parsed(line, delay)?),
            pods: parsed(line, pods)?,
        });
    }
    config.consolidation_jobs = bound(line, "consolidation-jobs", config.consolidation_jobs)?;
    number("consolidation-min-age", &mut config.consolidation_min_age.0)?;
    config.most_favoured = bound(line, "most-favoured", config.most_favoured)?;
    let grace = config.staleness_grace.map(|grace| grace.0);
    config.staleness_grace = bound(line, "staleness-grace", grace)?.map(Duration);
    number("k-value", &mut config.k_value)?;
    number("preempt-min-runtime", &mut config.preempt_min_runtime.0)?;
    number("reclaim-min-runtime", &mut config.reclaim_min_runtime.0)?;
    if let Some(text) = line.get("reclaim-resolve") {
        config.reclaim_resolve = named(line, &RESOLVES, text)?;
    }
    if let Some(text) = line.get("queue-priority-in-quota") {
        config.queue_priority_in_quota = named(line, &TRUTHS, text)?;
    }
    number("saturation", &mut config.saturation_multiplier)?;
    number("budget", &mut config.budget)?;
    number("backoff-first", &mut config.backoff_first.0)?;
    number("backoff-longest", &mut config.backoff_longest.0)?;
    for (product, mib) in line.prefixed("base") {
        let mib = mib.parse();
        let mib = mib.map_err(|_| line.error(format!("base.{product} is not a number")))?;
        config.bases.insert(product.to_owned(), mib);
    }
    Ok(config)
}

/// What the line says, else as usual.
fn bound<T: std::str::FromStr>(line: &Line, key: &str, usual: Option<T>) -> Read<Option<T>> {
    if line.get(key) == Some(NONE) {
        return Ok(None);
    }
    Ok(line.number(key)?.or(usual))
}

#[cfg(test)]
mod tests {
    use super::super::{read, write};
    use super::*;
    use crate::Event;
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
