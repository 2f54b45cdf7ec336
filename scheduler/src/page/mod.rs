//! The status page: what the cluster's cards, queues and waiting pods are like, for people
//! with a browser and a Kubernetes token.
//!
//! - `tap`: takes notes of facts and of agents' words on their way to the cycle.
//! - `row`: pure: an object → what is shown of it; `shelf`: rows that are there.
//! - `desk`: the only owner of the rows and of the history; `news`: pure: what changed since.
//! - `answer`: pure: rows, a query, rights → JSON.
//! - `story`: pure: a pod, its events → its way in steps; `range`: what Prometheus remembers.
//! - `caller`: a token → what its owner may see, judged by the API server.
//! - `door`: HTTP around them, and the files of the page itself.
//!
//! Observes, never changes anything. The page's files are in this program, and the browser is
//! sent to no other host. The tap passes everything on before it looks at it: a slow desk delays nobody.

mod answer;
mod caller;
mod desk;
mod door;
mod news;
mod range;
mod row;
mod shelf;
mod story;
mod tap;

use crate::clock::Wall;
use crate::cycle::Question;
use crate::report::Views;
use crate::serve::Door;
use crate::status::Status;
use crate::telemetry::HeardReceiver;
use crate::trust::Trust;
use crate::watch::Fact;
use caller::Callers;
use desk::Asked;
use scheduler_core::units::Time;
use serde_json::Value;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use tap::Tap;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Queries that wait for the desk.
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
    /// URL of Prometheus, for what this process does not remember.
    pub prometheus: Option<String>,
    /// The time.
    pub wall: Wall,
}

/// Who may read, and over what.
#[allow(missing_debug_implementations, reason = "a client has none")]
pub enum Access {
    /// Whoever shows a Kubernetes token, as far as its owner may read; over TLS.
    Tokens(Trust, kube::Client),
    /// Whoever reaches the listener, everything, in the clear: for the demo on loopback.
    Anybody(kube::Client),
}

/// Where the desk is asked.
#[derive(Clone, Debug)]
pub struct Desk(mpsc::Sender<Asked>);

/// What is asked there.
#[derive(Debug)]
pub struct Questions(mpsc::Receiver<Asked>);

/// Both ends.
pub fn desk() -> (Desk, Questions) {
    let (to, from) = mpsc::channel(QUERIES);
    (Desk(to), Questions(from))
}

impl Desk {
    /// What was granted and not used, by `queue`, `namespace` or `owner`, in the last so many
    /// hours; as the page has it, with everything. `None`: the desk has ended.
    ///
    /// # Errors
    /// There is nothing else that it can be told apart by.
    pub async fn report(&self, by: &str, hours: u64) -> Result<Option<Value>, String> {
        let by = serde_json::from_value(Value::from(by))
            .map_err(|_| format!("{by} is none of queue, namespace and owner"))?;
        let report = answer::Report {
            by,
            hours: Some(hours),
        };
        let (to, answer) = oneshot::channel();
        let query = answer::Query::Report(report);
        let asked = Asked::Query(query, answer::Rights::all(), to);
        if self.0.send(asked).await.is_err() {
            return Ok(None);
        }
        Ok(match answer.await {
            Ok(answer::Answer::Json(value)) => Some(value),
            _ => None,
        })
    }
}

/// What comes in on its way to the cycle.
#[derive(Debug)]
pub struct Flows {
    /// Of the API server.
    pub facts: mpsc::UnboundedReceiver<Fact>,
    /// Of the agents.
    pub heard: HeardReceiver,
}

/// A task of the page; ends at the stop, or when it cannot go on.
pub type Part = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// The page's tasks, and the flows as they go on.
pub fn start(
    scheduler: &str,
    listener: TcpListener,
    access: Access,
    flows: Flows,
    (desk, questions): (Desk, Questions),
    sources: Sources,
    stop: &CancellationToken,
) -> (Flows, Vec<(&'static str, Part)>) {
    let begun = sources.wall.now().as_millisecond();
    let begun = Time(u64::try_from(begun).unwrap_or_default());
    let (tap, onward, notes) = Tap::new(scheduler, flows, begun);
    let keeping = desk::run(desk::Inputs {
        notes,
        asked: questions.0,
        views: sources.views,
        status: sources.status,
        wall: sources.wall,
    });
    let callers = match &access {
        Access::Tokens(_, client) => Some(Callers::new(client.clone())),
        Access::Anybody(_) => None,
    };
    let (Access::Tokens(_, client) | Access::Anybody(client)) = &access;
    let routes = door::routes(door::Door {
        callers: callers.map(Arc::new),
        client: client.clone(),
        asked: desk.0,
        questions: sources.questions,
        scheduler: scheduler.into(),
        prometheus: sources.prometheus.map(Arc::from),
        trials: Arc::new(Semaphore::new(1)),
    });
    let until = |part: Pin<Box<dyn Future<Output = ()> + Send>>| -> Part {
        let stop = stop.clone();
        Box::pin(async move {
            tokio::select! {
                () = part => {}
                () = stop.cancelled() => {}
            }
            Ok(())
        })
    };
    let end = stop.clone();
    let serving: Part = match access {
        Access::Tokens(trust, _) => Box::pin(async move {
            trust
                .certificates()
                .serve(Door::Port(listener), routes, end)
                .await
        }),
        Access::Anybody(_) => {
            Box::pin(crate::serve::serve(Door::Port(listener), None, routes, end))
        }
    };
    let parts = vec![
        ("the page's tap", until(Box::pin(tap.run()))),
        ("the page's desk", until(Box::pin(keeping))),
        ("the page", serving),
    ];
    (onward, parts)
}

#[cfg(test)]
mod tests;
