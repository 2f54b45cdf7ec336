//! Scheduler and admission as processes, and what `deploy/` gives them.
//!
//! In: the manifests of `deploy/`. Out: everything in them applied except the workloads, which run
//! here as processes, each with the token of its service account. The API server calls the webhook
//! by URL, since nothing routes Services here. Must never lend a program more rights than `deploy/`
//! gives its service account.

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
use crate::machine::ADDRESS;
use crate::manifest::documents;
use crate::ports::{ADMISSION_METRICS_PORT, ANSWERS_PORT, PAGE_PORT, WEBHOOK_PORT};
use crate::programs::Place;
use crate::token::{self, AccountToken, Credential, Refresher};
use crate::wait::{Seen, until};
use crate::wall_clock::WallClock;

/// Kinds of manifests that are left out: their programs are processes here.
const WORKLOADS: [&str; 3] = ["Deployment", "DaemonSet", "Pod"];

/// The objects of `deploy/` that must exist before any program runs.
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
    /// Ports of its answers about resizes, of telemetry and metrics.
    pub ports: [u16; 3],
    /// Of the status page, where it has one.
    pub page: Option<u16>,
    /// Where it finds the API server.
    pub api: String,
    /// Flags beside those that follow from the rest.
    pub args: Vec<String>,
    /// The wall clock that it sees, if not the machine's.
    pub wall: Option<WallClock>,
}

impl Replica {
    /// The only one.
    pub fn only() -> Self {
        Self {
            name: "scheduler".to_owned(),
            ports: [ANSWERS_PORT, proto::names::telemetry::PORT, 9401],
            page: Some(PAGE_PORT),
            api: control_plane::url(),
            // All that is not timed recomputes every sum after each change.
            args: vec!["--verify".to_owned()],
            wall: None,
        }
    }

    /// The `number`th of several, from 1.
    pub fn of_several(number: u16, api: String) -> Self {
        let first = 8500 + 10 * number;
        Self {
            name: format!("scheduler-{number}"),
            ports: [first, first + 1, first + 2],
            page: None,
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
    /// Starts it; the manifests have been applied.
    pub async fn start(client: &Client, place: &Place<'_>, replica: Replica) -> Result<Self> {
        let account = object::SCHEDULER_ACCOUNT;
        let (kubeconfig, tokens) =
            credentials(client, place, &replica.name, account, &replica.api).await?;
        let [answers, telemetry, _] = replica.ports;
        let program = place.programs.ours.join("aliquot-scheduler");
        let mut command = Command::new(&replica.name, program)
            .flag("--role", "scheduler")
            .flag("--webhook", format!("0.0.0.0:{answers}"))
            .flag("--address", "127.0.0.1")
            // Where agents expect it.
            .flag("--certificate-names", ADDRESS)
            .flag("--leader-elect", "true")
            .flag("--identity", &replica.name)
            .flag("--telemetry", format!("0.0.0.0:{telemetry}"))
            .flag("--metrics", replica.metrics())
            .env("KUBECONFIG", kubeconfig)
            // `ALIQUOT_LOG=info,scheduler=debug` to look for a defect.
            .env(
                "RUST_LOG",
                std::env::var("ALIQUOT_LOG").unwrap_or("info".to_owned()),
            );
        if let Some(page) = replica.page {
            command = command.flag("--page", format!("0.0.0.0:{page}"));
        }
        if let Some(wall) = &replica.wall {
            command = command
                .env("LD_PRELOAD", place.programs.ours.join("libsim_clock.so"))
                .env("ALIQUOT_SIM_CLOCK", wall.file());
        }
        command = command.args(&replica.args);
        let container = ["scheduler.yaml", "aliquot-scheduler", "scheduler"];
        let memory = place.memory(container, &replica.name)?;
        let daemon = command.memory(memory).start(place.logs)?;
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

/// What admits pods.
#[derive(Debug)]
pub struct Admission {
    pub daemon: Daemon,
    _tokens: Refresher,
}

impl Admission {
    /// Starts it; the manifests have been applied.
    pub async fn start(client: &Client, place: &Place<'_>) -> Result<Self> {
        let (name, account) = ("admission", object::ADMISSION_ACCOUNT);
        let api = control_plane::url();
        let (kubeconfig, tokens) = credentials(client, place, name, account, &api).await?;
        let daemon = Command::new(name, place.programs.ours.join("aliquot-scheduler"))
            .flag("--role", "admission")
            .flag("--webhook", format!("0.0.0.0:{WEBHOOK_PORT}"))
            .flag("--webhook-url", adapt::webhook_url())
            .flag("--metrics", format!("127.0.0.1:{ADMISSION_METRICS_PORT}"))
            .env("KUBECONFIG", kubeconfig)
            .env("RUST_LOG", "info")
            .memory(place.memory(["scheduler.yaml", "aliquot-admission", "admission"], name)?)
            .start(place.logs)?;
        Ok(Self {
            daemon,
            _tokens: tokens,
        })
    }
}

/// Those of an account, for the process of that name.
async fn credentials(
    client: &Client,
    place: &Place<'_>,
    name: &str,
    account: &str,
    api: &str,
) -> Result<(PathBuf, Refresher)> {
    fs::create_dir_all(place.state.join(name))?;
    let file = place.state.join(name).join("scheduler.token");
    let tokens = Refresher::start(
        client.clone(),
        vec![AccountToken {
            namespace: NAMESPACE.to_owned(),
            account: account.to_owned(),
            node: None,
            audience: None,
            file: file.clone(),
        }],
    )
    .await?;
    let kubeconfig = Scheduler::kubeconfig(place.state, name);
    token::write_kubeconfig(&kubeconfig, api, &place.authority, &Credential::File(file))?;
    Ok((kubeconfig, tokens))
}
