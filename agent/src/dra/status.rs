//! Device status of the claims that this node prepares: `Ready`, with the sentence of a refusal,
//! and `aliquot.dev/IsolationVerified`, once the container runs.
//!
//! In: what the driver answered, and the node's state. Out: server-side applies of
//! `status.devices`, of this driver's devices alone, some of them coalesced. Nothing waits for
//! them: a claim is prepared whether or not the API server takes its status.

use super::request;
use crate::cluster::in_words;
use crate::ledger::{AllocId, Claimed, Share, SharePhase};
use crate::node::State;
use crate::node::claims::parts::device_name;
use api::Mode;
use api::isolation::{self, Held};
use cdi::hook::Backend;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use proto::names;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// From the first thing to say of a claim to its first write: what comes at once is one write.
const FIRST: Duration = Duration::from_millis(500);
/// Between two writes of one claim; what a refusal says may change with each try.
const PACE: Duration = Duration::from_secs(5);
/// Pause after a failed write or read.
const RETRY: Duration = Duration::from_secs(30);
/// For the API server's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Characters of a message; the API server takes 32,768 bytes.
const LONGEST: usize = 4096;
const READY: &str = "Ready";

/// What the driver reports.
#[derive(Debug)]
pub enum StatusUpdate {
    /// A claim was prepared, or refused with a sentence.
    Prepared(Place, Result<(), String>),
    /// The kubelet is done with a claim.
    Unprepared(AllocId),
}

/// A claim, and which of its devices are this driver's on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    alloc: AllocId,
    namespace: String,
    name: String,
    uid: String,
    /// Without conditions.
    devices: Vec<AllocatedDeviceStatus>,
}

impl Place {
    /// Of a claim as the API server has it; `None` where it is allocated nothing of this node.
    pub fn of(claim: &ResourceClaim, node: &str) -> Option<Self> {
        let uid = claim.metadata.uid.clone()?;
        let results = request::results(claim)?;
        let ours =
            results.filter(|result| result.driver == names::dra::DRIVER && result.pool == node);
        let devices: Vec<AllocatedDeviceStatus> = ours
            .map(|result| AllocatedDeviceStatus {
                driver: result.driver.clone(),
                pool: result.pool.clone(),
                device: result.device.clone(),
                share_id: result.share_id.clone(),
                ..AllocatedDeviceStatus::default()
            })
            .collect();
        (!devices.is_empty()).then_some(())?;
        Some(Self {
            alloc: AllocId::of_claim(&uid)?,
            namespace: claim.metadata.namespace.clone()?,
            name: claim.metadata.name.clone()?,
            uid,
            devices,
        })
    }
}

/// The known status of one claim.
#[derive(Debug)]
struct Entry {
    place: Place,
    refused: Option<String>,
    written: DeviceConditions,
    earliest: Instant,
}

/// The conditions of each of a claim's devices.
type DeviceConditions = Vec<Vec<Condition>>;

/// Writes without end.
pub async fn run(
    node: String,
    client: Client,
    mut state: watch::Receiver<Arc<State>>,
    mut words: channel::Receiver<StatusUpdate>,
) {
    let mut builder: BTreeMap<AllocId, Entry> = BTreeMap::new();
    let Ok(now) = state
        .wait_for(|state| state.restored)
        .await
        .map(|now| now.clone())
    else {
        return;
    };
    // Prepared by an agent before this one, which knew what they say.
    let mut unread: BTreeMap<AllocId, (Instant, String, Claimed)> = BTreeMap::new();
    for share in now.ledger.all() {
        let alloc = |of: &Claimed| AllocId::of_claim(&of.uid);
        let claimed = share.claimed.as_ref();
        if let Some((alloc, claimed)) = claimed.and_then(|of| Some((alloc(of)?, of))) {
            let namespace = share.pod.namespace.clone();
            unread.insert(alloc, (Instant::now(), namespace, claimed.clone()));
        }
    }
    loop {
        let now = state.borrow_and_update().clone();
        unread.retain(|alloc, (_, _, claimed)| {
            !builder.contains_key(alloc) && rows(&now, &claimed.uid).next().is_some()
        });
        let (due, next) = due(&builder, &now);
        if let Some((alloc, conditions)) = due {
            settle(&client, &mut builder, alloc, conditions).await;
            continue;
        }
        let at = Instant::now();
        let mut due = unread.values_mut().filter(|(again, ..)| *again <= at);
        if let Some((again, namespace, claimed)) = due.next() {
            match timeout(PATIENCE, find(&client, namespace, claimed, &node)).await {
                Ok(Some(entry)) => drop(builder.insert(entry.place.alloc, entry)),
                Ok(None) | Err(_) => *again = at + RETRY,
            }
            continue;
        }
        let next = next
            .into_iter()
            .chain(unread.values().map(|(again, ..)| *again))
            .min();
        tokio::select! {
            word = words.recv() => match word {
                Some(word) => hear(&mut builder, word),
                None => return,
            },
            changed = state.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(next.unwrap_or(at)), if next.is_some() => {}
        }
    }
}

