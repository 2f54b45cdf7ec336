//! A scheduler that observes, as a process with the rights that `deploy/observe` gives.
//!
//! In: the manifest there. Out: its account in the cluster, and the process that shows what it
//! sees. Must never lend it more rights than the manifest does.

use std::fs;

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::control_plane;
use crate::daemon::{Command, Daemon};
use crate::manifest::documents;
use crate::token::{self, AccountToken, Credential, Refresher};

const MANIFEST: &str = "deploy/observe/observe.yaml";
const NAMESPACE: &str = "aliquot-observe";
const ACCOUNT: &str = "aliquot-observer";
/// Where it shows what it sees.
pub const PAGES: &str = "127.0.0.1:9402";

/// The running observer.
#[derive(Debug)]
pub struct Observer {
    daemon: Daemon,
    _tokens: Refresher,
}

impl Observer {
    /// Watches the scheduler of that name.
    pub async fn start(cluster: &Cluster, scheduler: &str) -> Result<Self> {
        let path = cluster.programs.tree.join(MANIFEST);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        for document in documents(&text)? {
            if document["kind"] != "Deployment" {
                cluster.apply_one(&document).await?;
            }
        }
        let folder = cluster.work.state().join("observer");
        fs::create_dir_all(&folder)?;
        let file = folder.join("token");
        let account = AccountToken {
            namespace: NAMESPACE.to_owned(),
            account: ACCOUNT.to_owned(),
            node: None,
            audience: None,
            file: file.clone(),
        };
        let tokens = Refresher::start(cluster.client.clone(), vec![account]).await?;
        let kubeconfig = folder.join("kubeconfig");
        token::write_kubeconfig(
            &kubeconfig,
            &control_plane::url(),
            &cluster.control_plane.authority(),
            &Credential::File(file),
        )?;
        let daemon = Command::new("observer", cluster.programs.ours.join("aliquot-scheduler"))
            .arg("--observe")
            .flag("--namespace", NAMESPACE)
            .flag("--scheduler-name", scheduler)
            .flag("--metrics", PAGES)
            .env("KUBECONFIG", kubeconfig)
            .env("RUST_LOG", "info")
            .start(&cluster.work.logs())?;
        Ok(Self {
            daemon,
            _tokens: tokens,
        })
    }

    /// Everything that it has logged.
    pub fn log(&self) -> Result<String> {
        self.daemon.said_since(0)
    }

    /// Ends it.
    pub async fn stop(&mut self) -> Result<()> {
        self.daemon.stop().await
    }
}
