//! How a kubelet is started.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How a kubelet is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name.
    pub node_name: String,
    /// The kubelet's directory: `device-plugins`, `pod-resources`.
    pub root: PathBuf,
    /// On the node, beside the usual ones.
    pub labels: BTreeMap<String, String>,
    /// `cpu`, `memory`, `pods`.
    pub capacity: BTreeMap<String, String>,
    /// Interval of checks of the node's status; 10 s for the real one.
    pub status_every: Duration,
    /// How often the node says that it lives though nothing changed.
    pub heartbeat_every: Duration,
    /// Until a container that could not start is tried again; the real one takes 10 to 15 s.
    pub retry: Duration,
    /// The environment of init containers that are not sidecars, before the pod's own. A workload
    /// that stands for every image ends by it, where it would go on running in an app container.
    pub init_env: Vec<(String, String)>,
    /// How long a resource keeps its capacity without its plugin; the real one 5 minutes.
    pub endpoint_grace: Duration,
}

impl Config {
    /// A node of this name with the real kubelet's times.
    pub fn new(node_name: impl Into<String>, root: impl Into<PathBuf>) -> Self {
        let capacity = [("cpu", "64"), ("memory", "512Gi"), ("pods", "110")];
        Self {
            node_name: node_name.into(),
            root: root.into(),
            labels: BTreeMap::new(),
            capacity: capacity
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            status_every: Duration::from_secs(10),
            heartbeat_every: Duration::from_mins(5),
            retry: Duration::from_secs(10),
            init_env: Vec::new(),
            endpoint_grace: Duration::from_mins(5),
        }
    }
}
