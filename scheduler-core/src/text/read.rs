//! Text → events.

use super::config::config;
use super::line::{Line, TextError, parse};
use super::read_cards::cards;
use super::read_devices::{
    CLAIM as DEVICES, allocation, device_binding, device_claims, device_claims_of, picked, pool,
    pool_name,
};
use super::read_pod_rules::{KINDS, namespace, pod_rules};
use super::read_queue::queue;
use super::read_volumes::{ATTACHMENT, attachments, claim, claim_binding, claims, volume};
use super::taints::{effect, toleration};
use super::topology_manager::{ALIGNED, aligned};
use crate::action::{Bind, EvictCause, Received};
use crate::event::{
    Backoff, CardPause, Event, EvictRequest, Evicted, Evicting, Given, Life, Outcome,
    OutcomeResult, Refusal, Rest,
};
use crate::ids::{
    ClaimUid, ContainerName, DecisionId, GpuUuid, GroupName, NodeName, NodeUid, PodUid, QueueName,
    ResourceName, SetName, TopologyName, VolumeName,
};
use crate::model::{
    Amount, Ask, ContainerAsk, ContainerGrant, Front, Grace, Labels, Lead, Mode, Node, NodeTerm,
    Operator, Phase, Placement, Pod, PodGroup, PodSet, Requirement, Share, SubGroup, Taint,
    Topology, TopologyRule,
};
use crate::units::{Bytes, CpuMilli, Duration, Mib, NanoGpu, Percent, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type Read<T> = Result<T, TextError>;

/// All events of a text.
pub fn read(text: &str) -> Read<Vec<Event>> {
    parse(text)?.iter().map(of_line).collect()
}

/// One event.
pub fn event(text: &str) -> Read<Event> {
    match parse(text)?.as_slice() {
        [line] => of_line(line),
        _ => Err(TextError {
            line: 1,
            what: "exactly one event is wanted".to_owned(),
        }),
    }
}

fn of_line(line: &Line) -> Read<Event> {
    let event = match line.kind() {
        "tick" => Event::Tick(Time(parsed(line, line.name(1)?)?)),
        "sequence" => Event::Sequence(parsed(line, line.name(1)?)?),
        "config" => Event::Config(Box::new(config(line)?)),
        "node" => Event::Node(node(line)?),
        "node-gone" => Event::NodeGone(NodeName::new(line.name(1)?)),
        "cards" => Event::Cards(cards(line)?),
        "agent-lost" => Event::AgentLost(NodeName::new(line.name(1)?)),
        "queue" => Event::Queue(queue(line)?),
        "queue-gone" => Event::QueueGone(QueueName::new(line.name(1)?)),
        "group" => Event::Group(group(line)?),
        "group-gone" => Event::GroupGone(GroupName::new(line.name(1)?)),
        "topology" => Event::Topology(Topology {
            name: TopologyName::new(line.name(1)?),
            levels: list(line.get("levels")),
            aliases: labels(line, "alias"),
        }),
        "topology-gone" => Event::TopologyGone(TopologyName::new(line.name(1)?)),
        "namespace" => Event::Namespace(namespace(line)?),
        "namespace-gone" => Event::NamespaceGone(Arc::from(line.name(1)?)),
        "volume" => Event::Volume(volume(line)?),
        "volume-gone" => Event::VolumeGone(VolumeName::new(line.name(1)?)),
        "devices" => Event::Devices(pool(line)?),
        "devices-gone" => Event::DevicesGone(pool_name(line)?),
        "allocated" => Event::Allocated(allocation(line)?),
        "freed" => Event::Freed(ClaimUid::new(line.name(1)?)),
        "picked" => Event::Picked(picked(line)?),
        "given" => Event::Given(Given {
            claim: ClaimUid::new(line.name(1)?),
            node: NodeName::new(needed(line, "node")?),
            volume: line.get("volume").map(VolumeName::new),
        }),
        "pod" => Event::Pod(Box::new(pod(line)?)),
        "pod-gone" => Event::PodGone(PodUid::new(line.name(1)?)),
        "outcome" => Event::Outcome(outcome(line)?),
        "refusal" => Event::Refusal(refusal(line)?),
        "refused" => Event::Refused(refusal(line)?),
        "evict-request" => Event::EvictRequest(EvictRequest {
            pod: PodUid::new(line.name(1)?),
            node: NodeName::new(needed(line, "node")?),
            reason: Arc::from(line.get("reason").unwrap_or_default()),
        }),
        "evicting" => Event::Evicting(evicting(line)?),
        "assumed" => Event::Assumed(Box::new(assumed(line)?)),
        "backoff" => Event::Backoff(Backoff {
            pod: PodUid::new(line.name(1)?),
            refusals: line.number("refusals")?.unwrap_or(0),
            until: line.number("until")?.map(Time),
            reason: Arc::from(line.get("reason").unwrap_or_default()),
            in_favour_of: line.get("for").map(GroupName::new),
            avoid: line.all("avoid").map(NodeName::new).collect(),
        }),
        "card-pause" => Event::CardPause(CardPause {
            card: GpuUuid::new(line.name(1)?),
            node: NodeName::new(needed(line, "node")?),
            refusals: line.number("refusals")?.unwrap_or(1),
            until: Time(line.number("until")?.unwrap_or(0)),
            reason: Arc::from(line.get("reason").unwrap_or_default()),
        }),
        "evicted" => Event::Evicted(Evicted {
            by: GroupName::new(line.name(1)?),
            active: line.number("active")?.unwrap_or(0),
            times: line.number("times")?.unwrap_or(1),
            until: Time(line.number("until")?.unwrap_or(0)),
        }),
        "rest" => Event::Rest(Rest {
            of: GroupName::new(line.name(1)?),
            cause: cause(line)?,
            until: Time(line.number("until")?.unwrap_or(0)),
            steps: line.number("steps")?.unwrap_or(0),
        }),
        "life" => Event::Life(Life {
            of: GroupName::new(line.name(1)?),
            last_start: line.number("last-start")?.map(Time),
            stale_since: line.number("stale-since")?.map(Time),
            last_evicted: line.number("last-evicted")?.map(Time),
            succeeded: succeeded(line)?,
            unreported: line.flag("untold"),
        }),
        other => return Err(line.error(format!("{other} is no event"))),
    };
    line.finish()?;
    Ok(event)
}

pub(super) fn parsed<T: std::str::FromStr>(line: &Line, text: &str) -> Read<T> {
    text.parse()
        .map_err(|_| line.error(format!("{text} is not a number")))
}

pub(super) fn needed<'a>(line: &'a Line, key: &str) -> Read<&'a str> {
    line.get(key)
        .ok_or_else(|| line.error(format!("{key} is missing")))
}

