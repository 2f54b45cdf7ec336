//! What NVIDIA's documents leave open. Nothing is claimed: the answer is written down, and
//! the simulated driver is to behave so.

use crate::claims::{OUT_OF_MEMORY, pinned};
use crate::machine::Machine;
use crate::report::Verdict;
use crate::server::Server;
use crate::tenant::{ProgramEnv, Tenant};
use anyhow::Context as _;
use serde_json::Value;
use std::time::{Duration, Instant};

pub(crate) type Question = (&'static str, fn(&Machine) -> anyhow::Result<Verdict>);

pub(crate) const QUESTIONS: &[Question] = &[
    (
        "What are CUDA's total and free without a fence, under a client's limit, under a server's?",
        totals,
    ),
    (
        "Does a read-only pipe directory let clients in, and does it keep a tenant from commands, as root and as another user?",
        read_only_pipe,
    ),
    (
        "Is the server's /dev/shm needed by its clients?",
        private_shm,
    ),
    (
        "What does each command of the control program say, and with which exit status?",
        words,
    ),
    (
        "To what does a limit apply that is set on a running server: to an existing client, its next allocation, the next client?",
        late_limit,
    ),
    (
        "What becomes of a server whose client was killed without a word?",
        killed_client,
    ),
    (
        "How long does terminate_client take, and what does its client see?",
        terminated,
    ),
    (
        "What becomes of clients when the control daemon is killed, and can another one come?",
        killed_daemon,
    ),
    (
        "Is NVML's figure of a client what its limit counts?",
        accounting,
    ),
    (
        "How much of the card do buffers take whose size is no multiple of 2 MiB, and how much does a limit count?",
        rounding,
    ),
    (
        "Which settings of a client's own limit lift its server's?",
        lifting,
    ),
    (
        "Can a tenant write into the daemon's log by way of the pipe directory?",
        forged_log,
    ),
    ("Does a limit count managed memory?", managed),
    (
        "Does this driver have memory limits per cgroup?",
        memory_limits,
    ),
    (
        "Does the compute mode outlive a crash with persistence mode off?",
        not_ours,
    ),
];

pub(crate) fn code_of(line: &Value) -> String {
    match line["code"].as_u64() {
        Some(0) => "success".to_owned(),
        Some(_) => line["name"].as_str().unwrap_or("?").to_owned(),
        None => "no answer".to_owned(),
    }
}

pub(crate) fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or(0)
}

fn totals(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(4);
    let mut rows = vec![format!("the card: {} MiB by nvidia-smi", card.total)];
    let mut seen = |name: &str, around: &ProgramEnv| -> anyhow::Result<()> {
        let (tenant, line) = Tenant::begun(machine, name, around)?;
        rows.push(format!(
            "{name}: total {}, free {}",
            number(&line, "total_mib"),
            number(&line, "free_mib")
        ));
        tenant.end()
    };
    seen("no fence", &ProgramEnv::card(&card.uuid))?;
    {
        let server = Server::start(machine, "totals", card, false)?;
        seen("a server without a limit", &server.around())?;
        let around = server
            .around()
            .with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", &pinned(limit));
        seen(&format!("a client's limit of {limit}"), &around)?;
    }
    let server = Server::limited(machine, "totals-server", card, limit)?;
    seen(&format!("a server's limit of {limit}"), &server.around())?;
    Ok(Verdict::Answer(rows.join("; ")))
}

