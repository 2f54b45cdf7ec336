//! A pod comes, changes and goes.

use super::hindrance::Hindrance;
use super::pod::{self, Deletion};
use super::shown::Shown;
use super::world::{Leaving, World};
use super::{isolation, resources, scale_down, whole};
use crate::stored_pod::StoredPod;
use api::owner::controller;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use scheduler_core::ids::{NodeName, PodUid};
use scheduler_core::model::{Ask, ContainerGrant, Front, Phase, Pod};
use scheduler_core::{Event, Refusal};
use std::sync::Arc;

impl World {
    pub(super) fn pod_there(&mut self, pod: KubePod) -> Vec<Event> {
        let Some(uid) = pod.uid() else {
            return Vec::new();
        };
        // Not there before it is in its group.
        if crate::group::must_wait(&pod, &self.scheduler, self.alone_wait) {
            return self.pod_gone(&uid);
        }
        let held = self.held.get(&uid).map(Vec::as_slice);
        let Some(mut converted) = self.read(&pod, held) else {
            return self.pod_gone(&uid);
        };
        if self.observing {
            converted
                .unsupported
                .retain(|rule| **rule != *Hindrance::NoToken.to_string());
        }
        self.storage.narrow(&pod, &mut converted);
        self.config_maps.look_up(&pod, &mut converted);
        self.devices.of_pod(&pod, &mut converted, self.now);
        let mut events = self.devices.pod_stands(&uid, &converted.phase);
        let seen_before = !self.there.insert(uid.clone());
        self.isolation.show(&uid, &pod);
        self.idle.show(&uid, &pod);
        let waits = matches!(converted.phase, Phase::Pending);
        let reason = Shown::on(&pod, "PodScheduled").filter(|one| waits && !one.holds);
        let before = match reason {
            Some(reason) => self.reasons.insert(uid.clone(), reason),
            None => self.reasons.remove(&uid),
        };
        if waits && before != reason {
            self.reasons_shown.push(PodUid::new(&uid));
        }
        match resources::resize(&pod) {
            Some(said) => self.resizes.insert(uid.clone(), said),
            None => self.resizes.remove(&uid),
        };
        self.run_times.show(&converted.uid, &pod);
        if self.is_given_up(&uid, &pod, seen_before)
            && let Phase::Releasing(Some(placement)) = converted.phase
        {
            converted.phase = Phase::Stuck(placement);
        }
        // What it has by claim is its claim's to say.
        let by_plugin =
            whole::placement(&converted).is_none_or(|place| place.front == Front::Plugin);
        let whole = by_plugin
            && converted
                .gpus
                .iter()
                .any(|ask| matches!(ask.ask, Ask::Whole(_)));
        let spec = pod.spec.as_ref();
        let node = spec.and_then(|spec| spec.node_name.as_deref());
        let stands = matches!(converted.phase, Phase::Bound(_) | Phase::Running(_));
        let refused = node.zip(isolation::refusal_on(&pod));
        let refused = refused.filter(|_| stands && !seen_before);
        let refused = refused.map(|(node, reason)| {
            Event::Refused(Refusal {
                pod: PodUid::new(&uid),
                node: NodeName::from(node),
                decision: None,
                reason: reason.into(),
                last_word: true,
            })
        });
        // A claim may be for a share, which its node's agent then tells.
        let claims = spec.and_then(|spec| spec.resource_claims.as_deref());
        let asks = !converted.gpus.is_empty() || !claims.unwrap_or_default().is_empty();
        if let Some(node) = node.filter(|node| !node.is_empty())
            && asks
        {
            if self.placed_on.get(&uid).map(AsRef::as_ref) != Some(node) {
                let node: Arc<str> = Arc::from(node);
                self.placed_on.insert(uid.clone(), Arc::clone(&node));
                self.unread.insert(node);
            }
            if whole {
                let placed = whole::placement(&converted);
                let cards = placed.map(|placed| whole::cards_of(&placed.grants));
                let pod = StoredPod::of(&pod);
                self.whole
                    .insert(uid.clone(), whole::WholePod { cards, pod });
            }
        }
        events.push(Event::Pod(Box::new(converted)));
        events.extend(refused);
        events.extend(self.wishes_for(&uid));
        events
    }

    /// The pod as the core has it, and its queue by the label that the admin chose.
    pub(super) fn read(&self, pod: &KubePod, held: Option<&[ContainerGrant]>) -> Option<Pod> {
        let mut converted = pod::of(pod, &self.scheduler, &self.queue_label, &self.classes, held)?;
        // Who has a place has what was granted.
        if converted.phase == Phase::Pending {
            let asks = converted.gpus.iter_mut();
            asks.for_each(|ask| pod::hold(ask, self.bursts));
        }
        converted.immovable = !self.moves_bare && controller(pod).is_none();
        converted.safe_to_evict = self.removable.is_some() && scale_down::is_safe_to_evict(pod);
        Some(converted)
    }

    /// Returns true if the end of a pod that is being deleted is no longer counted on. If the pod was
    /// `seen_before` its deletion, the time runs from when the deletion was seen, because the API
    /// server's clock may differ from this one. The deadline by the API server's clock counts only for
    /// a pod that was already being deleted when it was first seen.
    fn is_given_up(&mut self, uid: &str, pod: &KubePod, seen_before: bool) -> bool {
        let Some(deletion) = Deletion::of(pod) else {
            self.leaving.remove(uid);
            return false;
        };
        let from_now = deletion.given_up_after(self.now);
        let until = match self.leaving.get(uid) {
            Some(known) => known.until.min(from_now),
            None if seen_before => from_now,
            None => deletion.given_up_at(),
        };
        let given_up = until <= self.now;
        let pod = (!given_up).then(|| Box::new(pod.clone()));
        self.leaving.insert(uid.to_owned(), Leaving { until, pod });
        given_up
    }

    pub(super) fn pod_gone(&mut self, uid: &str) -> Vec<Event> {
        if !self.there.remove(uid) {
            return Vec::new();
        }
        self.whole.remove(uid);
        self.held.remove(uid);
        self.isolation.forget(uid);
        self.idle.forget(uid);
        self.reasons.remove(uid);
        self.placed_on.remove(uid);
        self.resizes.remove(uid);
        self.run_times.forget(&PodUid::new(uid));
        self.leaving.remove(uid);
        self.wishes.forget(uid);
        self.storage.forget(uid);
        self.config_maps.forget(uid);
        let mut events = vec![Event::PodGone(PodUid::new(uid))];
        events.extend(self.devices.pod_gone(uid));
        events
    }
}