pub(super) fn list(text: Option<&str>) -> Vec<Arc<str>> {
    text.into_iter()
        .flat_map(|text| text.split(','))
        .filter(|part| !part.is_empty())
        .map(Arc::from)
        .collect()
}

pub(super) fn labels(line: &Line, prefix: &str) -> Labels {
    line.prefixed(prefix)
        .map(|(key, value)| (Arc::from(key), Arc::from(value)))
        .collect()
}

fn extended(line: &Line) -> Read<BTreeMap<ResourceName, u64>> {
    line.prefixed("extended")
        .map(|(name, count)| Ok((ResourceName::new(name), parsed(line, count)?)))
        .collect()
}

pub(super) fn mode(line: &Line, text: &str) -> Read<Mode> {
    Mode::parse(text).ok_or_else(|| line.error(format!("{text} is no mode")))
}

fn decision_of(line: &Line, key: &str) -> Read<Option<DecisionId>> {
    line.get(key)
        .map(|text| {
            DecisionId::parse(text).ok_or_else(|| line.error(format!("{text} is no decision")))
        })
        .transpose()
}

fn node(line: &Line) -> Read<Node> {
    let name = line.name(1)?;
    let taints = line
        .prefixed("taint")
        .map(|(key, rest)| {
            let (value, kind) = rest.rsplit_once(':').unwrap_or(("", rest));
            Ok(Taint {
                key: Arc::from(key),
                value: Arc::from(value),
                effect: effect(line, kind)?,
            })
        })
        .collect::<Read<_>>()?;
    Ok(Node {
        uid: NodeUid::new(line.get("uid").unwrap_or(name)),
        labels: labels(line, "label"),
        taints,
        unschedulable: line.flag("unschedulable"),
        not_ready: line.all("not-ready").map(Arc::from).collect(),
        cpu: CpuMilli(line.number("cpu")?.unwrap_or(0)),
        memory: Bytes(line.number("memory")?.unwrap_or(0)),
        pods: line.number("pods")?.unwrap_or(0),
        extended: extended(line)?,
        gpus: line.number("gpus")?.unwrap_or(0),
        managed: line.flag("managed"),
        aligns: line.flag("aligns"),
        removable: line.flag("removable"),
        ..Node::named(name)
    })
}