fn read_only_pipe(machine: &Machine) -> anyhow::Result<Verdict> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(Verdict::NotAsked(
            "it takes root to mount and to be another user".into(),
        ));
    }
    let card = machine.cards.first().context("no card")?;
    let server = Server::start(machine, "ro", card, true)?;
    server.spawn()?;
    machine.transcript.note(server.listing()?);
    let pipe = server.pipe().display().to_string();
    let mut rows = Vec::new();
    for (who, isolation) in [
        ("root", vec![]),
        ("root, read-only", vec!["--read-only", &pipe]),
        ("user 65534", vec!["--uid", "65534"]),
        (
            "user 65534, read-only",
            vec!["--uid", "65534", "--read-only", &pipe],
        ),
    ] {
        let around = server.around().option(&isolation);
        let mut tenant = match Tenant::start(machine, who, &around) {
            Ok(tenant) => tenant,
            Err(error) => {
                rows.push(format!("{who}: {error}"));
                continue;
            }
        };
        let limit = Duration::from_secs(10);
        let begun = match tenant.ask_within("context", limit) {
            Ok(line) => line.map_or_else(|| "no answer in 10 s".to_owned(), |line| code_of(&line)),
            Err(error) => format!("{error}"),
        };
        let before = server.quietly("get_default_active_thread_percentage")?.1;
        let command = "control set_default_active_thread_percentage 37";
        let drove = match tenant.ask_within(command, limit) {
            Ok(Some(line)) => format!("{} (exit {})", line["said"], line["exit"]),
            Ok(None) => "no answer in 10 s".to_owned(),
            Err(error) => format!("{error}"),
        };
        let after = server.quietly("get_default_active_thread_percentage")?.1;
        server.quietly("set_default_active_thread_percentage 100")?;
        let changed = if before == after {
            "changes nothing"
        } else {
            "CHANGES the default"
        };
        rows.push(format!(
            "{who}: context {begun}; a command says {drove} and {changed}"
        ));
    }
    Ok(Verdict::Answer(rows.join("; ")))
}

fn private_shm(machine: &Machine) -> anyhow::Result<Verdict> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(Verdict::NotAsked("it takes root to mount".into()));
    }
    let card = machine.cards.first().context("no card")?;
    let server = Server::limited(machine, "shm", card, machine.part(4))?;
    let around = server.around().option(&["--fresh-shm"]);
    let mut tenant = Tenant::start(machine, "own-shm", &around)?;
    let begun = tenant.ask("context")?;
    let step = machine.step();
    let full = tenant.ask(&format!("fill {step}"))?;
    let listed = server
        .pid()?
        .map(|pid| server.say(&format!("get_client_list {pid}")));
    let listed = listed
        .transpose()?
        .is_some_and(|(_, said)| said.contains(&tenant.pid().to_string()));
    Ok(Verdict::Answer(format!(
        "with an empty /dev/shm of its own: context {}, {} at {} MiB under a limit of {}, {} client of the server",
        code_of(&begun),
        code_of(&full),
        number(&full, "taken_mib"),
        machine.part(4),
        if listed { "a" } else { "NO" },
    )))
}

fn words(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let server = Server::start(machine, "words", card, false)?;
    machine.transcript.note(server.listing()?);
    let limit = machine.part(3);
    let before = [
        "get_server_list".to_owned(),
        "get_default_active_thread_percentage".to_owned(),
        "set_default_active_thread_percentage 50".to_owned(),
        "set_default_active_thread_percentage 500".to_owned(),
        "get_default_active_thread_percentage".to_owned(),
        "get_default_device_pinned_mem_limit 0".to_owned(),
        format!("set_default_device_pinned_mem_limit 0 {limit}M"),
        "get_default_device_pinned_mem_limit 0".to_owned(),
        format!("get_default_device_pinned_mem_limit {}", card.uuid),
        format!("set_default_device_pinned_mem_limit {} 2G", card.uuid),
        "get_default_device_pinned_mem_limit 0".to_owned(),
        format!("get_default_device_pinned_mem_limit {}", card.uuid),
        format!("set_default_device_pinned_mem_limit 0 {limit}M"),
        "set_default_device_pinned_mem_limit 7 1G".to_owned(),
        "set_default_device_pinned_mem_limit 0 nonsense".to_owned(),
        "get_default_device_pinned_mem_limit 0".to_owned(),
        "get_default_client_priority".to_owned(),
        "get_server_status 1".to_owned(),
        "nonsense".to_owned(),
    ];
    for command in &before {
        server.say(command)?;
    }
    let pid = server.spawn()?;
    let (mut tenant, _) = Tenant::begun(machine, "a", &server.around())?;
    let client = tenant.pid();
    let after = [
        "get_server_list".to_owned(),
        format!("get_server_status {pid}"),
        format!("get_client_list {pid}"),
        "ps".to_owned(),
        "get_device_client_list".to_owned(),
        format!("get_active_thread_percentage {pid}"),
        format!("set_active_thread_percentage {pid} 25"),
        format!("get_device_pinned_mem_limit {pid} 0"),
        format!("set_device_pinned_mem_limit {pid} 0 1G"),
        format!("get_device_pinned_mem_limit {pid} 0"),
        "device_query".to_owned(),
        "device_query --csv".to_owned(),
        "lspart".to_owned(),
        format!("terminate_client {pid} 1"),
        format!("terminate_client {pid} {client}"),
        format!("get_client_list {pid}"),
    ];
    for command in &after {
        server.say(command)?;
    }
    let left = tenant.ask("touch")?;
    drop(tenant);
    server.say("quit -t 1")?;
    server.show_log();
    Ok(Verdict::Answer(format!(
        "{} commands, in the transcript; a client after terminate_client: {}",
        before.len() + after.len() + 1,
        code_of(&left)
    )))
}

