//! Cards in MIG mode that are to have other instances. Pure.
//!
//! `GpuNode.spec.gpus[].migLayout` says which. A card gets them once nothing uses it: first schedulers
//! are told that its slices go, then the kubelet, and after a pause each NVML. A pod that comes in
//! between keeps its slice, and the card its layout until that pod has ended. The kubelet permanently
//! rejects a pod that needs an ID which is gone; the order and the pauses make that unlikely.

use super::allocations::Allocations;
use super::cards::Cards;
use super::event::Effect;
use super::policy::Policy;
use crate::gpu::{GpuUuid, MigLayout, MigStrategy, Profile};
use crate::inventory::mig::layout_of;
use crate::inventory::{Card, Health};
use crate::ledger::Ledger;
use crate::nvml::LayoutOrder;
use crate::pods::{PodView, Pods};
use proto::names::gpu_node::LAYOUT_CHANGES as GOES;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time between the report to schedulers and that to the kubelet. Bindings that were sent before the
/// report reach this node within it.
const ANNOUNCED: Duration = Duration::from_secs(2);
/// Time between the report to the kubelet and the order to NVML. A pod that the kubelet was admitting
/// has its slice by then.
const WITHDRAWN: Duration = Duration::from_secs(2);
/// From the driver's word that a layout was made until a look at the card must show it.
const SHOWN: Duration = Duration::from_secs(10);
/// Pause after a failure, doubled after each further one, up to the second: what was in the way may
/// have ended, and each try destroys idle slices.
const AGAIN: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(1));

/// How far a card is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// It waits for this.
    Waits(String),
    /// Reported to schedulers at this time.
    Announced(Instant),
    /// Reported to the kubelet at this time.
    Withdrawn(Instant),
    /// Ordered: NVML carries it out, whatever the policy says meanwhile.
    Making,
    /// It was made at this time, and is not seen yet.
    Made(Instant),
    /// It was not, at this time.
    Failed(Instant, String),
}

/// What a card is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    layout: BTreeMap<String, u32>,
    step: Step,
    /// How often it failed.
    failures: u32,
}

/// The cards that do not have the layout that they are to have.
#[derive(Clone, Debug, Default)]
pub(super) struct Layouts(BTreeMap<GpuUuid, Change>);

/// What others read of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutsView {
    /// By card, what it waits for or why it cannot have that layout.
    pub messages: BTreeMap<GpuUuid, String>,
    /// Cards whose slices go.
    pub closing: BTreeSet<GpuUuid>,
}

impl LayoutsView {
    /// Why nothing should be placed on a card or slice any more.
    pub fn closes(&self, card: &Card) -> Option<&'static str> {
        let parent = &card.slice.as_ref()?.parent;
        self.closing.contains(parent).then_some(GOES)
    }
}

impl Layouts {
    /// Brings each card one step nearer to its layout. Returns true if slices go, or stay after all.
    pub(super) fn arrange(
        &mut self,
        policy: &Policy,
        uses: &SliceUses<'_>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let cards = &uses.cards.inventory.cards;
        // An ordered layout is finished first: its slices must not be allocated, even if the policy
        // no longer wants it.
        let ordered = self.0.iter().filter(|(card, change)| match change.step {
            Step::Making => true,
            Step::Made(since) => {
                let is_shown = parsed(&change.layout).ok() == layout_of(cards, card);
                !is_shown && now.saturating_duration_since(since) < SHOWN
            }
            _ => false,
        });
        let ordered = ordered.map(|(card, change)| (card.clone(), change.clone()));
        let mut changes: BTreeMap<GpuUuid, Change> = ordered.collect();
        for policy in &policy.spec.gpus {
            let card = GpuUuid::from(policy.uuid.as_str());
            if changes.contains_key(&card) {
                continue;
            }
            let Some(layout) = &policy.mig_layout else {
                continue;
            };
            let before = self.0.get(&card);
            let before = before.filter(|change| change.layout == *layout);
            let failures = before.map_or(0, |change| change.failures);
            let parsed = parsed(layout);
            let has = layout_of(cards, &card);
            if parsed.as_ref().ok() == has.as_ref() {
                continue;
            }
            let step = match parsed {
                Ok(layout) => step(uses, &card, before, layout, now, effects),
                Err(why) => Step::Waits(why),
            };
            let had_failed = before.is_some_and(|change| matches!(change.step, Step::Failed(..)));
            let fails = matches!(step, Step::Failed(..)) && !had_failed;
            let change = Change {
                layout: layout.clone(),
                step,
                failures: failures + u32::from(fails),
            };
            changes.insert(card, change);
        }
        let is_changed = changes != self.0;
        self.0 = changes;
        is_changed
    }

    /// An order was carried out, or not and why.
    pub(super) fn made(&mut self, order: &LayoutOrder, made: Result<(), String>, now: Instant) {
        let Some(change) = self.0.get_mut(&order.card) else {
            return;
        };
        if change.step == Step::Making {
            change.step = match made {
                Ok(()) => Step::Made(now),
                Err(why) => Step::Failed(now, why),
            };
            change.failures += u32::from(matches!(change.step, Step::Failed(..)));
        }
    }

    /// Slices that the kubelet must not allocate any more.
    pub(super) fn withdraw(&self, cards: &mut [Card]) {
        let goes = |(card, change): (&GpuUuid, &Change)| {
            let is_told = matches!(
                change.step,
                Step::Withdrawn(_) | Step::Making | Step::Made(_)
            );
            let is_done = layout_of(cards, card) == parsed(&change.layout).ok();
            (is_told && !is_done).then(|| card.clone())
        };
        let going: BTreeSet<GpuUuid> = self.0.iter().filter_map(goes).collect();
        for card in cards {
            let goes = (card.slice.as_ref()).is_some_and(|slice| going.contains(&slice.parent));
            if goes && card.health.is_healthy() {
                card.health = Health::Unhealthy {
                    reason: GOES.to_owned(),
                    lasting: false,
                };
            }
        }
    }

