//! What this project says of NVIDIA's MPS, without a node around it: limits, their reach,
//! and how far a fault goes.
//!
//! Each claim is a function: a machine in, a verdict out. An error is a verdict too.

use crate::machine::Machine;
use crate::report::Verdict;
use crate::server::Server;
use crate::tenant::{ProgramEnv, Tenant};
use anyhow::Context as _;
use serde_json::Value;
use std::time::{Duration, Instant};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: u64 = 2;
/// What a context may cost, of the MiB that a limit allows.
const CONTEXT: u64 = 1024;

pub(crate) type Claim = (&'static str, fn(&Machine) -> anyhow::Result<Verdict>);

pub(crate) const CLAIMS: &[Claim] = &[
    (
        "the library, the driver and nvidia-smi mean the same card",
        one_card,
    ),
    (
        "a limit in the client's environment stops it, and its neighbour has its own",
        client_limit,
    ),
    (
        "the limits of two servers on one card stop each its own client, unequal ones side by side",
        server_limit,
    ),
    (
        "a client cannot raise its server's limit, and may lower it",
        only_lower,
    ),
    (
        "a fault ends the client of its own server, and no client of another server on the card",
        fault_stays,
    ),
    (
        "a faulted server takes clients again when its own are gone",
        fault_heals,
    ),
];

fn gib(text: &Value, key: &str) -> u64 {
    text[key].as_u64().unwrap_or(0)
}

pub(crate) fn pinned(mib: u64) -> String {
    format!("0={mib}M")
}

fn judged(so: bool, seen: String) -> Verdict {
    if so {
        Verdict::Holds(seen)
    } else {
        Verdict::Differs(seen)
    }
}

/// Whether a refused program had what its limit allows, less its context, and no more.
fn within(full: &Value, limit: u64) -> bool {
    let taken = gib(full, "taken_mib");
    full["code"] == OUT_OF_MEMORY && taken <= limit && taken + CONTEXT.min(limit / 2) >= limit / 2
}

fn one_card(machine: &Machine) -> anyhow::Result<Verdict> {
    let mut seen = Vec::new();
    for card in &machine.cards {
        let before = machine.used(card)?;
        let (mut tenant, begun) = Tenant::begun(machine, "a", &ProgramEnv::card(&card.uuid))?;
        let size = machine.part(2);
        let taken = tenant.code(&format!("alloc {size}"))?;
        let grown = machine.used(card)?.saturating_sub(before);
        let listed = machine
            .apps()?
            .iter()
            .any(|(pid, uuid, _)| *pid == tenant.pid() && *uuid == card.uuid);
        tenant.end()?;
        seen.push(format!(
            "{}: the program names {}, {size} MiB taken, nvidia-smi shows {grown} MiB more there, and {} its pid",
            card.uuid,
            begun["gpu"].as_str().unwrap_or("nothing"),
            if listed { "lists" } else { "does not list" },
        ));
        if begun["gpu"] != card.uuid.as_str() || taken != 0 || grown < size {
            return Ok(Verdict::Differs(seen.join("; ")));
        }
    }
    Ok(Verdict::Holds(seen.join("; ")))
}

fn client_limit(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let server = Server::start(machine, "client", card, false)?;
    let (low, high) = (machine.part(3), machine.part(5));
    let around = |mib| {
        server
            .around()
            .with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", &pinned(mib))
    };
    let (mut a, _) = Tenant::begun(machine, "a", &around(low))?;
    let (mut b, _) = Tenant::begun(machine, "b", &around(high))?;
    let fill = format!("fill {}", machine.step());
    let full = a.ask(&fill)?;
    let next = b.ask(&fill)?;
    let lives = a.code("touch")? == 0 && b.code("touch")? == 0;
    server.show_log();
    Ok(judged(
        within(&full, low) && within(&next, high) && lives,
        told(&[(low, &full), (high, &next)]),
    ))
}

/// Limits, and where programs were stopped.
fn told(full: &[(u64, &Value)]) -> String {
    let one = |(limit, full): &(u64, &Value)| {
        format!(
            "limit {limit} MiB: {} at {} MiB of its own",
            full["name"].as_str().unwrap_or("nothing"),
            gib(full, "taken_mib")
        )
    };
    full.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn server_limit(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let (low, high) = (machine.part(3), machine.part(5));
    let first = Server::limited(machine, "low", card, low)?;
    let second = Server::limited(machine, "high", card, high)?;
    let (mut a, _) = Tenant::begun(machine, "a", &first.around())?;
    let (mut b, _) = Tenant::begun(machine, "b", &second.around())?;
    let fill = format!("fill {}", machine.step());
    let full = a.ask(&fill)?;
    let next = b.ask(&fill)?;
    let lives = a.code("touch")? == 0 && b.code("touch")? == 0;
    first.show_log();
    second.show_log();
    Ok(judged(
        within(&full, low) && within(&next, high) && lives,
        told(&[(low, &full), (high, &next)]),
    ))
}

fn only_lower(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let (low, limit, high) = (machine.part(2), machine.part(4), machine.part(8));
    let server = Server::limited(machine, "lower", card, limit)?;
    let fill = format!("fill {}", machine.step());
    let filled = |name: &str, mib: u64| -> anyhow::Result<Value> {
        let around = server
            .around()
            .with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", &pinned(mib));
        let (mut tenant, _) = Tenant::begun(machine, name, &around)?;
        let full = tenant.ask(&fill)?;
        tenant.end()?;
        Ok(full)
    };
    let raised = filled("raises", high)?;
    let lowered = filled("lowers", low)?;
    Ok(judged(
        within(&raised, limit) && within(&lowered, low),
        format!(
            "server's limit {limit} MiB; {}",
            told(&[(high, &raised), (low, &lowered)])
        ),
    ))
}

fn fault_stays(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let size = machine.part(2);
    let first = Server::limited(machine, "faulty", card, machine.part(4))?;
    let second = Server::limited(machine, "other", card, machine.part(4))?;
    let (mut a, _) = Tenant::begun(machine, "a", &first.around())?;
    let (mut with_a, _) = Tenant::begun(machine, "beside", &first.around())?;
    let (mut b, _) = Tenant::begun(machine, "b", &second.around())?;
    let (mut free, _) = Tenant::begun(machine, "without-server", &ProgramEnv::card(&card.uuid))?;
    let word = format!("alloc {}", size / 4);
    for tenant in [&mut a, &mut with_a, &mut b, &mut free] {
        tenant.code(&word)?;
    }
    let fault = a.ask("fault")?;
    let beside = with_a.ask("touch")?;
    let mut survivors = Vec::new();
    for tenant in [&mut b, &mut free] {
        survivors.push(tenant.code("kernel")?);
        survivors.push(tenant.code(&word)?);
    }
    let status = first
        .pid()?
        .map(|pid| first.say(&format!("get_server_status {pid}")));
    first.show_log();
    let state = status
        .transpose()?
        .map_or_else(|| "no server".to_owned(), |(_, said)| said);
    let so = fault["code"] != 0 && survivors.iter().all(|code| *code == 0);
    Ok(judged(
        so,
        format!(
            "the faulting client: {}; its neighbour under the same server: {}; its server: {state}; a client of another server and a program without one: codes {survivors:?}",
            fault["name"].as_str().unwrap_or("nothing"),
            beside["name"].as_str().unwrap_or("lives"),
        ),
    ))
}

fn fault_heals(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let server = Server::limited(machine, "heals", card, machine.part(4))?;
    let (mut a, _) = Tenant::begun(machine, "a", &server.around())?;
    let fault = a.code("fault")?;
    let late = Tenant::start(machine, "during", &server.around())
        .and_then(|mut tenant| tenant.ask_within("context", Duration::from_secs(3)))?;
    a.end()?;
    let begin = Instant::now();
    loop {
        let (mut tenant, begun) = Tenant::begun(machine, "after", &server.around())?;
        if begun["code"] == 0 && tenant.code("kernel")? == 0 {
            tenant.end()?;
            break;
        }
        tenant.end()?;
        if begin.elapsed() > Duration::from_secs(20) {
            return Ok(Verdict::Differs(
                "no client is taken 20 s after the last one left".into(),
            ));
        }
    }
    let during = late.map_or_else(
        || "waits".to_owned(),
        |line| line["name"].as_str().unwrap_or("is taken").to_owned(),
    );
    Ok(judged(
        fault != 0,
        format!(
            "a client that comes while the faulted one is there: {during}; taken again {} ms after it left",
            begin.elapsed().as_millis()
        ),
    ))
}
