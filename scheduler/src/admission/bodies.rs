//! Bodies of requests, bounded before anything of them is parsed.
//!
//! Every pod of the cluster may send to the webhook's port. A body waits in memory until all of it
//! is there, and JSON that is parsed takes up to 200 times the memory of its text: `{},{}` becomes two
//! maps. So bytes and parsed objects are bounded for one request, for one address and in all; a body
//! has its time; and what is too large is refused by its uid, without being parsed.

use super::configuration::MANIFESTS;
use super::review;
use crate::lock::locked;
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of one body: an object as it was and as it is to be, of which the API server takes
/// 3 MiB each.
const BODY: usize = 8 << 20;
/// Bytes of all bodies that are read at once, and of those from one address but the API server's
/// own sidecar.
const BODIES: usize = 32 << 20;
const BODIES_OF_ONE: usize = 12 << 20;
/// Time for a body. The API server sends one at once, and waits at most ten seconds for the answer.
const WITHIN: Duration = Duration::from_secs(2);
/// JSON objects and lists in one body. A pod of 1.5 MiB that consists of environment variables has
/// 20,000.
const OBJECTS: usize = 25_000;
/// JSON values in one body.
const VALUES: usize = 250_000;
/// Objects and lists of all bodies that are parsed at once. One takes some 2 KiB with its copies.
const OBJECTS_AT_ONCE: usize = 32_000;

/// What of these is in use.
#[derive(Clone, Debug)]
pub(super) struct Bodies {
    bytes: Arc<Semaphore>,
    objects: Arc<Semaphore>,
    by_peer: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Bodies {
    pub(super) fn new() -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(BODIES)),
            objects: Arc::new(Semaphore::new(OBJECTS_AT_ONCE)),
            by_peer: Arc::default(),
        }
    }

    /// Room for a body of that address; `None`: it has had enough.
    fn of_peer(&self, peer: Option<IpAddr>, bytes: usize) -> Option<OfPeer> {
        let peer = peer.filter(|peer| !peer.is_loopback());
        if let Some(peer) = peer {
            let mut all = locked(&self.by_peer);
            let own = all.entry(peer).or_default();
            if *own + bytes > BODIES_OF_ONE {
                return None;
            }
            *own += bytes;
        }
        Some(OfPeer {
            peer,
            bytes,
            all: Arc::clone(&self.by_peer),
        })
    }
}

/// The bytes of one address, until they are given back.
#[derive(Debug)]
struct OfPeer {
    peer: Option<IpAddr>,
    bytes: usize,
    all: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Drop for OfPeer {
    fn drop(&mut self) {
        let Some(peer) = self.peer else {
            return;
        };
        let mut all = locked(&self.all);
        if let Some(own) = all.get_mut(&peer) {
            *own = own.saturating_sub(self.bytes);
            if *own == 0 {
                all.remove(&peer);
            }
        }
    }
}

/// Reads the body within these bounds and hands it on, or answers why not.
pub(super) async fn bounded(
    State(bodies): State<Bodies>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    let peer = head.extensions.get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map(|ConnectInfo(address)| address.ip());
    let length = head.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    // A request of this process itself has no headers.
    let Some(length) = length.or_else(|| peer.is_none().then_some(BODY)) else {
        return said(StatusCode::LENGTH_REQUIRED, "a Content-Length is required");
    };
    if length > BODY {
        let why = format!("a body has at most {BODY} bytes");
        return said(StatusCode::PAYLOAD_TOO_LARGE, why);
    }
    let busy = || said(StatusCode::SERVICE_UNAVAILABLE, "too many bodies at once");
    let Some(_own) = bodies.of_peer(peer, length) else {
        return busy();
    };
    let read = async {
        let bytes = permits(&bodies.bytes, length).await;
        (to_bytes(body, length).await, bytes)
    };
    let Ok((body, _bytes)) = tokio::time::timeout(WITHIN, read).await else {
        return said(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not come in time, or there were too many at once",
        );
    };
    let Ok(body) = body else {
        return said(StatusCode::BAD_REQUEST, "the body broke off");
    };
    let size = Size::of(&body);
    if let Some(why) = size.excess() {
        if head.uri.path() == MANIFESTS {
            // An answer would refuse it.
            return said(StatusCode::PAYLOAD_TOO_LARGE, why);
        }
        let uid = uid(&body);
        tracing::warn!(?peer, uid, why, "a request is refused without being read");
        return Json(review::refused(&uid, &why)).into_response();
    }
    let Ok(_objects) = tokio::time::timeout(WITHIN, permits(&bodies.objects, size.objects)).await
    else {
        return busy();
    };
    next.run(Request::from_parts(head, Body::from(body))).await
}

fn said(code: StatusCode, why: impl Into<Cow<'static, str>>) -> Response {
    (code, why.into()).into_response()
}

async fn permits(of: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    // It is never closed.
    Arc::clone(of).acquire_many_owned(count).await.ok()
}

/// What a text of JSON is made of, without parsing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    objects: usize,
    values: usize,
}

