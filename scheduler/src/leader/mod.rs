//! A client whose writes are sent only while this replica holds the lease.
//!
//! Bindings, evictions, conditions, statuses, groups and events go through [`client`]; reads pass.
//! The lease is checked twice: before a write begins, so that its caller gets [`NotLeading`], and
//! in `connection`, before each write to a socket. The second check is for a process that is
//! suspended in between, while a connection is made for instance: it sends nothing of what it had
//! decided before.

mod access;
mod connection;
mod leadership;

pub use access::ApiAccess;
pub use leadership::{Grantor, Leadership, NotLeading, leadership};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use tower::BoxError;

/// Reads go through `reads`; everything else through `writes`, and only under `leadership`.
pub fn client(reads: Client, writes: Client, leadership: Leadership) -> Client {
    let namespace = reads.default_namespace().to_owned();
    let service = tower::service_fn(
        move |request: Request<Body>| -> BoxFuture<'static, Result<Response<Body>, BoxError>> {
            let is_read = matches!(
                *request.method(),
                Method::GET | Method::HEAD | Method::OPTIONS
            );
            if is_read {
                let reads = reads.clone();
                return async move { Ok(reads.send(request).await?) }.boxed();
            }
            let (writes, leadership) = (writes.clone(), leadership.clone());
            async move { leadership.send(writes.send(request)).await }.boxed()
        },
    );
    Client::new(service, namespace)
}
