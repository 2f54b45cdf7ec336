//! What an agent costs its node: eight cards, nothing on them, and then many shares.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use kube::api::ListParams;

/// As many as 64 take minutes to start, so that is run with `--extended`.
const SHARES: usize = 24;
/// Long enough for some full readings of all cards and for hundreds of samples.
const SPAN: Duration = Duration::from_secs(15);

fn gpus(cluster: &Cluster) -> Result<&Gpus> {
    cluster.gpus.as_ref().context("no GPUs")
}

/// Resident and anonymous memory of a process, KiB.
fn memory(pid: u32) -> Result<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Ok((
        field("VmRSS:").context("VmRSS")?,
        field("RssAnon:").context("RssAnon")?,
    ))
}

/// CPU time that a process has used, in hundredths of a second: its threads that call NVML, and all
/// others. Of the former all but a few per cent is NVML's own.
fn ticks(pid: u32) -> Result<[u64; 2]> {
    let mut sums = [0; 2];
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
        // It may have ended since it was listed.
        let Some((head, rest)) = stat.rsplit_once(')') else {
            continue;
        };
        let mut fields = rest.split_whitespace().skip(11);
        let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok());
        let used = next().context("utime")? + next().context("stime")?;
        // One for each card and one for its events, and those of the driver.
        let calls_nvml = head
            .split_once('(')
            .is_some_and(|(_, name)| name.starts_with("nvml"));
        sums[usize::from(!calls_nvml)] += used;
    }
    Ok(sums)
}

/// Per cent of one core over [`SPAN`]: NVML's threads, and all others.
async fn cpu(pid: u32) -> Result<[f64; 2]> {
    let before = ticks(pid)?;
    tokio::time::sleep(SPAN).await;
    let after = ticks(pid)?;
    let mut parts = [0.0; 2];
    for ((part, after), before) in parts.iter_mut().zip(after).zip(before) {
        *part = f64::from(u32::try_from(after.saturating_sub(before))?) / SPAN.as_secs_f64();
    }
    Ok(parts)
}

/// Shares that the agent shows as running.
async fn running(cluster: &Cluster) -> Result<usize> {
    let page = gpus(cluster)?.metrics().await?;
    let shown = |line: &&str| line.starts_with("aliquot_share_running{") && line.ends_with(" 1");
    Ok(page.lines().filter(shown).count())
}

pub(crate) async fn an_agent_costs_little_and_knows_its_shares_after_a_kill(
    cluster: &mut Cluster,
) -> Result<()> {
    agent_costs_little(cluster, SHARES).await
}

pub(crate) async fn agent_costs_little(cluster: &mut Cluster, shares: usize) -> Result<()> {
    cluster.aliquot(&Hardware::preset("H100-80", 8)).await?;
    let pid = gpus(cluster)?.agent.pid().context("no agent")?;
    let idle = (cpu(pid).await?, memory(pid)?);
    let ns = cluster.namespace().await?;
    for n in 0..shares {
        let manifest = pod(
            &ns,
            &format!("p{n}"),
            &[("gpu-memory", "9000")],
            "alloc 500 hold",
        );
        cluster.apply_one(&manifest).await?;
    }
    let pods = cluster.pods(&ns);
    let limit = Duration::from_millis(2500) * u32::try_from(shares)?;
    until("all of them run", limit, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let up = all.iter().filter(|pod| phase_of(pod) == "Running").count();
        let known = running(cluster).await?;
        let seen = format!("{up} run, {known} known");
        Ok(Seen::when(up == shares && known == shares, seen))
    })
    .await?;
    let busy = (cpu(pid).await?, memory(pid)?);

    let agent = &mut cluster.gpus.as_mut().context("no GPUs")?.agent;
    agent.kill().await?;
    agent.start_again()?;
    let begin = Instant::now();
    until("the ledger rebuilt", Duration::from_secs(20), || async {
        let known = running(cluster).await?;
        Ok(Seen::when(known == shares, format!("{known} known")))
    })
    .await?;
    let back = begin.elapsed();
    #[expect(clippy::print_stdout, reason = "the figures are worth lines")]
    {
        for (what, ([nvml, rest], (resident, anonymous))) in [(0, idle), (shares, busy)] {
            println!(
                "8 cards with {what} shares: {rest:.2} % of a core and {nvml:.2} % in NVML's threads, {resident} KiB resident, {anonymous} KiB anonymous"
            );
        }
        println!("{shares} shares known {back:?} after the start of an agent that was killed");
    }
    // Wide of the targets, which are for a release build on a quiet machine.
    ensure!(
        busy.0.iter().sum::<f64>() < 50.0 && busy.1.1 < 64 << 10,
        "{busy:?}"
    );
    ensure!(back < Duration::from_secs(5), "{back:?}");
    Ok(())
}