fn late_limit(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let (high, low) = (machine.part(6), machine.part(2));
    let server = Server::limited(machine, "late", card, high)?;
    let pid = server.pid()?.context("no server")?;
    let (mut there, _) = Tenant::begun(machine, "there", &server.around())?;
    server.say(&format!("set_device_pinned_mem_limit {pid} 0 {low}M"))?;
    let fill = format!("fill {}", machine.step());
    let old = there.ask(&fill)?;
    let (mut next, _) = Tenant::begun(machine, "next", &server.around())?;
    let new = next.ask(&fill)?;
    Ok(Verdict::Answer(format!(
        "limit {high}, then {low} MiB on the server: the client that was there {} at {} MiB, the next one {} at {} MiB",
        code_of(&old),
        number(&old, "taken_mib"),
        code_of(&new),
        number(&new, "taken_mib"),
    )))
}

/// Two clients of a server that hold something.
fn two<'a>(machine: &'a Machine, server: &Server<'_>) -> anyhow::Result<[Tenant<'a>; 2]> {
    let holding = |name| {
        let (mut tenant, _) = Tenant::begun(machine, name, &server.around())?;
        tenant.code(&format!("alloc {}", machine.part(1)))?;
        anyhow::Ok(tenant)
    };
    Ok([holding("victim")?, holding("beside")?])
}

fn killed_client(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let server = Server::limited(machine, "killed", card, machine.part(4))?;
    let pid = server.pid()?.context("no server")?;
    let [mut victim, mut beside] = two(machine, &server)?;
    let gone = victim.pid();
    let begin = Instant::now();
    victim.kill()?;
    let out = server.wait("the killed client is no client any more", |server| {
        let (_, said) = server.quietly(&format!("get_client_list {pid}"))?;
        let there = said.lines().any(|line| line.trim() == gone.to_string());
        Ok((!there).then(|| begin.elapsed()))
    })?;
    let listed = machine.apps()?.iter().any(|(pid, _, _)| *pid == gone);
    let status = server.say(&format!("get_server_status {pid}"))?.1;
    let touched = beside.ask("kernel")?;
    server.show_log();
    Ok(Verdict::Answer(format!(
        "off the client list after {} ms; nvidia-smi {} its pid; the server is {status}; its neighbour: {}",
        out.as_millis(),
        if listed {
            "still lists"
        } else {
            "does not list"
        },
        code_of(&touched)
    )))
}

fn terminated(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let server = Server::limited(machine, "terminated", card, machine.part(4))?;
    let pid = server.pid()?.context("no server")?;
    let [mut victim, mut beside] = two(machine, &server)?;
    let begin = Instant::now();
    let (_, said) = server.say(&format!("terminate_client {pid} {}", victim.pid()))?;
    let took = begin.elapsed();
    let after = victim.ask("touch")?;
    let status = server.say(&format!("get_server_status {pid}"))?.1;
    let touched = beside.ask("kernel")?;
    Ok(Verdict::Answer(format!(
        "it says {said:?} after {} ms; its client then: {}; the server is {status}; its neighbour: {}",
        took.as_millis(),
        code_of(&after),
        code_of(&touched)
    )))
}

