//! Our certificate, for the webhook, for agents and for the page.

use super::Certificates;
use crate::serve::Door;
use axum::Router;
use std::io;
use tokio_util::sync::CancellationToken;

impl Certificates {
    /// Serves these routes with our certificate until `stop`.
    ///
    /// # Errors
    /// The listener broke.
    pub async fn serve(
        &self,
        door: Door,
        routes: Router,
        stop: CancellationToken,
    ) -> io::Result<()> {
        crate::serve::serve(door, Some(self.tls()), routes, stop).await
    }
}
