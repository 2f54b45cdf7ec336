//! Agent, MPS supervisor and scheduler as tasks: the programs' own entry points, with a
//! configuration that points into the demo's directory.

use super::cluster::Paths;
use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(super) fn scheduler(
    _parts: &mut JoinSet<anyhow::Result<()>>,
    _client: &Client,
    _stop: &CancellationToken,
) -> anyhow::Result<String> {
    Ok(String::new())
}

pub(super) fn agent(
    _parts: &mut JoinSet<anyhow::Result<()>>,
    _name: &str,
    paths: &Paths,
    _telemetry: &str,
    _client: &Client,
    _stop: &CancellationToken,
) -> anyhow::Result<()> {
    paths.make()?;
    paths.mps_control()?;
    paths.nvml();
    Ok(())
}
