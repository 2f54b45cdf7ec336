//! An index of selectors and pods: which counted selectors may match a pod, and which pods a selector
//! may match, without visiting all of them.

use crate::model::PodSelector;
use crate::state::counted::{CountKey, Who};
use crate::state::keys::TaskKey;
use crate::state::pod_labels::PodLabels;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A label's key and its value.
type Label = (Arc<str>, Arc<str>);

/// Which pods a selector may speak of at most: those of a namespace that it names, or of all
/// namespaces where it looks at their labels; with a label that it demands with one value
/// alone, where it does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    /// `None`: all.
    pub(super) namespace: Option<Arc<str>>,
    pub(super) label: Option<Label>,
}

impl Scope {
    /// Those of a selector; none where it matches no pod.
    pub(super) fn of(selector: &PodSelector) -> Vec<Self> {
        if selector.labels.is_none() {
            return Vec::new();
        }
        let demanded = selector.demanded();
        let label = demanded.map(|(key, value)| (Arc::clone(key), Arc::clone(value)));
        let named = selector
            .namespaces
            .iter()
            .map(|name| Some(Arc::clone(name)));
        let all = selector.namespace_labels.as_ref().map(|_| None);
        let scope = |namespace| Self {
            namespace,
            label: label.clone(),
        };
        named.chain(all).map(scope).collect()
    }

    /// The selector may speak of such a pod.
    pub(super) fn may_speak(
        selector: &PodSelector,
        namespace: &Arc<str>,
        labels: &PodLabels,
    ) -> bool {
        let of = Self::of(selector);
        Self::with(namespace, labels.iter()).any(|scope| of.contains(&scope))
    }

    /// Those that hold a pod.
    fn with<'a>(
        namespace: &'a Arc<str>,
        labels: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)>,
    ) -> impl Iterator<Item = Self> {
        let labels = labels.map(|(key, value)| Some((Arc::clone(key), Arc::clone(value))));
        labels.chain([None]).flat_map(|label| {
            let namespaces = [Some(Arc::clone(namespace)), None];
            namespaces.map(|namespace| Self {
                namespace,
                label: label.clone(),
            })
        })
    }
}

/// What is looked at in pods from now on, or no more.
#[derive(Clone, Debug, Default)]
pub(super) struct LooksAt {
    /// All pods of a scope are looked at for the first time, or no more.
    pub(super) all: bool,
    /// Those that have one of these labels.
    pub(super) labels: BTreeSet<Arc<str>>,
}

impl LooksAt {
    fn if_any(self) -> Option<Self> {
        (self.all || !self.labels.is_empty()).then_some(self)
    }

    /// Whether it makes a difference for a pod with these labels.
    pub(super) fn concerns(&self, labels: &PodLabels) -> bool {
        self.all || self.labels.iter().any(|label| labels.get(label).is_some())
    }
}

/// Counted selectors by [`Scope`].
#[derive(Clone, Debug, Default)]
pub(super) struct Register {
    pub(super) scopes: BTreeMap<Scope, Scoped>,
}

/// The selectors of one scope.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoped {
    pub keys: BTreeSet<CountKey>,
    /// The labels that they look at, and how many of them do.
    pub(super) looked_at: BTreeMap<Arc<str>, u32>,
    /// [`super::pod_counts::PodCounts::version`] when a count of one of them moved last, or when
    /// the first of them came.
    pub(super) changed: u64,
}

/// What terms say to a pod is the same while this is. The version rises when a count of one of them
/// moves and when terms of another scope come; the number falls when all of a scope go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TermsVersion {
    pub(super) changed: u64,
    pub(super) scopes: usize,
}

impl Scoped {
    /// One of them looks at that label.
    pub(super) fn looks_at(&self, label: &str) -> bool {
        self.looked_at.contains_key(label)
    }
}

impl Register {
    pub(super) fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    /// Some selector looks at the labels of namespaces.
    pub(super) fn looks_at_namespaces(&self) -> bool {
        // `None` is less than any name.
        let first = self.scopes.keys().next();
        first.is_some_and(|scope| scope.namespace.is_none())
    }

    /// The scopes that hold a pod, as far as there are selectors of them.
    pub(super) fn near<'a>(
        &'a self,
        namespace: &'a Arc<str>,
        labels: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)>,
    ) -> impl Iterator<Item = &'a Scoped> {
        let labels = (!self.is_empty()).then_some(labels).into_iter().flatten();
        Scope::with(namespace, labels).filter_map(|scope| self.scopes.get(&scope))
    }

    /// Of the terms that may speak of a pod.
    pub(super) fn version<'a>(
        &'a self,
        namespace: &'a Arc<str>,
        labels: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)>,
    ) -> TermsVersion {
        let none = TermsVersion::default();
        self.near(namespace, labels)
            .fold(none, |all, scoped| TermsVersion {
                changed: all.changed.max(scoped.changed),
                scopes: all.scopes + 1,
            })
    }

    /// A selector comes. `None`: nothing else is looked at in any pod. `version`: a new one.
    pub(super) fn enter(
        &mut self,
        key: CountKey,
        selector: &PodSelector,
        version: u64,
    ) -> Option<LooksAt> {
        let mut looks = LooksAt::default();
        for scope in Scope::of(selector) {
            let scoped = self.scopes.entry(scope).or_insert_with(|| Scoped {
                changed: version,
                ..Scoped::default()
            });
            looks.all |= scoped.keys.is_empty();
            scoped.keys.insert(key);
            for label in selector.labels_looked_at() {
                let count = scoped.looked_at.entry(Arc::clone(label)).or_default();
                if *count == 0 {
                    looks.labels.insert(Arc::clone(label));
                }
                *count += 1;
            }
        }
        looks.if_any()
    }

    /// A selector goes. As [`Self::enter`].
    pub(super) fn leave(&mut self, key: CountKey, selector: &PodSelector) -> Option<LooksAt> {
        let mut looks = LooksAt::default();
        for scope in Scope::of(selector) {
            let Some(scoped) = self.scopes.get_mut(&scope) else {
                continue;
            };
            if !scoped.keys.remove(&key) {
                continue;
            }
            for label in selector.labels_looked_at() {
                if let Some(count) = scoped.looked_at.get_mut(label) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        scoped.looked_at.remove(label);
                        looks.labels.insert(Arc::clone(label));
                    }
                }
            }
            if scoped.keys.is_empty() {
                self.scopes.remove(&scope);
                looks.all = true;
            }
        }
        looks.if_any()
    }

    /// A count of a selector of these scopes has moved.
    pub(super) fn changed(&mut self, scopes: &[Scope], version: u64) {
        for scope in scopes {
            if let Some(scoped) = self.scopes.get_mut(scope) {
                scoped.changed = version;
            }
        }
    }

    /// The labels of a namespace are others now.
    pub(super) fn namespace_changed(&mut self, version: u64) {
        let wide = self.scopes.iter_mut();
        for (_, scoped) in wide.take_while(|(scope, _)| scope.namespace.is_none()) {
            scoped.changed = version;
        }
    }
}