fn rule(line: &Line) -> Option<TopologyRule> {
    Some(TopologyRule {
        topology: TopologyName::new(line.get("topology")?),
        required: line.get("required").map(Arc::from),
        preferred: line.get("preferred").map(Arc::from),
    })
}

fn group(line: &Line) -> Read<PodGroup> {
    let name = line.name(1)?;
    let mut root = sub_group(line, None)?;
    if !line.flag("no-sets") && root.sets.is_empty() && root.groups.is_empty() {
        root.sets.push(PodSet {
            name: SetName::new("default"),
            min: line.number("min")?.unwrap_or(1),
            topology: None,
        });
    }
    Ok(PodGroup {
        name: GroupName::new(name),
        uid: Arc::from(line.get("uid").unwrap_or(name)),
        queue: QueueName::new(line.get("queue").unwrap_or("default-queue")),
        priority: line.number("priority")?.unwrap_or(50),
        preemptible: !line.flag("non-preemptible"),
        created: Time(line.number("created")?.unwrap_or(0)),
        root,
        mark_unschedulable: !line.flag("no-mark"),
        parked: line.get("parked").map(Arc::from),
        last_start: line.number("last-start")?.map(Time),
        stale_since: line.number("stale-since")?.map(Time),
        succeeded: succeeded(line)?,
        staleness_grace: match line.get("grace") {
            Some("never") => Some(Grace::Never),
            _ => line.number("grace")?.map(Duration).map(Grace::For),
        },
        preemption_delay: Duration(line.number("delay")?.unwrap_or(0)),
        last_evicted: line.number("last-evicted")?.map(Time),
        never_preempts: line.flag("never-preempts"),
    })
}

/// Reads the counts of a line, which have the form `set:count,set:count`.
fn succeeded(line: &Line) -> Read<BTreeMap<SetName, u32>> {
    let mut all = BTreeMap::new();
    for pair in line.all("succeeded") {
        let (set, count) = pair
            .split_once(':')
            .ok_or_else(|| line.error(format!("{pair} is not set:count")))?;
        all.insert(SetName::new(set), parsed(line, count)?);
    }
    Ok(all)
}

fn sub_group(line: &Line, name: Option<SetName>) -> Read<SubGroup> {
    let mut group = SubGroup {
        name,
        min_children: line.number("min-children")?,
        topology: rule(line),
        groups: Vec::new(),
        sets: Vec::new(),
    };
    for below in &line.below {
        match below.kind() {
            "set" => {
                group.sets.push(PodSet {
                    name: SetName::new(below.name(1)?),
                    min: below.number("min")?.unwrap_or(1),
                    topology: rule(below),
                });
            }
            "sub-group" => {
                let name = SetName::new(below.name(1)?);
                group.groups.push(sub_group(below, Some(name))?);
            }
            other => return Err(below.error(format!("{other} is no part of a group"))),
        }
        below.finish()?;
    }
    Ok(group)
}

