//! What identifies an object among those of its kind, and which are there.

use super::seen::Seen;
use api::GpuNode;
use api::kai::{Config, PodGroup, Queue, SchedulingShard, Topology};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt as _};
use std::collections::BTreeMap;

/// A kind whose objects are followed.
pub trait Key: Resource + Sized {
    /// Returns what identifies the object: `namespace/name`, or the name where the kind has no
    /// namespaces. Of a pod it is the UID, because another pod of its name may follow it at once.
    fn key(&self) -> String {
        let name = self.name_any();
        self.namespace()
            .map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
    }
}

impl Key for Pod {
    fn key(&self) -> String {
        self.uid().unwrap_or_default()
    }
}

macro_rules! by_name {
    ($($kind:ty),* $(,)?) => { $(impl Key for $kind {})* };
}

by_name!(
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    Config,
    DeviceClass,
    GpuNode,
    Namespace,
    Node,
    PartialObjectMeta<ConfigMap>,
    PersistentVolume,
    PersistentVolumeClaim,
    PodGroup,
    PriorityClass,
    Queue,
    ResourceClaim,
    ResourceSlice,
    SchedulingShard,
    StorageClass,
    Topology,
);

/// The keys of the objects of a kind that are there; `true` while a listing has not named the object.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<Box<str>, bool>);

impl Known {
    pub(super) fn begin(&mut self) {
        self.0.values_mut().for_each(|unnamed| *unnamed = true);
    }

    pub(super) fn there(&mut self, key: &str) {
        match self.0.get_mut(key) {
            Some(unnamed) => *unnamed = false,
            None => drop(self.0.insert(key.into(), false)),
        }
    }

    /// Returns whether the object was there.
    pub(super) fn gone(&mut self, key: &str) -> bool {
        self.0.remove(key).is_some()
    }

    /// Ends a listing: returns the objects that it did not name.
    pub(super) fn end<K>(&mut self) -> impl Iterator<Item = Seen<K>> {
        let gone = self.0.extract_if(.., |_, unnamed| *unnamed);
        gone.map(|(key, _)| Seen::Gone(key.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_listing_does_not_name_is_gone_once() {
        let mut known = Known::default();
        let gone = |known: &mut Known| -> Vec<String> {
            let gone = known.end::<Pod>();
            let key = |seen| match seen {
                Seen::Gone(key) => key,
                other => panic!("{other:?}"),
            };
            gone.map(key).collect()
        };
        known.begin();
        known.there("a");
        known.there("b");
        assert_eq!(gone(&mut known), [""; 0]);
        known.begin();
        known.there("b");
        // The listing is begun again, and `b` was named by the first alone.
        known.begin();
        known.there("c");
        assert_eq!(gone(&mut known), ["a", "b"]);
        assert!(known.gone("c") && !known.gone("c") && !known.gone("a"));
    }

    #[test]
    fn a_pod_is_known_by_its_uid_and_others_by_namespace_and_name() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u".into());
        assert_eq!(pod.key(), "u");
        let mut claim = ResourceClaim {
            metadata: pod.metadata,
            ..ResourceClaim::default()
        };
        assert_eq!(claim.key(), "ns/p");
        claim.metadata.namespace = None;
        assert_eq!(claim.key(), "p");
    }
}
