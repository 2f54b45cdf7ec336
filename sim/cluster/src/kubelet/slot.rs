//! A pod's containers as a state machine: which may start now, what the status says.
//!
//! Pure: the time comes in. In: starts, failures, exits. Out: the names to start, the
//! phase, the status document. Never starts anything.

use super::table::is_sidecar;
use crate::runtime::{ContainerId, Exit};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A container that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) id: String,
    pub(super) exit: Exit,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) started: String,
    pub(super) finished: String,
}

/// What a container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContainerState {
    Waiting { reason: String, message: String },
    Running { id: ContainerId, since: String },
    Terminated(Ended),
}

/// One container of the pod.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) container: Container,
    pub(super) init: bool,
    pub(super) doing: ContainerState,
    last: Option<Ended>,
    pub(super) restarts: u32,
    not_before: Option<Instant>,
}

/// All of them, init containers first.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) list: Vec<Slot>,
    restart_policy: String,
}

impl Slots {
    /// None has started.
    pub(super) fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let inits = spec
            .and_then(|spec| spec.init_containers.as_deref())
            .unwrap_or_default();
        let apps = spec
            .map(|spec| spec.containers.as_slice())
            .unwrap_or_default();
        let first = if inits.is_empty() {
            "ContainerCreating"
        } else {
            "PodInitializing"
        };
        let slot = |container: &Container, init| Slot {
            container: container.clone(),
            init,
            doing: ContainerState::Waiting {
                reason: first.to_owned(),
                message: String::new(),
            },
            last: None,
            restarts: 0,
            not_before: None,
        };
        Self {
            list: inits
                .iter()
                .map(|one| slot(one, true))
                .chain(apps.iter().map(|one| slot(one, false)))
                .collect(),
            restart_policy: spec
                .and_then(|spec| spec.restart_policy.clone())
                .unwrap_or_else(|| "Always".into()),
        }
    }

    fn restarts(&self, slot: &Slot, exit: Exit) -> bool {
        if slot.init {
            return is_sidecar(&slot.container) || (exit.0 != 0 && self.restart_policy != "Never");
        }
        match self.restart_policy.as_str() {
            "Always" => true,
            "OnFailure" => exit.0 != 0,
            _ => false,
        }
    }

    /// The slots that may start now, in order.
    pub(super) fn due(&self, now: Instant) -> Vec<usize> {
        let mut due = Vec::new();
        for (index, slot) in self.list.iter().enumerate() {
            if !slot.init && !self.initialised() {
                break;
            }
            let ready = slot.not_before.is_none_or(|at| at <= now);
            let wants = match &slot.doing {
                ContainerState::Waiting { .. } => true,
                ContainerState::Running { .. } => false,
                ContainerState::Terminated(ended) => self.restarts(slot, ended.exit),
            };
            if wants && ready && !self.failed_for_good() {
                due.push(index);
            }
            let passed = match &slot.doing {
                ContainerState::Running { .. } => is_sidecar(&slot.container),
                ContainerState::Terminated(ended) => {
                    ended.exit.0 == 0 && !is_sidecar(&slot.container)
                }
                ContainerState::Waiting { .. } => false,
            };
            if slot.init && !passed {
                break;
            }
        }
        due
    }

    /// When something that waits may start.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.list.iter().filter_map(|slot| slot.not_before).min()
    }

    fn initialised(&self) -> bool {
        self.list.iter().filter(|slot| slot.init).all(|slot| {
            if is_sidecar(&slot.container) {
                matches!(slot.doing, ContainerState::Running { .. }) || slot.last.is_some()
            } else {
                matches!(&slot.doing, ContainerState::Terminated(ended) if ended.exit.0 == 0)
            }
        })
    }

    /// An init container failed and will not be tried again.
    fn failed_for_good(&self) -> bool {
        self.list.iter().filter(|slot| slot.init).any(|slot| {
            matches!(&slot.doing, ContainerState::Terminated(ended)
                if ended.exit.0 != 0 && !self.restarts(slot, ended.exit))
        })
    }

    /// It runs.
    pub(super) fn started(&mut self, index: usize, id: ContainerId, now: String) {
        let slot = &mut self.list[index];
        if let ContainerState::Terminated(ended) = &slot.doing {
            slot.last = Some(ended.clone());
        }
        if slot.last.is_some() {
            slot.restarts += 1;
        }
        slot.not_before = None;
        slot.doing = ContainerState::Running { id, since: now };
    }

    /// It could not be started; tried again after `retry`.
    pub(super) fn refused(&mut self, index: usize, reason: &str, message: String, again: Instant) {
        let slot = &mut self.list[index];
        if let ContainerState::Terminated(ended) = &slot.doing {
            slot.last = Some(ended.clone());
        }
        slot.not_before = Some(again);
        slot.doing = ContainerState::Waiting {
            reason: reason.to_owned(),
            message,
        };
    }

    /// It ended; a restart waits twice as long each time, five minutes at most.
    pub(super) fn ended(&mut self, index: usize, ended: Ended, now: Instant, retry: Duration) {
        let slot = &mut self.list[index];
        let wait = retry.saturating_mul(1 << slot.restarts.min(5));
        slot.not_before = None;
        slot.doing = ContainerState::Terminated(ended.clone());
        let slot = &self.list[index];
        if self.restarts(slot, ended.exit) && ended.exit.0 != 0 {
            let again = now + wait.min(Duration::from_mins(5));
            let message = format!(
                "back-off {}s restarting failed container={}",
                wait.as_secs(),
                slot.container.name
            );
            let slot = &mut self.list[index];
            slot.last = Some(ended);
            slot.not_before = Some(again);
            slot.doing = ContainerState::Waiting {
                reason: "CrashLoopBackOff".into(),
                message,
            };
        }
    }

    /// As `getPhase` of the real kubelet.
    pub(super) fn phase(&self) -> &'static str {
        if self.failed_for_good() {
            let running = self
                .list
                .iter()
                .any(|slot| matches!(slot.doing, ContainerState::Running { .. }));
            return if running { "Pending" } else { "Failed" };
        }
        if !self.initialised() {
            return "Pending";
        }
        let (mut waiting, mut running, mut stopped, mut succeeded) = (0, 0, 0, 0);
        for slot in self.list.iter().filter(|slot| !slot.init) {
            match &slot.doing {
                ContainerState::Waiting { .. } if slot.last.is_none() => waiting += 1,
                ContainerState::Waiting { .. } => stopped += 1,
                ContainerState::Running { .. } => running += 1,
                ContainerState::Terminated(ended) => {
                    stopped += 1;
                    succeeded += u32::from(ended.exit.0 == 0);
                }
            }
        }
        if waiting > 0 {
            "Pending"
        } else if running > 0 || self.restart_policy == "Always" {
            "Running"
        } else if stopped == succeeded {
            "Succeeded"
        } else if self.restart_policy == "Never" {
            "Failed"
        } else {
            "Running"
        }
    }

    /// Nothing runs and nothing will.
    pub(super) fn over(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }

    /// The pod's status.
    pub(super) fn status(&self, pod: &Pod, started: &str, now: &str) -> Value {
        let phase = self.phase();
        let side = |init: bool| -> Vec<Value> {
            self.list
                .iter()
                .filter(|slot| slot.init == init)
                .map(Slot::status)
                .collect()
        };
        let all_run = self
            .list
            .iter()
            .filter(|slot| !slot.init)
            .all(|slot| matches!(slot.doing, ContainerState::Running { .. }));
        let condition = |kind: &str, is: bool, why: &str| {
            let status = if is { "True" } else { "False" };
            let before = pod
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref())
                .and_then(|list| list.iter().find(|one| one.type_ == kind));
            let since = before
                .filter(|one| one.status == status)
                .and_then(|one| serde_json::to_value(&one.last_transition_time).ok())
                .filter(Value::is_string)
                .unwrap_or_else(|| json!(now));
            let reason = if is { Value::Null } else { json!(why) };
            json!({"type": kind, "status": status, "reason": reason, "lastTransitionTime": since})
        };
        let not_ready = if phase == "Succeeded" {
            "PodCompleted"
        } else {
            "ContainersNotReady"
        };
        json!({
            "phase": phase, "startTime": started, "hostIP": "127.0.0.1", "podIP": "127.0.0.1",
            "conditions": [
                condition("PodReadyToStartContainers", phase != "Succeeded" && phase != "Failed", ""),
                condition("Initialized", self.initialised(), "ContainersNotInitialized"),
                condition("Ready", all_run && self.initialised(), not_ready),
                condition("ContainersReady", all_run && self.initialised(), not_ready),
                condition("PodScheduled", true, ""),
            ],
            "initContainerStatuses": side(true), "containerStatuses": side(false),
        })
    }
}

