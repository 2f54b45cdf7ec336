//! The agent's port, which every pod of the cluster may be able to reach: few connections,
//! short ones, HTTP/1 alone. What one of them can make this process hold is bounded so.

use axum::serve::Listener;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// Open at once: a few Prometheus replicas and the kubelet's probes. One more ends the
/// oldest, so that a client that only holds connections open keeps no other out.
const MOST: usize = 32;
/// A connection's whole life. A scrape takes milliseconds; Prometheus connects again.
const LIFE: Duration = Duration::from_secs(30);
/// After an `accept` that failed: the process may be out of file descriptors.
const AGAIN: Duration = Duration::from_millis(100);

/// A TCP listener that keeps to these limits.
#[derive(Debug)]
pub struct Bounded {
    listener: TcpListener,
    most: usize,
    life: Duration,
    /// Oldest first; cancelled when they ended.
    open: VecDeque<CancellationToken>,
}

impl Bounded {
    /// 32 connections of 30 s.
    pub fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            most: MOST,
            life: LIFE,
            open: VecDeque::new(),
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    self.open.retain(|open| !open.is_cancelled());
                    while self.open.len() >= self.most {
                        if let Some(oldest) = self.open.pop_front() {
                            oldest.cancel();
                        }
                    }
                    let end = CancellationToken::new();
                    self.open.push_back(end.clone());
                    let connection = Connection {
                        stream,
                        first: true,
                        ended: Box::pin(end.clone().cancelled_owned()),
                        late: Box::pin(tokio::time::sleep(self.life)),
                        _closed: end.drop_guard(),
                    };
                    return (connection, address);
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection is not accepted");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One connection, for as long as it may last.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Nothing was read yet.
    first: bool,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    late: Pin<Box<Sleep>>,
    _closed: DropGuard,
}

impl Connection {
    /// An error once its time is over.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let over = self.ended.as_mut().poll(context).is_ready()
            || self.late.as_mut().poll(context).is_ready();
        if over {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        // HTTP/2 begins with PRI: hundreds of requests at once on one connection. No method that is
        // served here begins with P.
        let first = std::mem::take(&mut self.first);
        if first && buffer.filled().get(before) == Some(&b'P') {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn served(most: usize, life: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bounded = Bounded {
            most,
            life,
            ..Bounded::new(listener)
        };
        let address = bounded.local_addr().unwrap();
        let pages = Router::new().route("/", get(|| async { "ok" }));
        tokio::spawn(async move { axum::serve(bounded, pages).await });
        address
    }

    /// Everything that is answered until the connection ends.
    async fn answered(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        String::from_utf8_lossy(&text).into_owned()
    }

    #[tokio::test]
    async fn who_holds_connections_keeps_nobody_out() {
        let address = served(2, LIFE).await;
        let mut held = Vec::new();
        for _ in 0..10 {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        let mut asks = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        asks.write_all(request).await.unwrap();
        assert!(answered(&mut asks).await.ends_with("ok"));
        // The oldest has been ended without a word.
        assert_eq!(answered(&mut held[0]).await, "");
    }

    #[tokio::test]
    async fn a_connection_ends_after_its_time_whatever_it_sends() {
        let address = served(2, Duration::from_millis(100)).await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HT").await.unwrap();
        assert_eq!(answered(&mut slow).await, "");
    }

    #[tokio::test]
    async fn many_requests_at_once_on_one_connection_are_not_taken() {
        let address = served(2, LIFE).await;
        let mut two = TcpStream::connect(address).await.unwrap();
        two.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(answered(&mut two).await, "");
    }
}