    /// For everyone else.
    pub(super) fn view(&self) -> LayoutsView {
        let mut view = LayoutsView::default();
        for (card, change) in &self.0 {
            let message = match &change.step {
                Step::Waits(why) | Step::Failed(_, why) => why.clone(),
                Step::Announced(_) | Step::Withdrawn(_) | Step::Making | Step::Made(_) => {
                    view.closing.insert(card.clone());
                    GOES.to_owned()
                }
            };
            view.messages.insert(card.clone(), message);
        }
        view
    }
}

/// The state that says who uses the slices of a card.
pub(super) struct SliceUses<'a> {
    pub(super) strategy: MigStrategy,
    pub(super) cards: &'a Cards,
    pub(super) ledger: &'a Ledger,
    pub(super) allocations: &'a Allocations,
    pub(super) pods: &'a Pods,
}

/// By profile. An error names what is none.
fn parsed(layout: &BTreeMap<String, u32>) -> Result<MigLayout, String> {
    let profile = |(name, count): (&String, &u32)| {
        let profile = Profile::parse(name);
        let profile = profile.ok_or_else(|| format!("{name} is no MIG profile: such as 1g.10gb"));
        Ok((profile?, *count))
    };
    let layout = layout
        .iter()
        .map(profile)
        .collect::<Result<MigLayout, String>>()?;
    Ok(layout.into_iter().filter(|(_, count)| *count > 0).collect())
}

fn step(
    uses: &SliceUses<'_>,
    card: &GpuUuid,
    before: Option<&Change>,
    layout: MigLayout,
    now: Instant,
    effects: &mut Vec<Effect>,
) -> Step {
    let step = before.map(|change| &change.step);
    let is_over = |since: &Instant, pause| now.saturating_duration_since(*since) >= pause;
    match (step, before) {
        (Some(Step::Made(_)), _) => {
            return Step::Failed(now, "the driver shows other slices".to_owned());
        }
        (Some(step @ Step::Failed(since, _)), Some(change)) => {
            let doubled = 1_u32.checked_shl(change.failures.saturating_sub(1));
            let pause = AGAIN.0.saturating_mul(doubled.unwrap_or(u32::MAX));
            if !is_over(since, pause.min(AGAIN.1)) {
                return step.clone();
            }
        }
        _ => {}
    }
    if let Some(why) = uses.hinders(card) {
        return Step::Waits(why);
    }
    match step {
        Some(Step::Announced(since)) if is_over(since, ANNOUNCED) => Step::Withdrawn(now),
        Some(Step::Withdrawn(since)) if is_over(since, WITHDRAWN) => {
            let card = card.clone();
            effects.push(Effect::MakeLayout(LayoutOrder { card, layout }));
            Step::Making
        }
        Some(step @ (Step::Announced(_) | Step::Withdrawn(_))) => step.clone(),
        _ => Step::Announced(now),
    }
}

impl SliceUses<'_> {
    /// Why the instances of a card stay for now, in one sentence.
    fn hinders(&self, card: &GpuUuid) -> Option<String> {
        let Some(parent) = self.cards.card(card) else {
            return Some("the node has no such card".to_owned());
        };
        let of = |other: &&Card| {
            let slice = other.slice.as_ref();
            slice.is_some_and(|slice| slice.parent == *card) || other.uuid == *card
        };
        let here: Vec<&Card> = self.cards.inventory.cards.iter().filter(of).collect();
        // Who uses a slice must be known.
        if self.cards.looks.hides_slices(card) {
            return Some("not all of its slices can be read".to_owned());
        }
        if let Some(silent) = here
            .iter()
            .find(|card| !self.cards.looks.answers(&card.uuid))
        {
            return Some(format!("{} does not answer", silent.uuid));
        }
        if !parent.mig {
            return Some("MIG mode is off".to_owned());
        }
        if let Some(why) = self.not_known() {
            return Some(why);
        }
        for slice in &here {
            let id = slice.uuid.as_str();
            if let Some(share) = self.ledger.on(&slice.uuid).next() {
                return Some(format!("pod {} has slice {id}", share.pod));
            }
            if self.allocations.held.keys().any(|(_, held)| held == id) {
                return Some(format!("the kubelet has given slice {id} to a pod"));
            }
            if let Some(process) = self.cards.looks.processes(&slice.uuid).first() {
                return Some(format!("process {} uses {id}", process.pid));
            }
        }
        // Which profile it asks for matters less than that the kubelet may be choosing a slice.
        let chooses = |pod: &&PodView| {
            let whole = pod.containers.iter().any(|container| container.whole > 0);
            whole && !pod.admitted && !pod.finished
        };
        let pod = self.pods.iter().find(chooses)?;
        Some(format!(
            "the kubelet has not admitted pod {} yet",
            pod.identity
        ))
    }

    /// What must be known before slices are destroyed.
    fn not_known(&self) -> Option<String> {
        if self.strategy == MigStrategy::None {
            return Some("the agent runs without --mig-strategy".to_owned());
        }
        // Nor is a pod's slice known that is in no file that can be read.
        if let Some(part) = self.allocations.first_unreadable() {
            return Some(format!("{} cannot be read", part.in_words()));
        }
        let known = self.allocations.restored && self.pods.synced();
        (!known).then(|| "what this node holds is not known yet".to_owned())
    }
}
