//! Labels of namespaces, which selectors of pods may look at. The core compares them with what
//! it knows.

use super::{World, rules};
use crate::watch::Seen;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use scheduler_core::Event;

impl World {
    pub(super) fn namespace(&mut self, seen: Seen<Namespace>) -> Vec<Event> {
        let gone = |name: String| Event::NamespaceGone(name.into());
        match seen {
            Seen::Listing => {
                self.namespaces.begin();
                Vec::new()
            }
            Seen::There(namespace) => {
                let name = namespace.name_any();
                self.namespaces.there(&name);
                let labels = rules::labels(namespace.metadata.labels.as_ref());
                let name = name.into();
                vec![Event::Namespace(scheduler_core::Namespace { name, labels })]
            }
            Seen::Gone(namespace) => {
                let name = namespace.name_any();
                self.namespaces.names.remove(&name);
                vec![gone(name)]
            }
            Seen::Listed => self.namespaces.end().into_iter().map(gone).collect(),
        }
    }
}