fn pod(line: &Line) -> Read<Pod> {
    let uid = line.name(1)?;
    let mut pod = Pod::named(uid);
    pod.namespace = Arc::from(line.get("ns").unwrap_or("default"));
    pod.name = Arc::from(line.get("name").unwrap_or(uid));
    pod.ours = !line.flag("foreign");
    if let Some(queue) = line.get("queue") {
        pod.queue = QueueName::new(queue);
    }
    pod.group = line.get("group").map(GroupName::new);
    pod.sub_group = line.get("set").map(SetName::new);
    pod.priority = line.number("priority")?.unwrap_or(50);
    pod.preemptible = !line.flag("non-preemptible");
    pod.safe_to_evict = line.flag("safe-to-evict");
    pod.never_preempts = line.flag("never-preempts");
    pod.immovable = line.flag("immovable");
    pod.created = Time(line.number("created")?.unwrap_or(0));
    pod.task_order.lead = match line.get("leads") {
        None => Lead::None,
        Some("kubeflow") => Lead::Kubeflow,
        Some("ray") => Lead::Ray,
        Some(other) => return Err(line.error(format!("{other} leads no pods"))),
    };
    pod.task_order.place = line.number("order")?.unwrap_or(0);
    pod.labels = labels(line, "label");
    pod.cpu = CpuMilli(line.number("cpu")?.unwrap_or(0));
    pod.memory = Bytes(line.number("memory")?.unwrap_or(0));
    pod.extended = extended(line)?;
    pod.gpus = asks(line)?;
    pod.aligned = aligned(line)?;
    pod.nodes.selector = labels(line, "selector");
    pod.nodes.nominated = line.get("nominated").map(NodeName::new);
    pod.nodes.terms = terms(line)?;
    let rather = line.all("rather").map(|text| {
        let (weight, text) = text.split_once(' ').unwrap_or((text, ""));
        Ok((parsed(line, weight)?, term(line, text)?))
    });
    pod.nodes.preferred = rather.collect::<Read<_>>()?;
    pod.claims = claims(line).map(claim).collect::<Read<_>>()?;
    pod.attachments = attachments(line)?;
    pod.devices = device_claims(line)?;
    pod.tolerations = line
        .all("tolerates")
        .map(|text| toleration(line, text))
        .collect::<Read<_>>()?;
    pod.gated = line.flag("gated");
    pod.unsupported = line.all("unsupported").map(Arc::from).collect();
    pod.lacks = line.all("lacks").map(Arc::from).collect();
    pod_rules(line, &mut pod)?;
    pod.phase = phase(line)?;
    Ok(pod)
}

pub(super) fn terms(line: &Line) -> Read<Option<Vec<NodeTerm>>> {
    let terms = line.all("term").map(|text| term(line, text));
    let terms: Vec<NodeTerm> = terms.collect::<Read<_>>()?;
    let none = line.flag("no-term");
    Ok((none || !terms.is_empty()).then_some(terms))
}

