//! Priority classes → the values of pods and groups that name them.

use crate::watch::{Key as _, Seen};
use k8s_openapi::api::scheduling::v1::PriorityClass;
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

    /// Takes in a class. The watch lists pods and groups again when a class changes.
    pub(super) fn take(&mut self, seen: Seen<PriorityClass>) {
        match seen {
            Seen::There(class) => {
                let name = class.key();
                let says = Class {
                    value: class.value.unwrap_or_default(),
                    never_preempts: class.preemption_policy.as_deref() == Some(NEVER),
                };
                self.by_name.insert(name.clone(), says);
                if class.global_default == Some(true) {
                    self.default = Some(name);
                } else if self.default.as_ref() == Some(&name) {
                    self.default = None;
                }
            }
            Seen::Gone(name) => {
                self.by_name.remove(&name);
                if self.default.as_ref() == Some(&name) {
                    self.default = None;
                }
            }
            Seen::Listing | Seen::Listed => {}
        }
    }
}