impl Slot {
    fn status(&self) -> Value {
        let running = matches!(self.doing, ContainerState::Running { .. });
        let passed = matches!(&self.doing, ContainerState::Terminated(ended) if ended.exit.0 == 0);
        let state = match &self.doing {
            ContainerState::Waiting { reason, message } if message.is_empty() => {
                json!({"waiting": {"reason": reason}})
            }
            ContainerState::Waiting { reason, message } => {
                json!({"waiting": {"reason": reason, "message": message}})
            }
            ContainerState::Running { since, .. } => json!({"running": {"startedAt": since}}),
            ContainerState::Terminated(ended) => json!({"terminated": ended.status()}),
        };
        let id = match &self.doing {
            ContainerState::Running { id, .. } => format!("containerd://{}", id.0),
            ContainerState::Terminated(ended) => format!("containerd://{}", ended.id),
            ContainerState::Waiting { .. } => String::new(),
        };
        json!({
            "name": self.container.name, "image": self.container.image.clone().unwrap_or_default(), "imageID": "simulated",
            "containerID": id, "restartCount": self.restarts, "started": running,
            "ready": running || (self.init && passed), "state": state,
            "lastState": self.last.as_ref().map_or_else(|| json!({}), |ended| json!({"terminated": ended.status()})),
        })
    }
}

