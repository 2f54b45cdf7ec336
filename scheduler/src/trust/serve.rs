//! One way to serve over TLS, for the webhook and for agents.

use super::Trust;
use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsConfig, from_tcp_rustls};
use std::io;
use std::net::TcpListener;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What is in flight at a stop has so long.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Trust {
    /// Serves these routes with our certificate, HTTP/1.1 and HTTP/2, until `stop`.
    ///
    /// # Errors
    /// The listener broke.
    pub async fn serve(
        &self,
        listener: TcpListener,
        routes: Router,
        stop: CancellationToken,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let handle = Handle::new();
        let server = from_tcp_rustls(listener, RustlsConfig::from_config(self.tls()))?
            .handle(handle.clone())
            .serve(routes.into_make_service());
        let mut server = std::pin::pin!(server);
        tokio::select! {
            ended = &mut server => ended,
            () = stop.cancelled() => {
                handle.graceful_shutdown(Some(LAST_WORDS));
                server.await
            }
        }
    }
}
