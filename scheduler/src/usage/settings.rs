//! Where past use comes from, and what of it counts: `usageDBConfig` of a shard.

use super::window::Window;
use scheduler_core::units::Duration;
use std::sync::Arc;

/// Where past use comes from, and what of it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The server that is queried.
    pub source: Source,
    /// Since when use counts.
    pub window: Window,
    /// Use this long ago counts half. `None`: no decay.
    pub half_life: Option<Duration>,
    /// Between two questions.
    pub fetch_interval: Duration,
    /// An answer older than this counts as none; at least `fetch_interval`.
    pub staleness: Duration,
    /// How long to wait for the first result before the shard reports that there is none. Decisions
    /// do not wait.
    pub wait: Duration,
}

/// `clientType`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `prometheus`: a server of its HTTP API.
    Prometheus(Server),
    /// `in-memory`: what this process saw itself, of the last 14 days at most.
    InMemory,
}

/// A server with Prometheus' HTTP API, and the queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address.
    pub address: Address,
    /// `usageQueryTimeout`: for all queries of one question together.
    pub timeout: Duration,
    /// `queryResolution`: the step of the queries.
    pub resolution: Duration,
    /// What queues held: queries with a series for each `queue_name`. GPU, CPU, memory.
    pub allocation: [Arc<str>; 3],
    /// What the cluster had: queries with one series.
    pub capacity: [Arc<str>; 3],
}

/// Of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `connectionString`.
    Url(Arc<str>),
    /// `connectionStringEnvVar`: the variable of this process that has it.
    Variable(Arc<str>),
}
