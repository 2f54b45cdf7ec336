//! Priority classes → the values of pods and groups that name them.

use super::World;
use crate::watch::Seen;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt as _;
use std::collections::BTreeMap;

/// Value of a workload's priority where no class says one: KAI's `train`.
const DEFAULT_PRIORITY: i32 = 50;
/// The `preemptionPolicy` of a priority class or of a pod for which no other pod is evicted.
pub(super) const NEVER: &str = "Never";

/// The values of a priority class that the scheduler uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) value: i32,
    /// True if the class has `preemptionPolicy: Never`.
    pub(super) never_preempts: bool,
}

/// The priority classes that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Classes {
    /// By name.
    pub(super) by_name: BTreeMap<String, Class>,
    /// The name of the class that is the cluster's default.
    pub(super) default: Option<String>,
}

impl Classes {
    /// Returns the first of these classes that exists, else the cluster's default, else KAI's.
    pub(super) fn first<'a>(
        &'a self,
        names: impl IntoIterator<Item = Option<&'a String>>,
    ) -> Class {
        names
            .into_iter()
            .chain([self.default.as_ref()])
            .flatten()
            .find_map(|name| self.by_name.get(name))
            .copied()
            .unwrap_or(Class {
                value: DEFAULT_PRIORITY,
                never_preempts: false,
            })
    }
}

impl World {
    /// The watch lists pods and groups again when a class changes.
    pub(super) fn class(&mut self, seen: Seen<PriorityClass>) {
        match seen {
            Seen::Listing => self.class_names.begin(),
            Seen::There(class) => {
                let name = class.name_any();
                self.class_names.there(&name);
                let says = Class {
                    value: class.value.unwrap_or_default(),
                    never_preempts: class.preemption_policy.as_deref() == Some(NEVER),
                };
                self.classes.by_name.insert(name.clone(), says);
                if class.global_default == Some(true) {
                    self.classes.default = Some(name);
                } else if self.classes.default.as_ref() == Some(&name) {
                    self.classes.default = None;
                }
            }
            Seen::Gone(class) => {
                self.class_names.names.remove(&class.name_any());
                self.forget_class(&class.name_any());
            }
            Seen::Listed => {
                for name in self.class_names.end() {
                    self.forget_class(&name);
                }
            }
        }
    }

    /// Returns the names of the priority classes that are known.
    pub fn priority_classes(&self) -> impl Iterator<Item = &str> {
        self.classes.by_name.keys().map(String::as_str)
    }

    fn forget_class(&mut self, name: &str) {
        self.classes.by_name.remove(name);
        if self.classes.default.as_deref() == Some(name) {
            self.classes.default = None;
        }
    }
}
