//! What a CDI file remembers of the share it was made for.
//!
//! An annotation in the file, so that file and record are one and nothing else has to be stored:
//! after a restart the ledger is rebuilt from these. Only a share by annotation names its holder
//! there. The containers of a claim change, and are listed in a file of their own that the hook
//! reads.

use super::{AllocId, Claimed, HolderKey, Share, ShareOptions, SharePhase, Turn};
use crate::gpu::GpuUuid;
use api::grant::PodIdentity;
use api::{Mib, Mode};
use serde::{Deserialize, Serialize};

/// Key of the annotation.
pub fn key() -> String {
    format!("{}/share", proto::names::DOMAIN)
}

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<PodIdentity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    /// `None` in the record of an older agent: all containers of the pod are counted at once then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<Turn>,
    gpus: Vec<String>,
    memory_mib: Mib,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_mib: Option<Mib>,
    compute_percent: u8,
    mode: Mode,
    decision: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<ClaimRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClaimRecord {
    namespace: String,
    claimed: Claimed,
    #[serde(default)]
    wishes: ShareOptions,
}

/// One container that a claim's file lets have the share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderRow {
    /// The holder, by UID and name.
    pub key: HolderKey,
    /// Name of the pod; empty if only the hook's proof is known.
    pub pod_name: String,
}

impl Share {
    /// The annotation's value: the same for all containers of one hold.
    ///
    /// # Panics
    /// Never: strings and integers always print.
    pub fn to_record(&self) -> String {
        let own = self.claimed.is_none();
        let record = Record {
            version: VERSION,
            pod: own.then(|| self.pod.clone()),
            container: own.then(|| self.container.clone()),
            turn: Some(self.turn).filter(|turn| *turn != Turn::default()),
            gpus: self.gpus.iter().map(GpuUuid::to_string).collect(),
            memory_mib: self.memory,
            request_mib: (self.kept < self.memory).then_some(self.kept),
            compute_percent: self.compute_percent,
            mode: self.mode,
            decision: self.decision.clone(),
            claim: self.claimed.as_ref().map(|claimed| ClaimRecord {
                namespace: self.pod.namespace.clone(),
                claimed: claimed.clone(),
                wishes: self.wishes.clone(),
            }),
        };
        serde_json::to_string(&record).expect("strings and integers always print")
    }

    /// The one share that a file of this allocation was made for; `None` where it is a claim's.
    pub fn from_record(alloc: AllocId, text: &str) -> Option<Self> {
        Self::of_file(alloc, text, &[])?.pop()
    }

    /// The shares that a file of this allocation was made for, `holders` being those of a
    /// claim; `None` for anything that this version did not write.
    pub fn of_file(alloc: AllocId, text: &str, holders: &[HolderRow]) -> Option<Vec<Self>> {
        let record: Record = serde_json::from_str(text).ok()?;
        let known = record.version == VERSION && (1..=100).contains(&record.compute_percent);
        known.then_some(())?;
        let whose: Vec<(PodIdentity, String)> = match (record.pod, record.container, &record.claim)
        {
            (Some(pod), Some(container), None) => vec![(pod, container)],
            (None, None, Some(claim)) => {
                let identity = |holder: &HolderRow| PodIdentity {
                    uid: holder.key.pod_uid.clone(),
                    namespace: claim.namespace.clone(),
                    name: holder.pod_name.clone(),
                };
                let rows = holders.iter();
                rows.map(|holder| (identity(holder), holder.key.container.clone()))
                    .collect()
            }
            _ => return None,
        };
        let gpus: Vec<GpuUuid> = record
            .gpus
            .iter()
            .map(|uuid| GpuUuid::from(uuid.as_str()))
            .collect();
        let (claimed, wishes) = record
            .claim
            .map(|claim| (claim.claimed, claim.wishes))
            .unzip();
        let share = |(pod, container)| Self {
            pod,
            container,
            turn: record.turn.unwrap_or_default(),
            gpus: gpus.clone(),
            memory: record.memory_mib,
            kept: record
                .request_mib
                .map_or(record.memory_mib, |kept| kept.min(record.memory_mib)),
            compute_percent: record.compute_percent,
            mode: record.mode,
            decision: record.decision.clone(),
            claimed: claimed.clone(),
            wishes: wishes.clone().unwrap_or_default(),
            phase: SharePhase::Prepared,
            alloc_id: Some(alloc),
            fence: None,
            container_id: None,
            used: Mib(0),
            sm_percent: None,
            idle_minutes: None,
        };
        Some(whose.into_iter().map(share).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_comes_back_from_its_record() {
        let alloc = AllocId::new(7);
        let mut share = Share {
            pod: PodIdentity {
                uid: "u".into(),
                namespace: "n".into(),
                name: "p".into(),
            },
            container: "c".into(),
            turn: Turn::default(),
            gpus: vec![GpuUuid::from("GPU-0"), GpuUuid::from("GPU-1")],
            memory: Mib(2000),
            kept: Mib(2000),
            compute_percent: 25,
            mode: Mode::Mps,
            decision: "d".into(),
            claimed: None,
            wishes: ShareOptions::default(),
            phase: SharePhase::Prepared,
            alloc_id: Some(alloc),
            fence: None,
            container_id: None,
            used: Mib(0),
            sm_percent: None,
            idle_minutes: None,
        };
        let record = share.to_record();
        assert!(
            !record.contains("requestMib") && !record.contains("claim"),
            "as agents of before read it"
        );
        let read = |record: &str, holders: &[HolderRow]| Share::of_file(alloc, record, holders);
        assert_eq!(read(&record, &[]), Some(vec![share.clone()]));
        share.kept = Mib(500);
        share.turn.init = true;
        assert_eq!(read(&share.to_record(), &[]), Some(vec![share.clone()]));
        share.turn = Turn::default();
        let above = record.replace(":25,", ":101,");
        for noise in ["", "{}", "[]", r#"{"version":2}"#, &above] {
            assert_eq!(read(noise, &[]), None);
        }
        // Of a claim: its holders are listed elsewhere.
        share.claimed = Some(Claimed {
            uid: "c".into(),
            name: "claim".into(),
            requests: ["gpu".to_owned()].into(),
        });
        share.wishes.minimum_fence = Some(api::units::Fence::ServerLimit);
        let other = Share {
            container: "other".into(),
            ..share.clone()
        };
        let record = share.to_record();
        assert_eq!(record, other.to_record());
        let holders = [&share, &other].map(|share| HolderRow {
            key: share.key(),
            pod_name: share.pod.name.clone(),
        });
        assert_eq!(read(&record, &holders), Some(vec![share, other]));
        assert_eq!(read(&record, &[]), Some(vec![]));
    }
}
