//! What an agent costs its node: eight cards, nothing on them, and then 64 shares.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use kube::api::ListParams;

const SHARES: usize = 64;
/// Long enough for some looks at all cards and for hundreds of samples.
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

/// CPU time that a process has used, in hundredths of a second.
fn ticks(pid: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("no name")?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok());
    Ok(next().context("utime")? + next().context("stime")?)
}

/// Per cent of one core over [`SPAN`].
async fn cpu(pid: u32) -> Result<f64> {
    let before = ticks(pid)?;
    tokio::time::sleep(SPAN).await;
    let used = u32::try_from(ticks(pid)? - before)?;
    Ok(f64::from(used) / SPAN.as_secs_f64())
}

/// Shares that the agent shows as running.
async fn running(cluster: &Cluster) -> Result<usize> {
    let page = gpus(cluster)?.metrics().await?;
    let shown = |line: &&str| line.starts_with("aliquot_share_running{") && line.ends_with(" 1");
    Ok(page.lines().filter(shown).count())
}

pub(crate) async fn an_agent_costs_little_with_64_shares_and_knows_them_after_a_kill(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("H100-80", 8)).await?;
    let pid = gpus(cluster)?.agent.pid().context("no agent")?;
    let idle = (cpu(pid).await?, memory(pid)?);
    let ns = cluster.namespace().await?;
    for n in 0..SHARES {
        let manifest = pod(
            &ns,
            &format!("p{n}"),
            &[("gpu-memory", "9000")],
            "alloc 500 hold",
        );
        cluster.apply_one(&manifest).await?;
    }
    let pods = cluster.pods(&ns);
    until("all of them run", Duration::from_secs(150), || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let up = all.iter().filter(|pod| phase_of(pod) == "Running").count();
        let known = running(cluster).await?;
        let seen = format!("{up} run, {known} known");
        Ok(Seen::when(up == SHARES && known == SHARES, seen))
    })
    .await?;
    let busy = (cpu(pid).await?, memory(pid)?);

    let agent = &mut cluster.gpus.as_mut().context("no GPUs")?.agent;
    agent.kill().await?;
    agent.start_again()?;
    let begin = Instant::now();
    until("the ledger rebuilt", Duration::from_secs(20), || async {
        let known = running(cluster).await?;
        Ok(Seen::when(known == SHARES, format!("{known} known")))
    })
    .await?;
    let back = begin.elapsed();
    #[expect(clippy::print_stdout, reason = "the figures are worth lines")]
    {
        for (what, (cpu, (resident, anonymous))) in [("nothing", idle), ("64 shares", busy)] {
            println!(
                "8 cards with {what}: {cpu:.2} % of a core, {resident} KiB resident, {anonymous} KiB anonymous"
            );
        }
        println!("64 shares known {back:?} after the start of an agent that was killed");
    }
    // Wide of the targets, which are for a release build on a quiet machine.
    ensure!(busy.0 < 50.0 && busy.1.1 < 64 << 10, "{busy:?}");
    ensure!(back < Duration::from_secs(5), "{back:?}");
    Ok(())
}
