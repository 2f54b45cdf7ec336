//! Events and decisions → text.

use super::line::quoted;
use super::taints::{effect_text, toleration_text};
use crate::action::{Action, Bind, Decision, Received};
use crate::event::{Event, OutcomeResult, Refusal};
use crate::ids::{ContainerName, GpuUuid, SetName};
use crate::model::{
    Amount, Ask, Card, ContainerGrant, Front, Grace, Labels, Lead, Mode, Node, NodeCards, NodeTerm,
    Operator, Phase, Placement, Pod, PodGroup, Pool, Requirement, SubGroup, TopologyRule,
};
use crate::units::Percent;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// Events as text, one after another.
pub fn write(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        append(&mut text, event);
    }
    text
}

/// Appends an event to a text.
pub fn append(text: &mut String, event: &Event) {
    let mut out = Text(std::mem::take(text));
    out.event(event);
    *text = out.0;
}

/// A decision as text for people: the actions, and the reasons of pending pods.
pub fn decision(decision: &Decision) -> String {
    let mut out = Text::default();
    for action in &decision.actions {
        match action {
            Action::Bind(bind) => out.bind("bind", bind),
            Action::Evict(evict) => {
                out.start("evict", evict.decision);
                out.pair("pod", &evict.pod);
                out.pair("cause", evict.cause.as_str());
                if let Some(group) = &evict.in_favour_of {
                    out.pair("for", group);
                }
                out.pair("message", &evict.message);
                out.end();
            }
        }
    }
    for promise in &decision.promises {
        out.start("promise", &promise.pod);
        out.pair("node", &promise.node);
        let cards: Vec<&str> = promise.cards.iter().map(GpuUuid::as_str).collect();
        if !cards.is_empty() {
            out.pair("cards", cards.join(","));
        }
        out.end();
    }
    for (group, at) in &decision.started {
        out.start("started", group);
        out.pair("at", at.0);
        out.end();
    }
    for (group, since) in &decision.stale {
        out.start("stale", group);
        out.some("since", since.map(|since| since.0));
        out.end();
    }
    for (group, at) in &decision.delayed {
        out.start("delayed", group);
        out.pair("since", at.0);
        out.end();
    }
    for (group, succeeded) in &decision.succeeded {
        out.start("succeeded", group);
        out.succeeded(succeeded);
        out.end();
    }
    for reason in &decision.reasons {
        out.start("waits", &reason.pod);
        out.word(reason.kind.as_str());
        let _ = write!(out.0, ": {}", reason.line);
        out.end();
    }
    if decision.cut_short {
        out.0.push_str("cut short\n");
    }
    if let Some(at) = decision.wake_at {
        let _ = writeln!(out.0, "wake {}", at.0);
    }
    out.0
}

