//! A Kubernetes API server in memory, over plain HTTP on a loopback port.
//!
//! - `resource`, `discovery`: the served kinds: core kinds by a table, others by their CRDs.
//! - `route`, `http`, `form`, `table`: requests and answers; `shared`: what they share; `verb`: create, replace, patch, delete; `pod`: binding,
//!   eviction, grace; `patch`, `selector`, `event`: their forms.
//! - `store`: objects, revisions and the log that `watch` reads.
//! - `webhook`: admission, really called; `token`: minting and review.
//! - [`Fault`]: what a test lets go wrong.
//!
//! Left out, and nothing here pretends otherwise: authorisation (every client may do everything),
//! controllers, owner-reference collection, quotas, schema validation, `ValidatingAdmissionPolicy`
//! (stored, never evaluated), `PodDisruptionBudget`s, `managedFields`, API priority and fairness.

mod discovery;
mod error;
mod event;
mod fault;
mod form;
mod http;
mod object;
mod patch;
mod pod;
mod resource;
mod route;
mod selector;
mod shared;
mod store;
mod table;
mod token;
mod verb;
mod watch;
mod webhook;

pub use error::ApiError;
pub use fault::Fault;

use serde_json::json;
use shared::{Shared, State};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// UIDs and name suffixes follow from it.
    pub seed: u64,
    /// Interval of bookmarks on an idle watch; a minute on a real server.
    pub bookmark_every: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            seed: 1,
            bookmark_every: Duration::from_mins(1),
        }
    }
}

/// A server that listens; [`ApiServer::serve`] answers.
#[derive(Debug)]
pub struct ApiServer {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl ApiServer {
    /// Listens, with the namespaces that every cluster has.
    ///
    /// # Errors
    /// The address is taken.
    ///
    /// # Panics
    /// Never: an empty store takes its first namespaces.
    pub async fn bind(config: Config) -> std::io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let mut store = Store::new(config.seed);
        let namespaces = resource::built_in("", "v1", "namespaces").expect("in the table");
        let now = verb::stamp(jiff::Timestamp::now());
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let object = json!({"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}});
            verb::prepare(&mut store, &namespaces, "", object)
                .and_then(|object| verb::create(&mut store, &namespaces, object, &now, false))
                .expect("an empty store takes a namespace");
        }
        let (revision, _) = tokio::sync::watch::channel(store.revision());
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                store,
                tokens: token::Tokens::default(),
                faults: fault::Plan::default(),
            }),
            revision,
            bookmark_every: config.bookmark_every,
            stop: CancellationToken::new(),
        });
        Ok(Self {
            listener,
            address,
            shared,
        })
    }

    /// For clients and tests.
    pub fn handle(&self) -> Handle {
        Handle {
            address: self.address,
            shared: self.shared.clone(),
        }
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// The listener broke.
    pub async fn serve(self, stop: CancellationToken) -> std::io::Result<()> {
        let shared = self.shared.clone();
        let ending = async move {
            stop.cancelled().await;
            shared.stop.cancel();
        };
        axum::serve(self.listener, http::router(self.shared))
            .with_graceful_shutdown(ending)
            .await
    }
}

/// A way to a server and to its faults.
#[derive(Clone, Debug)]
pub struct Handle {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Handle {
    /// `http://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// For `kube::Client`.
    ///
    /// # Panics
    /// Never: an address makes a URL.
    pub fn config(&self) -> kube::Config {
        let url = self.url().parse().expect("an address makes a URL");
        kube::Config::new(url)
    }

    /// For `kubectl`.
    pub fn kubeconfig(&self) -> String {
        let url = self.url();
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: aliquot-demo\n  cluster:\n    server: {url}\ncontexts:\n- name: aliquot-demo\n  context:\n    cluster: aliquot-demo\n    user: admin\ncurrent-context: aliquot-demo\nusers:\n- name: admin\n  user: {{}}\n"
        )
    }

    /// The next request of this method whose path contains `path` goes wrong.
    pub fn plan(&self, method: &str, path: &str, fault: Fault) {
        self.shared.state().faults.add(method, path, fault);
    }

    /// Every watch ends with 410, and revisions up to now are forgotten.
    pub fn expire_watches(&self) {
        self.shared.state().store.compact();
        self.shared.signal();
    }
}
