//! `aliquot report`: memory granted and not used, and its cost.
//!
//! - `args`: the flags; `uses`: what was granted, as [`Uses`].
//! - `source`: from what a scheduler remembers, or from Prometheus; both as `Uses`.
//! - `prices`: the file of prices; `opencost`: as OpenCost's custom costs.

mod args;
mod opencost;
mod prices;
mod source;
mod uses;

pub(crate) use args::Args;

use crate::connect::block_on;
use crate::failure::{Failure, Outcome};
use crate::report::{Cell, Column, Report, Table, say};
use prices::Prices;
use scheduler::page::ReportBy;
use serde_json::{Value, json};
use std::process::ExitCode;
use uses::{Key, Use, Uses};

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    let prices = args.prices.as_deref().map(Prices::read).transpose()?;
    block_on(async {
        let uses = source::ask(args).await?;
        if args.opencost {
            let costs = opencost::costs(&uses, args.by, prices.as_ref());
            let text = serde_json::to_string_pretty(&costs);
            return say(&(text.map_err(Failure::no)? + "\n"));
        }
        args.output.print(&report(&uses, args.by, prices.as_ref()))
    })?;
    Ok(ExitCode::SUCCESS)
}

const QUEUE: Column = Column::text("queue", "QUEUE");
const NAMESPACE: Column = Column::text("namespace", "NAMESPACE");
const OWNER: Column = Column::text("owner", "WORKLOAD");
const COLUMNS: [Column; 9] = [
    Column::number("gpuHours", "GPU HOURS"),
    Column::number("unusedGpuHours", "UNUSED"),
    Column::number("unusedPercent", "UNUSED %"),
    Column::number("longestIdleMinutes", "LONGEST IDLE"),
    Column::number("mibHours", "MIB HOURS").wide(),
    Column::number("unusedMibHours", "UNUSED MIB HOURS").wide(),
    Column::number("cost", "COST"),
    Column::number("unusedCost", "UNUSED COST"),
    Column::text("currency", "CURRENCY").wide(),
];
static ALL_BY_QUEUE: [Column; 10] = with(&[QUEUE], &COLUMNS);
static ALL_BY_NAMESPACE: [Column; 10] = with(&[NAMESPACE], &COLUMNS);
static ALL_BY_OWNER: [Column; 12] = with(&[NAMESPACE, OWNER, QUEUE], &COLUMNS);

/// These columns, then those. `N` is how many both are.
const fn with<const N: usize>(keys: &[Column], columns: &[Column; 9]) -> [Column; N] {
    let mut all = [QUEUE; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < keys.len() {
            keys[at]
        } else {
            columns[at - keys.len()]
        };
        at += 1;
    }
    all
}

fn report(uses: &Uses, by: ReportBy, prices: Option<&Prices>) -> Report {
    let columns: &'static [Column] = match by {
        ReportBy::Queue => &ALL_BY_QUEUE,
        ReportBy::Namespace => &ALL_BY_NAMESPACE,
        ReportBy::Owner => &ALL_BY_OWNER,
    };
    // Without prices there are no costs.
    let kept = columns.len() - if prices.is_some() { 0 } else { 3 };
    let mut table = Table::new(&columns[..kept], "nothing was granted in that time");
    let mut rows: Vec<(&Key, Use, f64, f64)> = uses
        .rows
        .iter()
        .map(|(key, products)| {
            let sum = products.values().fold(Use::default(), add);
            let cost = |hours: fn(&Use) -> f64| {
                let products = products.iter();
                products
                    .map(|(product, of)| hours(of) * prices.map_or(0.0, |all| all.of(product)))
                    .sum::<f64>()
            };
            let unused = cost(|of| of.gpu_unused.unwrap_or(0.0));
            (key, sum, cost(|of| of.gpu), unused)
        })
        .collect();
    // The largest waste comes first.
    let waste = |of: &Use| of.gpu_unused.unwrap_or(0.0);
    rows.sort_by(|(one, a, ..), (other, b, ..)| {
        (waste(b).total_cmp(&waste(a)))
            .then(b.gpu.total_cmp(&a.gpu))
            .then_with(|| one.cmp(other))
    });
    for (key, of, cost, unused) in rows {
        let mut cells: Vec<Cell> = match by {
            ReportBy::Queue => vec![named(&key.queue, "(no queue)")],
            ReportBy::Namespace => vec![named(&key.namespace, "(no breakdown)")],
            ReportBy::Owner => vec![
                named(&key.namespace, "(no breakdown)"),
                named(&key.owner, "(no breakdown)"),
                key.queue.clone().into(),
            ],
        };
        let percent = of.gpu_unused.filter(|_| of.gpu > 0.0);
        cells.extend([
            decimal(Some(of.gpu), 3),
            decimal(of.gpu_unused, 3),
            decimal(percent.map(|unused| unused / of.gpu * 100.0), 1),
            minutes(of.longest_idle),
            decimal(of.mib, 0),
            decimal(of.mib_unused, 0),
        ]);
        if let Some(prices) = prices {
            cells.extend([
                decimal(Some(cost), 2),
                decimal(of.gpu_unused.map(|_| unused), 2),
                prices.currency.clone().into(),
            ]);
        }
        table.row(cells);
    }
    let mut report = Report::from(table);
    if let Some((all, free)) = uses.cards {
        let text = format!("Cards: {all:.3} GPU-hours, of which {free:.3} were granted to no pod.");
        report.below.push(text.into());
    }
    let of = |millis: u64| {
        let at = i64::try_from(millis).unwrap_or(0);
        jiff::Timestamp::from_millisecond(at).map_or_else(|_| String::new(), |at| at.to_string())
    };
    let (from, until) = (of(uses.from), of(uses.until));
    report
        .below
        .push(format!("From {from} until {until}.").into());
    report
        .below
        .extend(uses.notes.iter().map(|note| note.clone().into()));
    report.document = Some(json!({
        "by": by.as_str(), "from": from, "until": until, "rows": report.table.objects(),
        "cards": uses.cards.map(|(all, free)| json!({"gpuHours": all, "freeGpuHours": free})),
        "notes": uses.notes,
    }));
    report
}

