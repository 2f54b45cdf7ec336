//! Reports why a pod has no group: with KAI's event, and with the condition that `kubectl describe`
//! shows. Best effort.

use super::object::Object;
use crate::act::answer;
use crate::act::event::{self, Annotations, KubeEvent};
use crate::clock::Wall;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::Reporter;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

/// How many messages may wait. More are dropped: what fails again is reported again.
const WAITING: usize = 1024;
/// The reason that KAI gives in its events.
const REASON: &str = "PodGrouperWarning";
/// An event's note has at most 1024 bytes.
const MAX_NOTE: usize = 1000;

#[derive(Debug)]
struct FailureReport {
    namespace: String,
    name: String,
    uid: String,
    /// What the condition already says.
    said: Option<String>,
    text: String,
}

/// Where failures are reported.
#[derive(Clone, Debug)]
pub(super) struct FailureReporter(mpsc::Sender<FailureReport>);

impl FailureReporter {
    /// Reports a failure, unless the pod's condition says it already.
    pub(super) fn report(&self, pod: &Object, why: &str) {
        let mut text = format!("no pod group yet: {why}");
        if text.len() > MAX_NOTE {
            let mut end = MAX_NOTE;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        let word = FailureReport {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            said: pod
                .list(&["status", "conditions"])
                .iter()
                .find(|condition| condition["type"] == "PodScheduled")
                .and_then(|condition| condition["message"].as_str())
                .map(str::to_owned),
            text,
        };
        if word.said.as_ref() != Some(&word.text) && self.0.try_send(word).is_err() {
            tracing::debug!("a failure of grouping is not reported");
        }
    }
}

/// The reporter, and the future that sends its events.
pub(super) fn channel(
    client: Client,
    controller: String,
    instance: String,
    wall: Wall,
) -> (FailureReporter, impl Future<Output = ()>) {
    let (sender, mut words) = mpsc::channel::<FailureReport>(WAITING);
    let speaking = async move {
        let reporter = Reporter {
            controller,
            instance: Some(instance),
        };
        while let Some(word) = words.recv().await {
            speak(&client, &reporter, &wall, word).await;
        }
    };
    (FailureReporter(sender), speaking)
}

async fn speak(client: &Client, reporter: &Reporter, wall: &Wall, word: FailureReport) {
    let api: Api<Pod> = Api::namespaced(client.clone(), &word.namespace);
    let condition = json!({
        "type": "PodScheduled",
        "status": "False",
        // Not `Unschedulable`: no new node would help.
        "reason": "SchedulerError",
        "message": word.text,
        "lastTransitionTime": wall.second().to_string(),
    });
    let patch = Patch::Strategic(
        json!({"metadata": {"uid": word.uid}, "status": {"conditions": [condition]}}),
    );
    let params = PatchParams::default();
    let _ = answer::of(api.patch_status(&word.name, &params, &patch)).await;
    let event = KubeEvent {
        about: event::pod(&word.namespace, &word.name, &word.uid),
        warning: true,
        reason: REASON,
        action: "Grouping",
        note: word.text,
    };
    event::publish(client, reporter, event, Annotations::new()).await;
}
