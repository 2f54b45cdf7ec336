//! The scheduler as a process, and what `deploy/` gives it.
//!
//! Comes in: the manifests of `deploy/`. Goes out: everything in them applied but the
//! workloads, which run here as processes, and the scheduler running with the token of
//! its service account. The API server calls its webhook by URL, since nothing routes
//! Services here.
//! Must never lend the scheduler more rights than `deploy/` gives its service account.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use proto::names::{NAMESPACE, object};
use serde_json::Value;

use crate::adapt;
use crate::control_plane;
use crate::daemon::{Command, Daemon};
use crate::gpu::Place;
use crate::machine::ADDRESS;
use crate::manifest::documents;
use crate::token::{self, AccountToken, Credential, Refresher};
use crate::wait::{Seen, until};
use crate::wall::WallClock;

pub(crate) const WEBHOOK_PORT: u16 = 8443;
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
    for document in &mut found {
        adapt::webhooks(document);
    }
    Ok(found)
}

/// One replica: its name and where it is reached.
#[derive(Debug, Clone)]
pub struct Replica {
    /// Of the process, its log, and in the lease.
    pub name: String,
    /// Ports of webhook, telemetry and metrics.
    pub ports: [u16; 3],
    /// Of the status page, where it has one.
    pub page: Option<u16>,
    /// Where the API server calls the webhook.
    pub webhook_url: String,
    /// Where it finds the API server.
    pub api: String,
    /// Whether it acts only while it holds the lease.
    pub elects: bool,
    /// Flags beside those that follow from the rest.
    pub args: Vec<String>,
    /// The wall clock that it sees, if not the machine's.
    pub wall: Option<WallClock>,
}

impl Replica {
    /// The only one, which needs no lease.
    pub fn only() -> Self {
        Self {
            name: "scheduler".to_owned(),
            ports: [WEBHOOK_PORT, proto::names::telemetry::PORT, 9401],
            webhook_url: adapt::webhook_url(),
            page: Some(PAGE_PORT),
            api: control_plane::url(),
            elects: false,
            // All that is not timed recomputes every sum after each change.
            args: vec!["--verify".to_owned()],
            wall: None,
        }
    }

    /// The `number`th of several, from 1. The API server calls their webhooks at one
    /// address, as it would their Service.
    pub fn of_several(number: u16, api: String) -> Self {
        let first = 8500 + 10 * number;
        Self {
            name: format!("scheduler-{number}"),
            ports: [first, first + 1, first + 2],
            page: None,
            elects: true,
            api,
            ..Self::only()
        }
    }

    /// Where it shows its metrics and its health.
    pub fn metrics(&self) -> String {
        format!("127.0.0.1:{}", self.ports[2])
    }

    /// Where agents reach it.
    pub fn telemetry(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.ports[1]).into()
    }
}

/// The running scheduler.
#[derive(Debug)]
pub struct Scheduler {
    pub daemon: Daemon,
    pub replica: Replica,
    _tokens: Refresher,
}

impl Scheduler {
    /// Starts it; the manifests stand already.
    pub async fn start(client: &Client, place: &Place<'_>, replica: Replica) -> Result<Self> {
        let folder = place.state.join(&replica.name);
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
        let kubeconfig = Self::kubeconfig(place.state, &replica.name);
        token::write_kubeconfig(
            &kubeconfig,
            &replica.api,
            &place.authority,
            &Credential::File(file),
        )?;
        let [webhook, telemetry, _] = replica.ports;
        let program = place.programs.ours.join("aliquot-scheduler");
        let mut command = Command::new(&replica.name, program)
            .flag("--webhook", format!("0.0.0.0:{webhook}"))
            .flag("--webhook-url", &replica.webhook_url)
            .flag("--telemetry", format!("0.0.0.0:{telemetry}"))
            .flag("--metrics", replica.metrics())
            .env("KUBECONFIG", kubeconfig)
            .env("RUST_LOG", "info");
        if let Some(page) = replica.page {
            command = command.flag("--page", format!("0.0.0.0:{page}"));
        }
        if let Some(wall) = &replica.wall {
            command = command
                .env("LD_PRELOAD", place.programs.ours.join("libsim_clock.so"))
                .env("ALIQUOT_SIM_CLOCK", wall.file());
        }
        command = command.args(&replica.args);
        if replica.elects {
            command = command
                .flag("--leader-elect", "true")
                .flag("--identity", &replica.name);
        }
        let daemon = command.start(place.logs)?;
        Ok(Self {
            daemon,
            replica,
            _tokens: tokens,
        })
    }

    /// The credentials with which that replica was started.
    pub fn kubeconfig(state: &Path, name: &str) -> PathBuf {
        state.join(name).join("scheduler.kubeconfig")
    }

    /// What the scheduler's metrics page says.
    pub async fn metrics(&self) -> Result<String> {
        crate::http::get(&self.replica.metrics(), "/metrics").await
    }

    /// Waits until it has listed everything.
    pub async fn ready(&mut self) -> Result<()> {
        let address = self.replica.metrics();
        until("the scheduler ready", Duration::from_mins(1), || {
            let (alive, address) = (self.daemon.alive(), address.clone());
            async move {
                if let Err(dead) = alive {
                    return Ok(Seen::Never(dead));
                }
                crate::http::get(&address, "/readyz/scheduling")
                    .await
                    .map(|_| Seen::Done(()))
            }
        })
        .await
    }
}
