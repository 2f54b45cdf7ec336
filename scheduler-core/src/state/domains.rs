//! What was found out about other pods for one request signature: see [`super::pod_domains`].

use crate::model::Labels;
use crate::state::counted::CountKey;
use crate::state::pod_counts::ByDomain;
use crate::state::pod_index::TermsVersion;
use crate::state::spreading::Spreading;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of one request signature.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains {
    /// [`State::domains_at`](super::State::domains_at) when all of it was right. `None`: parts are missing.
    pub(super) at: Option<[u64; 3]>,
    /// By constraint of its spread.
    pub(super) spread: Vec<Spreading>,
    /// [`Changes::nodes`](crate::state::changes::Changes::nodes) when the nodes of the spread were looked up.
    pub(super) nodes: Option<u64>,
    /// Of the selectors that are not counted.
    pub(super) summed: BTreeMap<CountKey, ByDomain>,
    /// Which domains are closed.
    pub(super) closed: Option<Closed>,
    /// What each is worth to pods that are there.
    pub(super) worth: Option<DomainPreferences>,
}

/// Domains with pods whose anti-affinity speaks of a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closed {
    /// [`State::closed_changed`](super::State::closed_changed) at that time.
    pub(super) changed: TermsVersion,
    /// By topology key.
    pub(super) of: Vec<(Arc<str>, ClosedDomains)>,
}

/// Closed domains of one topology key, each with whether it stays so when those who leave have
/// left.
pub(super) type ClosedDomains = FxHashMap<Arc<str>, bool>;

impl Closed {
    /// Whether a node with these labels is closed for now, and for later.
    pub(crate) fn is(&self, labels: &Labels) -> (bool, bool) {
        let all = self.of.iter().filter_map(|(key, domains)| {
            let domain = labels.get(key)?;
            domains.get(domain)
        });
        all.fold((false, false), |(_, later), stays| (true, later || *stays))
    }
}

/// What the preferences of pods that have a place make of the domains for a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainPreferences {
    /// [`State::worth_changed`](super::State::worth_changed) at that time.
    pub(super) changed: TermsVersion,
    /// By topology key; domains that are worth nothing are missing.
    pub(super) of: Vec<(Arc<str>, Sums)>,
}

/// What each domain of one topology key is worth.
pub(super) type Sums = FxHashMap<Arc<str>, i64>;

impl DomainPreferences {
    /// Of a node with these labels.
    pub(crate) fn is(&self, labels: &Labels) -> i64 {
        let all = self.of.iter().filter_map(|(key, domains)| {
            let domain = labels.get(key)?;
            domains.get(domain).copied()
        });
        all.fold(0, i64::saturating_add)
    }
}

impl Domains {
    /// The large parts, of which there is one set at a time.
    pub(super) fn forget(&mut self) {
        if self.closed.is_some() || self.worth.is_some() || !self.summed.is_empty() {
            self.at = None;
            self.closed = None;
            self.worth = None;
            self.summed = BTreeMap::new();
        }
    }

    pub(crate) fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// `None`: no preference of another pod speaks of it.
    pub(crate) fn worth(&self) -> Option<&DomainPreferences> {
        self.worth.as_ref().filter(|worth| !worth.of.is_empty())
    }
}
