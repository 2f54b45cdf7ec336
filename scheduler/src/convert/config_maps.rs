//! Config maps that pods need: a pod for which one is missing waits, as KAI's predicate has it.
//! On a node it would hold its cards and never start.
//!
//! Only metadata is asked for. Secrets are not looked at: who may list them may read them.

use super::hindrance::Hindrance;
use super::listing::Listing;
use super::recheck::Due;
use crate::stored_pod::StoredPod;
use crate::watch::{Key as _, Seen};
use k8s_openapi::api::core::v1::{ConfigMap, Pod as KubePod};
use kube::ResourceExt as _;
use kube::core::PartialObjectMeta;
use scheduler_core::model::{Phase, Pod};
use std::collections::{BTreeMap, BTreeSet};

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct ConfigMapUsers {
    pub(super) listing: Listing,
    /// By namespace and name.
    there: BTreeSet<String>,
    /// True if config maps are not listed, so that each one that a pod names counts as present.
    pub unread: bool,
    /// Pods of ours that wait and need some, by UID.
    waiting: BTreeMap<String, Waiting>,
    /// Their UIDs by what they need.
    needed_by: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug)]
struct Waiting {
    pod: StoredPod,
    /// By namespace and name.
    needs: Vec<String>,
    /// Those of them that were missing when it was looked at last.
    missing: Vec<String>,
}

/// Names of the config maps without which the pod's containers cannot be made.
fn needed(pod: &KubePod) -> BTreeSet<&str> {
    let Some(spec) = &pod.spec else {
        return BTreeSet::new();
    };
    let inits = spec.init_containers.iter().flatten();
    let containers = || inits.clone().chain(&spec.containers);
    let variables = containers().flat_map(|one| one.env.iter().flatten());
    let variables = variables.filter_map(|one| {
        let key = one.value_from.as_ref()?.config_map_key_ref.as_ref()?;
        Some((key.name.as_str(), key.optional))
    });
    let sources = containers().flat_map(|one| one.env_from.iter().flatten());
    let sources = sources.filter_map(|one| {
        let map = one.config_map_ref.as_ref()?;
        Some((map.name.as_str(), map.optional))
    });
    let volumes = || spec.volumes.iter().flatten();
    let mounted = volumes().filter_map(|one| {
        let map = one.config_map.as_ref()?;
        Some((map.name.as_str(), map.optional))
    });
    let projected = volumes().filter_map(|one| one.projected.as_ref()?.sources.as_ref());
    let projected = projected.flatten().filter_map(|one| {
        let map = one.config_map.as_ref()?;
        Some((map.name.as_str(), map.optional))
    });
    let all = variables.chain(sources).chain(mounted).chain(projected);
    all.filter(|(_, optional)| *optional != Some(true))
        .map(|(name, _)| name)
        .collect()
}

fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

impl ConfigMapUsers {
    fn missing(&self, needs: &[String]) -> Vec<String> {
        let is_missing = |name: &&String| !self.unread && !self.there.contains(*name);
        needs.iter().filter(is_missing).cloned().collect()
    }

    /// The pod, if it waits and other config maps are missing than when it was looked at last.
    pub(super) fn changed(&self, uid: &str) -> Option<KubePod> {
        let waiting = self.waiting.get(uid)?;
        (self.missing(&waiting.needs) != waiting.missing).then(|| waiting.pod.load())
    }

    fn wait(&mut self, uid: &str, waiting: Waiting) {
        for name in &waiting.needs {
            let users = self.needed_by.entry(name.clone()).or_default();
            users.insert(uid.to_owned());
        }
        self.waiting.insert(uid.to_owned(), waiting);
    }

    /// Forgets a pod that no longer waits, or that is about to be looked at again.
    pub(super) fn forget(&mut self, uid: &str) {
        let Some(waiting) = self.waiting.remove(uid) else {
            return;
        };
        for name in waiting.needs {
            if let Some(users) = self.needed_by.get_mut(&name) {
                users.remove(uid);
                if users.is_empty() {
                    self.needed_by.remove(&name);
                }
            }
        }
    }

