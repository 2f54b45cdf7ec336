//! The scheduler as a process, and what `deploy/` gives it.
//!
//! Comes in: the manifests of `deploy/`. Goes out: everything in them applied but the
//! workloads, which run here as processes, and the scheduler running with the token of
//! its service account. The API server calls its webhook by URL, since nothing routes
//! Services here.
//! Must never lend the scheduler more rights than `deploy/` gives its service account.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::Client;
use proto::names::{NAMESPACE, object};
use serde_json::Value;

use crate::cluster::Programs;
use crate::control_plane;
use crate::daemon::{Command, Daemon};
use crate::machine::ADDRESS;
use crate::manifest::documents;
use crate::token::{self, AccountToken, Credential, Refresher};

const WEBHOOK_PORT: u16 = 8443;
/// Of the status page.
pub const PAGE_PORT: u16 = 8444;
/// Where the scheduler shows its metrics and its health.
pub const METRICS: &str = "127.0.0.1:9401";
/// Kinds of manifests that are left out: their programs are processes here.
const WORKLOADS: [&str; 3] = ["Deployment", "DaemonSet", "Pod"];

/// Where agents reach the scheduler.
pub fn telemetry_endpoint() -> String {
    format!("{ADDRESS}:{}", proto::names::telemetry::PORT)
}

/// What the manifests of `deploy/` say that must stand before any program runs.
pub fn manifests(tree: &Path) -> Result<Vec<Value>> {
    let deploy = tree.join("deploy");
    let mut files: Vec<PathBuf> = fs::read_dir(deploy.join("crds"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    files.extend(["scheduler.yaml", "daemonset.yaml"].map(|name| deploy.join(name)));
    let mut found = Vec::new();
    for file in files {
        let yaml = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        found.extend(documents(&yaml).with_context(|| file.display().to_string())?);
    }
    found.retain(|document| !WORKLOADS.iter().any(|kind| document["kind"] == **kind));
    Ok(found)
}

/// The running scheduler.
#[derive(Debug)]
pub struct Scheduler {
    pub daemon: Daemon,
    _tokens: Refresher,
}

impl Scheduler {
    /// Starts it; the manifests stand already.
    pub async fn start(
        client: &Client,
        programs: &Programs,
        state: &Path,
        logs: &Path,
        authority: &Path,
    ) -> Result<Self> {
        let folder = state.join("scheduler");
        fs::create_dir_all(&folder)?;
        let file = folder.join("scheduler.token");
        let tokens = Refresher::start(
            client.clone(),
            vec![AccountToken {
                namespace: NAMESPACE.to_owned(),
                account: object::SCHEDULER_ACCOUNT.to_owned(),
                node: None,
                audience: None,
                file: file.clone(),
            }],
        )
        .await?;
        let kubeconfig = folder.join("scheduler.kubeconfig");
        token::write_kubeconfig(
            &kubeconfig,
            &control_plane::url(),
            authority,
            &Credential::File(file),
        )?;
        let daemon = Command::new("scheduler", programs.ours.join("aliquot-scheduler"))
            .flag("--webhook", format!("0.0.0.0:{WEBHOOK_PORT}"))
            .flag("--webhook-url", format!("https://{ADDRESS}:{WEBHOOK_PORT}"))
            .flag(
                "--telemetry",
                format!("0.0.0.0:{}", proto::names::telemetry::PORT),
            )
            .flag("--metrics", METRICS)
            .flag("--page", format!("0.0.0.0:{PAGE_PORT}"))
            .env("KUBECONFIG", kubeconfig)
            .env("RUST_LOG", "info")
            .start(logs)?;
        Ok(Self {
            daemon,
            _tokens: tokens,
        })
    }

    /// What the scheduler's metrics page says.
    pub async fn metrics(&self) -> Result<String> {
        crate::http::get(METRICS, "/metrics").await
    }
}