/// Pods by the value that one of their labels has.
pub(super) type ByValue = BTreeMap<Arc<str>, BTreeSet<TaskKey>>;

/// Both ways round.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodIndex {
    /// Selectors whose pods are counted as they come and go.
    pub(super) matched: Register,
    /// Selectors of required anti-affinity.
    pub(super) avoided: Register,
    /// Selectors of preferred affinity and anti-affinity.
    pub(super) preferred: Register,
    /// Pods by namespace.
    pub(super) members: BTreeMap<Arc<str>, BTreeSet<TaskKey>>,
    /// And by the values of labels that some selector demanded there.
    pub(super) by_label: BTreeMap<(Arc<str>, Arc<str>), ByValue>,
}

impl PodIndex {
    /// Some selector looks at the labels of namespaces.
    pub(super) fn looks_at_namespaces(&self) -> bool {
        let registers = [&self.matched, &self.avoided, &self.preferred];
        registers.into_iter().any(Register::looks_at_namespaces)
    }

    /// Where terms of pods stand. `None`: of pods that are only matched.
    pub(super) fn register_of(&mut self, who: &Who) -> Option<&mut Register> {
        match who {
            Who::Matched(_) => None,
            Who::Avoiding(_) => Some(&mut self.avoided),
            Who::Preferring(..) => Some(&mut self.preferred),
        }
    }

    pub(super) fn members(&self, namespace: &str) -> Vec<TaskKey> {
        let members = self.members.get(namespace);
        members.into_iter().flatten().copied().collect()
    }

    pub(crate) fn join(&mut self, namespace: &Arc<str>, labels: &PodLabels, task: TaskKey) {
        let members = self.members.entry(Arc::clone(namespace)).or_default();
        members.insert(task);
        let known = !self.by_label.is_empty();
        for (key, value) in labels.iter().filter(|_| known) {
            let label = (Arc::clone(namespace), Arc::clone(key));
            if let Some(values) = self.by_label.get_mut(&label) {
                values.entry(Arc::clone(value)).or_default().insert(task);
            }
        }
    }

    pub(crate) fn leave(&mut self, namespace: &Arc<str>, labels: &PodLabels, task: TaskKey) {
        let known = !self.by_label.is_empty();
        for (key, value) in labels.iter().filter(|_| known) {
            let label = (Arc::clone(namespace), Arc::clone(key));
            let values = self.by_label.get_mut(&label);
            if let Some(values) = values
                && let Some(tasks) = values.get_mut(value)
            {
                tasks.remove(&task);
                if tasks.is_empty() {
                    values.remove(value);
                }
            }
        }
        if let Some(members) = self.members.get_mut(namespace) {
            members.remove(&task);
            if members.is_empty() {
                self.members.remove(namespace);
                self.by_label.retain(|(name, _), _| name != namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::text;
    use slotmap::KeyData;

    fn selector(labels: &str) -> PodSelector {
        let pod = format!("pod p\n  away zone ns=default labels=\"{labels}\"\n");
        let events = text::read(&pod).unwrap();
        let Some(Event::Pod(pod)) = events.first() else {
            panic!("{pod}");
        };
        pod.pods.anti_affinity[0].pods.clone()
    }

    /// What closes a zone may go while a count of other terms has moved later.
    #[test]
    fn terms_that_go_are_noticed_though_others_have_moved_since_and_so_are_those_that_come_again() {
        let key = |id: u64| CountKey::from(KeyData::from_ffi((1 << 32) | id));
        let (demands, wide) = (selector("app in waits"), selector("app notin x"));
        let at = |register: &Register| {
            let (namespace, labels) = ("default".into(), [("app".into(), "waits".into())]);
            register.version(&namespace, labels.iter().map(|(key, value)| (key, value)))
        };
        let mut register = Register::default();
        register.enter(key(1), &demands, 1);
        register.enter(key(2), &wide, 2);
        let both = at(&register);
        register.leave(key(1), &demands);
        let one = at(&register);
        register.enter(key(3), &demands, 3);
        let again = at(&register);
        assert_ne!(both, one);
        assert_ne!(one, again);
        assert_ne!(both, again);
    }
}