/// `gpus.<c>=2`, `gpu-memory.<c>=2000`, `gpu-fraction.<c>=500000000`, each with
/// `burst-memory.<c>=` or `burst-fraction.<c>=`, `devices.<c>=`, `compute.<c>=`, `mode.<c>=`, `init.<c>=true`; in order of appearance.
fn asks(line: &Line) -> Read<Vec<ContainerAsk>> {
    let of = |prefix: &str| -> BTreeMap<String, String> {
        line.prefixed(prefix)
            .map(|(container, value)| (container.to_owned(), value.to_owned()))
            .collect()
    };
    let (devices, compute, modes, inits) = (of("devices"), of("compute"), of("mode"), of("init"));
    let (bursts, parts) = (of("burst-memory"), of("burst-fraction"));
    let mut asks = Vec::new();
    for word in &line.words {
        let Some((kind, container)) = word.key.split_once('.') else {
            continue;
        };
        let Some(value) = word.value.as_deref() else {
            continue;
        };
        let share = |amount| -> Read<Ask> {
            Ok(Ask::Share(Share {
                amount,
                burst: match (bursts.get(container), parts.get(container)) {
                    (Some(text), _) => Some(Amount::Memory(Mib(parsed(line, text)?))),
                    (None, Some(text)) => Some(Amount::Fraction(NanoGpu(parsed(line, text)?))),
                    (None, None) => None,
                },
                devices: devices
                    .get(container)
                    .map_or(Ok(1), |text| parsed(line, text))?,
                compute: compute
                    .get(container)
                    .map(|text| {
                        Percent::new(parsed(line, text)?)
                            .ok_or_else(|| line.error(format!("{text} is no percentage")))
                    })
                    .transpose()?,
                mode: modes
                    .get(container)
                    .map(|text| mode(line, text))
                    .transpose()?,
            }))
        };
        let ask = match kind {
            "gpus" => Ask::Whole(parsed(line, value)?),
            "gpu-memory" => share(Amount::Memory(Mib(parsed(line, value)?)))?,
            "gpu-fraction" => share(Amount::Fraction(NanoGpu(parsed(line, value)?)))?,
            _ => continue,
        };
        line.prefixed(kind).for_each(drop);
        asks.push(ContainerAsk {
            container: ContainerName::new(container),
            init: inits.contains_key(container),
            ask,
        });
    }
    Ok(asks)
}

/// `key in a,b; key notin c; key exists; key absent; key > 3; key < 3; @name in n1`.
pub(super) fn term(line: &Line, text: &str) -> Read<NodeTerm> {
    let mut term = NodeTerm::default();
    for part in text
        .split(';')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let mut words = part.splitn(3, ' ');
        let key = words.next().unwrap_or_default();
        let operator = words.next().unwrap_or_default();
        let rest = words.next().unwrap_or_default();
        let operator = match operator {
            "in" => Operator::In(values(rest)),
            "notin" => Operator::NotIn(values(rest)),
            "exists" => Operator::Exists,
            "absent" => Operator::DoesNotExist,
            ">" => Operator::Above(parsed(line, rest)?),
            "<" => Operator::Below(parsed(line, rest)?),
            other => return Err(line.error(format!("{other} is no operator"))),
        };
        let (key, into) = match key {
            "@name" => ("metadata.name", &mut term.name),
            key => (key, &mut term.labels),
        };
        into.push(Requirement {
            key: Arc::from(key),
            operator,
        });
    }
    Ok(term)
}

/// White space at the end of one would be the end of its part as well.
fn values(text: &str) -> Vec<Arc<str>> {
    let values = text.split(',').map(str::trim);
    let named = values.filter(|value| !value.is_empty());
    named.map(Arc::from).collect()
}

fn phase(line: &Line) -> Read<Phase> {
    let placement = line
        .get("on")
        .map(|node| {
            Ok(Placement {
                node: NodeName::new(node),
                grants: grants(line)?,
                decision: decision_of(line, "decision")?,
                front: front(line),
            })
        })
        .transpose()?;
    let needs =
        |placement: Option<Placement>| placement.ok_or_else(|| line.error("on=<node> is missing"));
    Ok(match line.get("phase") {
        None => match placement {
            None => Phase::Pending,
            Some(placement) => Phase::Running(placement),
        },
        Some("pending") => Phase::Pending,
        Some("bound") => Phase::Bound(needs(placement)?),
        Some("running") => Phase::Running(needs(placement)?),
        Some("releasing") => Phase::Releasing(placement),
        Some("stuck") => Phase::Stuck(needs(placement)?),
        Some("succeeded") => Phase::Succeeded,
        Some("failed") => Phase::Failed,
        Some(other) => return Err(line.error(format!("{other} is no phase"))),
    })
}

fn front(line: &Line) -> Front {
    if line.flag("by-claim") {
        Front::Claim
    } else {
        Front::Plugin
    }
}

fn grants(line: &Line) -> Read<Vec<ContainerGrant>> {
    let is_other = |line: &&Line| {
        ["claim", ATTACHMENT, DEVICES, ALIGNED].contains(&line.kind())
            || KINDS.contains(&line.kind())
    };
    let grants = line.below.iter().filter(|line| !is_other(line));
    grants.map(grant).collect()
}