impl Ended {
    fn status(&self) -> Value {
        let mut status = json!({
            "exitCode": self.exit.0, "reason": self.reason, "startedAt": self.started,
            "finishedAt": self.finished, "containerID": format!("containerd://{}", self.id),
        });
        if !self.message.is_empty() {
            status["message"] = json!(self.message);
        }
        status
    }
}

/// A condition that ends a pod before it began.
pub(super) fn rejected(pod: &Pod, reason: &str, message: &str, now: &str) -> Value {
    tracing::info!(pod = pod.name_any(), reason, message, "pod rejected");
    json!({"phase": "Failed", "reason": reason, "message": message, "startTime": now})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(policy: &str) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "p"}, "spec": {"restartPolicy": policy,
            "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "init"}],
            "containers": [{"name": "a"}, {"name": "b"}]}}),
        )
        .unwrap()
    }

    fn ended(code: i32) -> Ended {
        Ended {
            id: "x".into(),
            exit: Exit(code),
            reason: "r".into(),
            message: String::new(),
            started: "t".into(),
            finished: "t".into(),
        }
    }

    const RETRY: Duration = Duration::from_secs(10);

    fn start(slots: &mut Slots, index: usize) {
        slots.started(index, ContainerId(index.to_string()), "t".into());
    }

    #[test]
    fn init_containers_pass_in_order_before_any_other_starts() {
        let now = Instant::now();
        let mut slots = Slots::of(&pod("Never"));
        assert_eq!(slots.due(now), [0]);
        start(&mut slots, 0);
        assert_eq!(
            slots.due(now),
            [1],
            "a sidecar lets the next begin when it runs"
        );
        start(&mut slots, 1);
        assert!(slots.due(now).is_empty());
        assert_eq!(slots.phase(), "Pending");
        slots.ended(1, ended(0), now, RETRY);
        assert_eq!(slots.due(now), [2, 3]);
        start(&mut slots, 2);
        start(&mut slots, 3);
        assert_eq!(slots.phase(), "Running");
        slots.ended(2, ended(0), now, RETRY);
        assert_eq!(slots.phase(), "Running");
        slots.ended(3, ended(1), now, RETRY);
        assert_eq!(slots.phase(), "Failed");
    }

    #[test]
    fn a_failed_init_container_ends_a_pod_that_does_not_restart() {
        let now = Instant::now();
        let mut slots = Slots::of(&pod("Never"));
        slots.list.remove(0);
        start(&mut slots, 0);
        slots.ended(0, ended(1), now, RETRY);
        assert!(slots.over() && slots.due(now).is_empty());
        assert_eq!(slots.phase(), "Failed");
    }

    #[test]
    fn a_refused_start_is_tried_again_after_its_time_and_a_crash_backs_off() {
        let now = Instant::now();
        let mut slots = Slots::of(&pod("Always"));
        slots.list.drain(..2);
        slots.refused(0, "CreateContainerConfigError", "no".into(), now + RETRY);
        assert_eq!(slots.due(now), [1]);
        assert_eq!(slots.due(now + RETRY), [0, 1]);
        assert_eq!(slots.phase(), "Pending");
        start(&mut slots, 0);
        start(&mut slots, 1);
        slots.ended(0, ended(137), now, RETRY);
        assert!(slots.due(now).is_empty());
        let status = slots.status(&pod("Always"), "t", "t");
        assert_eq!(status["phase"], "Running");
        assert_eq!(
            status["containerStatuses"][0]["state"]["waiting"]["reason"],
            "CrashLoopBackOff"
        );
        assert_eq!(slots.due(now + RETRY), [0]);
        start(&mut slots, 0);
        assert_eq!(slots.list[0].restarts, 1);
    }
}
