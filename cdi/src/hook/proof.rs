//! What the hook leaves for the agent: the proof file, as both write and read it.

use serde::{Deserialize, Serialize};

/// The only version of [`Proof`] so far.
pub const PROOF_VERSION: u32 = 1;

/// Name of the proof of one of several containers of an allocation. Neither a UID nor a
/// container's name has a dot.
#[must_use]
pub fn proof_name(alloc: &str, pod_uid: &str, container: &str) -> String {
    format!("{alloc}.{pod_uid}.{container}")
}

/// What the hook leaves when it lets a container start. A container that is started again
/// overwrites its earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// [`PROOF_VERSION`].
    pub version: u32,
    /// The allocation.
    pub alloc_id: String,
    /// `metadata.uid` of the pod.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
    /// The container, as the runtime names it.
    pub container_id: String,
    /// The container's first process, in the runtime's pid namespace.
    pub pid: u32,
    /// Of the CDI file that was injected.
    #[serde(default)]
    pub digest: String,
    /// When, in milliseconds since 1970.
    #[serde(default)]
    pub unix_millis: u64,
    /// What came of the driver's own limit, where there was one to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited: Option<Limited>,
}

/// The driver's own limit, as the hook read it back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limited {
    /// MiB, the same on every card; `None`: nothing is known to hold.
    #[serde(default)]
    pub mib: Option<u64>,
    /// What keeps it, by the kernel's own files; `None` where `mib` is, and in the proofs of hooks
    /// that asked the driver alone.
    #[serde(default)]
    pub backend: Option<Backend>,
    /// Why it is not so; empty when it is.
    #[serde(default)]
    pub error: String,
}

/// What keeps a limit of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The kernel's controller for device memory.
    Dmem,
    /// A map in the driver, for processes that the kernel's misc controller reaches. It counts what
    /// is allocated after the limit was set, and no limit of a parent.
    Misc,
}

impl Backend {
    /// Its name, which is also its controller's.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dmem => "dmem",
            Self::Misc => "misc",
        }
    }

    /// Returns the backend of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Dmem, Self::Misc]
            .into_iter()
            .find(|one| one.as_str() == name)
    }
}

impl Proof {
    /// Reads a proof file's bytes.
    ///
    /// # Errors
    /// They are not a proof of [`PROOF_VERSION`].
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let proof: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if proof.version == PROOF_VERSION {
            Ok(proof)
        } else {
            Err(format!("version {} is not known", proof.version))
        }
    }

    /// The file's text.
    ///
    /// # Panics
    /// Never: strings and integers always print.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and integers always print")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_read_as_it_was_written_and_nothing_else_is_one() {
        let proof = Proof {
            version: PROOF_VERSION,
            container_id: "c".into(),
            pid: 7,
            limited: Some(Limited {
                mib: Some(2000),
                backend: Some(Backend::Misc),
                error: String::new(),
            }),
            ..Proof::default()
        };
        assert_eq!(Proof::parse(proof.to_json().as_bytes()), Ok(proof.clone()));
        let newer = Proof {
            version: 2,
            ..proof
        };
        assert!(Proof::parse(newer.to_json().as_bytes()).is_err());
        for noise in ["", "{}", "[]", "{\"version\":1}"] {
            assert!(Proof::parse(noise.as_bytes()).is_err(), "{noise:?}");
        }
    }
}
