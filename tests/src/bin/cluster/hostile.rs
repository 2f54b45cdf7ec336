//! What a tenant can do to get more than its share, and what comes of it in every mode.
//!
//! [`mod@table`] is the one in `docs/modes-and-fences.md`: each row is run, and the page is compared
//! with what was seen. The rows of a column run side by side, each on a card of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::{line, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use api::Mode;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::claims::{self, with_driver_on};
use crate::modes::policy;

mod table;

use table::Outcome::{Clients, Escapes, Held, Killed, Refused};
use table::{COLUMNS, CONTEXT, Column, DRIVERS, Outcome, QUIT, Row, TABLE, table};

/// What each tenant is granted, MiB.
const SHARE: u64 = 2000;
/// The watchdog's slack, MiB.
const SLACK: u64 = 16;
/// `CUDA_ERROR_MPS_CLIENT_TERMINATED`.
const TERMINATED: u64 = 810;

pub(crate) async fn the_table_in_the_docs_is_the_one_that_is_run(
    cluster: &mut Cluster,
) -> Result<()> {
    let page = cluster.programs.tree.join("docs/modes-and-fences.md");
    let page = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    ensure!(
        page.contains(&table()),
        "docs/modes-and-fences.md should have\n{}",
        table()
    );
    Ok(())
}

pub(crate) async fn under_mps_beside_a_smaller_share_a_hostile_tenant_gets_what_the_table_says(
    cluster: &mut Cluster,
) -> Result<()> {
    column(cluster, 0).await
}

pub(crate) async fn under_mps_beside_a_larger_share_a_hostile_tenant_gets_what_the_table_says(
    cluster: &mut Cluster,
) -> Result<()> {
    column(cluster, 1).await
}

pub(crate) async fn under_mps_isolated_a_hostile_tenant_gets_what_the_table_says(
    cluster: &mut Cluster,
) -> Result<()> {
    column(cluster, 2).await
}

pub(crate) async fn under_time_slicing_a_hostile_tenant_gets_what_the_table_says(
    cluster: &mut Cluster,
) -> Result<()> {
    column(cluster, 3).await
}

/// By which way tenants ask for what they are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestForm {
    /// By annotation, under our scheduler.
    Annotation,
    /// By claim, under Kubernetes' own.
    Claim,
}

/// One column under every driver that it is run with.
async fn column(cluster: &mut Cluster, at: usize) -> Result<()> {
    for driver in 0..DRIVERS.len() {
        if rows(at, driver).is_empty() {
            continue;
        }
        cluster.aliquot(&hardware(driver)).await?;
        let ns = cluster.namespace().await?;
        every_outcome(cluster, &ns, at, driver, RequestForm::Annotation).await?;
    }
    Ok(())
}

/// One column with tenants that have claims, under the first driver.
pub(crate) async fn column_by_claim(cluster: &mut Cluster, at: usize) -> Result<()> {
    with_driver_on(cluster, &hardware(0), async |cluster, ns| {
        every_outcome(cluster, ns, at, 0, RequestForm::Claim).await
    })
    .await
}

fn rows(at: usize, driver: usize) -> Vec<&'static Row> {
    let column = &COLUMNS[at];
    TABLE
        .iter()
        .filter(|row| row.is_run(column, driver))
        .collect()
}

fn hardware(driver: usize) -> Hardware {
    let cards = json!({
        "preset": "RTX-6000-Ada", "count": TABLE.len(), "context_mib": CONTEXT,
    });
    Hardware::described(json!({ "cards": [cards] })).driver(DRIVERS[driver])
}