fn killed_daemon(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let mut server = Server::limited(machine, "daemon", card, machine.part(4))?;
    let pid = server.pid()?.context("no server")?;
    let (mut there, _) = Tenant::begun(machine, "there", &server.around())?;
    there.code(&format!("alloc {}", machine.part(1)))?;
    server.kill_daemon()?;
    let after = there.ask("kernel")?;
    let next = Tenant::start(machine, "next", &server.around())
        .and_then(|mut next| next.ask_within("context", Duration::from_secs(10)))?;
    let lives = std::path::Path::new(&format!("/proc/{pid}")).exists();
    server.show_log();
    Ok(Verdict::Answer(format!(
        "the client that was there: {}; the next one: {}; the server {}",
        code_of(&after),
        next.map_or_else(|| "no answer in 10 s".to_owned(), |line| code_of(&line)),
        if lives { "lives" } else { "is gone" },
    )))
}

fn accounting(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(4);
    let server = Server::limited(machine, "accounting", card, limit)?;
    let (mut tenant, begun) = Tenant::begun(machine, "a", &server.around())?;
    let full = tenant.ask(&format!("fill {}", machine.step()))?;
    // To the MiB: what the last step did not fit.
    let rest = tenant.ask("fill 1")?;
    let apps = machine.apps()?;
    let own = apps.iter().find(|(pid, _, _)| *pid == tenant.pid());
    let shown = own.map_or_else(
        || {
            let others: Vec<String> = apps
                .iter()
                .map(|(pid, _, mib)| format!("{pid}: {mib:?}"))
                .collect();
            format!(
                "nvidia-smi does not list pid {} (it lists {})",
                tenant.pid(),
                others.join(", ")
            )
        },
        |(_, _, mib)| match mib {
            Some(mib) => format!(
                "nvidia-smi shows {mib} MiB, {} beyond its limit",
                mib.cast_signed() - limit.cast_signed()
            ),
            None => "nvidia-smi shows no figure".to_owned(),
        },
    );
    let taken = number(&rest, "taken_mib").max(number(&full, "taken_mib"));
    Ok(Verdict::Answer(format!(
        "limit {limit} MiB: {taken} MiB of its own when refused, so {} for its context (free was {} after it was made); {shown}",
        limit.saturating_sub(taken),
        number(&begun, "free_mib"),
    )))
}

fn rounding(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(2);
    let server = Server::limited(machine, "rounding", card, limit)?;
    let mut rows = Vec::new();
    for size in [1, 2, 3, 5, 33] {
        let name = format!("of-{size}");
        let (mut tenant, begun) = Tenant::begun(machine, &name, &server.around())?;
        let before = machine.used(card)?;
        let full = tenant.ask(&format!("fill {size}"))?;
        let grown = machine.used(card)?.saturating_sub(before);
        let apps = machine.apps()?;
        let shown = apps.iter().find(|(pid, _, _)| *pid == tenant.pid());
        rows.push(format!(
            "{size} MiB: {} MiB when refused, free was {}, the card has {grown} MiB less, nvidia-smi shows {}",
            number(&full, "taken_mib"),
            number(&begun, "free_mib"),
            shown.and_then(|(_, _, mib)| *mib).unwrap_or_default()
        ));
        tenant.end()?;
    }
    Ok(Verdict::Answer(format!(
        "limit {limit} MiB; {}",
        rows.join("; ")
    )))
}

