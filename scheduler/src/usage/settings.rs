//! The settings of past use: `usageDBConfig` of a shard.

use super::window::Window;
use scheduler_core::units::Duration;
use std::sync::Arc;

/// The source of past use, and the part of it that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The server that is queried.
    pub source: Source,
    /// The time since which use counts.
    pub window: Window,
    /// Use this long ago counts half. `None`: no decay.
    pub half_life: Option<Duration>,
    /// The time between two queries.
    pub fetch_interval: Duration,
    /// An answer that is older than this counts as none. It is at least `fetch_interval`.
    pub staleness: Duration,
    /// The time to wait for the first result before the shard reports that there is none. Decisions
    /// do not wait.
    pub wait: Duration,
}

/// The source of past use, `clientType` of the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The value `prometheus`: a server with Prometheus' HTTP API.
    Prometheus(Server),
    /// The value `in-memory`: the use that this process saw, of the last 14 days at most.
    InMemory,
}

/// A server with Prometheus' HTTP API, and the queries that it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The address of the server.
    pub address: Address,
    /// The time for all queries of one round together, `usageQueryTimeout`.
    pub timeout: Duration,
    /// The step of the queries, `queryResolution`.
    pub resolution: Duration,
    /// The queries of what queues held, for GPU, CPU and memory. Each has a series for each
    /// `queue_name`.
    pub allocation: [Arc<str>; 3],
    /// The queries of what the cluster had. Each has one series.
    pub capacity: [Arc<str>; 3],
}

/// The address of a server, or where it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The address itself, `connectionString`.
    Url(Arc<str>),
    /// The environment variable that has the address, `connectionStringEnvVar`.
    Variable(Arc<str>),
}