/// Every row of a column, against what the table says.
async fn every_outcome(
    cluster: &Cluster,
    ns: &str,
    at: usize,
    driver: usize,
    way: RequestForm,
) -> Result<()> {
    let (column, version) = (&COLUMNS[at], DRIVERS[driver]);
    let wanted = json!({
        "defaultMode": column.mode.as_str(), "reserveMib": column.reserve,
    });
    policy(cluster, wanted).await?;
    let rows = rows(at, driver);
    let seen = every_row(cluster, ns, column, &rows, way).await;
    policy(cluster, json!({})).await?;
    let mut wrong = Vec::new();
    for (row, seen) in rows.iter().zip(seen.with_context(|| version.to_owned())?) {
        let line = format!("{version}: {}: {}", row.what, seen.words());
        #[expect(clippy::print_stdout, reason = "how near it came to what it may get")]
        {
            println!("  {line}");
        }
        if !row.allows(at, driver, seen) {
            wrong.push(line);
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A pod with this many MiB.
async fn share(
    cluster: &Cluster,
    ns: &str,
    name: &str,
    mib: u64,
    script: &str,
    way: RequestForm,
) -> Result<Value> {
    Ok(match way {
        RequestForm::Annotation => pod(ns, name, &[("gpu-memory", &mib.to_string())], script),
        RequestForm::Claim => {
            let template = format!("m{mib}");
            claims::template(cluster, ns, &template, &format!("{mib}Mi"), &json!({})).await?;
            claims::manifest(ns, name, &template, script)
        }
    })
}

/// Runs rows side by side. Returns the result of each.
async fn every_row(
    cluster: &Cluster,
    ns: &str,
    column: &Column,
    rows: &[&Row],
    way: RequestForm,
) -> Result<Vec<Outcome>> {
    let go = Path::new("/tmp").join(format!("go-{ns}"));
    std::fs::create_dir_all(&go)?;
    let mut tenants = Vec::new();
    let mut neighbours = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let own = ["fork", "clients", "graphics", "raw"];
        let appetite = if own.iter().any(|verb| row.before.starts_with(verb)) {
            "hold"
        } else {
            "grow 100 hold"
        };
        let script = format!("await /go/now {} {appetite}", row.before);
        let tenant = share(cluster, ns, &name(at), SHARE, &script, way).await?;
        tenants.push(waiting(tenant, &go));
        if at == 0 || column.each {
            let name = format!("n{at}");
            let script = "alloc 500 hold";
            neighbours.push(share(cluster, ns, &name, column.neighbour, script, way).await?);
        }
    }
    let pairs = neighbours.len();
    // No card has room for a second one of the larger kind, and all have for one of the other.
    // A single neighbour comes while only the first tenant's card is in use.
    let order = if column.neighbour > SHARE {
        vec![neighbours, tenants]
    } else if column.each {
        vec![tenants, neighbours]
    } else {
        let others = tenants.split_off(1);
        vec![tenants, neighbours, others]
    };
    for pods in &order {
        for pod in pods {
            cluster.apply_one(pod).await?;
        }
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            cluster.pod_phase(ns, name, "Running").await?;
        }
    }
    let beside = neighbours_of(cluster, pairs).await?;
    let outcomes = outcomes(cluster, ns, column, rows, &go).await;
    std::fs::remove_dir_all(&go)?;
    let outcomes = outcomes?;
    let pods = cluster.pods(ns);
    for (at, row) in rows.iter().enumerate() {
        let Some(neighbour) = beside.get(&name(at)) else {
            continue;
        };
        let pod = pods.get(neighbour).await?;
        // This one ends the server of both, and with it what that holds for the neighbour.
        let may_end = row.before == QUIT && column.mode == Mode::Mps;
        let still = phase_of(&pod) == "Running" && restarts(&pod) == 0;
        ensure!(still || may_end, "{}: the neighbour ended", row.what);
    }
    let now = DeleteParams::default().grace_period(0);
    pods.delete_collection(&now, &ListParams::default()).await?;
    until("no pod left", Duration::from_mins(1), || async {
        let left = pods.list(&ListParams::default()).await?.items.len();
        Ok(Seen::when(left == 0, format!("{left} pods")))
    })
    .await?;
    Ok(outcomes)
}

/// The pod of a row.
fn name(row: usize) -> String {
    format!("t{row}")
}

/// A tenant that begins when there is a file `now` in `go`.
fn waiting(mut manifest: Value, go: &Path) -> Value {
    let spec = &mut manifest["spec"];
    spec["volumes"] = json!([{ "name": "go", "hostPath": { "path": go } }]);
    spec["containers"][0]["volumeMounts"] = json!([{ "name": "go", "mountPath": "/go" }]);
    manifest
}

/// By tenant the neighbour on its card, once this many have one.
async fn neighbours_of(cluster: &Cluster, many: usize) -> Result<BTreeMap<String, String>> {
    until("two on a card", Duration::from_secs(20), || async {
        let mut cards: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (card, grant) in cluster.ledger().await? {
            let pod = grant.pod.rsplit('/').next().unwrap_or_default().to_owned();
            cards.entry(card).or_default().push(pod);
        }
        let mut pairs: BTreeMap<String, String> = BTreeMap::new();
        for pods in cards.values_mut() {
            pods.sort();
            if let [neighbour, tenant] = pods.as_slice()
                && neighbour.starts_with('n')
                && tenant.starts_with('t')
            {
                pairs.insert(tenant.clone(), neighbour.clone());
            }
        }
        Ok(if pairs.len() == many {
            Seen::Done(pairs)
        } else {
            Seen::NotYet(format!("{cards:?}"))
        })
    })
    .await
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .map(|s| s.restart_count)
        .sum()
}

/// Lets all begin, and waits until the result of every one is known.
async fn outcomes(
    cluster: &Cluster,
    ns: &str,
    column: &Column,
    rows: &[&Row],
    go: &Path,
) -> Result<Vec<Outcome>> {
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let pods = cluster.pods(ns);
    let mut tenants = Vec::new();
    for at in 0..rows.len() {
        let uid = pods.get(&name(at)).await?.metadata.uid.context("a UID")?;
        tenants.push(Tenant::of(uid));
    }
    std::fs::write(go.join("now"), "")?;
    let deadline = Instant::now() + Duration::from_mins(1);
    while tenants.iter().any(|tenant| tenant.outcome.is_none()) {
        ensure!(
            Instant::now() < deadline,
            "within a minute only {tenants:?}"
        );
        for at in 0..tenants.len() {
            // A shorter interval than in other waits, because allocations are brief.
            let status = gpus.driver.control(&["status"]).await?;
            for tenant in &mut tenants {
                tenant.look(&status);
            }
            if tenants[at].outcome.is_none() {
                let pod = pods.get(&name(at)).await?;
                let log = cluster.logs(ns, &name(at), None).await.unwrap_or_default();
                tenants[at].judge(&pod, &log, column.mode);
            }
        }
    }
    Ok(tenants.iter().filter_map(|tenant| tenant.outcome).collect())
}

/// A tenant, and what was seen of it.
#[derive(Debug)]
struct Tenant {
    uid: String,
    /// Most that it held by the driver's account, MiB, and whether it holds anything now.
    most: u64,
    holds: bool,
    /// Its reported use, and since when that is known.
    line: Option<(Instant, Value)>,
    outcome: Option<Outcome>,
}

impl Tenant {
    fn of(uid: String) -> Self {
        Self {
            uid,
            most: 0,
            holds: false,
            line: None,
            outcome: None,
        }
    }

    fn look(&mut self, status: &str) {
        let held = held_by(status, &self.uid);
        self.holds = held.is_some();
        self.most = self.most.max(held.unwrap_or(0));
    }

    fn judge(&mut self, pod: &Pod, log: &str, mode: Mode) {
        /// Well after the watchdog would have acted, and after its less frequent checks.
        const SETTLED: Duration = Duration::from_millis(2500);
        if self.line.is_none() {
            let verbs = ["grow", "fork", "clients", "graphics", "raw"];
            let said = verbs.iter().find_map(|verb| line(log, verb));
            self.line = said.map(|line| (Instant::now(), line));
        }
        let ended = ended(pod).map(|ended| ended.exit_code);
        let Some((since, line)) = &self.line else {
            self.outcome = (ended == Some(137)).then_some(Killed(self.most));
            return;
        };
        let code = line["code"].as_u64();
        let refused = code.filter(|code| *code != TERMINATED && line["held_mib"].is_null());
        self.outcome = match (ended, refused) {
            (_, Some(code)) => Some(Refused(code)),
            (Some(137), _) => Some(Killed(self.most)),
            // It was taken off its server before it was killed, and ended by that.
            (Some(_), _) if code == Some(TERMINATED) => Some(Killed(self.most)),
            (Some(exit), _) => Some(Refused(code.unwrap_or(exit.unsigned_abs().into()))),
            // One that holds nothing any more was ended, and the kubelet has not reported it yet.
            (None, _) if self.holds && since.elapsed() > SETTLED => Some({
                match line["connected"].as_u64() {
                    Some(count) if mode != Mode::TimeSlicing => Clients(count),
                    _ if self.most <= SHARE + SLACK => Held,
                    _ => Escapes(self.most),
                }
            }),
            _ => None,
        };
    }
}

/// How a pod's container ended, if it did.
pub(crate) fn ended(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.terminated.as_ref()
}

/// From the driver's own account: the time from the moment at which a process holds more
/// than its share to the moment at which it holds nothing.
pub(crate) async fn the_watchdog_acts_within_a_quarter_of_a_second(
    cluster: &mut Cluster,
) -> Result<()> {
    const ROUNDS: usize = 20;
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    policy(cluster, json!({ "defaultMode": "time-slicing" })).await?;
    let times = measured(cluster, ROUNDS).await;
    policy(cluster, json!({})).await?;
    let mut times = times?;
    times.sort_unstable();
    // One of twenty may meet a moment in which the machine does something else.
    let (median, worst) = (times[ROUNDS / 2], times[ROUNDS - 2]);
    #[expect(clippy::print_stdout, reason = "the figure is worth a line")]
    {
        println!(
            "violation to end, {ROUNDS} rounds: median {median:?}, all but one within {worst:?}"
        );
    }
    ensure!(worst <= Duration::from_millis(250), "{times:?}");
    Ok(())
}

async fn measured(cluster: &mut Cluster, rounds: usize) -> Result<Vec<Duration>> {
    let ns = cluster.namespace().await?;
    let mut times = Vec::new();
    let names: Vec<String> = (0..rounds).map(|round| format!("r{round}")).collect();
    for name in &names {
        let script = "context await /tmp/go alloc 3000 hold";
        cluster
            .apply_one(&pod(&ns, name, &[("gpu-memory", "2000")], script))
            .await?;
    }
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    for name in &names {
        let running = cluster.pod_phase(&ns, name, "Running").await?;
        cluster.said(&ns, name, "main", "context").await?;
        let uid = running.metadata.uid.context("a UID")?;
        // Checked while the command runs: its container may end before it does.
        let touch = ["/bin/busybox", "touch", "/tmp/go"];
        let exec = cluster.kubectl.exec(&ns, name, "main", &touch);
        let (_, time) = tokio::join!(exec, violation(gpus, &uid));
        times.push(time.with_context(|| name.clone())?);
        // The watchdog ended it.
        let failed = cluster.pod_phase(&ns, name, "Failed").await?;
        let code = ended(&failed).map(|ended| ended.exit_code);
        ensure!(code == Some(137), "{name} ended with {code:?}");
        cluster.delete_pod(&ns, name).await?;
    }
    Ok(times)
}

/// How long a pod holds more than its 2,000 MiB, at most: from the last sample at which it did not
/// to the first at which it held nothing any more.
///
/// Polled closer than waits are: the figure is its business.
async fn violation(gpus: &Gpus, uid: &str) -> Result<Duration> {
    const LIMIT: Duration = Duration::from_secs(10);
    let asked = Instant::now();
    let mut begin = asked;
    loop {
        let look = Instant::now();
        match held(gpus, uid).await? {
            Some(mib) if mib <= 2000 => begin = look,
            Some(_) => break,
            // All of it was between two samples.
            None => return Ok(begin.elapsed()),
        }
        ensure!(asked.elapsed() < LIMIT, "it takes nothing");
    }
    while held(gpus, uid).await?.is_some() {
        ensure!(begin.elapsed() < LIMIT, "it lives");
    }
    Ok(begin.elapsed())
}

/// What a pod's processes hold by the driver's account, MiB; `None`: it has none there.
pub(crate) async fn held(gpus: &Gpus, uid: &str) -> Result<Option<u64>> {
    let status = gpus.driver.control(&["status"]).await?;
    Ok(held_by(&status, uid))
}

fn held_by(status: &str, uid: &str) -> Option<u64> {
    let held = status.lines().filter(|line| line.contains(uid));
    held.filter_map(|line| line.split('\t').nth(4)?.parse::<u64>().ok())
        .reduce(|one, other| one + other)
}
