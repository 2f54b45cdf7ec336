//! The containers that may have the share of a claim: a file of the agent's that the hook reads,
//! also while no agent runs.

use serde::{Deserialize, Serialize};
use std::io::{self, Read as _};
use std::path::Path;

/// The only version of [`Holders`] so far.
pub const HOLDERS_VERSION: u32 = 1;
/// Bytes. A claim has at most 256 consumers, each with a few containers.
const LONGEST: u64 = 1 << 20;

/// The containers that may have a share, and pods that must not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Holders {
    /// [`HOLDERS_VERSION`].
    pub version: u32,
    /// The allocation.
    pub alloc_id: String,
    /// Allowed containers.
    pub holders: Vec<Holder>,
    /// Refused containers, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Holder {
    /// `metadata.uid` of the pod.
    pub pod_uid: String,
    /// Its name, for people.
    pub pod_name: String,
    /// The container's name.
    pub container: String,
}

/// A pod that the claim is reserved for and that gets nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Refused {
    /// `metadata.uid` of the pod.
    pub pod_uid: String,
    /// One sentence.
    pub why: String,
}

impl Holders {
    /// Reads the file of this allocation.
    ///
    /// # Errors It is missing, incomplete, too long, of another version or of another allocation.
    pub fn read(path: &Path, alloc: &str) -> io::Result<Self> {
        let mut text = Vec::new();
        let file = std::fs::File::open(path)?;
        file.take(LONGEST).read_to_end(&mut text)?;
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let read: Self =
            serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        if read.version != HOLDERS_VERSION {
            return Err(invalid(format!("version {} is not known", read.version)));
        }
        if read.alloc_id != alloc {
            return Err(invalid(format!("it is of allocation {}", read.alloc_id)));
        }
        Ok(read)
    }

    /// The file's text.
    ///
    /// # Panics
    /// Never: strings and integers always print.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and integers always print")
    }

    /// Whether this container may; `Some(why)` inside the error: it is known that it must not.
    ///
    /// # Errors
    /// It is not listed.
    pub fn admits(&self, pod_uid: &str, container: &str) -> Result<(), Option<&str>> {
        let mut holders = self.holders.iter();
        if holders.any(|holder| holder.pod_uid == pod_uid && holder.container == container) {
            return Ok(());
        }
        let mut refused = self.refused.iter();
        let refused = refused.find(|refused| refused.pod_uid == pod_uid);
        Err(refused.map(|refused| refused.why.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders() -> Holders {
        Holders {
            version: HOLDERS_VERSION,
            alloc_id: "0a".into(),
            holders: vec![Holder {
                pod_uid: "u".into(),
                pod_name: "p".into(),
                container: "main".into(),
            }],
            refused: vec![Refused {
                pod_uid: "v".into(),
                why: "it is privileged".into(),
            }],
        }
    }

    #[test]
    fn who_is_listed_may_and_nobody_else() {
        let holders = holders();
        assert_eq!(holders.admits("u", "main"), Ok(()));
        assert_eq!(holders.admits("u", "other"), Err(None));
        assert_eq!(holders.admits("w", "main"), Err(None));
        assert_eq!(holders.admits("v", "main"), Err(Some("it is privileged")));
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_nothing_else_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holders.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Holders::read(&path, "0a")
        };
        let text = holders().to_json();
        assert_eq!(read(&text).unwrap(), holders());
        for (noise, why) in [
            (String::new(), "EOF"),
            (text.replace("\"version\":1", "\"version\":2"), "version 2"),
            (text.replace("0a", "0b"), "allocation 0b"),
            (text.replace("podName", "name"), "unknown field"),
            (" ".repeat(usize::try_from(LONGEST).unwrap()) + &text, "EOF"),
        ] {
            let error = read(&noise).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Holders::read(&path, "0a").is_err());
    }
}
