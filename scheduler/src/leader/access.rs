//! How a scheduler reaches the API server.

use super::connection;
use super::leadership::Leadership;
use kube::{Client, Config};

/// The API server and the account.
#[derive(Clone)]
pub enum ApiAccess {
    /// Over connections of our own.
    Network(Box<Config>),
    /// Through a client of an embedder, which sends what it is given at once.
    Through(Client),
}

impl ApiAccess {
    /// For requests that any replica may send.
    pub(crate) fn client(&self) -> kube::Result<Client> {
        match self {
            Self::Network(config) => Client::try_from(config.as_ref().clone()),
            Self::Through(client) => Ok(client.clone()),
        }
    }

    /// For what only the leader may write.
    pub(crate) fn leaders(&self, leadership: &Leadership) -> kube::Result<Client> {
        match self {
            Self::Network(config) => connection::client(config, leadership),
            Self::Through(client) => Ok(client.clone()),
        }
    }
}

impl std::fmt::Debug for ApiAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Network(config) => write!(f, "Network({})", config.cluster_url),
            Self::Through(_) => write!(f, "Through(..)"),
        }
    }
}

impl From<Config> for ApiAccess {
    fn from(config: Config) -> Self {
        Self::Network(Box::new(config))
    }
}

impl From<Client> for ApiAccess {
    fn from(client: Client) -> Self {
        Self::Through(client)
    }
}
