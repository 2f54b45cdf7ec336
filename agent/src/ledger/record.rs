//! What a CDI file remembers of the share it was made for.
//!
//! An annotation of the file, so that file and record are one and nothing else has to be
//! kept: after a restart the ledger is rebuilt from these.

use super::{AllocId, Front, Share, SharePhase};
use crate::inventory::GpuUuid;
use api::grant::PodIdentity;
use api::{Mib, Mode};
use serde::{Deserialize, Serialize};

/// Key of the annotation.
pub fn key() -> String {
    format!("{}/share", proto::names::DOMAIN)
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    version: u32,
    pod: PodIdentity,
    container: String,
    gpus: Vec<String>,
    memory_mib: Mib,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_mib: Option<Mib>,
    compute_percent: u8,
    mode: Mode,
    decision: String,
    #[serde(default, skip_serializing_if = "is_plugin")]
    front: Front,
}

/// Such records are as agents wrote them before there was another front.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_plugin(front: &Front) -> bool {
    *front == Front::Plugin
}

const VERSION: u32 = 1;

impl Share {
    /// The annotation's value.
    ///
    /// # Panics
    /// Never: strings and integers always print.
    pub fn to_record(&self) -> String {
        let record = Record {
            version: VERSION,
            pod: self.pod.clone(),
            container: self.container.clone(),
            gpus: self.gpus.iter().map(GpuUuid::to_string).collect(),
            memory_mib: self.memory,
            request_mib: (self.kept < self.memory).then_some(self.kept),
            compute_percent: self.compute_percent,
            mode: self.mode,
            decision: self.decision.clone(),
            front: self.front,
        };
        serde_json::to_string(&record).expect("strings and integers always print")
    }

    /// The share that a file of this allocation was made for; `None` for anything that
    /// this version did not write.
    pub fn from_record(alloc: AllocId, text: &str) -> Option<Self> {
        let record: Record = serde_json::from_str(text).ok()?;
        let known = record.version == VERSION && (1..=100).contains(&record.compute_percent);
        known.then(|| Self {
            pod: record.pod,
            container: record.container,
            gpus: record
                .gpus
                .iter()
                .map(|uuid| GpuUuid::from(uuid.as_str()))
                .collect(),
            memory: record.memory_mib,
            kept: record
                .request_mib
                .map_or(record.memory_mib, |kept| kept.min(record.memory_mib)),
            compute_percent: record.compute_percent,
            mode: record.mode,
            decision: record.decision,
            front: record.front,
            phase: SharePhase::Prepared,
            alloc_id: Some(alloc),
            fence: None,
            container_id: None,
            used: Mib(0),
            sm_percent: None,
        })
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
            gpus: vec![GpuUuid::from("GPU-0"), GpuUuid::from("GPU-1")],
            memory: Mib(2000),
            kept: Mib(2000),
            compute_percent: 25,
            mode: Mode::Mps,
            decision: "d".into(),
            front: Front::Plugin,
            phase: SharePhase::Prepared,
            alloc_id: Some(alloc),
            fence: None,
            container_id: None,
            used: Mib(0),
            sm_percent: None,
        };
        let record = share.to_record();
        assert!(
            !record.contains("requestMib") && !record.contains("front"),
            "as agents of before read it"
        );
        assert_eq!(Share::from_record(alloc, &record), Some(share.clone()));
        share.kept = Mib(500);
        let bursts = Share::from_record(alloc, &share.to_record());
        assert_eq!(bursts, Some(share.clone()));
        share.front = Front::Dra;
        let claimed = Share::from_record(alloc, &share.to_record());
        assert_eq!(claimed, Some(share));
        let above = record.replace(":25,", ":101,");
        for noise in ["", "{}", "[]", r#"{"version":2}"#, &above] {
            assert_eq!(Share::from_record(alloc, noise), None);
        }
    }
}
