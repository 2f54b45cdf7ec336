//! What each tenant was granted and did not use, by the hour, for 14 days. Pure.
//!
//! A tenant is a queue, a namespace and a workload, with a product of cards. An hour has an entry
//! for each tenant that held something in it. If that would be too much, the oldest hours lose the
//! breakdown by workload, then by namespace, then by queue; no hour is lost before 14 days are
//! over.

use super::cards::CardNow;
use super::columns::Long;
use scheduler_core::units::{Duration, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const HOUR: Duration = Duration::seconds(3600);
const HOURS: u64 = 14 * 24;
/// Entries that are kept: 0.8 MB.
const MOST: usize = 40_000;
/// Tenants that are known by name: 1.2 MB with names of fifty letters.
const MOST_TENANTS: usize = 6000;

/// The holder of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tenant {
    /// Empty: in no queue of this scheduler.
    pub(crate) queue: Arc<str>,
    pub(crate) namespace: Arc<str>,
    /// `Job/train`; empty: several, or not known.
    pub(crate) owner: Arc<str>,
    /// Of the cards.
    pub(crate) product: Arc<str>,
}

/// A share on one card now.
#[derive(Clone, Debug)]
pub(crate) struct Held<'a> {
    /// Its product counts for nothing: that of the card is below.
    pub(crate) tenant: &'a Tenant,
    pub(crate) product: &'a str,
    /// MiB that are kept for it.
    pub(crate) granted: u64,
    /// MiB in use; `None`: not known.
    pub(crate) used: Option<u64>,
    /// Of the card, in billionths.
    pub(crate) part: u64,
    /// The minutes for which it has done no work; 0 if that is not known.
    pub(crate) idle_minutes: u32,
}

/// Amounts held in a period. Sums over shares and cards, to one part in a hundred million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Milli-GPU times seconds.
    pub(crate) gpu: u64,
    /// MiB times seconds.
    pub(crate) granted: u64,
    /// Of it, what was not in use. What is not known counts as in use.
    pub(crate) unused: u64,
    /// The longest time that a share did no work, in minutes.
    pub(crate) longest_idle: u32,
}

impl Used {
    pub(crate) fn add(&mut self, other: Self) {
        self.gpu = self.gpu.saturating_add(other.gpu);
        self.granted = self.granted.saturating_add(other.granted);
        self.unused = self.unused.saturating_add(other.unused);
        self.longest_idle = self.longest_idle.max(other.longest_idle);
    }
}

/// The stored form of an entry, in 20 bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    tenant: u32,
    gpu: Long,
    granted: Long,
    unused: Long,
    longest_idle: u32,
}

impl Entry {
    fn of(tenant: u32, used: Used) -> Self {
        Self {
            tenant,
            gpu: Long::of(used.gpu),
            granted: Long::of(used.granted),
            unused: Long::of(used.unused),
            longest_idle: used.longest_idle,
        }
    }

    fn used(self) -> Used {
        Used {
            gpu: self.gpu.get(),
            granted: self.granted.get(),
            unused: self.unused.get(),
            longest_idle: self.longest_idle,
        }
    }
}

/// The capacity, and the part of it that was not granted; only cards whose agent was connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Idle {
    /// Milli-GPU times seconds of all cards.
    pub(crate) gpu: u64,
    /// Of it, what was not granted.
    pub(crate) gpu_free: u64,
    /// MiB times seconds that could be granted.
    pub(crate) grantable: u64,
    /// Of it, what was not granted.
    pub(crate) free: u64,
    /// Seconds with samples.
    pub(crate) seconds: u64,
}

impl Idle {
    fn add(&mut self, other: Self) {
        self.gpu = self.gpu.saturating_add(other.gpu);
        self.gpu_free = self.gpu_free.saturating_add(other.gpu_free);
        self.grantable = self.grantable.saturating_add(other.grantable);
        self.free = self.free.saturating_add(other.free);
        self.seconds = self.seconds.saturating_add(other.seconds);
    }
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hours {
    /// When the first of its hours begins; `None`: it has none.
    pub(crate) from: Option<Time>,
    /// Before that time there is no breakdown by workload; `None`: there always is.
    pub(crate) owners_from: Option<Time>,
    pub(crate) tenants: BTreeMap<Tenant, Used>,
    pub(crate) idle: Idle,
}

#[derive(Clone, Debug, Default)]
struct Hour {
    /// Counted from 1970.
    at: u64,
    /// In order of the tenants' numbers.
    entries: Box<[Entry]>,
    idle: Idle,
    /// The lost breakdown: 1 workloads, 2 namespaces too, 3 queues too.
    folded: u8,
}

/// Texts that many share, each once in memory. There are few.
#[derive(Debug, Default)]
struct Interner(BTreeSet<Arc<str>>);

impl Interner {
    fn once(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone());
        text
    }
}

