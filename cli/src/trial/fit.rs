//! `aliquot fit`: how often a request fits now, and where, without evictions.

use super::intake::Intake;
use crate::connect::block_on;
use crate::failure::{Failure, NO, Outcome};
use crate::report::{Cell, Column, Output, Report, Table, Tone};
use crate::shadow::{Shadow, Source};
use scheduler::trial::Wanted;
use scheduler_core::{Action, Decision};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Without --count, this many are tried.
const MOST: u32 = 1000;

/// Flags of `aliquot fit`.
#[derive(Clone, Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("request").required(true).args(["gpu_memory", "gpu_fraction", "gpus"])))]
pub(crate) struct Args {
    /// Memory of the share: MiB, or a quantity such as 8Gi.
    #[arg(long, value_name = "MIB", value_parser = mib)]
    gpu_memory: Option<u64>,
    /// Memory of the share as a fraction of a card.
    #[arg(long, value_name = "PART")]
    gpu_fraction: Option<String>,
    /// Number of whole GPUs, on one node.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    gpus: Option<u32>,
    /// Number of GPUs of one node on each of which the pod has such a share.
    #[arg(long, value_name = "N", conflicts_with = "gpus")]
    devices: Option<u32>,
    /// Compute limit of the share, per cent.
    #[arg(long, value_name = "PERCENT", conflicts_with = "gpus")]
    gpu_compute: Option<u32>,
    /// Check whether this many pods fit; by default, count how many do, up to 1000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: Option<u32>,
    /// Queue of the pods; by default the default queue.
    #[arg(long, value_name = "QUEUE", default_value = proto::names::kai::DEFAULT_QUEUE)]
    queue: String,
    /// CPU request of each pod, as a Kubernetes quantity.
    #[arg(long, value_name = "QUANTITY", default_value = "0")]
    cpu: String,
    /// Memory request of each pod, as a Kubernetes quantity.
    #[arg(long, value_name = "QUANTITY", default_value = "0")]
    memory: String,
    /// Only nodes with this label; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    node_label: Vec<(String, String)>,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    output: Output,
}

