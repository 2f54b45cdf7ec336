//! A client whose requests are counted.

use super::Meters;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use std::sync::Arc;
use tower::BoxError;

/// Counts a request when it ends, also where its caller gave it up.
struct Pending {
    meters: Arc<Meters>,
    method: Method,
    code: Option<StatusCode>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.meters.request(&self.method, self.code);
    }
}

/// As `client`; every request that ends is counted by its method and the answer's code, as
/// `none` where no answer came or the caller stopped waiting for one. A watch ends, for this,
/// when its stream begins.
pub fn counted(client: Client, meters: Arc<Meters>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let pending = Pending {
            meters: Arc::clone(&meters),
            method: request.method().clone(),
            code: None,
        };
        async move {
            // All of it: it is dropped with this future.
            let mut pending = pending;
            let answer: kube::Result<Response<Body>> = client.send(request).await;
            pending.code = answer.as_ref().ok().map(Response::status);
            Ok::<_, BoxError>(answer?)
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use std::time::Duration;

    /// Answers as its path says: a code, or not at all.
    fn server() -> Client {
        let service = tower::service_fn(|request: Request<Body>| async move {
            match request.uri().path().trim_start_matches('/').parse::<u16>() {
                Ok(code) => Ok(Response::builder().status(code).body(Body::empty())?),
                Err(_) if request.uri().path() == "/broken" => Err("no connection".into()),
                Err(_) => std::future::pending().await,
            }
        });
        Client::new(
            tower::util::MapErr::new(service, |error: BoxError| error),
            "default",
        )
    }

    #[tokio::test(start_paused = true)]
    async fn every_request_is_counted_once_however_it_ends() {
        let mut registry = Registry::default();
        let meters = Arc::new(Meters::registered(&mut registry));
        let client = counted(server(), Arc::clone(&meters));
        let ask = async |method: Method, path: &str| {
            let request = Request::builder().method(method).uri(path);
            let answer = client.send(request.body(Body::empty()).unwrap());
            tokio::time::timeout(Duration::from_secs(1), answer).await
        };
        assert!(ask(Method::GET, "/200").await.unwrap().is_ok());
        assert!(ask(Method::GET, "/200").await.unwrap().is_ok());
        assert!(ask(Method::POST, "/409").await.unwrap().is_ok());
        assert!(ask(Method::PATCH, "/broken").await.unwrap().is_err());
        assert!(ask(Method::PATCH, "/silent").await.is_err(), "given up");

        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let counted: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("aliquot_scheduler_requests_total{"))
            .collect();
        for line in [
            r#"aliquot_scheduler_requests_total{method="GET",code="200"} 2"#,
            r#"aliquot_scheduler_requests_total{method="POST",code="409"} 1"#,
            r#"aliquot_scheduler_requests_total{method="PATCH",code="none"} 2"#,
        ] {
            assert!(counted.contains(&line), "{line} of {counted:?}");
        }
        assert_eq!(counted.len(), 3, "{counted:?}");
    }
}
