//! Which devices selectors select: CEL expressions of classes and requests, evaluated for each
//! device, so that the core sees names of filters alone.
//!
//! A filter is there as long as a pod waits that names it. It is evaluated for so many devices
//! before each decision; a pod waits until its filters are known for all devices.

use super::pools::Pools;
use crate::selector::{Selector, Stack, Subject, deep};
use ring::digest::{Context, SHA256};
use scheduler_core::ids::{FilterName, PoolName};
use scheduler_core::model::Device;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

/// Steps of expressions that are evaluated before one decision: 20 ms. The last
/// pool may exceed it by its own devices; the others wait for the next decision.
const STEPS: u64 = 100_000;
/// Steps of a device besides those of its expressions.
const LOOK: u64 = 20;

/// What a request says of its devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    /// Name of its class.
    pub class: String,
    /// CEL: the class's and the request's own. Where each stands, for people.
    pub selectors: Vec<(String, String)>,
}

impl Wanted {
    /// Equal where all is.
    pub(super) fn name(&self) -> FilterName {
        let mut hash = Context::new(&SHA256);
        for (_, selector) in &self.selectors {
            hash.update(&selector.len().to_be_bytes());
            hash.update(selector.as_bytes());
        }
        let mut name = format!("{}@", self.class);
        for byte in hash.finish().as_ref().iter().take(8) {
            let _ = write!(name, "{byte:02x}");
        }
        FilterName::from(name)
    }
}

#[derive(Debug)]
struct Filter {
    /// Each with where it stands.
    selectors: Vec<(String, Selector)>,
    /// It is none, whatever the device.
    bad: Option<String>,
    /// Pools for which it is known.
    known: BTreeSet<PoolName>,
    /// UIDs of the pods that wait with it.
    users: BTreeSet<String>,
}

/// What can be said of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilterStatus {
    /// For all devices.
    Yes,
    /// Not for all yet.
    NotYet,
    /// It is none, whatever the device: one sentence.
    Never(String),
}

/// All filters in use.
#[derive(Debug, Default)]
pub(super) struct Filters {
    of: BTreeMap<FilterName, Filter>,
    /// By filter, pools that are to be looked at.
    due: VecDeque<(FilterName, PoolName)>,
}

impl Filters {
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The pod waits with it.
    pub(super) fn used(&mut self, wanted: &Wanted, pod: &str, pools: &Pools) {
        let name = wanted.name();
        let filter = self.of.entry(name.clone()).or_insert_with(|| {
            let filter = Filter::compile(wanted);
            if filter.bad.is_none() {
                let all = pools.rows.keys().cloned();
                self.due.extend(all.map(|pool| (name.clone(), pool)));
            }
            filter
        });
        filter.users.insert(pod.to_owned());
    }