/// Numbers for tenants, while an entry names them.
#[derive(Debug, Default)]
struct Tenants {
    numbers: BTreeMap<Arc<Tenant>, u32>,
    /// By number: the tenant, and in how many entries.
    known: Vec<(Arc<Tenant>, u32)>,
    free: Vec<u32>,
}

impl Tenants {
    fn number(&mut self, tenant: &Tenant) -> u32 {
        if let Some(number) = self.numbers.get(tenant) {
            return *number;
        }
        let tenant = Arc::new(tenant.clone());
        let number = self.free.pop().unwrap_or_else(|| {
            self.known.push((Arc::default(), 0));
            u32::try_from(self.known.len() - 1).unwrap_or(u32::MAX)
        });
        self.numbers.insert(tenant.clone(), number);
        self.known[number as usize] = (tenant, 0);
        number
    }

    fn get(&self, number: u32) -> &Tenant {
        &self.known[number as usize].0
    }

    fn take(&mut self, number: u32) {
        self.known[number as usize].1 += 1;
    }

    fn give_back(&mut self, number: u32) {
        let (tenant, count) = &mut self.known[number as usize];
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.numbers.remove(tenant);
            *tenant = Arc::default();
            self.free.push(number);
        }
    }

    fn bytes(&self) -> usize {
        let own = size_of::<Tenant>() + 2 * size_of::<usize>();
        let texts = self
            .numbers
            .keys()
            .map(|tenant| own + tenant.owner.len() + 16);
        // A tree's nodes are at least half full.
        texts.sum::<usize>()
            + self.numbers.len() * 2 * size_of::<(Arc<Tenant>, u32)>()
            + self.known.capacity() * size_of::<(Arc<Tenant>, u32)>()
            + self.free.capacity() * size_of::<u32>()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    tenants: Tenants,
    products: Interner,
    hours: VecDeque<Hour>,
    /// The hour that is not over.
    open: BTreeMap<u32, Used>,
    idle: Idle,
    at: u64,
    entries: usize,
}

