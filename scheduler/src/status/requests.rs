//! A client whose requests are counted.

use super::Meters;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use std::sync::Arc;
use tower::BoxError;

/// As `client`; every request that ends is counted by its method and the answer's code. A
/// watch ends, for this, when its stream begins.
pub fn counted(client: Client, meters: Arc<Meters>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, meters) = (client.clone(), Arc::clone(&meters));
        async move {
            let method = request.method().clone();
            let answer: kube::Result<Response<Body>> = client.send(request).await;
            meters.request(&method, answer.as_ref().ok().map(Response::status));
            Ok::<_, BoxError>(answer?)
        }
    });
    Client::new(service, namespace)
}