fn grant(line: &Line) -> Read<ContainerGrant> {
    if line.kind() != "grant" {
        return Err(line.error("a grant is wanted"));
    }
    let grant = ContainerGrant {
        container: ContainerName::new(line.name(1)?),
        cards: list(line.get("cards")).iter().map(GpuUuid::new).collect(),
        memory: Mib(line.number("memory")?.unwrap_or(0)),
        burst: line.number("burst")?.map(Mib),
        compute: line
            .number("compute")?
            .map_or(Some(Percent::FULL), Percent::new)
            .ok_or_else(|| line.error("compute is no percentage"))?,
        mode: mode(line, needed(line, "mode")?)?,
        note: line.get("note").map(Arc::from),
        asked: match (line.number("asked-memory")?, line.number("asked-fraction")?) {
            (Some(mib), _) => Some(Amount::Memory(Mib(mib))),
            (None, part) => part.map(|part| Amount::Fraction(NanoGpu(part))),
        },
    };
    line.finish()?;
    Ok(grant)
}

fn outcome(line: &Line) -> Read<Outcome> {
    let decision = DecisionId::parse(line.name(1)?).ok_or_else(|| line.error("no decision"))?;
    let result = match line.name(2)? {
        "confirmed" => OutcomeResult::Confirmed,
        "stays" => OutcomeResult::Stays,
        "refused" => OutcomeResult::Refused {
            reason: Arc::from(line.get("reason").unwrap_or_default()),
            retryable: line.flag("retryable"),
        },
        other => return Err(line.error(format!("{other} is no outcome"))),
    };
    Ok(Outcome { decision, result })
}

fn evicting(line: &Line) -> Read<Evicting> {
    let decision = DecisionId::parse(line.name(1)?).ok_or_else(|| line.error("no decision"))?;
    Ok(Evicting {
        decision,
        pod: PodUid::new(needed(line, "pod")?),
        cause: cause(line)?,
        in_favour_of: line.get("for").map(GroupName::new),
        settled: line.flag("settled"),
        stays: line.flag("stays"),
    })
}

fn cause(line: &Line) -> Read<EvictCause> {
    let text = needed(line, "cause")?;
    EvictCause::ALL
        .into_iter()
        .find(|cause| cause.as_str() == text)
        .ok_or_else(|| line.error(format!("{text} is no cause")))
}

fn refusal(line: &Line) -> Read<Refusal> {
    Ok(Refusal {
        pod: PodUid::new(line.name(1)?),
        node: NodeName::new(needed(line, "node")?),
        decision: decision_of(line, "decision")?,
        reason: Arc::from(line.get("reason").unwrap_or_default()),
        last_word: line.flag("last-word"),
    })
}

fn assumed(line: &Line) -> Read<Bind> {
    let pod = needed(line, "pod")?;
    let node = needed(line, "node")?;
    let grants = grants(line)?;
    let received = match line.get("received") {
        Some("fraction") => Received::Fraction,
        Some("regular") => Received::Regular,
        Some("mig-instance") => Received::MigInstance,
        _ => Received::Nothing,
    };
    Ok(Bind {
        decision: DecisionId::parse(line.name(1)?).ok_or_else(|| line.error("no decision"))?,
        pod: PodUid::new(pod),
        namespace: Arc::from(line.get("ns").unwrap_or("default")),
        name: Arc::from(line.get("name").unwrap_or(pod)),
        node: NodeName::new(node),
        node_uid: NodeUid::new(line.get("node-uid").unwrap_or(node)),
        grants,
        claims: claims(line).map(claim_binding).collect::<Read<_>>()?,
        devices: device_claims_of(line)
            .map(device_binding)
            .collect::<Read<_>>()?,
        received,
        front: front(line),
        queue: line.get("queue").map(QueueName::new),
        group: line.get("group").map(GroupName::new),
    })
}
