//! Names of things as the cluster gives them, and ours for decisions.
//!
//! A name is a cheap clone (a shared string), ordered by its text: every order in the
//! core is built from these, never from the sequence in which things arrived.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// From its text.
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }

            /// From its text, which is shared.
            #[allow(dead_code, reason = "not every name is made so")]
            pub(crate) fn of(text: Arc<str>) -> Self {
                Self(text)
            }

            /// Its text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Its text, shared.
            #[allow(dead_code, reason = "not every name is asked for it")]
            pub(crate) fn shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }
        }

        impl From<&str> for $type {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $type {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name!(
    /// `metadata.name` of a node.
    NodeName
);
name!(
    /// `metadata.uid` of a node.
    NodeUid
);
name!(
    /// `metadata.uid` of a pod.
    PodUid
);
name!(
    /// Name of a queue; queues are cluster-scoped.
    QueueName
);
name!(
    /// `namespace/name` of a pod group.
    GroupName
);

/// Before the UID of a pod. No namespace has a colon in its name.
const POD_ALONE: &str = "pod:";

impl GroupName {
    /// What decisions call a pod that is in no group: there it is a group of its own.
    pub(crate) fn of_pod_alone(pod: &PodUid) -> Self {
        Self::from(format!("{POD_ALONE}{pod}"))
    }

    /// The pod that is called so. `None`: it is the name of a pod group.
    pub fn pod_alone(&self) -> Option<PodUid> {
        self.0.strip_prefix(POD_ALONE).map(PodUid::from)
    }
}
name!(
    /// Name of a sub-group inside its group.
    SetName
);
name!(
    /// A card's UUID, as NVML prints it.
    GpuUuid
);
name!(
    /// A container's name inside its pod.
    ContainerName
);
name!(
    /// Name of an extended resource, such as `aliquot.dev/gpu-share`.
    ResourceName
);
name!(
    /// `metadata.uid` of a persistent volume claim, or of a resource claim.
    ClaimUid
);
name!(
    /// `metadata.name` of a persistent volume.
    VolumeName
);
name!(
    /// Name of a topology.
    TopologyName
);
name!(
    /// `<driver>/<pool>/<device>`.
    DeviceId
);
name!(
    /// Which devices a request may have: a device class, and the request's own selectors. The
    /// shell evaluates it; [`crate::model::Device::selected_by`] has the answers.
    FilterName
);

/// Name of a pool of devices: names of pools are unique for each driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolName {
    /// The driver's name.
    pub driver: Arc<str>,
    /// The pool's. May have slashes.
    pub pool: Arc<str>,
}

impl PoolName {
    /// From both.
    pub fn new(driver: &str, pool: &str) -> Self {
        Self {
            driver: Arc::from(driver),
            pool: Arc::from(pool),
        }
    }

    /// What `Display` printed: no driver's name has a slash.
    pub fn parse(text: &str) -> Option<Self> {
        let (driver, pool) = text.split_once('/')?;
        Some(Self::new(driver, pool))
    }

    /// One of its devices.
    pub fn device(&self, name: &str) -> DeviceId {
        DeviceId::from(format!("{self}/{name}"))
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

impl DeviceId {
    /// Its pool, and its name there: no device's name has a slash.
    pub fn split(&self) -> Option<(PoolName, &str)> {
        let (pool, device) = self.0.rsplit_once('/')?;
        Some((PoolName::parse(pool)?, device))
    }
}

/// A decision, unique for the life of a cluster as long as the shell gives each core its
/// own [`crate::Config::epoch`]. Printed as `<epoch>-<sequence>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId {
    /// From the configuration.
    pub epoch: u64,
    /// Rises by one with each action.
    pub sequence: u64,
}

impl DecisionId {
    /// What [`DecisionId`]'s `Display` printed.
    pub fn parse(text: &str) -> Option<Self> {
        let (epoch, sequence) = text.split_once('-')?;
        Some(Self {
            epoch: epoch.parse().ok()?,
            sequence: sequence.parse().ok()?,
        })
    }
}

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.sequence)
    }
}
