//! One address for several replicas of the scheduler, as their Service would be: the API
//! server calls their webhooks there.
//!
//! Comes in: an address, and the replicas' own. Goes out: each connection, passed on to
//! the first replica that takes it. Must never look into what it passes on.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// It serves for as long as it lives.
#[derive(Debug)]
pub struct Service {
    task: JoinHandle<()>,
}

impl Service {
    /// Listens, and passes on.
    pub async fn start(address: SocketAddr, replicas: Vec<SocketAddr>) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| address.to_string())?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut caller, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let replicas = replicas.clone();
                connections.spawn(async move {
                    for replica in replicas {
                        if let Ok(mut taken) = TcpStream::connect(replica).await {
                            // Either side may end it.
                            let _ = copy_bidirectional(&mut caller, &mut taken).await;
                            return;
                        }
                    }
                });
            }
        });
        Ok(Self { task })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}
