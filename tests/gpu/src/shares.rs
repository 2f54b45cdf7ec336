//! What this project says of shares on a node, from the pod's grant to the card.

use crate::claims::OUT_OF_MEMORY;
use crate::machine::{Machine, Missing};
use crate::node::{Node, servers};
use crate::report::Verdict;
use anyhow::Context as _;
use api::Mode;
use serde_json::Value;
use std::pin::Pin;

type Run<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Verdict>> + 'a>>;
pub(crate) type Claim = (
    &'static str,
    u64,
    for<'a> fn(&'a Machine, &'a mut Node) -> Run<'a>,
);

/// What the supervisor's own daemon and a context may cost, of the MiB that a limit allows.
const CONTEXT: u64 = 1024;
/// SIGKILL, as a container's exit code.
const KILLED: i32 = 137;

pub(crate) const CLAIMS: &[Claim] = &[
    (
        "placement agrees with nvidia-smi: each pod's program is on the card that it was granted",
        40,
        |machine, node| Box::pin(placement(machine, node)),
    ),
    (
        "two shares of one card, each with a server of its own, are stopped at their unequal limits",
        40,
        |machine, node| Box::pin(unequal(machine, node)),
    ),
    (
        "a fault in one share leaves the other share of the card alone",
        40,
        |machine, node| Box::pin(fault(machine, node)),
    ),
    (
        "without a server, the watchdog ends a program at more than its share, and no neighbour",
        40,
        |machine, node| Box::pin(watchdog(machine, node)),
    ),
    (
        "a share that is filled to the last MiB goes on",
        40,
        |machine, node| Box::pin(filled(machine, node)),
    ),
    (
        "the watchdog ends a program that lifts its server's limit by a limit of its own that the driver does not understand",
        40,
        |machine, node| Box::pin(lifted(machine, node)),
    ),
    (
        "the watchdog ends a program of a share that draws",
        40,
        |machine, node| Box::pin(drawing(machine, node)),
    ),
    (
        "with the last share its server and its directories are gone",
        40,
        |machine, node| Box::pin(nothing_left(machine, node)),
    ),
    (
        "in mode mps, on a card in compute mode EXCLUSIVE_PROCESS, unequal shares are stopped at their limits",
        60,
        |machine, node| Box::pin(exclusive(machine, node)),
    ),
];

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or(0)
}

fn judged(so: bool, seen: String) -> Verdict {
    if so {
        Verdict::Holds(seen)
    } else {
        Verdict::Differs(seen)
    }
}

async fn placement(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    let size = machine.part(2);
    let mut seen = Vec::new();
    let mut good = true;
    let names: Vec<String> = (0..machine.cards.len())
        .map(|at| format!("on-{at}"))
        .collect();
    for (name, card) in names.iter().zip(&machine.cards) {
        let before = machine.used(card)?;
        let words = format!("context alloc {size} hold");
        node.share(name, &card.uuid, Mode::TimeSlicing, machine.part(5), &words)
            .await?;
        let begun = node.line(machine, name, "context").await?;
        let taken = node.line(machine, name, "alloc").await?;
        let grown = machine.used(card)?.saturating_sub(before);
        let pid = number(&begun, "pid");
        let apps = machine.apps()?;
        let on: Vec<&str> = apps
            .iter()
            .filter(|(app, _, _)| u64::from(*app) == pid)
            .map(|(_, uuid, _)| uuid.as_str())
            .collect();
        good &= begun["gpu"] == card.uuid.as_str()
            && taken["code"] == 0
            && grown >= size
            && on.iter().all(|uuid| *uuid == card.uuid);
        seen.push(format!(
            "{}: {grown} MiB more, pid {pid} {}",
            card.uuid,
            if on.is_empty() {
                "not listed (another pid namespace?)"
            } else {
                "listed there"
            },
        ));
    }
    Ok(judged(good, seen.join("; ")))
}

