//! The status page: what the cluster's cards, queues and waiting pods are like, for people
//! with a browser and a Kubernetes token.
//!
//! - `relay`: takes notes of facts and of agents' words on their way to the cycle.
//! - `row`: pure: an object → its row; `row_store`: the current rows.
//! - `rows`: pure: the rows and the history; `owner`: the task that has them; `changes`: pure: what
//!   changed since.
//! - `answer`: pure: rows, a query, rights → JSON.
//! - `timeline`: pure: a pod, its events → its way in steps; `range`: what Prometheus remembers.
//! - `caller`: a token → what its owner may see, judged by the API server.
//! - `http`: HTTP around them, and the files of the page itself.
//!
//! Observes, never changes anything. The page's files are in this program, and the browser is sent
//! to no other host. The relay passes everything on before it processes it, so slow queries delay
//! no decision.

mod answer;
mod caller;
mod changes;
mod http;
mod owner;
mod range;
mod relay;
mod row;
mod row_store;
mod rows;
mod timeline;

use crate::clock::Wall;
use crate::cycle::Question;
use crate::page_link::PageLink;
use crate::report::Views;
use crate::serve::Endpoint;
use crate::status::Status;
use crate::trust::Trust;
pub use answer::ReportBy;
use caller::Callers;
use owner::PendingQuery;
use relay::FactRelay;
pub use relay::Flows;
use scheduler_core::units::Time;
use serde_json::Value;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Queries that wait for the rows' owner.
const QUERIES: usize = 64;

/// What the page needs beside facts.
#[derive(Debug)]
pub struct Sources {
    /// Queues and groups.
    pub views: watch::Receiver<Views>,
    /// Where the cycle is.
    pub status: watch::Receiver<Status>,
    /// To the cycle.
    pub questions: mpsc::Sender<Question>,
    /// The key of the label by which the admin has queues named (`--queue-label-key`).
    pub queue_label: String,
    /// URL of Prometheus, for what this process does not remember.
    pub prometheus: Option<String>,
    /// Links of a pod's page to other tools.
    pub links: Vec<PageLink>,
    /// The time.
    pub wall: Wall,
    /// Counts what waits in the page's channels.
    pub lengths: channel::Lengths,
}

/// Which clients may read, and how.
#[allow(missing_debug_implementations, reason = "a client has none")]
pub enum Access {
    /// Clients with a Kubernetes token, as far as its account may read; over TLS.
    Tokens(Trust, kube::Client),
    /// Every client, everything, in plain text: for the demo on loopback.
    Anybody(kube::Client),
}

/// Client of the task that owns the rows.
#[derive(Clone, Debug)]
pub struct PageClient(mpsc::Sender<PendingQuery>);

/// The receiving end of a [`PageClient`].
#[derive(Debug)]
pub struct PendingQueries(mpsc::Receiver<PendingQuery>);

/// Both ends.
pub fn channel() -> (PageClient, PendingQueries) {
    let (to, from) = mpsc::channel(QUERIES);
    (PageClient(to), PendingQueries(from))
}

impl PageClient {
    /// What was granted and not used, by `queue`, `namespace` or `owner`, in that number of hours;
    /// as on the page, without restrictions. `None`: the page has ended.
    ///
    /// # Errors Another key.
    pub async fn report(&self, by: &str, hours: u64) -> Result<Option<Value>, String> {
        let by = serde_json::from_value(Value::from(by))
            .map_err(|_| format!("{by} is none of queue, namespace and owner"))?;
        let report = answer::Report {
            by,
            hours: Some(hours),
        };
        let (to, answer) = oneshot::channel();
        let query = answer::Query::Report(report);
        let asked = PendingQuery::Query(query, answer::Rights::all(), to);
        if self.0.send(asked).await.is_err() {
            return Ok(None);
        }
        Ok(match answer.await {
            Ok(answer::Answer::Json(value)) => Some(value),
            _ => None,
        })
    }
}

/// A task of the page; ends at the stop, or when it cannot continue.
pub type Part = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// The page's tasks, and the streams behind it.
pub fn start(
    scheduler: &str,
    listener: TcpListener,
    access: Access,
    flows: Flows,
    (client_end, pending): (PageClient, PendingQueries),
    sources: Sources,
    stop: &CancellationToken,
) -> (Flows, Vec<(&'static str, Part)>) {
    let begun = sources.wall.now().as_millisecond();
    let begun = Time(u64::try_from(begun).unwrap_or_default());
    let (relay, onward, notes) = FactRelay::new(
        scheduler,
        &sources.queue_label,
        flows,
        begun,
        &sources.lengths,
    );
    let keeping = owner::run(owner::RowSources {
        notes,
        asked: pending.0,
        views: sources.views,
        status: sources.status,
        wall: sources.wall,
    });
    let callers = match &access {
        Access::Tokens(_, client) => Some(Callers::new(client.clone())),
        Access::Anybody(_) => None,
    };
    let (Access::Tokens(_, client) | Access::Anybody(client)) = &access;
    let routes = http::routes(http::HttpState {
        callers: callers.map(Arc::new),
        client: client.clone(),
        asked: client_end.0,
        questions: sources.questions,
        scheduler: scheduler.into(),
        prometheus: sources.prometheus.map(Arc::from),
        links: sources.links.into(),
        trials: Arc::new(Semaphore::new(1)),
    });
    let until = |part: Pin<Box<dyn Future<Output = ()> + Send>>| -> Part {
        let stop = stop.clone();
        Box::pin(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = part => {}
            }
            Ok(())
        })
    };
    let end = stop.clone();
    let serving: Part = match access {
        Access::Tokens(trust, _) => Box::pin(async move {
            trust
                .certificates()
                .serve(Endpoint::Port(listener), routes, end)
                .await
        }),
        Access::Anybody(_) => Box::pin(crate::serve::serve(
            Endpoint::Port(listener),
            None,
            routes,
            end,
        )),
    };
    let parts = vec![
        ("the page's relay", until(Box::pin(relay.run()))),
        ("the page's rows", until(Box::pin(keeping))),
        ("the page", serving),
    ];
    (onward, parts)
}

#[cfg(test)]
mod tests;