    /// What is missing for a pod that waits.
    pub(super) fn look_up(&mut self, pod: &KubePod, converted: &mut Pod) {
        let uid = converted.uid.as_str();
        self.forget(uid);
        if !converted.ours || converted.phase != Phase::Pending {
            return;
        }
        let names = needed(pod);
        if names.is_empty() {
            return;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let needs: Vec<String> = names.iter().map(|name| key(&namespace, name)).collect();
        let missing = self.missing(&needs);
        if !missing.is_empty() {
            let name = |key: &String| key.rsplit_once('/').map(|(_, name)| name.to_owned());
            let names: Vec<String> = missing.iter().filter_map(name).collect();
            let names = names.join(" ");
            let what = Hindrance::ConfigMaps(names).to_string();
            converted.lacks.push(what.into());
        }
        let waiting = Waiting {
            pod: StoredPod::of(pod),
            needs,
            missing,
        };
        self.wait(uid, waiting);
    }

    /// Takes in that a config map came or went.
    pub(super) fn take(&mut self, seen: Seen<PartialObjectMeta<ConfigMap>>) -> Due {
        // Until all were named, a config map is as good as missing.
        let was_listed = self.listing.listed;
        self.listing.note(&seen);
        let moved = match seen {
            Seen::There(map) => {
                let name = map.key();
                self.there.insert(name.clone()).then_some(name)
            }
            Seen::Gone(name) => {
                self.there.remove(&name);
                Some(name)
            }
            Seen::Listing => None,
            Seen::Listed => {
                let waiting = self.waiting.keys();
                let now = waiting.filter_map(|uid| self.changed(uid)).collect();
                return Due {
                    now,
                    ..Due::default()
                };
            }
        };
        let moved = moved.filter(|_| was_listed);
        let users = moved.and_then(|name| self.needed_by.get(&name).cloned());
        Due {
            later: users.unwrap_or_default(),
            ..Due::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gone, pod, settled, there, world};
    use super::*;
    use crate::watch::Fact;
    use scheduler_core::Event;
    use serde_json::json;

    #[test]
    fn a_pod_waits_for_the_config_maps_without_which_it_cannot_be_made() {
        let mut world = world();
        let mut pod = pod("u1", None, 0);
        let variable = |name: &str, optional: bool| json!({ "name": name, "valueFrom": { "configMapKeyRef": { "name": name, "key": "k", "optional": optional } } });
        pod["spec"]["initContainers"] = json!([{ "name": "first", "env": [variable("init", false), { "name": "X", "value": "x" }] }]);
        pod["spec"]["containers"][0]["env"] = json!([variable("perhaps", true)]);
        pod["spec"]["containers"][0]["envFrom"] =
            json!([{ "configMapRef": { "name": "all" } }, { "secretRef": { "name": "s" } }]);
        pod["spec"]["volumes"] = json!([
            { "name": "v", "configMap": { "name": "mounted" } },
            { "name": "p", "projected": { "sources": [{ "configMap": { "name": "part" } }, { "configMap": { "name": "too", "optional": true } }] } },
        ]);
        let lacks = |events: Vec<Event>| -> Vec<String> {
            let [Event::Pod(pod)] = events.as_slice() else {
                panic!("{events:?}");
            };
            pod.lacks.iter().map(ToString::to_string).collect()
        };
        let map = |name: &str| json!({ "metadata": { "name": name, "namespace": "ns" } });
        assert_eq!(
            lacks(settled(&mut world, Fact::Pod(there(pod.clone())))),
            ["ConfigMap: Missing required configmaps: [all init mounted part]"]
        );
        // Unknown before all were listed.
        assert_eq!(settled(&mut world, Fact::ConfigMap(Seen::Listing)), []);
        assert_eq!(
            settled(&mut world, Fact::ConfigMap(there(map("perhaps")))),
            []
        );
        // None of those that it needs was named.
        assert_eq!(settled(&mut world, Fact::ConfigMap(Seen::Listed)), []);
        for (name, left) in [
            ("all", "init mounted part"),
            ("part", "init mounted"),
            ("init", "mounted"),
        ] {
            let events = settled(&mut world, Fact::ConfigMap(there(map(name))));
            let left = format!("ConfigMap: Missing required configmaps: [{left}]");
            assert_eq!(lacks(events), [left]);
        }
        // Another namespace's, and one that no pod needs.
        let other = json!({ "metadata": { "name": "mounted", "namespace": "other" } });
        assert_eq!(settled(&mut world, Fact::ConfigMap(there(other))), []);
        assert_eq!(
            settled(&mut world, Fact::ConfigMap(there(map("perhaps")))),
            []
        );
        let none: [&str; 0] = [];
        assert_eq!(
            lacks(settled(&mut world, Fact::ConfigMap(there(map("mounted"))))),
            none
        );
        // What is there already is no news; what goes is.
        assert_eq!(
            settled(&mut world, Fact::ConfigMap(there(map("mounted")))),
            []
        );
        assert_eq!(
            lacks(settled(&mut world, Fact::ConfigMap(gone(map("mounted"))))),
            ["ConfigMap: Missing required configmaps: [mounted]"]
        );
        // Where it has a place, that is the kubelet's matter.
        pod["spec"]["nodeName"] = json!("n");
        assert_eq!(lacks(settled(&mut world, Fact::Pod(there(pod)))), none);
        assert_eq!(settled(&mut world, Fact::ConfigMap(gone(map("all")))), []);
    }
}