async fn unequal(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let mut seen = Vec::new();
    let mut good = true;
    let words = format!("context fill {} kernel hold", machine.step());
    let shares = [("small", machine.part(3)), ("large", machine.part(6))];
    for (name, limit) in shares {
        node.share(name, &card.uuid, Mode::MpsIsolated, limit, &words)
            .await?;
    }
    for (name, limit) in shares {
        let full = node.line(machine, name, "fill").await?;
        let then = node.line(machine, name, "kernel").await?;
        let fence = node.fence(name).await?;
        let taken = number(&full, "taken_mib");
        good &= full["code"] == OUT_OF_MEMORY
            && taken <= limit
            && taken + CONTEXT.min(limit / 2) >= limit / 2
            && then["code"] == 0
            && fence == "ServerLimit";
        seen.push(format!(
            "{name}, {limit} MiB: stopped at {taken} MiB of its own ({}), goes on, fence {fence}",
            full["name"].as_str().unwrap_or("not refused"),
        ));
    }
    Ok(judged(good, seen.join("; ")))
}

async fn exclusive(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    if !machine.may_set_mode {
        return Err(Missing::error(
            "it sets the card's compute mode for a while: --may-set-compute-mode",
        ));
    }
    let before = machine.settings()?;
    let verdict = under_one_server(machine, node).await;
    node.clear().await?;
    let again = node
        .until("the compute mode is as before", async || {
            (machine.settings().ok()? == before).then_some(())
        })
        .await;
    if again.is_err() {
        let card = machine.cards.first().context("no card")?;
        machine.smi(&["-i", &card.uuid, "-c", "DEFAULT"])?;
    }
    again.and(verdict)
}

async fn under_one_server(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let words = format!("context fill {} kernel hold", machine.step());
    let mut seen = Vec::new();
    let mut good = true;
    for (name, limit) in [("few", machine.part(3)), ("many", machine.part(6))] {
        node.share(name, &card.uuid, Mode::Mps, limit, &words)
            .await?;
        let full = node.line(machine, name, "fill").await?;
        let then = node.line(machine, name, "kernel").await?;
        let taken = number(&full, "taken_mib");
        good &= full["code"] == OUT_OF_MEMORY && taken <= limit && then["code"] == 0;
        seen.push(format!(
            "{name}, {limit} MiB: stopped at {taken} MiB of its own ({}), then {}",
            full["name"].as_str().unwrap_or("not refused"),
            then["code"],
        ));
    }
    let mode = machine.smi(&[
        "-i",
        &card.uuid,
        "--query-gpu=compute_mode",
        "--format=csv,noheader",
    ])?;
    good &= mode.trim() == "Exclusive_Process";
    seen.push(format!("the card is in compute mode {}", mode.trim()));
    Ok(judged(good, seen.join("; ")))
}

async fn fault(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(4);
    let size = machine.part(1);
    let words = format!("context alloc {size} beat 40 kernel hold");
    node.share("quiet", &card.uuid, Mode::MpsIsolated, limit, &words)
        .await?;
    node.line(machine, "quiet", "alloc").await?;
    let words = format!("context alloc {size} fault hold");
    node.share("faulty", &card.uuid, Mode::MpsIsolated, limit, &words)
        .await?;
    let broke = node.line(machine, "faulty", "fault").await?;
    let beat = node.line(machine, "quiet", "beat").await?;
    let then = node.line(machine, "quiet", "kernel").await?;
    Ok(judged(
        broke["code"] != 0 && beat["code"] == 0 && then["code"] == 0,
        format!(
            "the faulting share: {}; the other one, over {} ms and after: codes {} and {}",
            broke["name"].as_str().unwrap_or("nothing"),
            number(&beat, "ms"),
            beat["code"],
            then["code"]
        ),
    ))
}

