//! What the fences rest on, and no document says: on which list a client is, what a graphics
//! context is to a card, how far a small tenant reaches beside a large one, what a tenant can
//! do to a server's folder. Asked before everything else.

use crate::claims::{OUT_OF_MEMORY, pinned};
use crate::lists::{ListEntry, Lists};
use crate::machine::{Machine, Missing};
use crate::questions::{code_of, number};
use crate::report::Verdict;
use crate::server::Server;
use crate::tenant::{ProgramEnv, Tenant};
use anyhow::Context as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// A claim or a question, its time limit in seconds, and its check.
pub(crate) type Boxed = (&'static str, u64, fn(&Machine) -> anyhow::Result<Verdict>);

pub(crate) const QUESTIONS: &[Boxed] = &[
    (
        "On which of NVML's lists is an MPS client, every 10 ms from its start to its end, and its server?",
        40,
        client_lists,
    ),
    (
        "On which of NVML's lists is a headless graphics context, alone and in an MPS client, and does a limit count it?",
        40,
        graphics,
    ),
    (
        "How far does a small tenant reach beside a large one when it takes the limit out of its environment?",
        30,
        small_beside_large,
    ),
    (
        "Does a server's limit count the processes that a client forks together?",
        30,
        forks,
    ),
    ("How many clients does one server take?", 60, slots),
    (
        "What can a tenant do to the files of a pipe directory, where it can write and where it cannot?",
        30,
        files,
    ),
    (
        "How much memory of the node do 1, 8 and 32 servers take?",
        90,
        resident,
    ),
    (
        "Does a memory limit of a cgroup hold that was set and read back?",
        30,
        memory_limit,
    ),
];

fn root() -> anyhow::Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    Err(Missing::error("it takes root"))
}

fn client_lists(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let lists = Lists::load(machine)?;
    let server = Server::limited(machine, "lists", card, machine.part(4))?;
    let master = server.pid()?.context("no server")?;
    let mut tenant = Tenant::start(machine, "client", &server.around())?;
    let client = tenant.pid();
    let mut alone = Tenant::start(machine, "alone", &ProgramEnv::card(&card.uuid))?;
    let without = alone.pid();
    let stop = AtomicBool::new(false);
    let sights = std::thread::scope(|scope| {
        let looks = scope.spawn(|| lists.follow(&card.uuid, &[client, master, without], &stop));
        let lives = (|| {
            tenant.ask("context")?;
            tenant.code(&format!("alloc {}", machine.part(1)))?;
            // Long enough to be seen on lists that are kept late.
            tenant.ask("sleep 300")?;
            tenant.end()?;
            alone.ask("context")?;
            alone.ask("sleep 300")?;
            alone.end()
        })();
        stop.store(true, Ordering::SeqCst);
        let sights = looks.join();
        anyhow::Ok((sights, lives))
    })?;
    let (sights, lives) = sights;
    lives?;
    let sights = sights.map_err(|_| anyhow::anyhow!("the thread that looked ended"))??;
    let told: Vec<String> = [
        ("the client", client),
        ("the server", master),
        ("a program without a server", without),
    ]
    .iter()
    .map(|(who, pid)| format!("{who}: {}", ListEntry::told(&sights, *pid)))
    .collect();
    Ok(Verdict::Answer(told.join("; ")))
}

fn graphics(machine: &Machine) -> anyhow::Result<Verdict> {
    machine.egl()?;
    let card = machine.cards.first().context("no card")?;
    let lists = Lists::load(machine)?;
    let (limit, size) = (machine.part(2), machine.part(4));
    let server = Server::limited(machine, "graphics", card, limit)?;
    let mut rows = Vec::new();
    for (who, around, words) in [
        ("alone", ProgramEnv::card(&card.uuid), vec![]),
        ("in an MPS client", server.around(), vec!["context"]),
    ] {
        let mut tenant = Tenant::start(machine, who, &around)?;
        for word in words {
            tenant.ask(word)?;
        }
        let before = machine.used(card)?;
        let drawn = tenant.ask(&format!("graphics {size}"))?;
        let grown = machine.used(card)?.saturating_sub(before);
        let now = lists.of(&card.uuid, tenant.pid())?;
        rows.push(format!(
            "{who}, {size} MiB asked for under a limit of {limit}: {}, the card has {grown} MiB less, listed as {now}",
            drawn["error"].as_str().unwrap_or("success"),
        ));
        tenant.end()?;
    }
    Ok(Verdict::Answer(rows.join("; ")))
}