impl Size {
    fn of(text: &[u8]) -> Self {
        let mut size = Self::default();
        let (mut quoted, mut escaped) = (false, false);
        for byte in text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'{' | b'[' => size.objects += 1,
                b',' | b':' => size.values += 1,
                _ => {}
            }
        }
        size
    }

    /// What it has too much of.
    fn excess(self) -> Option<String> {
        let Self { objects, values } = self;
        if objects > OBJECTS {
            return Some(format!(
                "the object has {objects} JSON objects and lists, more than {OBJECTS}: make it smaller"
            ));
        }
        (values > VALUES).then(|| {
            format!("the object has {values} JSON values, more than {VALUES}: make it smaller")
        })
    }
}

/// The uid by which the API server knows the request; empty where it has none.
fn uid(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        request: Identity<'a>,
    }
    #[derive(Deserialize)]
    struct Identity<'a> {
        #[serde(borrow)]
        uid: Cow<'a, str>,
    }
    // What is not named is skipped, and takes no memory.
    let envelope = serde_json::from_slice::<Envelope>(body);
    envelope.map_or_else(|_| String::new(), |one| one.request.uid.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::post;
    use serde_json::Value;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tower::ServiceExt as _;

    #[test]
    fn objects_and_values_are_counted_outside_of_texts() {
        let text = br#"{"a\"{[,:": [1, 2, {"b": "\\"}], "c,": ":{"}"#;
        let size = Size {
            objects: 3,
            values: 6,
        };
        assert_eq!(Size::of(text), size);
    }

    fn routes(bodies: &Bodies) -> Router {
        routes_at(bodies, "/")
    }

    fn routes_at(bodies: &Bodies, path: &str) -> Router {
        let echo = post(async |body: String| body);
        Router::new()
            .route(path, echo)
            .layer(from_fn_with_state(bodies.clone(), bounded))
    }

    async fn sent(bodies: &Bodies, from: [u8; 4], body: String) -> (StatusCode, String) {
        let mut request = Request::post("/")
            .header(CONTENT_LENGTH, body.len())
            .body(Body::from(body))
            .unwrap();
        let address = SocketAddr::from((from, 1));
        request.extensions_mut().insert(ConnectInfo(address));
        let answer = routes(bodies).oneshot(request).await.unwrap();
        let code = answer.status();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn what_is_too_large_to_parse_is_refused_by_its_uid() {
        let bodies = Bodies::new();
        let small = r#"{"request": {"uid": "u"}}"#;
        let (code, answer) = sent(&bodies, [10, 0, 0, 1], small.to_owned()).await;
        assert_eq!((code, answer.as_str()), (StatusCode::OK, small));
        let maps = vec![r#"{"":0}"#; 1 << 20].join(",");
        let body = format!(r#"{{"request": {{"object": [{maps}], "uid": "u"}}}}"#);
        let (code, answer) = sent(&bodies, [10, 0, 0, 1], body.clone()).await;
        assert_eq!(code, StatusCode::OK);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["response"]["uid"], "u");
        assert_eq!(answer["response"]["allowed"], false);
        let why = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(why.contains("more than 25000"), "{why}");
        let manifests = routes_at(&bodies, MANIFESTS);
        let request = Request::post(MANIFESTS).body(Body::from(body)).unwrap();
        let answer = manifests.oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE, "no refusal");
        let long = " ".repeat(BODY + 1);
        let (code, _) = sent(&bodies, [10, 0, 0, 1], long).await;
        assert_eq!(code, StatusCode::PAYLOAD_TOO_LARGE);
        // All is given back.
        assert_eq!(bodies.bytes.available_permits(), BODIES);
        assert_eq!(bodies.objects.available_permits(), OBJECTS_AT_ONCE);
        assert!(locked(&bodies.by_peer).is_empty());
    }

    #[tokio::test]
    async fn one_address_leaves_room_for_the_others() {
        let bodies = Bodies::new();
        let peer = Some(IpAddr::from([10, 0, 0, 1]));
        let _held = bodies.of_peer(peer, BODIES_OF_ONE).unwrap();
        let (code, _) = sent(&bodies, [10, 0, 0, 1], "{}".to_owned()).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        let (code, _) = sent(&bodies, [10, 0, 0, 2], "{}".to_owned()).await;
        assert_eq!(code, StatusCode::OK);
    }

    #[tokio::test]
    async fn bodies_that_do_not_come_are_given_up_and_hold_up_nobody_for_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bodies = Bodies::new();
        let routes = routes(&bodies).into_make_service_with_connect_info::<SocketAddr>();
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
        let mut held = Vec::new();
        // More than all the room that there is.
        for _ in 0..6 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&vec![b' '; 1 << 20]).await.unwrap();
            held.push(stream);
        }
        let asked = async {
            loop {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let request = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
                stream.write_all(request).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                if answer.starts_with("HTTP/1.1 200") {
                    return;
                }
            }
        };
        let asked = tokio::time::timeout(WITHIN * 4, asked).await;
        assert!(asked.is_ok(), "who held its body back holds up the others");
        serving.abort();
    }
}
