//! Connections on which bytes are sent only while this replica holds the lease.
//!
//! A write that was allowed to begin may wait for its connection, and the process may be stopped
//! meanwhile (SIGSTOP, a paused machine). So each write to the socket checks the lease again. Only
//! a few instructions remain between the check and the system call.

use super::leadership::Leadership;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

/// A client with such connections; it sends nothing a second time.
pub(super) fn client(config: &Config, leadership: &Leadership) -> kube::Result<Client> {
    let mut tcp = HttpConnector::new();
    // TLS is the next one's concern.
    tcp.enforce_http(false);
    let leadership = leadership.clone();
    let fenced = tcp.map_response(move |stream| Fenced {
        stream,
        leadership: leadership.clone(),
    });
    let tls = config.rustls_https_connector_with_connector(fenced)?;
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let sender: legacy::Client<_, Body> =
        legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(sender);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// A stream that takes bytes only while the lease is held.
#[derive(Debug)]
struct Fenced<T> {
    stream: T,
    leadership: Leadership,
}

impl<T> Fenced<T> {
    fn ask(&self) -> io::Result<()> {
        if self.leadership.term().is_some() {
            return Ok(());
        }
        Err(io::Error::other(
            "not sent: this replica does not hold the lease",
        ))
    }
}

impl<T: Write + Unpin> Write for Fenced<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.ask()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.ask()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}

impl<T: Read + Unpin> Read for Fenced<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: Connection> Connection for Fenced<T> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::leadership;
    use http::Request;
    use std::time::Duration;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    /// Bytes that a server gets on its first connection when a request is sent through
    /// [`client`] alone, without the look before it begins.
    async fn sent(held: Option<Duration>) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (grantor, leadership) = leadership();
        if let Some(held) = held {
            grantor.extend(Instant::now() + held);
        }
        let client = client(&Config::new(url.parse().unwrap()), &leadership).unwrap();
        let request = Request::post("/api").body(Body::from(vec![7; 64])).unwrap();
        let sending = tokio::spawn(async move { client.send(request).await.map(|_| ()) });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 1024];
        let read = stream.read(&mut bytes).await.unwrap();
        drop(stream);
        sending.await.unwrap().unwrap_err();
        read
    }

    #[tokio::test]
    async fn no_byte_leaves_without_the_lease() {
        assert!(sent(Some(Duration::from_secs(8))).await > 64);
        assert_eq!(sent(Some(Duration::ZERO)).await, 0);
        assert_eq!(sent(None).await, 0);
    }

    #[tokio::test]
    async fn a_connection_made_under_the_lease_takes_nothing_after_it() {
        let (near, mut far) = tokio::io::duplex(1024);
        let (grantor, leadership) = leadership();
        let mut fenced = Fenced {
            stream: hyper_util::rt::TokioIo::new(near),
            leadership,
        };
        let mut write = async |bytes: &[u8]| {
            std::future::poll_fn(|context| Pin::new(&mut fenced).poll_write(context, bytes)).await
        };
        grantor.extend(Instant::now() + Duration::from_secs(8));
        assert_eq!(write(b"held").await.unwrap(), 4);
        grantor.close();
        assert_eq!(write(b"ends").await.unwrap(), 4, "under way");
        grantor.revoke();
        assert!(write(b"late").await.is_err());
        drop(fenced);
        let mut seen = String::new();
        far.read_to_string(&mut seen).await.unwrap();
        assert_eq!(seen, "heldends");
    }
}