fn lifting(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(3);
    let server = Server::limited(machine, "lifting", card, limit)?;
    let more = limit * 2;
    let other = "GPU-11111111-2222-3333-4444-555555555555";
    let mut held = Vec::new();
    let mut lifted = Vec::new();
    for value in [
        String::new(),
        format!("0={more}M"),
        format!("{}={more}M", card.uuid),
        format!("0={limit}M,0={more}M"),
        format!("0={limit}M,"),
        "0=-1M".to_owned(),
        "0=99999999999G".to_owned(),
        format!("7={limit}M"),
        format!("0={limit}M,7={limit}M"),
        format!("{other}={limit}M"),
        "0=0".to_owned(),
        "0=".to_owned(),
        "0".to_owned(),
        "nonsense".to_owned(),
    ] {
        let around = server
            .around()
            .with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", &value);
        let (mut tenant, _) = Tenant::begun(machine, "own", &around)?;
        let full = tenant.ask(&format!("fill {}", machine.step()))?;
        let list = if number(&full, "taken_mib") > limit {
            &mut lifted
        } else {
            &mut held
        };
        list.push(format!("{value:?}"));
        tenant.end()?;
    }
    Ok(Verdict::Answer(format!(
        "a server's limit of {limit} MiB is lifted by {}; not by {}",
        lifted.join(" "),
        held.join(" ")
    )))
}

fn forged_log(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let server = Server::limited(machine, "forged", card, machine.part(3))?;
    let pid = server.pid()?.context("no server")?;
    let pipe = server.pipe().display().to_string();
    let mut rows = Vec::new();
    for (who, options) in [
        ("a user", vec!["--uid", "65534"]),
        (
            "a user, read-only",
            vec!["--uid", "65534", "--read-only", &pipe],
        ),
    ] {
        let around = server.around().option(&options);
        let mut tenant = Tenant::start(machine, who, &around)?;
        let mark = format!("aliquot-{}", rows.len());
        let line = format!("[x Server {pid:5}] {mark}");
        let wrote = tenant.ask(&format!("log {line}"))?;
        tenant.ask("sleep 300")?;
        tenant.end()?;
        let log = server.log();
        let found = log.lines().find(|line| line.contains(&mark));
        rows.push(format!(
            "{who}: {}; {}",
            wrote["log"].as_str().unwrap_or("?"),
            found.map_or_else(
                || "not in the log".to_owned(),
                |line| format!("IN THE LOG as {line:?}")
            )
        ));
    }
    server.show_log();
    Ok(Verdict::Answer(rows.join("; ")))
}

fn managed(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(3);
    let server = Server::limited(machine, "managed", card, limit)?;
    let (mut tenant, _) = Tenant::begun(machine, "a", &server.around())?;
    let line = tenant.ask(&format!("managed {}", machine.part(5)))?;
    if line["name"] == "CUDA_ERROR_NOT_SUPPORTED" {
        return Ok(Verdict::NotAsked(
            "this driver knows no managed memory".into(),
        ));
    }
    let word = if line["code"] == OUT_OF_MEMORY {
        "yes"
    } else {
        "NO"
    };
    Ok(Verdict::Answer(format!(
        "{word}: {} MiB of it under a limit of {limit}: {}",
        machine.part(5),
        code_of(&line)
    )))
}

fn memory_limits(machine: &Machine) -> anyhow::Result<Verdict> {
    let (exit, said) = machine.smi_said(&["memory-limits", "-h"])?;
    let controllers = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
    let cgroup = controllers.map_or_else(
        |_| "no cgroup v2 at /sys/fs/cgroup".to_owned(),
        |text| format!("cgroup v2 with {}", text.trim()),
    );
    let first = said.lines().find(|line| !line.trim().is_empty());
    Ok(Verdict::Answer(format!(
        "driver {}, {cgroup}; `nvidia-smi memory-limits -h` ends with {exit:?}: {}",
        machine.driver,
        first.unwrap_or("nothing")
    )))
}

#[expect(clippy::unnecessary_wraps, reason = "as all questions are asked")]
fn not_ours(_: &Machine) -> anyhow::Result<Verdict> {
    Ok(Verdict::NotAsked(
        "it takes a change of the card's settings, which this never makes".into(),
    ))
}
