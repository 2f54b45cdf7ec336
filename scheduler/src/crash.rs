//! A pod's phase may be `Running` while its containers do not run: Kubernetes keeps that phase
//! while a container waits to be started again. Pure.
//!
//! In: a pod's status. Out: words like those of `kubectl get pods`, with the number of restarts and
//! the last exit. The page and the command-line tool show them in place of the phase.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use std::fmt::Write as _;

/// A container that waits with one of these reasons starts for the first time, so nothing is wrong.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Returns the containers that do not run for a reason of their own, with what is wrong, such as
/// `CrashLoopBackOff, 9 restarts, last exit code 137 (OOMKilled)`. A pod that has ended has none.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (&str, String)> {
    let status = pod.status.as_ref().filter(|status| {
        let phase = status.phase.as_deref();
        !matches!(phase, Some("Succeeded" | "Failed"))
    });
    let all = status.into_iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    });
    all.filter_map(|container| Some((container.name.as_str(), words(container)?)))
}

/// Returns the text for the first container that does not run, which is shown as the pod's phase.
pub fn of(pod: &Pod) -> Option<String> {
    let (name, words) = containers(pod).next()?;
    Some(format!("{words} (container {name})"))
}

fn words(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    let waiting = state.waiting.as_ref();
    let waiting = waiting.and_then(|waiting| waiting.reason.as_deref());
    let waiting = waiting.filter(|reason| !STARTING.contains(reason));
    let ended = state.terminated.as_ref().filter(|one| one.exit_code != 0);
    let reason = waiting.or_else(|| ended.map(|one| one.reason.as_deref().unwrap_or("Error")))?;
    let mut words = reason.to_owned();
    match container.restart_count {
        ..=0 => {}
        1 => words.push_str(", 1 restart"),
        many => {
            let _ = write!(words, ", {many} restarts");
        }
    }
    let last = container.last_state.as_ref();
    let last = ended.or_else(|| last.and_then(|last| last.terminated.as_ref()));
    if let Some(last) = last {
        let _ = write!(words, ", last {}", end(last));
    }
    Some(words)
}

fn end(ended: &ContainerStateTerminated) -> String {
    match ended.reason.as_deref() {
        None | Some("" | "Error" | "Completed") => format!("exit code {}", ended.exit_code),
        Some(reason) => format!("exit code {} ({reason})", ended.exit_code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn said(phase: &str, state: &Value, restarts: i32, last: &Value) -> Option<String> {
        let status = json!({"name": "main", "image": "", "imageID": "", "ready": false,
            "restartCount": restarts, "state": state, "lastState": last});
        let pod = json!({"metadata": {"name": "p"}, "status": {"phase": phase, "containerStatuses": [status]}});
        of(&serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn a_container_that_crashes_is_named_with_its_restarts_and_its_last_end() {
        let end =
            |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        for (state, restarts, last, expected) in [
            (
                waits("CrashLoopBackOff"),
                9,
                end(137, "OOMKilled"),
                "CrashLoopBackOff, 9 restarts, last exit code 137 (OOMKilled) (container main)",
            ),
            (
                end(1, "Error"),
                1,
                json!({}),
                "Error, 1 restart, last exit code 1 (container main)",
            ),
            (
                waits("ImagePullBackOff"),
                0,
                json!({}),
                "ImagePullBackOff (container main)",
            ),
        ] {
            assert_eq!(
                said("Running", &state, restarts, &last).as_deref(),
                Some(expected)
            );
            assert_eq!(said("Failed", &state, restarts, &last), None, "it is over");
        }
        for state in [
            waits("ContainerCreating"),
            end(0, "Completed"),
            json!({"running": {}}),
        ] {
            assert_eq!(said("Running", &state, 3, &json!({})), None, "{state}");
        }
    }
}
