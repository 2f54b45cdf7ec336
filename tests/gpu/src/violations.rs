//! How long a program holds more than its share: from the moment at which it has taken it, by
//! its own clock, to the moment at which its process is gone.
//!
//! On the whole node of [`crate::node`], in mode `time-slicing`, where nothing but the watchdog
//! is in the way.

use crate::machine::Machine;
use crate::node::Node;
use anyhow::{Context as _, ensure};
use api::Mode;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// At once on a card.
const BATCH: usize = 5;
/// What is promised of 99 of 100.
const TARGET: Duration = Duration::from_millis(250);
/// Time between two checks of a process.
const AGAIN: Duration = Duration::from_millis(1);
/// For everyone to be there before the first one takes too much, milliseconds.
const BEFORE: usize = 5000;
/// Between two of one batch, milliseconds: their phases differ.
const APART: usize = 317;

/// Measures this many; returns whether 99 of 100 were handled in time.
pub(crate) async fn measure(machine: &Machine, rounds: usize) -> anyhow::Result<bool> {
    let mut node = Node::start(machine).await?;
    let mut times = Vec::new();
    let outcome = async {
        while times.len() < rounds {
            let many = BATCH.min(rounds - times.len());
            times.extend(batch(machine, &mut node, many).await?);
            node.clear().await?;
        }
        anyhow::Ok(())
    }
    .await;
    node.end().await;
    outcome?;
    times.sort_unstable();
    // Of 100 the 99th.
    let at = |part: usize| times[(times.len() * part).div_ceil(100).saturating_sub(1)];
    let text = format!(
        "more than a share held, until the process is gone, {} times: median {:?}, p99 {:?}, at most {:?}",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
    writeln!(std::io::stdout(), "{text}")?;
    Ok(at(99) <= TARGET)
}

async fn batch(machine: &Machine, node: &mut Node, many: usize) -> anyhow::Result<Vec<Duration>> {
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(2);
    let names: Vec<String> = (0..many).map(|n| format!("greedy-{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let words = format!(
            "context sleep {} alloc {} hold",
            BEFORE + n * APART,
            limit + 500
        );
        node.share(name, &card.uuid, Mode::TimeSlicing, limit, &words)
            .await?;
    }
    let mut waits = Vec::new();
    for name in &names {
        let begun = node.line(machine, name, "context").await?;
        let pid = begun["pid"].as_u64().context("no pid")?;
        // At once: those that came first do not wait for the others.
        waits.push(tokio::spawn(acted_on(
            node.reader(name, "alloc").await?,
            pid,
        )));
    }
    machine.transcript.take();
    let mut times = Vec::new();
    for wait in waits {
        times.push(wait.await??);
    }
    Ok(times)
}

/// From what a program says of itself to its end.
async fn acted_on(
    log: impl Fn() -> Option<serde_json::Value> + Send + 'static,
    pid: u64,
) -> anyhow::Result<Duration> {
    let process = format!("/proc/{pid}");
    let began = loop {
        if let Some(line) = log() {
            ensure!(line["code"] == 0, "it was refused: {line}");
            break line["at_us"].as_u64().context("no time")?;
        }
        ensure!(
            Path::new(&process).exists(),
            "{pid} ended before it was seen to take memory"
        );
        tokio::time::sleep(AGAIN).await;
    };
    while Path::new(&process).exists() {
        tokio::time::sleep(AGAIN).await;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(now.saturating_sub(Duration::from_micros(began)))
}
