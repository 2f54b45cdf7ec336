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

#[cfg(test)]
mod tests {
    use crate::convert::tests::{there, world};
    use crate::watch::{Fact, Seen};
    use scheduler_core::Event;
    use serde_json::json;

    #[test]
    fn a_namespace_is_known_by_its_labels_until_it_is_gone() {
        let mut world = world();
        let namespace =
            |kind: &str| json!({"metadata": {"name": "team", "labels": {"kind": kind}}});
        let events = world.take(Fact::Namespace(there(namespace("batch"))));
        let [Event::Namespace(known)] = events.as_slice() else {
            panic!("{events:?}");
        };
        assert_eq!((&*known.name, &*known.labels["kind"]), ("team", "batch"));
        // A listing that does not name it ends it, once.
        world.take(Fact::Namespace(Seen::Listing));
        let gone = [Event::NamespaceGone("team".into())];
        assert_eq!(world.take(Fact::Namespace(Seen::Listed)), gone);
        assert!(world.take(Fact::Namespace(Seen::Listed)).is_empty());
    }
}
