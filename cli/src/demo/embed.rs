//! Agent, MPS supervisor and scheduler as tasks: the programs' own entry points, with a
//! configuration that points into the demo's directory.

use super::group::Group;
use super::paths::Paths;
use anyhow::Context as _;
use kube::Client;
use std::net::{Ipv4Addr, SocketAddr};

/// Time between two readings of an agent's cards.
const NVML_INTERVAL_MS: u64 = 250;
/// A runtime that reads CDI files again for each container needs no time to notice one.
const CDI_SETTLE_MS: u64 = 1;

/// Where a scheduler is reached.
pub(super) struct Addresses {
    /// By agents.
    pub(super) telemetry: String,
    /// By a browser.
    pub(super) page: String,
    /// By Prometheus.
    pub(super) metrics: String,
}

/// The scheduler, its status page open to all users of this machine.
pub(super) async fn scheduler(group: &mut Group, client: &Client) -> anyhow::Result<Addresses> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut config = scheduler::Config {
        webhook: any,
        telemetry: any,
        metrics: Some(any),
        page: Some(any),
        page_is_open: true,
        // The demo's pods have no controllers, and its scenarios do not wait a minute for a
        // consolidation.
        consolidate_bare_pods: true,
        consolidation_min_age_s: 0,
        ..scheduler::Config::default()
    };
    let listeners = scheduler::Listeners::bind(&config).await?;
    // Nothing routes Services here: the API server calls the webhook where it listens.
    config.webhook_url = Some(format!("https://{}", listeners.webhook.local_addr()?));
    let telemetry = listeners.telemetry.local_addr()?.to_string();
    let page = listeners.page.as_ref().context("no page")?.local_addr()?;
    let metrics = listeners
        .metrics
        .as_ref()
        .context("no metrics")?
        .local_addr()?;
    let metrics = metrics.to_string();
    let page = format!("http://{page}/");
    let running = scheduler::run_on(listeners, config, client.clone().into(), group.stop.clone());
    group
        .tasks
        .spawn(async move { running.await.context("scheduler") });
    Ok(Addresses {
        telemetry,
        page,
        metrics,
    })
}

/// The agent of one node and its MPS supervisor. `metrics`: where its own are served.
pub(super) fn agent(
    group: &mut Group,
    name: &str,
    paths: &Paths,
    telemetry: &str,
    metrics: Option<SocketAddr>,
    client: &Client,
) -> anyhow::Result<()> {
    paths
        .make()
        .with_context(|| format!("directories of {name}"))?;
    let supervisor = agent::Config {
        kubelet_dir: paths.kubelet.clone(),
        cdi_dir: paths.cdi.clone(),
        nvidia_cdi_dirs: vec![paths.cdi.clone()],
        run_dir: paths.run.clone(),
        driver_root: paths.driver.clone(),
        nvml: paths.nvml(),
        nvml_interval_ms: NVML_INTERVAL_MS,
        // There is one `/dev` for all nodes: the supervisor's programs get their driver by the
        // environment.
        mps_env: vec![format!(
            "{}={}",
            sim_gpu::paths::ROOT_ENV,
            paths.driver.display()
        )],
        mps_mounts: agent::mps::may_mount(),
        hook_path: paths.hook.clone(),
        telemetry_endpoint: (!telemetry.is_empty()).then(|| telemetry.to_owned()),
        telemetry_token_file: paths.token.clone(),
        cdi_settle_ms: CDI_SETTLE_MS,
        reconcile_interval_ms: 1000,
        ..agent::Config::for_node(name)
    };
    let agent = agent::Config {
        // Containers of the demo have no cgroups; their runtime writes the names that they would
        // have.
        proc_root: paths.proc.clone(),
        listen: metrics,
        ..supervisor.clone()
    };
    let serving = agent::mps::serve(supervisor, group.stop.clone());
    let what = format!("MPS supervisor of {name}");
    group
        .tasks
        .spawn(async move { serving.await.context(what) });
    let running = agent::run(agent, client.clone(), group.stop.clone());
    let what = format!("agent of {name}");
    group
        .tasks
        .spawn(async move { running.await.context(what) });
    Ok(())
}