#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn start(&mut self, kind: &str, name: impl Display) {
        self.0.push_str(kind);
        self.0.push(' ');
        self.0.push_str(&quoted(&name.to_string()));
    }

    pub(super) fn bare(&mut self, kind: &str) {
        self.0.push_str(kind);
    }

    pub(super) fn pair(&mut self, key: &str, value: impl Display) {
        let _ = write!(self.0, " {}={}", quoted(key), quoted(&value.to_string()));
    }

    pub(super) fn unless<T: PartialEq + Display>(&mut self, key: &str, value: T, default: T) {
        if value != default {
            self.pair(key, value);
        }
    }

    pub(super) fn some(&mut self, key: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.pair(key, value);
        }
    }

    fn word(&mut self, word: &str) {
        self.0.push(' ');
        self.0.push_str(word);
    }

    pub(super) fn flag(&mut self, word: &str, set: bool) {
        if set {
            self.word(word);
        }
    }

    pub(super) fn labels(&mut self, prefix: &str, labels: &Labels) {
        for (key, value) in labels {
            self.pair(&format!("{prefix}.{key}"), value);
        }
    }

    pub(super) fn end(&mut self) {
        self.0.push('\n');
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Tick(now) => self.plain("tick", now.0),
            Event::Sequence(sequence) => self.plain("sequence", sequence),
            Event::Config(config) => self.config(config),
            Event::Node(node) => self.node(node),
            Event::NodeGone(name) => self.plain("node-gone", name),
            Event::Cards(cards) => self.cards(cards),
            Event::AgentLost(name) => self.plain("agent-lost", name),
            Event::Queue(queue) => self.queue(queue),
            Event::QueueGone(name) => self.plain("queue-gone", name),
            Event::Group(group) => self.group(group),
            Event::GroupGone(name) => self.plain("group-gone", name),
            Event::Topology(topology) => {
                self.start("topology", &topology.name);
                self.pair("levels", topology.levels.join(","));
                self.labels("alias", &topology.aliases);
                self.end();
            }
            Event::TopologyGone(name) => self.plain("topology-gone", name),
            Event::Namespace(namespace) => self.namespace(namespace),
            Event::NamespaceGone(name) => self.plain("namespace-gone", name),
            Event::Volume(volume) => self.volume(volume),
            Event::VolumeGone(name) => self.plain("volume-gone", name),
            Event::Given(given) => {
                self.start("given", &given.claim);
                self.pair("node", &given.node);
                self.some("volume", given.volume.as_ref());
                self.end();
            }
            Event::Devices(pool) => self.pool(pool),
            Event::DevicesGone(name) => self.plain("devices-gone", name),
            Event::Allocated(allocation) => self.allocation(allocation),
            Event::Freed(claim) => self.plain("freed", claim),
            Event::Picked(picked) => self.picked(picked),
            Event::Pod(pod) => self.pod(pod),
            Event::PodGone(uid) => self.plain("pod-gone", uid),
            Event::Outcome(outcome) => {
                self.start("outcome", outcome.decision);
                match &outcome.result {
                    OutcomeResult::Confirmed => self.word("confirmed"),
                    OutcomeResult::Stays => self.word("stays"),
                    OutcomeResult::Refused { reason, retryable } => {
                        self.word("refused");
                        self.pair("reason", reason);
                        self.flag("retryable", *retryable);
                    }
                }
                self.end();
            }
            Event::Refusal(refusal) => self.refusal("refusal", refusal),
            Event::Refused(refusal) => self.refusal("refused", refusal),
            Event::EvictRequest(request) => {
                self.start("evict-request", &request.pod);
                self.pair("node", &request.node);
                self.pair("reason", &request.reason);
                self.end();
            }
            Event::Evicting(evicting) => {
                self.start("evicting", evicting.decision);
                self.pair("pod", &evicting.pod);
                self.pair("cause", evicting.cause.as_str());
                self.some("for", evicting.in_favour_of.as_ref());
                self.flag("stays", evicting.stays);
                self.flag("settled", evicting.settled);
                self.end();
            }
            Event::Assumed(bind) => self.bind("assumed", bind),
            Event::Backoff(backoff) => {
                self.start("backoff", &backoff.pod);
                self.pair("refusals", backoff.refusals);
                self.some("until", backoff.until.map(|until| until.0));
                self.pair("reason", &backoff.reason);
                self.some("for", backoff.in_favour_of.as_ref());
                for node in &backoff.avoid {
                    self.pair("avoid", node);
                }
                self.end();
            }
            Event::Evicted(evicted) => {
                self.start("evicted", &evicted.by);
                self.pair("active", evicted.active);
                self.pair("times", evicted.times);
                self.pair("until", evicted.until.0);
                self.end();
            }
            Event::Rest(rest) => {
                self.start("rest", &rest.of);
                self.pair("cause", rest.cause.as_str());
                self.pair("until", rest.until.0);
                self.pair("steps", rest.steps);
                self.end();
            }
            Event::Life(life) => {
                self.start("life", &life.of);
                self.some("last-start", life.last_start.map(|time| time.0));
                self.some("stale-since", life.stale_since.map(|time| time.0));
                self.some("last-evicted", life.last_evicted.map(|time| time.0));
                self.succeeded(&life.succeeded);
                self.flag("untold", life.unreported);
                self.end();
            }
            Event::CardPause(pause) => {
                self.start("card-pause", &pause.card);
                self.pair("node", &pause.node);
                self.pair("refusals", pause.refusals);
                self.pair("until", pause.until.0);
                self.pair("reason", &pause.reason);
                self.end();
            }
        }
    }

    fn refusal(&mut self, kind: &str, refusal: &Refusal) {
        self.start(kind, &refusal.pod);
        self.pair("node", &refusal.node);
        self.some("decision", refusal.decision);
        self.pair("reason", &refusal.reason);
        self.flag("last-word", refusal.last_word);
        self.end();
    }

    fn plain(&mut self, kind: &str, name: impl Display) {
        self.start(kind, name);
        self.end();
    }

    fn node(&mut self, node: &Node) {
        self.start("node", &node.name);
        self.unless("uid", node.uid.as_str(), node.name.as_str());
        self.unless("cpu", node.cpu.0, 0);
        self.unless("memory", node.memory.0, 0);
        self.unless("pods", node.pods, 0);
        self.unless("gpus", node.gpus, 0);
        self.flag("managed", node.managed);
        self.flag("aligns", node.aligns);
        self.flag("removable", node.removable);
        self.flag("unschedulable", node.unschedulable);
        for why in &node.not_ready {
            self.pair("not-ready", why);
        }
        self.labels("label", &node.labels);
        for taint in &node.taints {
            self.pair(
                &format!("taint.{}", taint.key),
                format!("{}:{}", taint.value, effect_text(taint.effect)),
            );
        }
        for (name, count) in &node.extended {
            self.pair(&format!("extended.{name}"), count);
        }
        self.end();
    }

    fn cards(&mut self, cards: &NodeCards) {
        self.start("cards", &cards.node);
        self.pair("default", cards.default_mode);
        self.some("not-offering", cards.not_offering.as_ref());
        self.topology_policy(cards);
        self.end();
        self.numa_zones(cards);
        for card in &cards.cards {
            self.card(card);
        }
    }

    fn card(&mut self, card: &Card) {
        self.start("  card", &card.uuid);
        self.unless("index", card.index, 0);
        self.unless("product", &*card.product, "");
        self.pair("total", card.total.0);
        self.unless("reserved", card.reserved.0, 0);
        self.unless(
            "grantable",
            card.grantable.0,
            card.total.less(card.reserved).0,
        );
        self.unless("strangers", card.strangers.0, 0);
        self.some("mode", card.mode);
        if card.switchable != Mode::ALL {
            let modes: Vec<&str> = card.switchable.iter().map(|mode| mode.as_str()).collect();
            self.pair("switchable", modes.join(","));
        }
        self.flag("not-ready", !card.ready);
        self.some("unhealthy", card.unhealthy.as_ref());
        self.flag("cordoned", card.cordoned);
        self.flag("mig", card.mig);
        self.flag("slice", card.slice);
        self.unless("slots", card.client_slots, 48);
        self.some("numa", card.numa);
        if !card.nvlink_peers.is_empty() {
            let peers: Vec<&str> = card
                .nvlink_peers
                .iter()
                .map(crate::ids::GpuUuid::as_str)
                .collect();
            self.pair("peers", peers.join(","));
        }
        self.flag("nvswitch", card.nvswitch);
        self.unless("allowance", card.allowance.0, 0);
        match card.pool {
            Pool::Unknown => {}
            Pool::Whole => self.pair("pool", "whole"),
            Pool::WholeOnly => self.pair("pool", "whole-only"),
            Pool::Shared => self.pair("pool", "shared"),
            Pool::None => self.pair("pool", "none"),
        }
        self.some("minimum-fence", card.minimum_fence);
        self.flag("driver-limits", card.driver_limits);
        self.end();
    }

    fn group(&mut self, group: &PodGroup) {
        self.start("group", &group.name);
        self.unless("uid", &*group.uid, group.name.as_str());
        self.unless("queue", group.queue.as_str(), "default-queue");
        self.unless("priority", group.priority, 50);
        self.flag("non-preemptible", !group.preemptible);
        self.unless("created", group.created.0, 0);
        self.flag("no-mark", !group.mark_unschedulable);
        self.some("parked", group.parked.as_ref());
        self.some("last-start", group.last_start.map(|time| time.0));
        self.some("stale-since", group.stale_since.map(|time| time.0));
        self.succeeded(&group.succeeded);
        let grace = group.staleness_grace.map(|grace| match grace {
            Grace::Never => "never".to_owned(),
            Grace::For(time) => time.0.to_string(),
        });
        self.some("grace", grace);
        self.unless("delay", group.preemption_delay.0, 0);
        self.some("last-evicted", group.last_evicted.map(|time| time.0));
        self.flag("never-preempts", group.never_preempts);
        let root = &group.root;
        self.flag("no-sets", root.sets.is_empty() && root.groups.is_empty());
        self.sub_group(root, 1);
    }

    /// Ends the line of the group, then writes the indented lines.
    fn sub_group(&mut self, group: &SubGroup, depth: usize) {
        self.some("min-children", group.min_children);
        self.rule(group.topology.as_ref());
        self.end();
        let indent = "  ".repeat(depth);
        for set in &group.sets {
            self.start(&format!("{indent}set"), &set.name);
            self.pair("min", set.min);
            self.rule(set.topology.as_ref());
            self.end();
        }
        for inner in &group.groups {
            let name = inner.name.as_ref().map_or("", |name| name.as_str());
            self.start(&format!("{indent}sub-group"), name);
            self.sub_group(inner, depth + 1);
        }
    }

    fn succeeded(&mut self, succeeded: &BTreeMap<SetName, u32>) {
        for (set, count) in succeeded {
            self.pair("succeeded", format!("{set}:{count}"));
        }
    }

    fn rule(&mut self, rule: Option<&TopologyRule>) {
        if let Some(rule) = rule {
            self.pair("topology", &rule.topology);
            self.some("required", rule.required.as_ref());
            self.some("preferred", rule.preferred.as_ref());
        }
    }

    pub(super) fn terms(&mut self, terms: Option<&[NodeTerm]>) {
        if let Some(terms) = terms {
            self.flag("no-term", terms.is_empty());
            for term in terms {
                self.pair("term", term_text(term));
            }
        }
    }

    fn pod(&mut self, pod: &Pod) {
        let plain = Pod::named(pod.uid.as_str());
        self.start("pod", &pod.uid);
        self.unless("ns", &*pod.namespace, &*plain.namespace);
        self.unless("name", &*pod.name, pod.uid.as_str());
        self.flag("foreign", !pod.ours);
        self.unless("queue", pod.queue.as_str(), plain.queue.as_str());
        self.some("group", pod.group.as_ref());
        self.some("set", pod.sub_group.as_ref());
        self.unless("priority", pod.priority, plain.priority);
        self.flag("non-preemptible", !pod.preemptible);
        self.flag("safe-to-evict", pod.safe_to_evict);
        self.flag("never-preempts", pod.never_preempts);
        self.flag("immovable", pod.immovable);
        self.unless("created", pod.created.0, 0);
        match pod.task_order.lead {
            Lead::Kubeflow => self.pair("leads", "kubeflow"),
            Lead::Ray => self.pair("leads", "ray"),
            Lead::None => {}
        }
        self.unless("order", pod.task_order.place, 0);
        self.labels("label", &pod.labels);
        self.unless("cpu", pod.cpu.0, 0);
        self.unless("memory", pod.memory.0, 0);
        for (name, count) in &pod.extended {
            self.pair(&format!("extended.{name}"), count);
        }
        for ask in &pod.gpus {
            self.ask(ask);
        }
        self.labels("selector", &pod.nodes.selector);
        self.some("nominated", pod.nodes.nominated.as_ref());
        self.terms(pod.nodes.terms.as_deref());
        for (weight, term) in &pod.nodes.preferred {
            self.pair("rather", format!("{weight} {}", term_text(term)));
        }
        for toleration in &pod.tolerations {
            self.pair("tolerates", toleration_text(toleration));
        }
        self.flag("gated", pod.gated);
        for what in &pod.lacks {
            self.pair("lacks", what);
        }
        for rule in &pod.unsupported {
            self.pair("unsupported", rule);
        }
        let (phase, placement) = match &pod.phase {
            Phase::Pending => (None, None),
            Phase::Bound(placement) => (Some("bound"), Some(placement)),
            Phase::Running(placement) => (None, Some(placement)),
            Phase::Releasing(placement) => (Some("releasing"), placement.as_ref()),
            Phase::Stuck(placement) => (Some("stuck"), Some(placement)),
            Phase::Succeeded => (Some("succeeded"), None),
            Phase::Failed => (Some("failed"), None),
        };
        self.some("phase", phase);
        self.placement(placement);
        for claim in &pod.claims {
            self.claim(claim);
        }
        for attachment in &pod.attachments {
            self.attachment(attachment);
        }
        for claim in &pod.devices {
            self.device_claim(claim);
        }
        self.pod_rules(pod);
        self.aligned(pod);
        self.grants(placement.map_or(&[], |placement| &placement.grants));
    }

    fn ask(&mut self, ask: &crate::model::ContainerAsk) {
        let container = &ask.container;
        match &ask.ask {
            Ask::Whole(count) => self.pair(&format!("gpus.{container}"), count),
            Ask::Share(share) => {
                self.amount("gpu", container, share.amount);
                if let Some(most) = share.burst {
                    self.amount("burst", container, most);
                }
                if share.devices != 1 {
                    self.pair(&format!("devices.{container}"), share.devices);
                }
                self.some(
                    &format!("compute.{container}"),
                    share.compute.map(Percent::get),
                );
                self.some(&format!("mode.{container}"), share.mode);
            }
        }
        if ask.init {
            self.pair(&format!("init.{container}"), true);
        }
    }

    fn amount(&mut self, kind: &str, container: &ContainerName, amount: Amount) {
        match amount {
            Amount::Memory(mib) => self.pair(&format!("{kind}-memory.{container}"), mib.0),
            Amount::Fraction(part) => self.pair(&format!("{kind}-fraction.{container}"), part.0),
        }
    }

    fn placement(&mut self, placement: Option<&Placement>) {
        if let Some(placement) = placement {
            self.pair("on", &placement.node);
            self.some("decision", placement.decision);
            self.flag("by-claim", placement.front == Front::Claim);
        }
        self.end();
    }

    fn grants(&mut self, grants: &[ContainerGrant]) {
        for grant in grants {
            self.start("  grant", &grant.container);
            let cards: Vec<&str> = grant.cards.iter().map(GpuUuid::as_str).collect();
            self.pair("cards", cards.join(","));
            self.pair("memory", grant.memory.0);
            self.some("burst", grant.burst.map(|mib| mib.0));
            self.unless("compute", grant.compute.get(), 100);
            self.pair("mode", grant.mode);
            self.some("note", grant.note.as_ref());
            match grant.asked {
                Some(Amount::Memory(mib)) => self.pair("asked-memory", mib.0),
                Some(Amount::Fraction(part)) => self.pair("asked-fraction", part.0),
                None => {}
            }
            self.end();
        }
    }

    fn bind(&mut self, kind: &str, bind: &Bind) {
        self.start(kind, bind.decision);
        self.pair("pod", &bind.pod);
        self.unless("ns", &*bind.namespace, "default");
        self.unless("name", &*bind.name, bind.pod.as_str());
        self.pair("node", &bind.node);
        self.unless("node-uid", bind.node_uid.as_str(), bind.node.as_str());
        match bind.received {
            Received::Nothing => {}
            Received::Regular => self.pair("received", "regular"),
            Received::Fraction => self.pair("received", "fraction"),
            Received::MigInstance => self.pair("received", "mig-instance"),
        }
        self.flag("by-claim", bind.front == Front::Claim);
        self.some("queue", bind.queue.as_ref());
        self.some("group", bind.group.as_ref());
        self.end();
        for claim in &bind.claims {
            self.claim_binding(claim);
        }
        for claim in &bind.devices {
            self.device_binding(claim);
        }
        self.grants(&bind.grants);
    }
}

fn term_text(term: &NodeTerm) -> String {
    let names = term.name.iter().map(|one| Requirement {
        key: "@name".into(),
        operator: one.operator.clone(),
    });
    let all: Vec<Requirement> = term.labels.iter().cloned().chain(names).collect();
    requirements_text(&all)
}

pub(super) fn requirements_text(all: &[Requirement]) -> String {
    let parts: Vec<String> = all
        .iter()
        .map(|one| (&one.key, &one.operator))
        .map(|(key, operator)| match operator {
            Operator::In(values) => format!("{key} in {}", values.join(",")),
            Operator::NotIn(values) => format!("{key} notin {}", values.join(",")),
            Operator::Exists => format!("{key} exists"),
            Operator::DoesNotExist => format!("{key} absent"),
            Operator::Above(bound) => format!("{key} > {bound}"),
            Operator::Below(bound) => format!("{key} < {bound}"),
        })
        .collect();
    parts.join("; ")
}
