//! The configuration of a kubelet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The configuration of a kubelet.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name.
    pub node_name: String,
    /// The kubelet's directory, with `device-plugins` and `pod-resources`.
    pub root: PathBuf,
    /// The labels of the node beside the usual ones.
    pub labels: BTreeMap<String, String>,
    /// The capacity of the node: `cpu`, `memory` and `pods`.
    pub capacity: BTreeMap<String, String>,
    /// The time between checks of the node's status. The real kubelet has 10 s.
    pub status_every: Duration,
    /// The time after which the node says that it lives although nothing has changed.
    pub heartbeat_every: Duration,
    /// The time until a container that could not start is tried again. The real kubelet takes 10 to 15 s.
    pub retry: Duration,
    /// The environment of init containers that are not sidecars, before the pod's own. A workload
    /// that stands for every image ends by it, where it would go on running in an app container.
    pub init_env: Vec<(String, String)>,
    /// The time for which a resource keeps its capacity without its plugin. The real kubelet has 5
    /// minutes.
    pub endpoint_grace: Duration,
}

impl Config {
    /// Returns the configuration of a node of this name, with the real kubelet's times.
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
