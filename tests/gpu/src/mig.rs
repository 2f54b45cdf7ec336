//! What this project says of a card in MIG mode, asked of instances that are there already.
//!
//! Creates and destroys none. The reading is the agent's own: what it sees is what is judged.

use crate::claims::OUT_OF_MEMORY;
use crate::machine::{Machine, Missing};
use crate::report::Verdict;
use crate::tenant::{ProgramEnv, Tenant};
use agent::gpu::Profile;
use agent::nvml::{self, Device, Driver, Watched};
use anyhow::{Context as _, bail};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) type Claim = (&'static str, fn(&Machine) -> anyhow::Result<Verdict>);

pub(crate) const CLAIMS: &[Claim] = &[
    (
        "each slice has the UUID and the profile that nvidia-smi shows",
        profiles,
    ),
    (
        "the driver lists two capability nodes for each slice, and they are there",
        capabilities,
    ),
    (
        "a program on a slice sees that one alone, gets its memory and no more, and is listed on it alone",
        confined,
    ),
    (
        "an instance that a process uses is not read as gone, and its neighbours have all their memory",
        neighbours,
    ),
];

/// Below a `/proc`.
const MIG_MINORS: &str = "driver/nvidia-caps/mig-minors";
/// For NVML to be loaded and read once.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// The slices as the agent reads them.
fn slices(machine: &Machine) -> anyhow::Result<Vec<Device>> {
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let settings = nvml::Settings {
        libraries: vec![machine.root.join("usr/lib64/libnvidia-ml.so.1")],
        interval: Duration::from_millis(100),
        sample_interval: Duration::from_secs(1),
        proc_root: "/proc".into(),
        slices: true,
    };
    let (_watched, watched) = watch::channel(Watched::default());
    let channels = nvml::start(
        settings,
        watched,
        std::sync::mpsc::channel().1,
        &channel::Lengths::default(),
        stop,
    )?;
    let until = Instant::now() + FIRST_LOOK;
    let seen = loop {
        let seen = channels.observations.borrow().clone();
        match &seen.driver {
            Driver::Up { .. } => break seen,
            Driver::Late { reason, .. } | Driver::Gone { reason } if Instant::now() > until => {
                bail!("NVML: {reason}")
            }
            Driver::Late { .. } | Driver::Gone { .. } => {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    };
    let slices = seen.devices.iter().filter(|d| d.identity.slice.is_some());
    let slices: Vec<Device> = slices.cloned().collect();
    for slice in &slices {
        let line = format!("# NVML: {:?} {:?}", slice.identity, slice.reading);
        machine.transcript.note(line);
    }
    if slices.is_empty() {
        return Err(Missing::error(
            "no card is in MIG mode with an instance: `nvidia-smi -mig 1` and `nvidia-smi mig -cgi` make some",
        ));
    }
    Ok(slices)
}

fn judged(wrong: &[String], seen: String) -> Verdict {
    if wrong.is_empty() {
        Verdict::Holds(seen)
    } else {
        Verdict::Differs(wrong.join("; "))
    }
}

fn profiles(machine: &Machine) -> anyhow::Result<Verdict> {
    let told = machine.smi(&["-L"])?;
    let (mut wrong, mut seen) = (Vec::new(), Vec::new());
    for slice in slices(machine)? {
        let uuid = slice.identity.uuid.as_str();
        let line = told.lines().find(|line| line.contains(uuid));
        let shown = line.and_then(|line| line.trim().strip_prefix("MIG ")?.split(' ').next());
        let profile = slice.identity.slice.and_then(|slice| slice.profile);
        let text = format!("{shown:?} is {profile:?}, {}", slice.identity.product);
        // A compute instance of a part, `1c.3g.20gb`, has no resource.
        if shown.is_none() || shown.and_then(Profile::parse) != profile {
            wrong.push(text.clone());
        }
        seen.push(text);
    }
    Ok(judged(&wrong, seen.join("; ")))
}

fn capabilities(machine: &Machine) -> anyhow::Result<Verdict> {
    let own = machine.root.join("proc").join(MIG_MINORS);
    let file = if own.exists() {
        own
    } else {
        Path::new("/proc").join(MIG_MINORS)
    };
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let (mut wrong, mut seen) = (Vec::new(), Vec::new());
    for slice in slices(machine)? {
        let (minor, uuid) = (slice.identity.minor, slice.identity.uuid);
        let Some(slice) = slice.identity.slice else {
            continue;
        };
        let ids = (slice.gpu_instance, slice.compute_instance);
        let Some(nodes) = agent::edit::capabilities(&text, minor, ids.0, ids.1) else {
            wrong.push(format!(
                "{uuid}, instance {ids:?} of card {minor}: not listed"
            ));
            continue;
        };
        for node in nodes {
            let path = machine
                .root
                .join(format!("dev/nvidia-caps/nvidia-cap{node}"));
            if !path.exists() {
                wrong.push(format!("{uuid}: {} is missing", path.display()));
            }
        }
        seen.push(format!("instance {ids:?} of card {minor}: {nodes:?}"));
    }
    Ok(judged(&wrong, seen.join("; ")))
}

/// The hexadecimal digits of a UUID, whatever it begins with.
fn digits(uuid: &str) -> String {
    let bare = uuid.trim_start_matches("GPU-").trim_start_matches("MIG-");
    bare.chars().filter(|c| *c != '-').collect()
}

/// The slices on whose lists of processes a pid is.
fn listed(slices: &[Device], pid: u32) -> Vec<String> {
    let on = slices.iter().filter(|slice| {
        let reading = slice.reading.as_ref().ok();
        reading.is_some_and(|reading| reading.processes.iter().any(|p| p.pid == pid))
    });
    on.map(|slice| slice.identity.uuid.to_string()).collect()
}

fn confined(machine: &Machine) -> anyhow::Result<Verdict> {
    let (mut wrong, mut seen) = (Vec::new(), Vec::new());
    for slice in slices(machine)? {
        let uuid = slice.identity.uuid.as_str();
        let total = slice.reading.map_or(0, |reading| reading.total.0);
        let (mut tenant, begun) = Tenant::begun(machine, "a", &ProgramEnv::card(uuid))?;
        let gpu = begun["gpu"].as_str().unwrap_or_default().to_owned();
        let full = tenant.ask(&format!("fill {}", (total / 64).max(16)))?;
        let on = listed(&slices(machine)?, tenant.pid());
        tenant.end()?;
        let taken = full["taken_mib"].as_u64().unwrap_or(0);
        let text = format!("{uuid}: CUDA {gpu}, {taken} of {total} MiB, listed on {on:?}");
        let fits = full["code"] == OUT_OF_MEMORY && taken <= total && taken >= total / 2;
        if digits(&gpu) != digits(uuid) || !fits || on != [uuid] {
            wrong.push(text.clone());
        }
        seen.push(text);
    }
    Ok(judged(&wrong, seen.join("; ")))
}

fn neighbours(machine: &Machine) -> anyhow::Result<Verdict> {
    let before = slices(machine)?;
    let Some(first) = before.first().filter(|_| before.len() > 1) else {
        return Err(Missing::error("there is one slice"));
    };
    let uuid = first.identity.uuid.clone();
    let (mut tenant, _) = Tenant::begun(machine, "a", &ProgramEnv::card(uuid.as_str()))?;
    tenant.ask("alloc 512")?;
    let after = slices(machine)?;
    tenant.end()?;
    let used = |slices: &[Device]| -> Vec<u64> {
        let used = slices.iter().map(|slice| slice.reading.as_ref());
        used.map(|reading| reading.map_or(0, |reading| reading.used.0))
            .collect()
    };
    let (was, is) = (used(&before), used(&after));
    let held = is.first() >= was.first().map(|was| was + 512).as_ref();
    let others = was.get(1..) == is.get(1..);
    let wrong = (!held || !others).then(|| format!("{was:?} MiB, then {is:?}"));
    Ok(judged(
        wrong.as_slice(),
        format!("{was:?} MiB, then {is:?}"),
    ))
}