fn hear(builder: &mut BTreeMap<AllocId, Entry>, word: StatusUpdate) {
    match word {
        StatusUpdate::Unprepared(alloc) => drop(builder.remove(&alloc)),
        StatusUpdate::Prepared(place, result) => {
            let refused = result.err();
            builder
                .entry(place.alloc)
                .and_modify(|entry| entry.refused.clone_from(&refused))
                .or_insert_with(|| Entry {
                    place,
                    refused,
                    written: Vec::new(),
                    earliest: Instant::now() + FIRST,
                });
        }
    }
}

/// The next claim to write, with its conditions; and when another may be.
fn due(
    builder: &BTreeMap<AllocId, Entry>,
    state: &State,
) -> (Option<(AllocId, DeviceConditions)>, Option<Instant>) {
    let (at, mut next) = (Instant::now(), None);
    for (alloc, entry) in builder {
        let conditions = conditions(entry, state, Timestamp::now());
        if conditions == entry.written {
            continue;
        }
        if entry.earliest <= at {
            return (Some((*alloc, conditions)), None);
        }
        next = next.into_iter().chain([entry.earliest]).min();
    }
    (None, next)
}

async fn settle(
    client: &Client,
    builder: &mut BTreeMap<AllocId, Entry>,
    alloc: AllocId,
    conditions: DeviceConditions,
) {
    let Some(entry) = builder.get_mut(&alloc) else {
        return;
    };
    match timeout(PATIENCE, write(client, &entry.place, &conditions)).await {
        Ok(Ok(())) => {
            entry.written = conditions;
            entry.earliest = Instant::now() + PACE;
        }
        // Deleted, recreated, or freed for another.
        Ok(Err(kube::Error::Api(status))) if [404, 409, 422].contains(&status.code) => {
            builder.remove(&alloc);
        }
        failed => {
            entry.earliest = Instant::now() + RETRY;
            let error = match failed {
                Ok(Err(error)) => in_words(&error),
                _ => "the API server did not answer in time".to_owned(),
            };
            let claim = format!("{}/{}", entry.place.namespace, entry.place.name);
            tracing::warn!(claim, error, "device status not written");
        }
    }
}

async fn write(
    client: &Client,
    place: &Place,
    conditions: &DeviceConditions,
) -> Result<(), kube::Error> {
    let claims = Api::<ResourceClaim>::namespaced(client.clone(), &place.namespace);
    let devices: Vec<AllocatedDeviceStatus> = place
        .devices
        .iter()
        .zip(conditions)
        .map(|(device, conditions)| AllocatedDeviceStatus {
            conditions: Some(conditions.clone()),
            ..device.clone()
        })
        .collect();
    let status = serde_json::json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": { "uid": place.uid },
        "status": { "devices": devices },
    });
    let params = PatchParams::apply(names::object::AGENT_ACCOUNT).force();
    claims
        .patch_status(&place.name, &params, &Patch::Apply(&status))
        .await
        .map(drop)
}

/// What a claim says of its devices, by its name.
async fn find(client: &Client, namespace: &str, claimed: &Claimed, node: &str) -> Option<Entry> {
    let claims = Api::<ResourceClaim>::namespaced(client.clone(), namespace);
    let claim = claims.get_opt(&claimed.name).await.ok()??;
    let place = Place::of(&claim, node).filter(|place| place.uid == claimed.uid)?;
    let told = claim.status.and_then(|status| status.devices);
    let told = told.unwrap_or_default();
    let written = place.devices.iter().map(|device| {
        let mut told = told.iter();
        let same = told.find(|told| {
            let key = |of: &&AllocatedDeviceStatus| {
                let of = (*of).clone();
                (of.driver, of.pool, of.device, of.share_id)
            };
            key(told) == key(&device)
        });
        same.and_then(|told| told.conditions.clone())
            .unwrap_or_default()
    });
    Some(Entry {
        written: written.collect(),
        place,
        refused: None,
        earliest: Instant::now(),
    })
}