fn small_beside_large(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let (small, large) = (machine.part(3), machine.part(8));
    // As mode `mps` has it: the largest share is the server's default.
    let server = Server::limited(machine, "beside", card, large)?;
    let (mut neighbour, _) = Tenant::begun(machine, "large", &server.around())?;
    neighbour.code(&format!("alloc {}", machine.part(1)))?;
    let own = server
        .around()
        .with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", &pinned(small));
    let mut rows = Vec::new();
    for (who, around) in [("with its limit", own), ("without it", server.around())] {
        let (mut tenant, _) = Tenant::begun(machine, who, &around)?;
        let full = tenant.ask(&format!("fill {}", machine.step()))?;
        rows.push(format!(
            "{who}: {} at {} MiB of its own",
            code_of(&full),
            number(&full, "taken_mib")
        ));
        tenant.end()?;
    }
    let lives = neighbour.code("touch")? == 0;
    Ok(Verdict::Answer(format!(
        "a share of {small} MiB under a server's default of {large}: {}; the neighbour {}",
        rows.join("; "),
        if lives { "lives" } else { "is BROKEN" },
    )))
}

fn forks(machine: &Machine) -> anyhow::Result<Verdict> {
    const MANY: u64 = 3;
    let card = machine.cards.first().context("no card")?;
    let limit = machine.part(4);
    let server = Server::limited(machine, "forks", card, limit)?;
    let mut tenants = Vec::new();
    let mut taken = 0;
    for n in 0..MANY {
        let (mut tenant, _) = Tenant::begun(machine, &format!("fork-{n}"), &server.around())?;
        let full = tenant.ask(&format!("fill {}", machine.step()))?;
        taken += number(&full, "taken_mib");
        tenants.push(tenant);
    }
    let word = if taken > limit { "no" } else { "YES" };
    Ok(Verdict::Answer(format!(
        "{word}: {MANY} processes under a limit of {limit} MiB hold {taken} MiB of their own"
    )))
}

fn slots(machine: &Machine) -> anyhow::Result<Verdict> {
    const MOST: usize = 64;
    let card = machine.cards.first().context("no card")?;
    let server = Server::start(machine, "slots", card, false)?;
    server.spawn()?;
    let mut tenants = Vec::new();
    let last = loop {
        let name = format!("c{}", tenants.len());
        let (tenant, line) = Tenant::begun(machine, &name, &server.around())?;
        if line["code"] != 0 {
            break format!("the next one: {}", code_of(&line));
        }
        tenants.push(tenant);
        if tenants.len() == MOST {
            break "no more were tried".to_owned();
        }
        if number(&line, "free_mib") < machine.part(1) {
            break "the card has no room for another context".to_owned();
        }
    };
    Ok(Verdict::Answer(format!(
        "{} at once; {last}",
        tenants.len()
    )))
}

fn files(machine: &Machine) -> anyhow::Result<Verdict> {
    root()?;
    let card = machine.cards.first().context("no card")?;
    let mut rows = Vec::new();
    for read_only in [false, true] {
        let name = if read_only { "files-ro" } else { "files-rw" };
        let server = Server::limited(machine, name, card, machine.part(4))?;
        let pipe = server.pipe().display().to_string();
        let around = if read_only {
            server.around().option(&["--read-only", &pipe])
        } else {
            server.around()
        };
        let (mut tenant, begun) = Tenant::begun(machine, name, &around)?;
        let done = tenant.ask("files")?;
        let next = Tenant::start(machine, "next", &server.around())
            .and_then(|mut next| next.ask_within("context", std::time::Duration::from_secs(5)))?;
        rows.push(format!(
            "{name}: a context {}; {}; the next client: {}",
            code_of(&begun),
            done["files"].as_str().unwrap_or("nothing"),
            next.map_or_else(|| "no answer in 5 s".to_owned(), |line| code_of(&line)),
        ));
    }
    Ok(Verdict::Answer(rows.join("; ")))
}