async fn watchdog(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let (limit, size) = (machine.part(4), machine.part(2));
    let words = format!("context alloc {size} beat 50 kernel hold");
    node.share("honest", &card.uuid, Mode::TimeSlicing, limit, &words)
        .await?;
    let honest = node.line(machine, "honest", "alloc").await?;
    let pid = number(&honest, "pid");
    if !machine
        .apps()?
        .iter()
        .any(|(app, _, _)| u64::from(*app) == pid)
    {
        return Ok(Verdict::NotAsked(
            "the driver does not name pids of this pid namespace, so nothing can be attributed"
                .into(),
        ));
    }
    let words = format!("context alloc {} hold", limit * 2);
    node.share("greedy", &card.uuid, Mode::TimeSlicing, limit, &words)
        .await?;
    let exit = node.exit("greedy").await?;
    let beat = node.line(machine, "honest", "beat").await?;
    let then = node.line(machine, "honest", "kernel").await?;
    Ok(judged(
        exit == KILLED && beat["code"] == 0 && then["code"] == 0,
        format!(
            "the one that took {} MiB of a share of {limit}: exit {exit}; the one that took {size}: codes {} and {}",
            limit * 2,
            beat["code"],
            then["code"]
        ),
    ))
}

async fn filled(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(3);
    // Buffers of an odd size are rounded up to pages, which the limit does not count.
    let words = format!(
        "context fill {} fill 1 beat 30 kernel hold",
        machine.step() | 1
    );
    node.share("full", &card.uuid, Mode::MpsIsolated, limit, &words)
        .await?;
    let begun = node.line(machine, "full", "context").await?;
    let beat = node.line(machine, "full", "beat").await?;
    let then = node.line(machine, "full", "kernel").await?;
    let (pid, taken) = (number(&begun, "pid"), number(&beat, "taken_mib"));
    let apps = machine.apps()?;
    let shown = apps.iter().find(|(app, _, _)| u64::from(*app) == pid);
    Ok(judged(
        beat["code"] == 0 && then["code"] == 0,
        format!(
            "{taken} MiB of its own in a share of {limit}, over {} ms, then {}; nvidia-smi shows {} MiB",
            number(&beat, "ms"),
            then["code"],
            shown.and_then(|(_, _, mib)| *mib).unwrap_or_default()
        ),
    ))
}

async fn lifted(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let (limit, size) = (machine.part(4), machine.part(8));
    let words = format!("context alloc {} beat 50 kernel hold", machine.part(1));
    node.share("beside", &card.uuid, Mode::MpsIsolated, limit, &words)
        .await?;
    node.line(machine, "beside", "alloc").await?;
    let words = format!("env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=nonsense context alloc {size} hold");
    node.share("lifted", &card.uuid, Mode::MpsIsolated, limit, &words)
        .await?;
    let taken = node.line(machine, "lifted", "alloc").await?;
    if taken["code"] != 0 {
        return Ok(Verdict::Holds(format!(
            "it was refused: {}",
            taken["name"].as_str().unwrap_or("?")
        )));
    }
    let exit = node.exit("lifted").await?;
    let then = node.line(machine, "beside", "kernel").await?;
    Ok(judged(
        exit == KILLED && then["code"] == 0,
        format!(
            "{size} MiB in a share of {limit}: exit {exit}; its neighbour: {}",
            then["code"]
        ),
    ))
}

async fn drawing(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    machine.egl()?;
    let card = machine.cards.first().context("no card")?;
    let (limit, size) = (machine.part(4), machine.part(2));
    let words = format!("graphics {size} hold");
    node.share("draws", &card.uuid, Mode::MpsIsolated, limit, &words)
        .await?;
    let exit = node.exit("draws").await?;
    Ok(judged(
        exit == KILLED,
        format!("a graphics context with {size} MiB in a share of {limit}: exit {exit}"),
    ))
}

async fn nothing_left(machine: &Machine, node: &mut Node) -> anyhow::Result<Verdict> {
    let place = servers(machine);
    let left = || {
        let entries = std::fs::read_dir(&place).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect::<Vec<_>>()
    };
    node.until("the last server's directory is gone", async || {
        left().is_empty().then_some(())
    })
    .await?;
    Ok(Verdict::Holds(format!("{} is empty", place.display())))
}
