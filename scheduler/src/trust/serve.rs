//! Our certificate, for the webhook, for agents and for the page.

use super::Trust;
use axum::Router;
use std::io;
use std::net::TcpListener;
use tokio_util::sync::CancellationToken;

impl Trust {
    /// Serves these routes with our certificate until `stop`.
    ///
    /// # Errors
    /// The listener broke.
    pub async fn serve(
        &self,
        listener: TcpListener,
        routes: Router,
        stop: CancellationToken,
    ) -> io::Result<()> {
        crate::serve::serve(listener, Some(self.tls()), routes, stop).await
    }
}
