//! A page that is too large to be kept whole: it is sent while it is written.
//!
//! In: a function that writes the page, on a thread of its own, and its turn. Out: the body of a
//! response. A client that stops reading loses the page: it would keep the memory, and the turn
//! of the next client. A page that was not written to its end breaks the connection, because a
//! part of it must not be taken for the whole.

use axum::body::{Body, Bytes};
use futures::stream;
use std::io;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Bytes that are sent at once, so that a piece costs more than its way through the channel.
const PIECE: usize = 64 * 1024;
/// Pieces that wait for the client. With fewer, writer and client would wait for each other.
const PIECES: usize = 4;
/// Time in which a client takes a piece: over a link of a few KiB a second.
const TAKEN_WITHIN: Duration = Duration::from_secs(15);

/// What arrives at the body.
#[derive(Debug)]
enum Part {
    Piece(Bytes),
    End,
}

/// Where the page is written to.
#[derive(Debug)]
pub(crate) struct Download {
    piece: Vec<u8>,
    to: mpsc::Sender<Part>,
    runtime: Handle,
}

/// The body that `write` writes. `turn` is given back when it is written, or its client has stopped
/// reading.
pub(crate) fn body(
    turn: OwnedSemaphorePermit,
    write: impl FnOnce(&mut Download) -> io::Result<()> + Send + 'static,
) -> Body {
    let (to, parts) = mpsc::channel(PIECES);
    let mut download = Download {
        piece: Vec::with_capacity(PIECE),
        to,
        runtime: Handle::current(),
    };
    spawn_blocking(move || {
        let written = write(&mut download).and_then(|()| download.end());
        if let Err(error) = written {
            tracing::info!(%error, "a page was not sent to its end");
        }
        drop(turn);
    });
    Body::from_stream(stream::try_unfold(parts, async |mut parts| {
        match parts.recv().await {
            Some(Part::Piece(piece)) => Ok(Some((piece, parts))),
            Some(Part::End) => Ok(None),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }))
}

impl Download {
    fn end(&mut self) -> io::Result<()> {
        io::Write::flush(self)?;
        self.send(Part::End)
    }

    fn send(&self, part: Part) -> io::Result<()> {
        let taken = timeout(TAKEN_WITHIN, self.to.send(part));
        match self.runtime.block_on(taken) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl io::Write for Download {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.send(Part::Piece(piece.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use std::io::Write as _;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    async fn turn(turns: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        Arc::clone(turns).acquire_owned().await.unwrap()
    }

    #[tokio::test]
    async fn a_page_arrives_whole_and_its_turn_is_given_back() {
        let turns = Arc::new(Semaphore::new(1));
        let body = body(turn(&turns).await, |page| {
            (0..100_000).try_for_each(|line| writeln!(page, "{line}"))
        });
        let page = body.collect().await.unwrap().to_bytes();
        let lines = std::str::from_utf8(&page).unwrap().lines();
        assert!(lines.map(str::parse).eq((0..100_000).map(Ok)));
        drop(turn(&turns).await);
    }

    #[tokio::test]
    async fn a_part_of_a_page_is_not_taken_for_the_whole() {
        let turns = Arc::new(Semaphore::new(1));
        let body = body(turn(&turns).await, |page| {
            writeln!(page, "a line")?;
            page.flush()?;
            Err(io::Error::other("the API server is gone"))
        });
        assert!(body.collect().await.is_err());
        drop(turn(&turns).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_reading_loses_its_page_and_its_turn() {
        let turns = Arc::new(Semaphore::new(1));
        let mut body = body(turn(&turns).await, |page| {
            loop {
                page.write_all(&vec![b'x'; PIECE])?;
            }
        });
        // It reads a piece, and then no more.
        assert!(body.frame().await.unwrap().is_ok());
        let next = turn(&turns);
        tokio::pin!(next);
        loop {
            tokio::select! {
                _ = &mut next => break,
                () = tokio::time::advance(Duration::from_secs(1)) => {}
            }
        }
        assert!(body.collect().await.is_err());
    }
}
