//! The hook's command line, as the agent writes it into a CDI file and the hook reads it.

use crate::digest::{self, Digest};
use std::path::PathBuf;

/// The only command.
pub const COMMAND: &str = "create-runtime";

const POD_UID: &str = "--pod-uid";
const CONTAINER: &str = "--container";
const HOLDERS: &str = "--holders";
const ALLOC: &str = "--alloc";
const PROOF: &str = "--proof";
const SPEC: &str = "--spec";
const LIMIT_MIB: &str = "--limit-mib";
const LIMIT_GPUS: &str = "--limit-gpus";
const LIMIT_SMI: &str = "--limit-smi";
const LIMIT_NEEDED: &str = "--limit-needed";

/// In the order in which they are written.
const FLAGS: [&str; 11] = [
    POD_UID,
    CONTAINER,
    HOLDERS,
    ALLOC,
    digest::FLAG,
    PROOF,
    SPEC,
    LIMIT_MIB,
    LIMIT_GPUS,
    LIMIT_SMI,
    LIMIT_NEEDED,
];

/// Whose a share is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareOwner {
    /// One container's.
    Container {
        /// `metadata.uid` of the pod.
        pod_uid: String,
        /// The container's name.
        container: String,
    },
    /// That of the containers that a file names: a claim's, whose pods come and go.
    Listed(PathBuf),
}

/// What a container must be, and where the hook says that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Which container it must be.
    pub whose: ShareOwner,
    /// The allocation, which is also the CDI device's name.
    pub alloc: String,
    /// Of the CDI file that the hook is part of. `None` only before the file is sealed
    /// ([`crate::seal`]).
    pub digest: Option<Digest>,
    /// Where the proof goes; of one of several containers, beside it: [`Arguments::proof_of`].
    pub proof: PathBuf,
    /// The CDI file; without it digest and environment are not compared.
    pub spec: Option<PathBuf>,
    /// The driver's own limit, where it has such.
    pub limit: Option<Limit>,
}

/// A card on which the driver is to limit a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedCard {
    /// `nvidia-smi` knows it by this.
    pub uuid: String,
    /// PCI bus id, by which the kernel names its memory.
    pub pci: String,
}

/// A memory limit that the driver keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// MiB on each card.
    pub mib: u64,
    /// The limit on each of the cards, in MiB.
    pub cards: Vec<LimitedCard>,
    /// `nvidia-smi`, as the hook's process sees it.
    pub smi: PathBuf,
    /// Without it, the container must not start.
    pub needed: bool,
}

/// Our agent did not write this command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hook's arguments are invalid: {0}")]
pub struct ArgumentsError(String);

impl Arguments {
    /// What follows the program's name.
    #[must_use]
    pub fn print(&self) -> Vec<String> {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let digest = self.digest.as_ref().map(Digest::to_string);
        let limit = self.limit.as_ref();
        let (pod_uid, container, holders) = match &self.whose {
            ShareOwner::Container { pod_uid, container } => {
                (Some(pod_uid.clone()), Some(container.clone()), None)
            }
            ShareOwner::Listed(file) => (None, None, Some(text(file))),
        };
        let values = [
            pod_uid,
            container,
            holders,
            Some(self.alloc.clone()),
            Some(digest.unwrap_or_default()),
            Some(text(&self.proof)),
            self.spec.as_ref().map(text),
            limit.map(|limit| limit.mib.to_string()),
            limit.map(|limit| {
                let cards = limit.cards.iter();
                let cards = cards.map(|card| format!("{}={}", card.uuid, card.pci));
                cards.collect::<Vec<_>>().join(",")
            }),
            limit.map(|limit| text(&limit.smi)),
            limit.map(|limit| limit.needed.to_string()),
        ];
        let pairs = FLAGS.iter().zip(values);
        let given = pairs.filter_map(|(flag, value)| Some([(*flag).to_owned(), value?]));
        std::iter::once(COMMAND.to_owned())
            .chain(given.flatten())
            .collect()
    }

    /// From what follows the program's name.
    ///
    /// # Errors
    /// An argument is unknown, missing, empty, doubled or no such value.
    pub fn parse(arguments: &[String]) -> Result<Self, ArgumentsError> {
        let mut arguments = arguments.iter();
        match arguments.next() {
            Some(command) if command == COMMAND => {}
            other => {
                return Err(ArgumentsError(format!(
                    "the command is {COMMAND:?}, not {other:?}"
                )));
            }
        }
        let mut values: [Option<String>; FLAGS.len()] = Default::default();
        while let Some(flag) = arguments.next() {
            let slot = FLAGS
                .iter()
                .position(|known| known == flag)
                .and_then(|at| values.get_mut(at))
                .ok_or_else(|| ArgumentsError(format!("{flag:?} is not known")))?;
            let value = arguments
                .next()
                .filter(|value| !value.is_empty())
                .ok_or_else(|| ArgumentsError(format!("{flag} has no value")))?;
            if slot.replace(value.clone()).is_some() {
                return Err(ArgumentsError(format!("{flag} is given twice")));
            }
        }
        let [
            pod_uid,
            container,
            holders,
            alloc,
            digest,
            proof,
            spec,
            mib,
            gpus,
            smi,
            needed,
        ] = values;
        let need = |flag: &str, value: Option<String>| {
            value.ok_or_else(|| ArgumentsError(format!("{flag} is missing")))
        };
        let digest = need(digest::FLAG, digest)?
            .parse()
            .map_err(|error| ArgumentsError(format!("{}: {error}", digest::FLAG)))?;
        let whose = match (pod_uid, container, holders) {
            (None, None, Some(file)) => ShareOwner::Listed(file.into()),
            (pod_uid, container, None) => ShareOwner::Container {
                pod_uid: need(POD_UID, pod_uid)?,
                container: need(CONTAINER, container)?,
            },
            _ => {
                return Err(ArgumentsError(format!(
                    "{HOLDERS} goes with neither {POD_UID} nor {CONTAINER}"
                )));
            }
        };
        Ok(Self {
            whose,
            alloc: need(ALLOC, alloc)?,
            digest: Some(digest),
            proof: need(PROOF, proof)?.into(),
            spec: spec.map(PathBuf::from),
            limit: limit([mib, gpus, smi, needed])?,
        })
    }
}

