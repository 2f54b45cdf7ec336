//! Reads the cgroups of the machine's processes.
//!
//! In: a machine. Out: the lines of `/proc/<pid>/cgroup` that the agent's parsers read, for the
//! processes of pods.

use anyhow::{Context, Result};

use crate::cluster::MachineCluster;

/// A process of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The command line, with blanks between its words.
    pub(crate) command: String,
    /// The path of its cgroup below the root of the hierarchy.
    pub(crate) cgroup: String,
}

/// Returns the processes of all pods.
pub(crate) async fn of_pods(cluster: &MachineCluster) -> Result<Vec<Process>> {
    let script = "cd /proc; for pid in [0-9]*; do \
                  read -r line 2>/dev/null <$pid/cgroup || continue; \
                  case $line in *kubepods*) ;; *) continue ;; esac; \
                  echo \"$pid|$line|$(tr '\\0' ' ' 2>/dev/null <$pid/cmdline)\"; done; true";
    let said = cluster.node.run(script).await?;
    said.lines()
        .map(|line| {
            let mut parts = line.splitn(3, '|');
            let mut next = || parts.next().with_context(|| line.to_owned());
            Ok(Process {
                pid: next()?.parse()?,
                cgroup: next()?
                    .strip_prefix("0::")
                    .with_context(|| line.to_owned())?
                    .to_owned(),
                command: next()?.trim().to_owned(),
            })
        })
        .collect()
}
