//! Labels of namespaces, which selectors of pods may look at. The core compares them with what
//! it knows.

use super::rules;
use crate::watch::{Key as _, Seen};
use k8s_openapi::api::core::v1::Namespace;
use scheduler_core::Event;

pub(super) fn event(seen: Seen<Namespace>) -> Option<Event> {
    match seen {
        Seen::There(namespace) => {
            let labels = rules::labels(namespace.metadata.labels.as_ref());
            let name = namespace.key().into();
            Some(Event::Namespace(scheduler_core::Namespace { name, labels }))
        }
        Seen::Gone(name) => Some(Event::NamespaceGone(name.into())),
        Seen::Listing | Seen::Listed => None,
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
        let gone = world.take(Fact::Namespace(Seen::Gone("team".into())));
        assert_eq!(gone, [Event::NamespaceGone("team".into())]);
    }
}
