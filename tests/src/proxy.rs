//! Between a scheduler and the API server, to do it harm: answers are lost, writes are
//! refused, watches are forgotten.
//!
//! In: requests, with their own credentials, which are passed on unchanged. Out: the API server's
//! answers, unless a rule changes them. It shows the API server's own certificate. Must never send
//! a request twice, nor one without a client.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum_server::tls_rustls::{RustlsConfig, from_tcp_rustls};
use futures::{StreamExt, stream};
use http::{HeaderMap, Method, StatusCode, header};
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::control_plane::{self, ControlPlane};

/// No object is larger.
const MOST: usize = 16 << 20;
/// What a watch says whose version is too old.
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#;

/// What befalls a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is taken, and the answer breaks off.
    LoseAnswer,
    /// It is taken, and the answer says that something broke.
    Broken,
    /// It is not taken: 429.
    Busy,
    /// It is not taken: 409.
    Conflict,
    /// It is not taken: 503, which does not say so.
    Unavailable,
    /// It is passed on unchanged, in its order.
    Nothing,
}

/// Every `nth` request of this kind meets the next of the faults.
#[derive(Debug)]
struct Rule {
    method: Method,
    suffix: &'static str,
    nth: usize,
    faults: Vec<Fault>,
    seen: usize,
    met: usize,
}

#[derive(Debug, Default)]
struct Rules(Mutex<Vec<Rule>>);

impl Rules {
    fn meet(&self, method: &Method, path: &str) -> Option<Fault> {
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rule = rules
            .iter_mut()
            .find(|rule| rule.method == *method && path.ends_with(rule.suffix))?;
        rule.seen += 1;
        if !rule.seen.is_multiple_of(rule.nth) {
            return None;
        }
        let fault = *rule.faults.get(rule.met % rule.faults.len())?;
        rule.met += 1;
        Some(fault)
    }
}

#[derive(Clone)]
struct ProxyState {
    client: Client,
    rules: Arc<Rules>,
    writes: Arc<Mutex<Vec<String>>>,
    expired: watch::Receiver<u64>,
    cut: Arc<AtomicUsize>,
}