const COLUMNS: &[Column] = &[
    Column::text("node", "NODE"),
    Column::text("gpus", "GPU"),
    Column::number("times", "FITS"),
    Column::number("memoryMib", "MIB EACH"),
    Column::text("mode", "MODE"),
    Column::text("uuids", "UUID").wide(),
];

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    let enough = block_on(async {
        let shadow = args.source.load().await?;
        let (report, enough) = fitted(shadow, args)?;
        args.output.print(&report)?;
        Ok(enough)
    })?;
    Ok(if enough {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

fn fitted(shadow: Shadow, args: &Args) -> Result<(Report, bool), Failure> {
    let mut shadow = shadow.without_evictions();
    shadow.settle();
    let queues = shadow.queues();
    if !queues
        .iter()
        .any(|queue| queue.queue.as_str() == args.queue)
    {
        return Err(Failure::no(format!("there is no queue {}", args.queue)));
    }
    let wanted = args.count.unwrap_or(MOST);
    let object = asked(args).pod(&shadow.scheduler);
    let mut intake = Intake::default();
    for _ in 0..wanted {
        intake.take(&mut shadow, &object)?;
    }
    let rounds = shadow.settle();
    let places = places(&rounds, &intake);
    let fits: u64 = places.values().map(|place| place.times).sum();
    let indexes = indexes(&shadow);
    let mut table = Table::new(COLUMNS, "it fits nowhere");
    for ((node, cards), place) in &places {
        let shown: Vec<String> = cards
            .iter()
            .map(|card| {
                indexes
                    .get(card)
                    .map_or_else(|| card.clone(), ToString::to_string)
            })
            .collect();
        table.row(vec![
            node.clone().into(),
            Cell::shown(shown.clone(), shown.join(",")),
            place.times.into(),
            Cell::from(place.mib),
            Cell::from(place.mode.clone()),
            Cell::shown(cards.clone(), cards.join(",")),
        ]);
    }
    let enough = args
        .count
        .map_or(fits > 0, |count| fits >= u64::from(count));
    let verdict = match args.count {
        Some(count) => format!("{fits} of {count} fit now."),
        None if fits >= u64::from(MOST) => {
            format!("It fits {MOST} times now, and perhaps more often.")
        }
        None => format!(
            "It fits {fits} {} now.",
            if fits == 1 { "time" } else { "times" }
        ),
    };
    let mut report = Report::from(table);
    report
        .below
        .push(Cell::from(verdict).tone(if enough { Tone::Good } else { Tone::Bad }));
    let why = why(&rounds, &intake).filter(|_| !enough || args.count.is_none());
    if let Some(why) = &why {
        report
            .below
            .push(format!("The next one would wait: {why}").into());
    }
    report.document = Some(json!({
        "fits": fits, "wanted": args.count, "places": report.table.objects(), "why": why,
    }));
    Ok((report, enough))
}

/// The request in words.
fn asked(args: &Args) -> Wanted {
    Wanted {
        memory: args.gpu_memory,
        fraction: args.gpu_fraction.clone(),
        gpus: args.gpus,
        devices: args.devices,
        compute: args.gpu_compute,
        queue: args.queue.clone(),
        class: String::new(),
        cpu: args.cpu.clone(),
        main_memory: args.memory.clone(),
        node_labels: args.node_label.clone(),
    }
}

#[derive(Debug, Default)]
struct Place {
    times: u64,
    mib: Option<u64>,
    mode: Option<String>,
}

/// By node and cards.
fn places(rounds: &[Decision], intake: &Intake) -> BTreeMap<(String, Vec<String>), Place> {
    let mut places: BTreeMap<(String, Vec<String>), Place> = BTreeMap::new();
    for action in rounds.iter().flat_map(|round| &round.actions) {
        let Action::Bind(bind) = action else {
            continue;
        };
        if !intake.pods.iter().any(|(uid, _)| *uid == bind.pod) {
            continue;
        }
        let grant = bind.grants.first();
        let cards = grant.map(|grant| grant.cards.iter().map(ToString::to_string).collect());
        let key = (bind.node.to_string(), cards.unwrap_or_default());
        let place = places.entry(key).or_default();
        place.times += 1;
        // The last share of a card may get its remainder: the smallest is printed.
        let mib = grant.map(|grant| grant.memory.0);
        place.mib = match (place.mib, mib) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        place.mode = grant.map(|grant| grant.mode.to_string());
    }
    places
}

fn indexes(shadow: &Shadow) -> BTreeMap<String, u32> {
    let mut indexes = BTreeMap::new();
    for event in shadow.events() {
        if let scheduler_core::Event::Cards(cards) = event {
            let cards = cards.cards.into_iter();
            indexes.extend(cards.map(|card| (card.uuid.to_string(), card.index)));
        }
    }
    indexes
}

/// Why the first that has no place has none.
fn why(rounds: &[Decision], intake: &Intake) -> Option<String> {
    let reasons = rounds.iter().flat_map(|round| &round.reasons);
    let mine = |uid| intake.pods.iter().any(|(pod, _)| pod == uid);
    let mut mine = reasons.filter(|reason| mine(&reason.pod));
    mine.next_back().map(|reason| {
        let line = &reason.line;
        line.split(". node ").next().unwrap_or(line).to_owned()
    })
}

/// MiB: a plain number, or a Kubernetes quantity of bytes, rounded up.
fn mib(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not an amount of memory: MiB such as 2000, or 8Gi");
    if let Ok(mib) = text.parse::<u64>() {
        return if mib == 0 { Err(wrong()) } else { Ok(mib) };
    }
    match api::quantity::mib_up(text) {
        Some(mib) if mib.0 > 0 => Ok(mib.0),
        _ => Err(wrong()),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is no label: KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shadow::Objects;
    use clap::Parser;
    use scheduler_core::units::Time;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    const CLUSTER: &str = "\
tick 100000
node n1 cpu=64000 memory=274877906944 pods=110 gpus=2 managed extended.aliquot.dev/gpu-share=96
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
  card GPU-2 index=1 product=L4 total=23034 reserved=34
queue default-queue
queue tight gpu=500000000/500000000/1000000
pod guest ns=team created=1 gpu-memory.main=20000 extended.aliquot.dev/gpu-share=1 phase=running on=n1
  grant main cards=GPU-1 memory=20000 mode=mps
";

    fn fit(flags: &[&str]) -> Result<(String, bool), String> {
        let config = scheduler_core::Config::default();
        fit_in(Shadow::of_text(CLUSTER, config, "kai-scheduler")?, flags)
    }

    fn fit_in(shadow: Shadow, flags: &[&str]) -> Result<(String, bool), String> {
        let line = Line::try_parse_from([&["fit"], flags].concat());
        let args = line.map_err(|error| error.to_string())?.args;
        let (report, enough) = fitted(shadow, &args).map_err(|failure| failure.sentence)?;
        Ok((Output::default().render(&report, false), enough))
    }

    #[test]
    fn what_can_be_had_now_and_where() {
        let (text, enough) = fit(&["--gpu-memory", "3000"]).unwrap();
        assert!(enough);
        let (head, tail) = text.split_once("\n\n").unwrap();
        assert_eq!(
            head,
            "\
NODE  GPU  FITS  MIB EACH  MODE
n1    0       1      3000  mps
n1    1       7      3000  mps"
        );
        assert!(
            tail.starts_with("It fits 8 times now.\nThe next one would wait: "),
            "{tail}"
        );
        assert_eq!(
            fit(&["--gpus", "1", "--count", "1"]).unwrap(),
            (
                "NODE  GPU  FITS  MIB EACH  MODE\nn1    1       1     23000  exclusive\n\n1 of 1 fit now.\n"
                    .to_owned(),
                true
            )
        );
    }

    /// A node whose device plugin lists no GPU, with another driver's devices (KEP-5004).
    #[test]
    fn whole_gpus_that_a_claim_stands_in_for_are_counted() {
        let objects = Objects {
            nodes: vec![object(json!({"metadata": {"name": "n1"}, "status": {
                "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}]}}))],
            queues: vec![object(
                json!({"metadata": {"name": "default-queue"}, "spec": {
                "resources": {"gpu": {"quota": -1, "limit": -1}, "cpu": {"quota": -1, "limit": -1},
                    "memory": {"quota": -1, "limit": -1}}}}),
            )],
            device_classes: vec![object(json!({"metadata": {"name": "gpu"}, "spec": {
                "extendedResourceName": "nvidia.com/gpu",
                "selectors": [{"cel": {"expression": "device.driver == \"gpu.example.com\""}}]}}))],
            slices: vec![object(json!({"metadata": {"name": "s"}, "spec": {
                "driver": "gpu.example.com", "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "a"}, {"name": "b"}]}}))],
            ..Objects::default()
        };
        let config = scheduler_core::Config::default();
        let shadow = Shadow::of_objects(objects, config, "kai-scheduler", Time(100_000));
        let (text, enough) = fit_in(shadow, &["--gpus", "1"]).unwrap();
        assert!(enough && text.contains("It fits 2 times now."), "{text}");
    }

    fn object<K: serde::de::DeserializeOwned>(object: serde_json::Value) -> K {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn what_does_not_fit_says_why() {
        for (flags, words) in [
            (&["--gpus", "2"][..], "It fits 0 times now."),
            (&["--gpu-memory", "8Gi", "--count", "3"], "2 of 3 fit now."),
            (
                &["--gpu-fraction", "0.5", "--queue", "tight", "--count", "2"],
                "1 of 2 fit now.",
            ),
            (
                &["--gpu-memory", "1000", "--node-label", "zone=b"],
                "didn't match Pod's node affinity/selector",
            ),
        ] {
            let (text, enough) = fit(flags).unwrap_or_else(|why| panic!("{flags:?}: {why}"));
            assert!(!enough, "{flags:?}: {text}");
            assert!(text.contains(words), "{flags:?}: {text}");
            assert!(
                text.contains("The next one would wait: "),
                "{flags:?}: {text}"
            );
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_in_one_sentence() {
        for (flags, words) in [
            (
                &["--gpu-memory", "lots"][..],
                "`lots` is not an amount of memory",
            ),
            (&["--gpu-memory", "0"], "`0` is not an amount of memory"),
            (
                &["--gpu-fraction", "1.5"],
                "gpu-fraction annotation value must be a positive number smaller than 1.0",
            ),
            (
                &["--gpu-memory", "1", "--queue", "nowhere"],
                "there is no queue nowhere",
            ),
            (
                &["--gpu-memory", "1", "--node-label", "zone"],
                "`zone` is no label",
            ),
            (&[], "required"),
            (&["--gpu-memory", "1", "--gpus", "1"], "cannot be used with"),
        ] {
            let error = fit(flags).unwrap_err();
            assert!(error.contains(words), "{flags:?}: {error}");
        }
    }

    #[test]
    fn memory_is_mib_or_a_quantity_rounded_up() {
        for (text, expected) in [
            ("2000", 2000),
            ("8Gi", 8192),
            ("1Ki", 1),
            ("1G", 954),
            ("2Mi", 2),
            ("1.5Gi", 1536),
            ("1e9", 954),
        ] {
            assert_eq!(mib(text), Ok(expected), "{text}");
        }
        for text in ["", "-1", "Gi", "8GB", "0Gi"] {
            assert!(mib(text).is_err(), "{text}");
        }
    }
}
