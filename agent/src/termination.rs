//! Ends processes of containers, or their work on the GPU, on the core's word.
//!
//! In: [`Order`]s. Out: a count of what was ended, to the log. A process is looked up again
//! before it is touched, through a handle that cannot come to mean another process; a process that
//! has left the container is not touched. Clients of an MPS server are terminated there first,
//! because a client that is killed during its work can end the server, or hang its other clients.

use crate::attribute;
use crate::mps::SupervisorClient;
use api::grant::PodIdentity;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Time for an MPS daemon to terminate its clients' work; a daemon that hangs does not delay the
/// kill any further.
const BREAK_OFF: Duration = Duration::from_millis(500);

/// The time that the MPS server has to break off work before the kubelet's kill.
const DRAIN: Duration = Duration::from_secs(1);

/// An order of the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ends the processes of a pod.
    End(Termination),
    /// Breaks off the work of processes that the kubelet is about to kill.
    Drain(Drain),
}

/// Clients of an MPS server that the kubelet is about to kill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Their pod, which is being deleted.
    pub pod: PodIdentity,
    /// The server's name.
    pub server: String,
    /// The pids of the clients on the host.
    pub pids: Vec<u32>,
}

/// One container, or one process, is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// Its pod.
    pub pod_uid: String,
    /// Its container; `None`: the processes alone that are named.
    pub container_id: Option<String>,
    /// Processes of it that use a card.
    pub pids: Vec<u32>,
    /// Name of the MPS server whose clients they are.
    pub server: Option<String>,
    /// Why, for the log.
    pub reason: String,
}

/// Carries orders out, several at once, until they end and all are done, or until `stop`.
pub async fn run(
    proc_root: PathBuf,
    socket: PathBuf,
    mut orders: channel::Receiver<Order>,
    stop: CancellationToken,
) {
    let client = SupervisorClient::new(&socket).ok();
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::End(termination)) => {
                    running.spawn(one(proc_root.clone(), client.clone(), termination));
                }
                Some(Order::Drain(drained)) => {
                    running.spawn(drain(client.clone(), drained));
                }
                None => break,
            },
            Some(_) = running.join_next() => {}
            () = stop.cancelled() => return,
        }
    }
    while running.join_next().await.is_some() {}
}

async fn drain(client: Option<SupervisorClient>, drain: Drain) {
    let Some(client) = client else { return };
    let Drain { pod, server, pids } = drain;
    let work = client.terminate(&server, pids);
    match tokio::time::timeout(DRAIN, work).await {
        Ok(Ok(drained)) => tracing::info!(%pod, server, ?drained, "drained before the kill"),
        Ok(Err(error)) => tracing::warn!(%pod, server, %error, "not drained before the kill"),
        Err(_) => {
            tracing::warn!(%pod, server, "the MPS daemon is slow: not drained before the kill");
        }
    }
}

async fn one(proc_root: PathBuf, client: Option<SupervisorClient>, termination: Termination) {
    if let (Some(client), Some(server)) = (client, &termination.server)
        && !termination.pids.is_empty()
    {
        let work = client.terminate(server, termination.pids.clone());
        match tokio::time::timeout(BREAK_OFF, work).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(server, %error, "clients are not terminated"),
            Err(_) => tracing::warn!(server, "the MPS daemon is slow; killing its clients"),
        }
    }
    let work = tokio::task::spawn_blocking(move || {
        let killed = end(&proc_root, &termination);
        tracing::warn!(
            pod = termination.pod_uid,
            container = termination.container_id,
            reason = termination.reason,
            ?killed,
            "killed"
        );
    });
    // Only a panic, and a release build aborts on that.
    let _ = work.await;
}

/// Ends them and answers which. Blocking.
fn end(proc_root: &Path, termination: &Termination) -> BTreeSet<u32> {
    let mut killed: BTreeSet<u32> = termination
        .pids
        .iter()
        .copied()
        .filter(|pid| kill(proc_root, *pid, termination))
        .collect();
    if termination.container_id.is_some() {
        let mut rest = attribute::pids(proc_root).unwrap_or_else(|error| {
            tracing::warn!(%error, "processes cannot be listed");
            Vec::new()
        });
        rest.retain(|pid| !killed.contains(pid) && kill(proc_root, *pid, termination));
        killed.extend(rest);
    }
    killed
}

/// Kills one process if it is in that container, or in that pod if no container is given.
fn kill(proc_root: &Path, pid: u32, termination: &Termination) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    // Not this process, and not the machine's first: no mistake upstream ends them.
    if pid == std::process::id() || pid == 1 {
        return false;
    }
    // The handle is opened first: everything read after that is of the same process or of none.
    let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else {
        return false;
    };
    let origin = attribute::origin(proc_root, pid);
    let same_pod = origin.pod_uid.as_deref() == Some(termination.pod_uid.as_str());
    let same_container =
        termination.container_id.is_none() || origin.container_id == termination.container_id;
    if !same_pod || !same_container {
        return false;
    }
    match pidfd_send_signal(&handle, Signal::KILL) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(pid, %error, "not killed");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    const POD: &str = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";

    /// A process that a `/proc` of ours places in this container.
    fn placed(proc_root: &Path, pod: &str, container: &str) -> Child {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let folder = proc_root.join(child.id().to_string());
        std::fs::create_dir(&folder).unwrap();
        let line = format!("0::/kubepods/burstable/pod{pod}/{container}\n");
        std::fs::write(folder.join("cgroup"), line).unwrap();
        child
    }

    /// Ends it, and returns whether it had been killed before; a process that only got SIGTERM was
    /// not.
    fn was_killed(mut child: Child) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        child.wait().unwrap().signal() == Some(9)
    }

    #[test]
    fn a_container_ends_whole_and_nobody_else_does() {
        let tmp = tempfile::tempdir().unwrap();
        let (one, two) = ("a".repeat(64), "b".repeat(64));
        let other = POD.replace('0', "1");
        let children = [
            placed(tmp.path(), POD, &one),
            placed(tmp.path(), POD, &one),
            placed(tmp.path(), POD, &two),
            placed(tmp.path(), &other, &one),
        ];
        let termination = Termination {
            pod_uid: POD.into(),
            container_id: Some(one),
            // The last two are others' by now.
            pids: vec![children[0].id(), children[2].id(), children[3].id(), 1],
            server: None,
            reason: "test".into(),
        };
        let killed = end(tmp.path(), &termination);
        assert_eq!(killed, [children[0].id(), children[1].id()].into());
        assert_eq!(children.map(was_killed), [true, true, false, false]);
    }

    #[test]
    fn without_a_container_only_those_that_are_named_end() {
        let tmp = tempfile::tempdir().unwrap();
        let one = "a".repeat(64);
        let children = [placed(tmp.path(), POD, &one), placed(tmp.path(), POD, &one)];
        let termination = Termination {
            pod_uid: POD.into(),
            container_id: None,
            pids: vec![children[0].id()],
            server: None,
            reason: "test".into(),
        };
        assert_eq!(end(tmp.path(), &termination), [children[0].id()].into());
        assert_eq!(children.map(was_killed), [true, false]);
    }
}
