//! The command line → what this container must be.

use crate::judge::Refusal;
use crate::limit::Limit;
use std::path::PathBuf;

/// What the agent wrote into the hook's arguments when it bound the share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// `metadata.uid` of the pod.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
    /// The allocation, which is also the CDI device's name.
    pub alloc: String,
    /// Of the CDI file that this hook is part of.
    pub digest: cdi::Digest,
    /// Where the proof goes.
    pub proof: PathBuf,
    /// The CDI file; without it digest and environment are not compared.
    pub spec: Option<PathBuf>,
    /// The driver's own limit, where it has such.
    pub limit: Option<Limit>,
}

/// The only command.
pub const COMMAND: &str = "create-runtime";

impl Expected {
    /// From the arguments after the program's name.
    ///
    /// # Errors
    /// [`Refusal::Arguments`]: whoever wrote the CDI file was not our agent.
    pub fn parse(arguments: &[String]) -> Result<Self, Refusal> {
        let mut arguments = arguments.iter();
        match arguments.next() {
            Some(command) if command == COMMAND => {}
            other => {
                return Err(Refusal::Arguments(format!(
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
                .ok_or_else(|| Refusal::Arguments(format!("{flag:?} is not known")))?;
            let value = arguments
                .next()
                .filter(|value| !value.is_empty())
                .ok_or_else(|| Refusal::Arguments(format!("{flag} has no value")))?;
            if slot.replace(value.clone()).is_some() {
                return Err(Refusal::Arguments(format!("{flag} is given twice")));
            }
        }
        let [
            pod_uid,
            container,
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
            value.ok_or_else(|| Refusal::Arguments(format!("{flag} is missing")))
        };
        Ok(Self {
            pod_uid: need("--pod-uid", pod_uid)?,
            container: need("--container", container)?,
            alloc: need("--alloc", alloc)?,
            digest: need(cdi::digest::FLAG, digest)?
                .parse()
                .map_err(|error| Refusal::Arguments(format!("--digest: {error}")))?,
            proof: need("--proof", proof)?.into(),
            spec: spec.map(PathBuf::from),
            limit: limit([mib, gpus, smi, needed])?,
        })
    }
}

/// All four or none: half a limit is none.
fn limit(values: [Option<String>; 4]) -> Result<Option<Limit>, Refusal> {
    let bad = |why: &str| Refusal::Arguments(format!("--limit-*: {why}"));
    match values {
        [None, None, None, None] => Ok(None),
        [Some(mib), Some(gpus), Some(smi), Some(needed)] => Ok(Some(Limit {
            mib: mib.parse().map_err(|_| bad("MiB are a number"))?,
            gpus: gpus.split(',').map(str::to_owned).collect(),
            smi: smi.into(),
            needed: needed.parse().map_err(|_| bad("needed is true or false"))?,
        })),
        _ => Err(bad("some are missing")),
    }
}

/// In the order in which they are printed.
const FLAGS: [&str; 10] = [
    "--pod-uid",
    "--container",
    "--alloc",
    cdi::digest::FLAG,
    "--proof",
    "--spec",
    "--limit-mib",
    "--limit-gpus",
    "--limit-smi",
    "--limit-needed",
];

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
        let expected = Expected::parse(&arguments(&full())).unwrap();
        assert_eq!(expected.pod_uid, "u");
        assert_eq!(expected.container, "c");
        assert_eq!(expected.alloc, "0a");
        assert_eq!(expected.digest.to_string(), "0".repeat(64));
        assert_eq!(expected.proof, PathBuf::from("/p"));
        assert_eq!(expected.spec, Some(PathBuf::from("/s")));
        assert_eq!(expected.limit, None);
        let line = full()
            + " --limit-mib 2000 --limit-gpus GPU-a,GPU-b --limit-smi /usr/bin/nvidia-smi --limit-needed true";
        let limit = Expected::parse(&arguments(&line)).unwrap().limit.unwrap();
        assert_eq!((limit.mib, limit.gpus.len(), limit.needed), (2000, 2, true));
    }

    #[test]
    fn a_line_that_our_agent_would_not_write_is_refused() {
        let table = [
            (String::new(), "the command is"),
            ("create-container".to_owned(), "the command is"),
            (full().replace("--pod-uid u ", ""), "--pod-uid is missing"),
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
                full() + " --limit-mib all --limit-gpus G --limit-smi /s --limit-needed true",
                "--limit-*: MiB are a number",
            ),
        ];
        for (line, message) in table {
            let refusal = Expected::parse(&arguments(&line)).unwrap_err().to_string();
            assert!(refusal.contains(message), "{line}: {refusal}");
        }
    }
}
