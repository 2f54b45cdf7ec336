//! One way to serve, over TLS or plain, that no client can exhaust: connections are bounded in
//! all and for each address, and so are time and room for what comes before a request.

use crate::lock::locked;
use axum::Router;
use axum_server::Handle;
use axum_server::accept::Accept;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto::Builder;
use std::collections::HashMap;
use std::future::{Ready, ready};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Connections of one port: a stream of each of 5,000 agents, and room.
const CONNECTIONS: usize = 8192;
/// Of one address: an agent has one, the API server a few, a proxy before the page some tens.
/// Loopback addresses are not counted each: behind a sidecar proxy every client has one.
const FROM_ONE: usize = 64;
/// Timeout for the request of a connection over HTTP/1.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a request's headers. A token has some thousand.
const HEADERS: usize = 64 * 1024;
/// Requests at once on one connection over HTTP/2: the API server admits pods over a few.
const STREAMS: u32 = 256;
/// Time for requests in flight at a stop.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where requests come in.
#[derive(Debug)]
pub enum Endpoint {
    /// A port.
    Port(TcpListener),
    /// No socket: the receiver calls the routes in this process, as a simulation does.
    Routes(oneshot::Sender<Router>),
}

impl Endpoint {
    /// Where it listens, if it does.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Port(listener) => listener.local_addr().ok().map(|address| address.port()),
            Self::Routes(_) => None,
        }
    }
}

/// Serves these routes until `stop`: HTTP/1.1 and HTTP/2. The client's address is in the request's
/// extensions as `ConnectInfo<SocketAddr>`.
///
/// # Errors
/// The listener broke.
pub(crate) async fn serve(
    endpoint: Endpoint,
    tls: Option<Arc<rustls::ServerConfig>>,
    routes: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    serve_up_to(CONNECTIONS, endpoint, tls, routes, stop).await
}

async fn serve_up_to(
    connections: usize,
    endpoint: Endpoint,
    tls: Option<Arc<rustls::ServerConfig>>,
    routes: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let listener = match endpoint {
        Endpoint::Port(listener) => listener.into_std()?,
        Endpoint::Routes(to) => {
            // A caller that no longer waits for them calls nothing.
            let _ = to.send(routes);
            stop.cancelled().await;
            return Ok(());
        }
    };
    let handle = Handle::new();
    let routes = routes.into_make_service_with_connect_info::<SocketAddr>();
    let limited = Limited(Arc::new(Mutex::new(Places::up_to(connections))));
    let server = axum_server::from_tcp(listener)?.handle(handle.clone());
    let serving: Pin<Box<dyn Future<Output = io::Result<()>> + Send>> = match tls {
        Some(tls) => {
            let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(tls)).acceptor(limited);
            let mut server = server.acceptor(acceptor);
            limit(server.http_builder());
            Box::pin(server.serve(routes))
        }
        None => {
            let mut server = server.acceptor(limited);
            limit(server.http_builder());
            Box::pin(server.serve(routes))
        }
    };
    let mut serving = serving;
    tokio::select! {
        biased;
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            handle.graceful_shutdown(Some(LAST_WORDS));
            serving.await
        }
    }
}

fn limit<E>(builder: &mut Builder<E>) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADERS);
    builder
        .http2()
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEADERS).unwrap_or(u32::MAX));
}

/// The open connections.
#[derive(Debug)]
struct Places {
    most: usize,
    all: usize,
    by_peer: HashMap<IpAddr, usize>,
}

impl Places {
    fn up_to(most: usize) -> Self {
        Self {
            most,
            all: 0,
            by_peer: HashMap::new(),
        }
    }

    /// Whether there was one more for that address.
    fn take(&mut self, peer: IpAddr) -> bool {
        let own = self.by_peer.get(&peer).copied().unwrap_or_default();
        let free = self.all < self.most && (own < FROM_ONE || peer.is_loopback());
        if free {
            self.all += 1;
            self.by_peer.insert(peer, own + 1);
        }
        free
    }

    fn give_back(&mut self, peer: IpAddr) {
        self.all = self.all.saturating_sub(1);
        match self.by_peer.get_mut(&peer) {
            Some(own) if *own > 1 => *own -= 1,
            _ => {
                self.by_peer.remove(&peer);
            }
        }
    }
}

/// Takes connections while there is a place for them.
#[derive(Clone, Debug)]
struct Limited(Arc<Mutex<Places>>);

impl<S> Accept<TcpStream, S> for Limited {
    type Stream = Placed;
    type Service = S;
    type Future = Ready<io::Result<(Placed, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        ready(stream.peer_addr().and_then(|peer| {
            let peer = peer.ip();
            let mut places = locked(&self.0);
            if !places.take(peer) {
                tracing::debug!(%peer, "too many connections: refused one");
                return Err(io::Error::other("too many connections"));
            }
            drop(places);
            let places = Arc::clone(&self.0);
            Ok((
                Placed {
                    stream,
                    peer,
                    places,
                },
                service,
            ))
        }))
    }
}

/// A connection, and its place until it ends.
#[derive(Debug)]
struct Placed {
    stream: TcpStream,
    peer: IpAddr,
    places: Arc<Mutex<Places>>,
}

impl Drop for Placed {
    fn drop(&mut self) {
        let mut places = locked(&self.places);
        places.give_back(self.peer);
    }
}

impl AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Placed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn one_address_has_no_more_than_its_places_and_gives_them_back() {
        let (one, other): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut places = Places::up_to(CONNECTIONS);
        for _ in 0..FROM_ONE {
            assert!(places.take(one));
        }
        assert!(!places.take(one) && places.take(other));
        places.give_back(one);
        assert!(places.take(one));
        for _ in 0..FROM_ONE {
            places.give_back(one);
        }
        places.give_back(other);
        let sidecar = IpAddr::from([127, 0, 0, 6]);
        for _ in 0..=FROM_ONE {
            assert!(places.take(sidecar));
        }
        for _ in 0..=FROM_ONE {
            places.give_back(sidecar);
        }
        assert!(places.all == 0 && places.by_peer.is_empty());
    }

    #[tokio::test]
    async fn who_only_connects_takes_nobody_elses_place_once_it_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let routes = Router::new().route("/", get(|| async { "here" }));
        let serving = tokio::spawn(serve_up_to(
            8,
            Endpoint::Port(listener),
            None,
            routes,
            stop.clone(),
        ));
        let ask = || async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            io::Result::Ok(answer)
        };
        let mut idle = Vec::new();
        for _ in 0..8 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        // One more is closed without a response: an end, or a reset.
        while ask().await.is_ok_and(|answer| answer.ends_with("here")) {}
        idle.clear();
        while !ask().await.is_ok_and(|answer| answer.ends_with("here")) {}
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
