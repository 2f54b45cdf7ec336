//! The status page: what the cluster's cards, queues and waiting pods are like, for people
//! with a browser and a Kubernetes token.
//!
//! - `tap`: takes notes of facts and of agents' words on their way to the cycle.
//! - `row`: pure: an object → what is shown of it; `shelf`: rows that are there.
//! - `desk`: the only owner of the rows; `answer`: pure: rows, a query, rights → JSON.
//! - `caller`: a token → what its owner may see, judged by the API server.
//! - `door`: HTTP around them, and the files of the page itself.
//!
//! Observes, never changes anything. Knows no other host: the page's files are in this
//! program. The tap passes everything on before it looks at it: a slow desk delays nobody.

mod answer;
mod caller;
mod desk;
mod door;
mod row;
mod shelf;
mod tap;

use crate::cycle::Question;
use crate::report::Views;
use crate::serve::Door;
use crate::status::Status;
use crate::telemetry::HeardReceiver;
use crate::trust::Trust;
use crate::watch::Fact;
use caller::Callers;
use std::future::Future;
use std::io;
use std::pin::Pin;
use tap::Tap;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
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
}

/// Who may read, and over what.
#[allow(missing_debug_implementations, reason = "a client has none")]
pub enum Access {
    /// Whoever shows a Kubernetes token, as far as its owner may read; over TLS.
    Tokens(Trust, kube::Client),
    /// Whoever reaches the listener, everything, in the clear: for the demo on loopback.
    Anybody,
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
    sources: Sources,
    stop: &CancellationToken,
) -> (Flows, Vec<(&'static str, Part)>) {
    let (tap, onward, told) = Tap::new(scheduler, flows);
    let (asked_out, asked) = mpsc::channel(QUERIES);
    let desk = desk::run(told, asked, sources.views, sources.status);
    let callers = match &access {
        Access::Tokens(_, client) => Some(Callers::new(client.clone())),
        Access::Anybody => None,
    };
    let routes = door::routes(callers, asked_out, sources.questions);
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
        Access::Anybody => Box::pin(crate::serve::serve(Door::Port(listener), None, routes, end)),
    };
    let parts = vec![
        ("the page's tap", until(Box::pin(tap.run()))),
        ("the page's desk", until(Box::pin(desk))),
        ("the page", serving),
    ];
    (onward, parts)
}

#[cfg(test)]
mod tests;
