//! Tells people why a pod has no group: with KAI's event, and with the condition that
//! `kubectl describe` shows. Best effort.

use super::object::Object;
use crate::act::answer;
use crate::clock::Wall;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
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
struct Word {
    namespace: String,
    name: String,
    uid: String,
    /// What the condition already says.
    said: Option<String>,
    text: String,
}

/// Where failures are reported.
#[derive(Clone, Debug)]
pub(super) struct Voice(mpsc::Sender<Word>);

impl Voice {
    /// Reports a failure, unless the pod's condition says it already.
    pub(super) fn say(&self, pod: &Object, why: &str) {
        let mut text = format!("no pod group yet: {why}");
        if text.len() > MAX_NOTE {
            let mut end = MAX_NOTE;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        let word = Word {
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

/// The voice, and the future that sends what it is told.
pub(super) fn channel(
    client: Client,
    controller: String,
    instance: String,
    wall: Wall,
) -> (Voice, impl Future<Output = ()>) {
    let (sender, mut words) = mpsc::channel::<Word>(WAITING);
    let speaking = async move {
        let reporter = Reporter {
            controller,
            instance: Some(instance),
        };
        let recorder = Recorder::new(client.clone(), reporter);
        while let Some(word) = words.recv().await {
            speak(&client, &recorder, &wall, word).await;
        }
    };
    (Voice(sender), speaking)
}

async fn speak(client: &Client, recorder: &Recorder, wall: &Wall, word: Word) {
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
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(word.namespace),
        name: Some(word.name),
        uid: Some(word.uid),
        ..ObjectReference::default()
    };
    let event = Event {
        type_: EventType::Warning,
        reason: REASON.to_owned(),
        note: Some(word.text),
        action: "Grouping".to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, &about).await {
        tracing::debug!(%error, "an event is not published");
    }
}