fn resident(machine: &Machine) -> anyhow::Result<Verdict> {
    let card = machine.cards.first().context("no card")?;
    let mut servers: Vec<Server<'_>> = Vec::new();
    let mut rows = Vec::new();
    for many in [1, 8, 32] {
        while servers.len() < many {
            let name = format!("r{}", servers.len());
            match Server::limited(machine, &name, card, machine.part(1)) {
                Ok(server) => servers.push(server),
                Err(error) => {
                    rows.push(format!("number {}: {error:#}", servers.len() + 1));
                    return Ok(Verdict::Answer(rows.join("; ")));
                }
            }
        }
        let mut sum = 0;
        for server in &servers {
            for pid in [Some(server.daemon()), server.pid()?].into_iter().flatten() {
                sum += kib(pid, "VmRSS:") + kib(pid, "VmLck:");
            }
        }
        rows.push(format!(
            "{many}: {} MiB with their daemons, {} MiB of the card",
            sum >> 10,
            machine.used(card)?
        ));
    }
    Ok(Verdict::Answer(rows.join("; ")))
}

/// A figure of `/proc/<pid>/status`.
fn kib(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn memory_limit(machine: &Machine) -> anyhow::Result<Verdict> {
    root()?;
    let card = machine.cards.first().context("no card")?;
    let branch = machine.driver.split('.').next().unwrap_or_default();
    if branch.parse::<u32>().unwrap_or(0) < 615 {
        return Err(Missing::error("memory limits are of driver 615 and later"));
    }
    if !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Err(Missing::error("no cgroup v2 at /sys/fs/cgroup"));
    }
    let limit = machine.part(3);
    let group = Group::make()?;
    let path = group.0.display().to_string();
    let hard = limit.to_string();
    let words = |rest: &[&str]| {
        let mut words = vec!["memory-limits".to_owned()];
        words.extend(rest.iter().map(|word| (*word).to_owned()));
        words.extend(["-n", &path, "-i", &card.uuid].map(str::to_owned));
        words
    };
    let said = |rest: &[&str]| {
        let words = words(rest);
        machine.smi_said(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (set, _) = said(&["--set", "--soft-limit", "0", "--hard-limit", &hard])?;
    let (_, read) = said(&["--get"])?;
    let mut tenant = Tenant::start(machine, "inside", &ProgramEnv::card(&card.uuid))?;
    std::fs::write(group.0.join("cgroup.procs"), tenant.pid().to_string())?;
    tenant.ask("context")?;
    let full = tenant.ask(&format!("fill {}", machine.step()))?;
    tenant.end()?;
    said(&["--set", "--soft-limit", "0", "--hard-limit", "max"])?;
    let held = full["code"] == OUT_OF_MEMORY && number(&full, "taken_mib") <= limit;
    Ok(Verdict::Answer(format!(
        "{}: {limit} MiB set with exit {set:?}, read back as {:?}; a program in it: {} at {} MiB of its own",
        if held { "yes" } else { "NO" },
        read.trim(),
        code_of(&full),
        number(&full, "taken_mib"),
    )))
}

/// A cgroup of ours, which goes with the program that was in it.
struct Group(std::path::PathBuf);

impl Group {
    fn make() -> anyhow::Result<Self> {
        let path = format!("/sys/fs/cgroup/aliquot-gpu-{}", std::process::id());
        std::fs::create_dir(&path).with_context(|| path.clone())?;
        Ok(Self(path.into()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
