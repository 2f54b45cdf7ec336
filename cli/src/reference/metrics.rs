//! The page of metrics.

use super::{HEAD, cell, source};
use prometheus_client::registry::Registry;
use std::fmt::Write as _;

/// `# HELP`, `# TYPE` and `# UNIT` of a registry that counts nothing yet.
/// Families without a label yet are not encoded: they are read from the source.
fn helped(registry: &Registry, text: &str, prefix: &str) -> String {
    let mut encoded = String::new();
    prometheus_client::encoding::text::encode(&mut encoded, registry).unwrap();
    let mut rows = String::from("| metric | type | meaning |\n|---|---|---|\n");
    let mut lines = encoded.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, words)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let kind = lines
            .next()
            .and_then(|line| line.rsplit(' ').next())
            .unwrap_or_default();
        let name = if kind == "counter" {
            format!("{name}_total")
        } else {
            name.to_owned()
        };
        let _ = writeln!(rows, "| `{name}` | {kind} | {} |", cell(words));
    }
    for call in text.split("registry.register").skip(1) {
        let call = call.split(");").next().unwrap_or_default();
        let mut quoted = call.split('"').skip(1).step_by(2);
        let (Some(name), Some(words)) = (quoted.next(), quoted.next()) else {
            continue;
        };
        if rows.contains(&format!("`{prefix}{name}")) {
            continue;
        }
        let field = call.split("meters.").nth(1);
        let field = field.and_then(|rest| rest.split('.').next());
        let declared = field
            .and_then(|field| text.split_once(&format!("    {field}: Family<")))
            .and_then(|(_, rest)| rest.lines().next())
            .unwrap_or_default();
        let (kind, end) = if declared.contains("Gauge") {
            ("gauge", "")
        } else {
            ("counter", "_total")
        };
        let words = cell(words);
        let _ = writeln!(rows, "| `{prefix}{name}{end}` | {kind} | {words} |");
    }
    rows
}

/// Gauges that are read from the node's state: `"aliquot_...", "words", Some(Unit::...)`.
fn gauges(text: &str) -> String {
    let mut rows = String::from("| metric | type | meaning |\n|---|---|---|\n");
    let quoted = |line: &str| {
        line.trim()
            .strip_prefix('"')?
            .strip_suffix("\",")
            .map(str::to_owned)
    };
    let lines: Vec<&str> = text.lines().collect();
    for three in lines.windows(3) {
        if let [Some(name), Some(words)] = [quoted(three[0]), quoted(three[1])]
            && name.starts_with("aliquot_")
        {
            let unit = if three[2].contains("Unit::Bytes") {
                "_bytes"
            } else {
                ""
            };
            let _ = writeln!(rows, "| `{name}{unit}` | gauge | {} |", cell(&words));
        }
    }
    rows
}

/// With a series of each of KAI's families: one without any is not shown.
fn scheduler_registry() -> Registry {
    let mut registry = Registry::default();
    let meters = scheduler::status::Meters::registered(&mut registry);
    let mut core = scheduler_core::Core::new(scheduler_core::Config::default());
    for event in scheduler_core::text::read("queue q product.L4=0/0 product-mib.T4=0/0\n").unwrap()
    {
        core.apply(event);
    }
    let queues = scheduler::report::QueueMeters::registered(&mut registry);
    queues.set(&core.queues());
    queues.set_capacity([0; 3]);
    let _ = scheduler::usage::UsageMeters::registered(&mut registry);
    let _ = scheduler::scale_up::ScaleUpMeters::registered(&mut registry);
    let none = std::time::Duration::ZERO;
    let _ = meters.lengths().gauge("actions");
    meters.decided(&scheduler_core::Decision::default(), none, none);
    meters.evicted(&scheduler::status::Victim {
        podgroup: String::new(),
        namespace: String::new(),
        uid: String::new(),
        nodepool: String::new(),
        action: "preempt",
    });
    registry
}

pub(super) fn metrics() -> String {
    let scheduler = scheduler_registry();
    let mut heard = Registry::default();
    let _ = scheduler::telemetry::AgentMeters::registered(&mut heard);
    let mut agent = Registry::default();
    let lengths = channel::Lengths::default();
    let _ = lengths.gauge("events");
    let _ = agent::telemetry::metrics::Meters::new(&mut agent, &lengths);
    let agent_source = source("agent/src/telemetry/metrics.rs");
    format!(
        "{HEAD}# Metrics\n\nOpenMetrics 1.0, at `/metrics`.\n\n## Scheduler\n\n{}\n### Of agents\n\n{}\n## Agent\n\n{}\n## Agent, per card and per share\n\nLabels are dcgm-exporter's: `gpu`, `UUID`, `device`, `modelName`, `Hostname`, and for a share `namespace`, `pod`, `container`.\n\n{}",
        helped(
            &scheduler,
            &["status", "usage", "scale_up"]
                .map(|part| source(&format!("scheduler/src/{part}/meters.rs")))
                .concat(),
            "aliquot_scheduler_"
        ),
        helped(
            &heard,
            &source("scheduler/src/telemetry/meters.rs"),
            "aliquot_scheduler_agents_"
        ),
        helped(&agent, &agent_source, ""),
        gauges(
            agent_source
                .split_once("CARD_GAUGES")
                .map_or("", |(_, rest)| rest)
        ),
    )
}

#[test]
fn every_family_of_metrics_is_on_the_page() {
    let mut heard = Registry::default();
    let _ = scheduler::telemetry::AgentMeters::registered(&mut heard);
    let mut agent = Registry::default();
    let lengths = channel::Lengths::default();
    let _ = lengths.gauge("events");
    let _ = agent::telemetry::metrics::Meters::new(&mut agent, &lengths);
    let page = metrics();
    let mut count = 0;
    for registry in [scheduler_registry(), heard, agent] {
        // What is registered, with a series or without.
        let all = format!("{registry:?}");
        for (_, rest) in all
            .split("Descriptor {")
            .skip(1)
            .filter_map(|one| one.split_once("name: \""))
        {
            let name = rest.split('"').next().unwrap();
            assert!(page.contains(name), "{name} is not on the page");
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}
