//! `aliquot queues`: the tree of queues with what each may have, has and wants.
//!
//! Fair shares are those of the next decision, computed by the core itself.

use crate::connect::block_on;
use crate::failure::Outcome;
use crate::report::{Cell, Column, Follow, Output, Report, Table, Tone};
use crate::shadow::{Shadow, Source};
use scheduler::forecast::{Estimate, in_words};
use scheduler_core::ids::QueueName;
use scheduler_core::model::ProductUnit;
use scheduler_core::units::{Bound, Time};
use scheduler_core::{ProductView, QueueView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Flags of `aliquot queues`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    follow: Follow,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    block_on(async {
        let look = async || Ok(look(&mut args.source.load().await?));
        Box::pin(args.follow.print(args.output, look)).await
    })?;
    Ok(ExitCode::SUCCESS)
}

const COLUMNS: &[Column] = &[
    Column::text("queue", "QUEUE"),
    Column::text("product", "PRODUCT").wide(),
    // Of the quota, the limit and what is used.
    Column::text("unit", "UNIT").wide(),
    Column::number("gpuQuota", "QUOTA"),
    Column::number("gpuLimit", "LIMIT"),
    Column::number("gpuFairShare", "FAIR SHARE"),
    Column::number("gpuUsed", "USED"),
    Column::number("gpuWanted", "WANTED"),
    Column::number("running", "RUNNING"),
    Column::number("pending", "PENDING"),
    Column::text("nextStartMs", "NEXT START"),
    Column::number("gpuPastUse", "PAST USE").wide(),
    Column::number("priority", "PRIORITY").wide(),
    Column::text("parent", "PARENT").wide(),
    Column::number("cpuUsedMilli", "CPU USED").wide(),
    Column::number("cpuFairShareMilli", "CPU FAIR").wide(),
    Column::number("memoryUsedBytes", "MEMORY USED").wide(),
    Column::number("memoryFairShareBytes", "MEMORY FAIR").wide(),
];

fn look(shadow: &mut Shadow) -> Report {
    let queues = shadow.queues();
    let starts = Starts::of(shadow, &queues);
    report(&queues, &starts)
}

/// The estimated start of the first waiting pod of each queue.
#[derive(Debug, Default)]
struct Starts {
    now: Time,
    first: BTreeMap<QueueName, Time>,
}

impl Starts {
    /// A queue starts no later than the queues below it.
    fn of(shadow: &Shadow, queues: &[QueueView]) -> Self {
        let mut starts = Self::default();
        if queues.iter().all(|queue| queue.waiting == 0) {
            return starts;
        }
        let parents = queues
            .iter()
            .map(|view| (&view.queue, view.parent.as_ref()));
        let parents: BTreeMap<_, _> = parents.collect();
        let forecast = shadow.forecast();
        starts.now = forecast.made;
        for (pod, estimate) in &forecast.pods {
            let Estimate::About { time, .. } = *estimate else {
                continue;
            };
            let mut queue = shadow.queue_of(pod);
            // Queues in a cycle have no root; a tree cannot be deeper than its number of queues.
            for _ in queues {
                let Some(name) = queue else { break };
                queue = parents.get(&name).copied().flatten().cloned();
                let first = starts.first.entry(name).or_insert(time);
                *first = time.min(*first);
            }
        }
        starts
    }

    fn cell(&self, queue: &QueueName) -> Cell {
        match self.first.get(queue) {
            Some(time) if *time > self.now => {
                Cell::shown(time.0, format!("in {}", in_words(time.since(self.now))))
            }
            Some(time) => Cell::shown(time.0, "now"),
            None => Cell::from(None::<&str>),
        }
    }
}

fn report(queues: &[QueueView], starts: &Starts) -> Report {
    let mut table = Table::new(COLUMNS, "there are no queues");
    // A missing parent makes its children roots of their own.
    let there = |name: &str| queues.iter().any(|queue| queue.queue.as_str() == name);
    let roots = queues.iter().filter(|queue| {
        let parent = queue.parent.as_ref();
        parent.is_none_or(|parent| !there(parent.as_str()))
    });
    for root in roots {
        branch(&mut table, queues, starts, root, 0);
    }
    Report::from(table)
}