impl Arguments {
    /// Where the proof of this container goes.
    #[must_use]
    pub fn proof_of(&self, pod_uid: &str, container: &str) -> PathBuf {
        match &self.whose {
            ShareOwner::Container { .. } => self.proof.clone(),
            ShareOwner::Listed(_) => {
                let name = super::proof_name(&self.alloc, pod_uid, container);
                self.proof.with_file_name(name)
            }
        }
    }
}

/// All four or none: half a limit is none.
fn limit(values: [Option<String>; 4]) -> Result<Option<Limit>, ArgumentsError> {
    let bad = |why: &str| ArgumentsError(format!("--limit-*: {why}"));
    match values {
        [None, None, None, None] => Ok(None),
        [Some(mib), Some(gpus), Some(smi), Some(needed)] => Ok(Some(Limit {
            mib: mib.parse().map_err(|_| bad("MiB are a number"))?,
            cards: gpus
                .split(',')
                .map(|card| {
                    let (uuid, pci) = card.split_once('=')?;
                    let (uuid, pci) = (uuid.to_owned(), pci.to_owned());
                    Some(LimitedCard { uuid, pci })
                })
                .collect::<Option<_>>()
                .ok_or_else(|| bad("a card is <UUID>=<PCI bus id>"))?,
            smi: smi.into(),
            needed: needed.parse().map_err(|_| bad("needed is true or false"))?,
        })),
        _ => Err(bad("some are missing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn full() -> String {
        format!(
            "create-runtime --pod-uid u --container c --alloc 0a --digest {} --proof /p --spec /s",
            "0".repeat(64)
        )
    }

    #[test]
    fn a_full_line_is_read() {
        let read = Arguments::parse(&arguments(&full())).unwrap();
        let whose = ShareOwner::Container {
            pod_uid: "u".into(),
            container: "c".into(),
        };
        assert_eq!(read.whose, whose);
        assert_eq!(read.proof_of("v", "d"), PathBuf::from("/p"));
        assert_eq!(read.alloc, "0a");
        assert_eq!(read.digest.unwrap().to_string(), "0".repeat(64));
        assert_eq!(read.proof, PathBuf::from("/p"));
        assert_eq!(read.spec, Some(PathBuf::from("/s")));
        assert_eq!(read.limit, None);
        assert_eq!(read.print(), arguments(&full()));
        let line = full()
            + " --limit-mib 2000 --limit-gpus GPU-a=00000000:01:00.0,GPU-b=00000000:02:00.0 --limit-smi /usr/bin/nvidia-smi --limit-needed true";
        let read = Arguments::parse(&arguments(&line)).unwrap();
        assert_eq!(read.print(), arguments(&line));
        let limit = read.limit.unwrap();
        assert_eq!(
            (limit.mib, limit.cards.len(), limit.needed),
            (2000, 2, true)
        );
        let line = full().replace("--pod-uid u --container c", "--holders /h");
        let read = Arguments::parse(&arguments(&line)).unwrap();
        assert_eq!(read.print(), arguments(&line));
        assert_eq!(read.whose, ShareOwner::Listed("/h".into()));
        assert_eq!(read.proof_of("v", "d"), PathBuf::from("/0a.v.d"));
    }

    #[test]
    fn a_line_that_our_agent_would_not_write_is_refused() {
        let table = [
            (String::new(), "the command is"),
            ("create-container".to_owned(), "the command is"),
            (full().replace("--pod-uid u ", ""), "--pod-uid is missing"),
            (
                full().replace("--container c ", ""),
                "--container is missing",
            ),
            (full() + " --holders /h", "goes with neither"),
            (full().replace("--alloc 0a ", ""), "--alloc is missing"),
            (full() + " --alloc 0b", "--alloc is given twice"),
            (full() + " --force yes", "\"--force\" is not known"),
            (full() + " extra", "\"extra\" is not known"),
            (
                full().replace(" --spec /s", " --spec"),
                "--spec has no value",
            ),
            (full().replace("0000", "zzzz"), "--digest: a digest is"),
            (full() + " --limit-mib 2000", "--limit-*: some are missing"),
            (
                full() + " --limit-mib all --limit-gpus G=1 --limit-smi /s --limit-needed true",
                "--limit-*: MiB are a number",
            ),
        ];
        for (line, message) in table {
            let refusal = Arguments::parse(&arguments(&line)).unwrap_err().to_string();
            assert!(refusal.contains(message), "{line}: {refusal}");
        }
    }
}