/// It serves for as long as it lives.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    rules: Arc<Rules>,
    writes: Arc<Mutex<Vec<String>>>,
    expire: watch::Sender<u64>,
    cut: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// In front of this API server, harmless at first.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        // Another part of this process may have chosen already: the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let [certificate, key] = control_plane.certificate();
        let tls = RustlsConfig::from_pem_file(certificate, key).await?;
        let rules = Arc::<Rules>::default();
        let writes = Arc::<Mutex<Vec<String>>>::default();
        let cut = Arc::<AtomicUsize>::default();
        let (expire, expired) = watch::channel(0);
        let way = ProxyState {
            client: anonymous(control_plane)?,
            rules: rules.clone(),
            writes: writes.clone(),
            expired,
            cut: cut.clone(),
        };
        let routes = Router::new().fallback(pass).with_state(way);
        let server = from_tcp_rustls(listener, tls)?.serve(routes.into_make_service());
        let task = tokio::spawn(async move {
            if let Err(error) = server.await {
                eprintln!("the proxy ended: {error}");
            }
        });
        Ok(Self {
            address,
            rules,
            writes,
            expire,
            cut,
            task,
        })
    }

    /// Where it is reached.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// From now on every `nth` request with this method, and a path with this end, meets
    /// the next of these faults.
    pub fn harm(&self, method: Method, suffix: &'static str, nth: usize, faults: &[Fault]) {
        let rule = Rule {
            method,
            suffix,
            nth,
            faults: faults.to_vec(),
            seen: 0,
            met: 0,
        };
        let mut rules = self.rules.0.lock().unwrap_or_else(PoisonError::into_inner);
        rules.push(rule);
    }

    /// Everything but reads that has come so far: method and path.
    pub fn writes(&self) -> Vec<String> {
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.clone()
    }

    /// Every watch gets the error that its version is too old, and ends.
    pub fn expire_watches(&self) {
        self.expire.send_modify(|count| *count += 1);
    }

    /// How many requests met a fault, and how many watches were ended.
    pub fn harmed(&self) -> (usize, usize) {
        let rules = self.rules.0.lock().unwrap_or_else(PoisonError::into_inner);
        let met = rules.iter().map(|rule| rule.met).sum();
        (met, self.cut.load(Ordering::Relaxed))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client that shows no credentials of its own.
fn anonymous(control_plane: &ControlPlane) -> Result<Client> {
    let mut config = Config::new(control_plane::url().parse()?);
    config.root_cert_file = Some(control_plane.authority());
    Ok(Client::try_from(config)?)
}

async fn pass(State(way): State<ProxyState>, request: Request) -> Response {
    match forward(&way, request).await {
        Ok(answer) => answer,
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}

async fn forward(way: &ProxyState, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let fault = way.rules.meet(&parts.method, parts.uri.path());
    if parts.method != Method::GET {
        let mut writes = way.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.push(format!("{} {}", parts.method, parts.uri.path()));
    }
    match fault {
        Some(Fault::Busy) => return Ok(refusal(429, "TooManyRequests")),
        Some(Fault::Conflict) => return Ok(refusal(409, "Conflict")),
        Some(Fault::Unavailable) => return Ok(refusal(503, "ServiceUnavailable")),
        Some(Fault::LoseAnswer | Fault::Broken | Fault::Nothing) | None => {}
    }
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let target = parts.uri.path_and_query().context("a path")?.to_string();
    let mut onward = http::Request::builder()
        .method(parts.method)
        .uri(target)
        .body(kube::client::Body::from(
            to_bytes(body, MOST).await?.to_vec(),
        ))?;
    *onward.headers_mut() = end_to_end(parts.headers);
    let answer = way.client.send(onward).await?;
    let (parts, body) = answer.into_parts();
    let mut answered = match fault {
        Some(Fault::LoseAnswer) => {
            let broken = stream::iter([Err::<Bytes, _>(std::io::Error::other("lost"))]);
            Response::new(Body::from_stream(broken))
        }
        Some(Fault::Broken) => return Ok(refusal(500, "InternalError")),
        _ if query.split('&').any(|pair| pair == "watch=true") => {
            Response::new(watched(Body::new(body), way))
        }
        _ => Response::new(Body::new(body)),
    };
    *answered.status_mut() = parts.status;
    *answered.headers_mut() = end_to_end(parts.headers);
    Ok(answered)
}

/// Without what concerns one connection alone.
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in [
        header::HOST,
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::CONTENT_LENGTH,
    ] {
        headers.remove(name);
    }
    headers
}

fn refusal(code: u16, reason: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "by the test's wish", "reason": reason, "code": code,
    });
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, axum::Json(status)).into_response()
}

/// A watch that can be ended: never inside of an event.
fn watched(body: Body, way: &ProxyState) -> Body {
    let (mut expired, cut) = (way.expired.clone(), way.cut.clone());
    expired.mark_unchanged();
    let frames = body.into_data_stream();
    let state = Some((frames, expired, true));
    let frames = stream::unfold(state, move |state| {
        let cut = cut.clone();
        async move {
            let (mut frames, mut expired, whole) = state?;
            tokio::select! {
                frame = frames.next() => match frame? {
                    Ok(frame) => {
                        let whole = frame.last() == Some(&b'\n');
                        Some((Ok(frame), Some((frames, expired, whole))))
                    }
                    Err(error) => Some((Err(error), None)),
                },
                Ok(()) = expired.changed(), if whole => {
                    cut.fetch_add(1, Ordering::Relaxed);
                    Some((Ok(Bytes::from(format!("{EXPIRED}\n"))), None))
                }
            }
        }
    });
    Body::from_stream(frames)
}