fn branch(
    table: &mut Table,
    queues: &[QueueView],
    starts: &Starts,
    queue: &QueueView,
    depth: usize,
) {
    // Queues in a cycle have no root; a tree cannot be deeper than its number of queues.
    if depth > queues.len() {
        return;
    }
    table.row(row(queue, starts, depth));
    for product in &queue.products {
        table.row(product_row(queue, product, depth + 1));
    }
    let children = queues
        .iter()
        .filter(|child| child.parent.as_ref() == Some(&queue.queue));
    for child in children {
        branch(table, queues, starts, child, depth + 1);
    }
}

fn row(queue: &QueueView, starts: &Starts, depth: usize) -> Vec<Cell> {
    let name = queue.queue.as_str();
    let mut shown = format!("{}{name}", "  ".repeat(depth));
    if let Some(display) = &queue.display_name {
        shown = format!("{shown} ({display})");
    }
    let used = gpus(queue.held[0]);
    let over = match queue.quota[0] {
        Bound::Exactly(quota) => queue.held[0] > u128::from(quota),
        Bound::Unlimited => false,
    };
    let fair = |index: usize| queue.fair.map(|fair| number(fair[index]));
    vec![
        Cell::shown(name, shown),
        Cell::from(None::<&str>),
        Cell::from("GPUs"),
        bound(queue.quota[0]),
        bound(queue.limit[0]),
        Cell::from(queue.fair.map(|fair| gpus(fair[0]))),
        used.tone(if over { Tone::Warn } else { Tone::Plain }),
        gpus(queue.wanted[0]),
        queue.holding.into(),
        Cell::from(queue.waiting).tone(if queue.waiting > 0 {
            Tone::Warn
        } else {
            Tone::Plain
        }),
        starts.cell(&queue.queue),
        // Objects do not say it; a snapshot does.
        Cell::from((queue.usage[0] > 0).then(|| gpus(u128::from(queue.usage[0])))),
        Cell::shown(queue.priority, queue.priority.to_string()),
        Cell::from(queue.parent.as_ref().map(ToString::to_string)),
        number(queue.held[1]),
        Cell::from(fair(1)),
        number(queue.held[2]),
        Cell::from(fair(2)),
    ]
}

/// A GPU product that the queue names, below it.
fn product_row(queue: &QueueView, product: &ProductView, depth: usize) -> Vec<Cell> {
    let row = &product.row;
    let name = queue.queue.as_str();
    let nothing = || Cell::from(None::<&str>);
    let quota = row.quota.and_then(|quota| row.unit.billionths(quota));
    let over = quota.is_some_and(|quota| product.held > quota);
    let bound = |bound| match row.unit.billionths(bound) {
        Some(billionths) => gpus(billionths),
        None => self::bound(bound),
    };
    let (unit, suffix) = match row.unit {
        ProductUnit::Gpus => ("GPUs", ""),
        ProductUnit::Memory => ("MiB", " MiB"),
    };
    let mut cells = vec![
        Cell::shown(
            name,
            format!("{}{}{suffix}", "  ".repeat(depth), row.product),
        ),
        Cell::from(&*row.product),
        Cell::from(unit),
        row.quota.map_or_else(nothing, bound),
        bound(row.limit),
        nothing(),
        gpus(product.held).tone(if over { Tone::Warn } else { Tone::Plain }),
    ];
    cells.resize_with(COLUMNS.len(), nothing);
    cells
}

fn number(amount: u128) -> Cell {
    Cell::from(u64::try_from(amount).unwrap_or(u64::MAX))
}

/// GPUs with three decimals at most.
#[allow(clippy::cast_precision_loss)] // Far below 2^53 thousandths.
pub(crate) fn gpus(nano: u128) -> Cell {
    let text = format!("{:.3}", nano as f64 / 1e9);
    let text = text.trim_end_matches('0').trim_end_matches('.').to_owned();
    let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    Cell::shown(value, text)
}