fn add(mut sum: Use, more: &Use) -> Use {
    let both = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    };
    sum.gpu += more.gpu;
    sum.gpu_unused = both(sum.gpu_unused, more.gpu_unused);
    sum.mib = both(sum.mib, more.mib);
    sum.mib_unused = both(sum.mib_unused, more.mib_unused);
    sum.longest_idle = sum.longest_idle.max(more.longest_idle);
    sum
}

fn named(name: &str, unnamed: &str) -> Cell {
    Cell::shown(name, if name.is_empty() { unnamed } else { name })
}

/// A time in minutes, as `1h35m` for people.
fn minutes(minutes: Option<u64>) -> Cell {
    let Some(minutes) = minutes else {
        return Cell::from(None::<u64>);
    };
    let text = match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes}m"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    };
    Cell::shown(minutes, text)
}

/// A number with this many decimals, for people and programs.
fn decimal(number: Option<f64>, digits: usize) -> Cell {
    let Some(number) = number else {
        return Cell::from(None::<u64>);
    };
    let text = format!("{number:.digits$}");
    let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    Cell::shown(value, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Format, Output};

    fn uses() -> Uses {
        let key = |queue: &str, namespace: &str, owner: &str| Key {
            queue: queue.into(),
            namespace: namespace.into(),
            owner: owner.into(),
        };
        let of = |gpu: f64, unused: f64| Use {
            gpu,
            gpu_unused: Some(unused),
            mib: Some(gpu * 80_000.0),
            mib_unused: Some(unused * 80_000.0),
            longest_idle: Some(if unused > 2.0 { 95 } else { 0 }),
        };
        let products = |all: &[(&str, Use)]| {
            let all = all.iter();
            all.map(|(name, of)| ((*name).to_owned(), *of)).collect()
        };
        Uses {
            rows: [
                (
                    key("research", "", ""),
                    products(&[("H100", of(10.0, 2.5)), ("L4", of(4.0, 1.0))]),
                ),
                (key("", "", ""), products(&[("L4", of(1.5, 0.0))])),
            ]
            .into(),
            cards: Some((48.0, 32.5)),
            from: 1_767_225_600_000,
            until: 1_767_312_000_000,
            notes: Vec::new(),
        }
    }

    fn printed(prices: Option<&Prices>, format: Format) -> String {
        let output = Output {
            format,
            no_headers: false,
        };
        output.render(&report(&uses(), ReportBy::Queue, prices), false)
    }

    #[test]
    fn what_is_wasted_most_comes_first_and_costs_go_by_product() {
        assert_eq!(
            printed(None, Format::Table),
            "\
QUEUE       GPU HOURS  UNUSED  UNUSED %  LONGEST IDLE
research       14.000   3.500      25.0         1h35m
(no queue)      1.500   0.000       0.0            0m

Cards: 48.000 GPU-hours, of which 32.500 were granted to no pod.
From 2026-01-01T00:00:00Z until 2026-01-02T00:00:00Z.
"
        );
        let prices = Prices::parse("currency: EUR\ngpuHour: 1\nproducts: {H100: 4.1}").unwrap();
        assert_eq!(
            printed(Some(&prices), Format::Csv),
            "queue,gpuHours,unusedGpuHours,unusedPercent,longestIdleMinutes,mibHours,unusedMibHours,cost,unusedCost,currency\r\n\
             research,14.0,3.5,25.0,95,1120000,280000,45.0,11.25,EUR\r\n\
             ,1.5,0.0,0.0,0,120000,0,1.5,0.0,EUR\r\n"
        );
        let json: Value = serde_json::from_str(&printed(Some(&prices), Format::Json)).unwrap();
        assert_eq!(json["rows"][0]["cost"], 45.0);
        assert_eq!(json["cards"]["freeGpuHours"], 32.5);
    }
}