impl Ledger {
    /// Adds a state that lasted for that time until now.
    pub(super) fn sample(
        &mut self,
        now: Time,
        passed: Duration,
        cards: &[CardNow<'_>],
        shares: &[Held<'_>],
    ) {
        let at = now.0 / HOUR.0;
        if at > self.at {
            self.close();
            self.at = at;
            while self.hours.front().is_some_and(|hour| hour.at + HOURS <= at) {
                self.forget();
            }
        }
        let seconds = passed.0 / 1000;
        if seconds == 0 {
            return;
        }
        for card in cards {
            let free = card.grantable.saturating_sub(card.granted);
            let part = |mib: u64| (mib * 1000).checked_div(card.grantable).unwrap_or(0);
            self.idle.add(Idle {
                gpu: 1000 * seconds,
                gpu_free: part(free) * seconds,
                grantable: card.grantable * seconds,
                free: free * seconds,
                seconds: 0,
            });
        }
        self.idle.seconds += seconds;
        for share in shares {
            let unused = share
                .used
                .map_or(0, |used| share.granted.saturating_sub(used));
            let more = Used {
                gpu: share.part * seconds / 1_000_000,
                granted: share.granted * seconds,
                unused: unused * seconds,
                longest_idle: share.idle_minutes,
            };
            self.entry(share.tenant, share.product).add(more);
        }
    }

    /// The open hour's entry of a tenant. Where there are too many, workloads share one.
    fn entry(&mut self, tenant: &Tenant, product: &str) -> &mut Used {
        let tenant = Tenant {
            product: self.products.once(product),
            ..tenant.clone()
        };
        let known = self.tenants.numbers.get(&tenant).copied();
        let number = match known {
            Some(number) if self.open.contains_key(&number) => number,
            _ if self.open.len() < MOST_TENANTS / 2 => self.tenants.number(&tenant),
            _ => self.tenants.number(&folded(&tenant, 1)),
        };
        if !self.open.contains_key(&number) {
            self.tenants.take(number);
        }
        self.open.entry(number).or_default()
    }

    /// The hour is over.
    fn close(&mut self) {
        let open = std::mem::take(&mut self.open).into_iter();
        let entries: Box<[_]> = open.map(|(number, used)| Entry::of(number, used)).collect();
        let idle = std::mem::take(&mut self.idle);
        if entries.is_empty() && idle.seconds == 0 {
            return;
        }
        self.entries += entries.len();
        self.hours.push_back(Hour {
            at: self.at,
            entries,
            idle,
            folded: 0,
        });
        for level in 1..=3 {
            for at in 0..self.hours.len() {
                if self.entries <= MOST && self.tenants.numbers.len() <= MOST_TENANTS {
                    return;
                }
                self.fold(at, level);
            }
        }
    }

    /// This hour has a coarser breakdown from now on.
    fn fold(&mut self, at: usize, level: u8) {
        let hour = &mut self.hours[at];
        if hour.folded >= level {
            return;
        }
        hour.folded = level;
        let mut sums: BTreeMap<u32, Used> = BTreeMap::new();
        for entry in &hour.entries {
            let tenant = folded(self.tenants.get(entry.tenant), level);
            let number = self.tenants.number(&tenant);
            sums.entry(number).or_default().add(entry.used());
        }
        self.entries = self.entries + sums.len() - hour.entries.len();
        for number in sums.keys() {
            self.tenants.take(*number);
        }
        let entries = sums.into_iter();
        let entries = entries
            .map(|(number, used)| Entry::of(number, used))
            .collect();
        for entry in std::mem::replace(&mut hour.entries, entries) {
            self.tenants.give_back(entry.tenant);
        }
    }

    fn forget(&mut self) {
        let Some(hour) = self.hours.pop_front() else {
            return;
        };
        self.entries -= hour.entries.len();
        for entry in hour.entries {
            self.tenants.give_back(entry.tenant);
        }
    }

    /// Of the hours that end after `from`.
    pub(crate) fn since(&self, from: Time) -> Hours {
        let mut answer = Hours::default();
        let first = from.0 / HOUR.0;
        let mut owners_from = None;
        let open = self.open.iter();
        let open = Hour {
            at: self.at,
            entries: open
                .map(|(number, used)| Entry::of(*number, *used))
                .collect(),
            idle: self.idle,
            folded: 0,
        };
        for hour in self.hours.iter().chain([&open]) {
            if hour.at < first || hour.idle.seconds == 0 {
                continue;
            }
            answer.from.get_or_insert(Time(hour.at * HOUR.0));
            if hour.folded > 0 {
                owners_from = Some(Time((hour.at + 1) * HOUR.0));
            }
            for entry in &hour.entries {
                let tenant = self.tenants.get(entry.tenant);
                if let Some(sum) = answer.tenants.get_mut(tenant) {
                    sum.add(entry.used());
                } else {
                    answer.tenants.insert(tenant.clone(), entry.used());
                }
            }
            answer.idle.add(hour.idle);
        }
        answer.owners_from = owners_from;
        answer
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries * size_of::<Entry>()
            + self.hours.capacity() * size_of::<Hour>()
            // A tree's nodes are at least half full.
            + self.open.len() * 2 * size_of::<(u32, Used)>()
            + self.tenants.bytes()
    }
}

fn folded(tenant: &Tenant, level: u8) -> Tenant {
    let up_to = |most: u8, text: &Arc<str>| {
        if level > most {
            Arc::default()
        } else {
            text.clone()
        }
    };
    Tenant {
        queue: up_to(2, &tenant.queue),
        namespace: up_to(1, &tenant.namespace),
        owner: Arc::default(),
        product: up_to(2, &tenant.product),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(queue: &str, owner: &str) -> Tenant {
        Tenant {
            queue: queue.into(),
            namespace: "ns".into(),
            owner: owner.into(),
            product: "L4".into(),
        }
    }

    fn held(tenant: &Tenant, granted: u64, used: Option<u64>) -> Held<'_> {
        Held {
            tenant,
            product: "L4",
            granted,
            used,
            part: granted * 1_000_000_000 / 20_000,
            idle_minutes: 0,
        }
    }

    const CARD: CardNow<'_> = CardNow {
        uuid: "GPU-1",
        total: 23_000,
        grantable: 20_000,
        granted: 15_000,
        used: 9_000,
    };
    const LOOK: Duration = Duration::seconds(30);

    #[test]
    fn hours_sum_what_was_granted_and_what_was_not_used() {
        let (a, b) = (tenant("q", "Job/a"), tenant("q", "Job/b"));
        let mut ledger = Ledger::default();
        // Two and a half hours.
        for look in 0..300 {
            let now = Time(100 * HOUR.0 + look * LOOK.0);
            let used = (look % 2 == 0).then_some(4000);
            let shares = [held(&a, 10_000, Some(2500)), held(&b, 5000, used)];
            ledger.sample(now, LOOK, &[CARD], &shares);
        }
        let all = ledger.since(Time(0));
        assert_eq!(all.from, Some(Time(100 * HOUR.0)));
        let seconds = 9000;
        assert_eq!(
            all.idle,
            Idle {
                gpu: 1000 * seconds,
                gpu_free: 250 * seconds,
                grantable: 20_000 * seconds,
                free: 5000 * seconds,
                seconds,
            }
        );
        let of_a = Used {
            gpu: 500 * seconds,
            granted: 10_000 * seconds,
            unused: 7500 * seconds,
            longest_idle: 0,
        };
        assert_eq!(all.tenants[&a], of_a);
        let of_b = Used {
            gpu: 250 * seconds,
            granted: 5000 * seconds,
            // What is not known is not called unused.
            unused: 1000 * seconds / 2,
            longest_idle: 0,
        };
        assert_eq!(all.tenants[&b], of_b);
        let last = ledger.since(Time(102 * HOUR.0));
        assert_eq!(last.tenants[&a].gpu, 500 * 1800);
        // Two weeks later the first hours are gone.
        ledger.sample(Time((101 + HOURS) * HOUR.0), LOOK, &[], &[]);
        assert_eq!(ledger.since(Time(0)).from, Some(Time(102 * HOUR.0)));
    }

    #[test]
    fn too_many_workloads_lose_their_names_the_oldest_first_and_no_hour_is_lost() {
        let mut ledger = Ledger::default();
        for hour in 0..48 {
            let tenants: Vec<Tenant> = (0..1000)
                .map(|at| tenant("q", &format!("Job/train-{hour}-{at}")))
                .collect();
            let shares: Vec<_> = tenants.iter().map(|one| held(one, 20, Some(20))).collect();
            ledger.sample(Time(hour * HOUR.0), LOOK, &[CARD], &shares);
        }
        let all = ledger.since(Time(0));
        assert_eq!(all.from, Some(Time(0)));
        assert_eq!(all.idle.seconds, 48 * 30);
        let granted: u64 = all.tenants.values().map(|used| used.granted).sum();
        assert_eq!(granted, 48 * 1000 * 20 * 30);
        let folded = all.tenants[&tenant("q", "")].granted / (1000 * 20 * 30);
        assert_eq!(all.owners_from, Some(Time(folded * HOUR.0)));
        assert!((42..=43).contains(&folded), "{folded} hours");
        // The open hour's own come on top.
        assert!(ledger.tenants.numbers.len() <= MOST_TENANTS + 1000);
        assert!(ledger.bytes() < 2 << 20, "{}", ledger.bytes());
    }

    #[test]
    fn so_many_workloads_at_once_are_not_told_apart() {
        let mut ledger = Ledger::default();
        let tenants: Vec<Tenant> = (0..2 * MOST_TENANTS)
            .map(|at| tenant("q", &format!("Job/{at:06}")))
            .collect();
        let shares: Vec<_> = tenants.iter().map(|one| held(one, 1, None)).collect();
        for look in 0..3 {
            ledger.sample(Time(look * LOOK.0), LOOK, &[], &shares);
        }
        assert!(ledger.open.len() <= MOST_TENANTS / 2 + 1);
        let granted: u64 = ledger.open.values().map(|used| used.granted).sum();
        assert_eq!(granted, 3 * 30 * 2 * MOST_TENANTS as u64);
        // And when they are gone, so are their names.
        ledger.sample(Time(HOUR.0), LOOK, &[], &[]);
        ledger.sample(Time(400 * HOUR.0), LOOK, &[], &[]);
        ledger.sample(Time(401 * HOUR.0), LOOK, &[], &[]);
        assert_eq!((ledger.entries, ledger.tenants.numbers.len()), (0, 0));
    }
}