fn bound(bound: Bound) -> Cell {
    match bound {
        Bound::Unlimited => Cell::shown(Value::from(-1), "unlimited"),
        Bound::Exactly(nano) => gpus(u128::from(nano)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shadow::Shadow;

    fn output_of(shadow: &mut Shadow) -> String {
        Output::default().render(&look(shadow), false)
    }

    #[test]
    fn queues_are_a_tree_with_what_they_may_have_and_have() {
        let text = "\
node n1 cpu=64000 memory=274877906944 pods=110 gpus=2 managed extended.aliquot.dev/gpu-share=96
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
  card GPU-2 index=1 product=L4 total=23034 reserved=34
queue company
queue team parent=company gpu=500000000/-1/1000000
pod a queue=team created=1 gpu-fraction.main=500000000 extended.aliquot.dev/gpu-share=1
pod b queue=team created=2 gpus.main=2
";
        let mut shadow = Shadow::of_text(text, scheduler_core::Config::default(), "")
            .unwrap_or_else(|why| panic!("{why}"));
        let before = output_of(&mut shadow);
        assert!(
            before.contains(
                "company  unlimited  unlimited           2     0     2.5        0        2"
            ),
            "{before}"
        );
        shadow.settle();
        assert_eq!(
            output_of(&mut shadow),
            "\
QUEUE        QUOTA      LIMIT  FAIR SHARE  USED  WANTED  RUNNING  PENDING  NEXT START
company  unlimited  unlimited           2   0.5       2        1        1  -
  team         0.5  unlimited           2   0.5       2        1        1  -
"
        );
    }

    #[test]
    fn products_that_a_queue_names_stand_below_it() {
        let text = "\
node n1 cpu=64000 memory=274877906944 pods=110 gpus=2 label.nvidia.com/gpu.product=NVIDIA-L4
queue team product.NVIDIA-H100=/0 product.NVIDIA-L4=500000000/2000000000 product-mib.NVIDIA-T4=15360/30720
pod a queue=team created=1 gpus.main=1
";
        let mut shadow = Shadow::of_text(text, scheduler_core::Config::default(), "")
            .unwrap_or_else(|why| panic!("{why}"));
        shadow.settle();
        assert_eq!(
            output_of(&mut shadow),
            "\
QUEUE                QUOTA      LIMIT  FAIR SHARE  USED  WANTED  RUNNING  PENDING  NEXT START
team             unlimited  unlimited           1     1       0        1        0  -
  NVIDIA-H100            -          0           -     0       -        -        -  -
  NVIDIA-L4            0.5          2           -     1       -        -        -  -
  NVIDIA-T4 MiB      15360      30720           -     0       -        -        -  -
"
        );
    }

    #[test]
    fn a_queue_says_when_the_first_of_its_pods_starts_and_so_does_the_one_above_it() {
        use scheduler::watch::{Fact, Seen};
        let text = "\
tick 100000000
node n1 cpu=2000 memory=274877906944 pods=110
queue company
queue a parent=company
queue b parent=company
";
        let name = proto::names::kai::SCHEDULER_NAME;
        let mut shadow = Shadow::of_text(text, scheduler_core::Config::default(), name)
            .unwrap_or_else(|why| panic!("{why}"));
        let mut pod = |name: &str, queue: &str, cpu: &str, runs: Option<&str>| {
            let mut pod = serde_json::json!({
                "metadata": {"name": name, "namespace": "team", "uid": name,
                    "labels": {"kai.scheduler/queue": queue}},
                "spec": {"schedulerName": proto::names::kai::SCHEDULER_NAME, "containers": [
                    {"name": "main", "resources": {"requests": {"cpu": cpu}}}]},
            });
            if let Some(time) = runs {
                pod["metadata"]["annotations"] =
                    serde_json::json!({"aliquot.dev/expected-run-time": time});
                pod["spec"]["nodeName"] = "n1".into();
                // Forty minutes before.
                pod["status"] =
                    serde_json::json!({"phase": "Running", "startTime": "1970-01-02T03:06:40Z"});
            }
            shadow.take(Fact::Pod(Seen::There(serde_json::from_value(pod).unwrap())));
        };
        pod("one", "a", "1", Some("2h"));
        pod("two", "a", "1", Some("3h"));
        pod("first", "a", "1", None);
        pod("next", "b", "2", None);
        let told = output_of(&mut shadow);
        let of = |queue: &str| {
            let line = told
                .lines()
                .find(|line| line.trim_start().starts_with(queue));
            line.unwrap().to_owned()
        };
        assert!(of("a").ends_with("in 1 h 20 min"), "{told}");
        assert!(of("company").ends_with("in 1 h 20 min"), "{told}");
        // The pod that runs before this one has no known end.
        assert!(of("b").ends_with('-'), "{told}");
    }
}
