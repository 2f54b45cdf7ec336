//! One address for several replicas of the scheduler, as their Service would be: the API
//! server calls their webhooks there.
//!
//! Comes in: an address, and the replicas' own. Goes out: each connection, passed on to
//! the first ready replica that takes it. Must never look into what it passes on.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// It serves for as long as it lives.
#[derive(Debug)]
pub struct Service {
    ready: watch::Sender<Vec<SocketAddr>>,
    task: JoinHandle<()>,
}

impl Service {
    /// Listens, and passes on.
    pub async fn start(address: SocketAddr, replicas: Vec<SocketAddr>) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| address.to_string())?;
        let (ready, replicas) = watch::channel(replicas);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut caller, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let mut replicas = replicas.clone();
                connections.spawn(async move {
                    let known = replicas.borrow().clone();
                    for replica in known {
                        if let Ok(mut taken) = TcpStream::connect(replica).await {
                            let unready = replicas.wait_for(|ready| !ready.contains(&replica));
                            tokio::select! {
                                // Either side may end it.
                                _ = copy_bidirectional(&mut caller, &mut taken) => {}
                                _ = unready => {}
                            }
                            return;
                        }
                    }
                });
            }
        });
        Ok(Self { ready, task })
    }

    /// A replica whose probe fails: it gets no connection any more and those it has end.
    pub fn unready(&self, replica: SocketAddr) {
        self.ready
            .send_modify(|ready| ready.retain(|known| *known != replica));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}