/// The rows of a claim.
fn rows<'a>(state: &'a State, uid: &'a str) -> impl Iterator<Item = &'a Share> {
    let of = move |share: &&Share| share.claimed.as_ref().is_some_and(|of| of.uid == uid);
    state.ledger.all().filter(of)
}

/// The current status of a claim's devices.
fn conditions(entry: &Entry, state: &State, now: Timestamp) -> DeviceConditions {
    let devices = entry.place.devices.iter().enumerate();
    devices
        .map(|(at, device)| {
            let before = entry.written.get(at).map(Vec::as_slice);
            of_device(
                entry,
                &device.device,
                before.unwrap_or_default(),
                state,
                now,
            )
        })
        .collect()
}

/// The status of one device; a condition's time changes only with its status.
fn of_device(
    entry: &Entry,
    device: &str,
    written: &[Condition],
    state: &State,
    now: Timestamp,
) -> Vec<Condition> {
    let before = |kind: &str| written.iter().find(|condition| condition.type_ == kind);
    let condition = |kind: &str, holds: bool, reason: &str, message: &str| {
        let status = if holds { "True" } else { "False" };
        let since = before(kind).filter(|before| before.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.chars().take(LONGEST).collect(),
            observed_generation: None,
            last_transition_time: since
                .map_or(Time(now), |before| before.last_transition_time.clone()),
        }
    };
    if let Some(why) = &entry.refused {
        return vec![condition(READY, false, "Refused", why)];
    }
    let refused = state
        .claims
        .get(&entry.place.uid)
        .map(|claim| &claim.refused);
    let refused: Vec<&str> = refused
        .into_iter()
        .flatten()
        .map(|(_, why)| why.as_str())
        .collect();
    let mut all = vec![condition(READY, true, "Prepared", &refused.join("\n"))];
    let isolation = names::condition::ISOLATION_VERIFIED;
    // A whole card has no fence, and neither has the sight of one.
    let running: Vec<&Share> = rows(state, &entry.place.uid)
        .filter(|share| share.mode != Mode::Exclusive && share.phase == SharePhase::Running)
        .filter(|share| share.gpus.iter().any(|card| device_name(card) == device))
        .collect();
    // While a fence is unknown, its last condition stays.
    let known = running.iter().all(|share| share.fence.is_some());
    if !running.is_empty() && (known || before(isolation).is_some()) {
        let held: Vec<Held<'_>> = running.iter().map(|share| held(share, state)).collect();
        let reason = isolation::reason(held.iter().copied());
        let mut lines: Vec<String> = held.iter().map(|held| held.line()).collect();
        for share in running {
            if let Some(complaint) = state.complaints.get(&share.key()) {
                lines.push(format!("container {} {}", share.container, complaint.text));
            }
        }
        all.push(condition(
            isolation,
            isolation::is_verified(reason),
            reason,
            &lines.join("\n"),
        ));
    } else if let Some(before) = before(isolation) {
        all.push(before.clone());
    }
    all
}

