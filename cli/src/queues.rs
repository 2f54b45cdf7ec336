//! `aliquot queues`: the tree of queues with what each may have, has and wants.
//!
//! Fair shares are those of the next decision, computed by the core itself.

use crate::connect::block_on;
use crate::failure::Outcome;
use crate::report::{Cell, Column, Follow, Output, Report, Table, Tone};
use crate::shadow::Source;
use scheduler_core::model::ProductUnit;
use scheduler_core::units::Bound;
use scheduler_core::{ProductView, QueueView};
use serde_json::Value;
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
        let look = async || Ok(report(&args.source.load().await?.queues()));
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
    Column::number("gpuPastUse", "PAST USE").wide(),
    Column::number("priority", "PRIORITY").wide(),
    Column::text("parent", "PARENT").wide(),
    Column::number("cpuUsedMilli", "CPU USED").wide(),
    Column::number("cpuFairShareMilli", "CPU FAIR").wide(),
    Column::number("memoryUsedBytes", "MEMORY USED").wide(),
    Column::number("memoryFairShareBytes", "MEMORY FAIR").wide(),
];

fn report(queues: &[QueueView]) -> Report {
    let mut table = Table::new(COLUMNS, "there are no queues");
    // A missing parent makes its children roots of their own.
    let there = |name: &str| queues.iter().any(|queue| queue.queue.as_str() == name);
    let roots = queues.iter().filter(|queue| {
        let parent = queue.parent.as_ref();
        parent.is_none_or(|parent| !there(parent.as_str()))
    });
    for root in roots {
        branch(&mut table, queues, root, 0);
    }
    Report::from(table)
}

fn branch(table: &mut Table, queues: &[QueueView], queue: &QueueView, depth: usize) {
    // Queues in a cycle have no root; a tree cannot be deeper than its number of queues.
    if depth > queues.len() {
        return;
    }
    table.row(row(queue, depth));
    for product in &queue.products {
        table.row(product_row(queue, product, depth + 1));
    }
    let children = queues
        .iter()
        .filter(|child| child.parent.as_ref() == Some(&queue.queue));
    for child in children {
        branch(table, queues, child, depth + 1);
    }
}

fn row(queue: &QueueView, depth: usize) -> Vec<Cell> {
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

    fn output_of(queues: &[QueueView]) -> String {
        Output::default().render(&report(queues), false)
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
        let before = output_of(&shadow.queues());
        assert!(
            before.contains(
                "company  unlimited  unlimited           2     0     2.5        0        2"
            ),
            "{before}"
        );
        shadow.settle();
        assert_eq!(
            output_of(&shadow.queues()),
            "\
QUEUE        QUOTA      LIMIT  FAIR SHARE  USED  WANTED  RUNNING  PENDING
company  unlimited  unlimited           2   0.5       2        1        1
  team         0.5  unlimited           2   0.5       2        1        1
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
            output_of(&shadow.queues()),
            "\
QUEUE                QUOTA      LIMIT  FAIR SHARE  USED  WANTED  RUNNING  PENDING
team             unlimited  unlimited           1     1       0        1        0
  NVIDIA-H100            -          0           -     0       -        -        -
  NVIDIA-L4            0.5          2           -     1       -        -        -
  NVIDIA-T4 MiB      15360      30720           -     0       -        -        -
"
        );
    }
}
