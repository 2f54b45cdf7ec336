//! Our certificate, for the webhook, for agents and for the page.

use super::Certificates;
use crate::serve::Endpoint;
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
        endpoint: Endpoint,
        routes: Router,
        stop: CancellationToken,
    ) -> io::Result<()> {
        crate::serve::serve(endpoint, Some(self.tls()), routes, stop).await
    }
}