    /// The pod waits no more, or with others. A filter that no pod names is forgotten by
    /// [`Filters::tidy`].
    pub(super) fn unused<'a>(&mut self, names: impl Iterator<Item = &'a FilterName>, pod: &str) {
        for name in names {
            if let Some(filter) = self.of.get_mut(name) {
                filter.users.remove(pod);
            }
        }
    }

    /// Forgets filters that no pod waits with.
    pub(super) fn tidy(&mut self) {
        self.of.retain(|_, filter| !filter.users.is_empty());
    }

    pub(super) fn known(&self, name: &FilterName, pools: &Pools) -> FilterStatus {
        let Some(filter) = self.of.get(name) else {
            return FilterStatus::NotYet;
        };
        if let Some(bad) = &filter.bad {
            return FilterStatus::Never(bad.clone());
        }
        // Both are in order and pools that are gone are not known.
        if filter.known.len() == pools.rows.len() {
            FilterStatus::Yes
        } else {
            FilterStatus::NotYet
        }
    }

    /// Pods that wait with it.
    fn users(&self, name: &FilterName) -> impl Iterator<Item = &String> {
        self.of
            .get(name)
            .into_iter()
            .flat_map(|filter| &filter.users)
    }

    /// A pool has changed: filters that knew it look at what of it is another.
    pub(super) fn pool_changed(&mut self, name: &PoolName, pools: &mut Pools) {
        for (filter_name, filter) in &mut self.of {
            if filter.bad.is_some() {
                continue;
            }
            filter.look(filter_name, name, pools);
        }
        // What no pod waits with any more selects nothing.
        if let Some(row) = pools.rows.get_mut(name) {
            for device in &mut row.pool.devices {
                device
                    .selected_by
                    .retain(|filter| self.of.contains_key(filter));
                device
                    .unanswered
                    .retain(|filter, _| self.of.contains_key(filter));
            }
        }
    }

    pub(super) fn pool_gone(&mut self, name: &PoolName) {
        for filter in self.of.values_mut() {
            filter.known.remove(name);
        }
    }

    /// Looks at the devices whose turn it is. Returns the pools that are others now, and the
    /// pods whose filters are known now.
    pub(super) fn look(&mut self, pools: &mut Pools) -> (BTreeSet<PoolName>, BTreeSet<String>) {
        let (mut changed, mut users) = (BTreeSet::new(), BTreeSet::new());
        let mut left = STEPS;
        while left > 0 {
            let Some((name, pool)) = self.due.pop_front() else {
                break;
            };
            let Some(filter) = self.of.get_mut(&name) else {
                continue;
            };
            let Some(row) = pools.rows.get(&pool) else {
                continue;
            };
            left = left.saturating_sub(LOOK.saturating_mul(row.subjects.len().max(1) as u64));
            if !filter.known.contains(&pool) {
                left = left.saturating_sub(filter.look(&name, &pool, pools));
                changed.insert(pool);
            }
            if self.known(&name, pools) != FilterStatus::NotYet {
                users.extend(self.users(&name).cloned());
            }
        }
        (changed, users)
    }
}

impl Filter {
    fn compile(wanted: &Wanted) -> Self {
        let mut filter = Self {
            selectors: Vec::new(),
            bad: None,
            known: BTreeSet::new(),
            users: BTreeSet::new(),
        };
        let texts = wanted.selectors.iter();
        let compiled = deep(|stack| {
            let compile = |(_, text): &(String, String)| Selector::compile(text, stack);
            texts.map(compile).collect::<Vec<_>>()
        });
        for ((place, _), compiled) in wanted.selectors.iter().zip(compiled) {
            match compiled {
                Ok(selector) => filter.selectors.push((place.clone(), selector)),
                Err(why) => {
                    filter.bad.get_or_insert(format!("{place}: {why}"));
                }
            }
        }
        filter
    }

    /// Whether it selects the pool's devices. Returns the steps that this cost.
    fn look(&mut self, name: &FilterName, pool: &PoolName, pools: &mut Pools) -> u64 {
        let Some(row) = pools.rows.get_mut(pool) else {
            return 0;
        };
        self.known.insert(pool.clone());
        let devices = row.subjects.iter().zip(&row.pool.devices);
        let answer = |stack: &Stack, (subject, device): (&Subject, &Device)| {
            for (place, selector) in &self.selectors {
                match selector.matches(subject, stack) {
                    Ok(true) => {}
                    Ok(false) => return Ok(false),
                    Err(why) => {
                        let id = row.pool.name.device(&device.name);
                        return Err(Arc::from(format!("{place}: device {id}: {why}")));
                    }
                }
            }
            Ok(true)
        };
        let (answers, steps): (Vec<Result<bool, Arc<str>>>, u64) = deep(|stack| {
            let answers = devices.map(|device| answer(stack, device)).collect();
            (answers, stack.steps())
        });
        for (at, answer) in answers.into_iter().enumerate() {
            row.select(at, name, answer);
        }
        steps
    }
}