fn held<'a>(share: &'a Share, state: &State) -> Held<'a> {
    let fence = share.fence.as_ref();
    Held {
        container: &share.container,
        fence: fence.map_or("", |fence| fence.level.as_str()),
        backend: fence
            .and_then(|fence| fence.backend)
            .map_or("", Backend::as_str),
        granted: share.memory.0,
        read_back: fence
            .and_then(|fence| fence.limit)
            .map_or(0, |limit| limit.0),
        reach: fence.map_or(0, |fence| fence.reach.0),
        holders: state.ledger.holders(&share.limit_scope()).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{HolderKey, HolderRow, Ledger};

    const UID: &str = "0000000a-0000-0000-0000-00000000000b";

    fn claim(pool: &str) -> ResourceClaim {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": UID},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [
                {"request": "other", "driver": "gpu.example.com", "pool": "n1", "device": "x"},
                {"request": "gpu", "driver": "aliquot.dev", "pool": pool, "device": "gpu-0", "shareID": "s"},
            ]}}},
        }))
        .unwrap()
    }

    fn entry() -> Entry {
        Entry {
            place: Place::of(&claim("n1"), "n1").unwrap(),
            refused: None,
            written: Vec::new(),
            earliest: Instant::now(),
        }
    }

    fn node(phase: SharePhase, fence: Option<u64>) -> State {
        let record = format!(
            r#"{{"version":1,"gpus":["GPU-0"],"memoryMib":2000,"computePercent":100,"mode":"mps","decision":"",
            "claim":{{"namespace":"ns","claimed":{{"uid":"{UID}","name":"c","requests":["gpu"]}},"wishes":{{}}}}}}"#
        );
        let holder = HolderRow {
            key: HolderKey {
                pod_uid: "u".into(),
                container: "main".into(),
            },
            pod_name: "p".into(),
        };
        let alloc = AllocId::of_claim(UID).unwrap();
        let mut share = Share::of_file(alloc, &record, &[holder]).unwrap().remove(0);
        share.phase = phase;
        share.fence = fence.map(|limit| crate::fence::ActiveFence {
            backend: Some(Backend::Dmem),
            level: api::units::Fence::DriverLimit,
            limit: Some(api::Mib(limit)),
            reach: api::Mib(2000),
        });
        let mut ledger = Ledger::default();
        ledger.restore(share);
        State {
            ledger,
            ..State::default()
        }
    }

    fn said(conditions: &DeviceConditions) -> Vec<(&str, &str, &str)> {
        conditions[0]
            .iter()
            .map(|one| (one.type_.as_str(), one.status.as_str(), one.reason.as_str()))
            .collect()
    }

    #[test]
    fn only_devices_of_this_driver_and_node_are_spoken_of() {
        let place = Place::of(&claim("n1"), "n1").unwrap();
        let [device] = &place.devices[..] else {
            panic!("{place:?}")
        };
        assert_eq!(
            (device.device.as_str(), device.share_id.as_deref()),
            ("gpu-0", Some("s"))
        );
        assert_eq!(Place::of(&claim("n2"), "n1"), None);
    }

    #[test]
    fn a_claim_says_why_it_was_refused_and_what_its_fence_is_once_it_is_known() {
        let isolation = names::condition::ISOLATION_VERIFIED;
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let mut entry = entry();
        entry.refused = Some("x".repeat(LONGEST + 1));
        let refused = conditions(&entry, &State::default(), early);
        assert_eq!(said(&refused), [(READY, "False", "Refused")]);
        assert_eq!(refused[0][0].message.len(), LONGEST);
        entry.written = refused;
        entry.refused = None;
        let ready = (READY, "True", "Prepared");
        let starting = conditions(&entry, &node(SharePhase::Running, None), early);
        assert_eq!(said(&starting), [ready]);
        let held = conditions(&entry, &node(SharePhase::Running, Some(2000)), early);
        assert_eq!(said(&held), [ready, (isolation, "True", "Hard")]);
        // Conditions that repeat keep their time. Conditions of unknown or ended containers are
        // removed.
        entry.written = held.clone();
        assert_eq!(
            conditions(&entry, &node(SharePhase::Running, Some(2000)), late),
            held
        );
        assert_eq!(
            conditions(&entry, &node(SharePhase::Terminating, None), late),
            held
        );
        let lost = conditions(&entry, &node(SharePhase::Running, None), late);
        assert_eq!(said(&lost), [ready, (isolation, "False", "NotReadBack")]);
        assert_eq!(lost[0][1].last_transition_time, Time(late));
    }

    #[test]
    fn one_claim_is_written_after_a_pause_whatever_is_said_of_it() {
        let mut builder = BTreeMap::new();
        let place = entry().place;
        let alloc = place.alloc;
        let state = State::default();
        for n in 0..10 {
            hear(
                &mut builder,
                StatusUpdate::Prepared(place.clone(), Err(format!("{n} MiB left"))),
            );
            let (now, next) = due(&builder, &state);
            assert!(now.is_none() && next.is_some());
        }
        builder.get_mut(&alloc).unwrap().earliest = Instant::now();
        let (now, _) = due(&builder, &state);
        let (_, conditions) = now.unwrap();
        assert_eq!(conditions[0][0].message, "9 MiB left");
        builder.get_mut(&alloc).unwrap().written = conditions;
        assert!(due(&builder, &state) == (None, None));
        hear(&mut builder, StatusUpdate::Unprepared(alloc));
        assert!(builder.is_empty());
    }
}
