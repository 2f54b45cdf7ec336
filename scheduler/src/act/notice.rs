//! Kubernetes events about pods and pod groups: best effort, never in the way of a decision.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

/// More than so many that wait are dropped: conditions say the same.
const WAITING: usize = 4096;
/// An event's note has at most so many bytes (`events.k8s.io/v1` validation).
const MAX_NOTE: usize = 1024;

/// A pod, as an event names it.
pub(super) fn pod(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// One event.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    pub(super) about: ObjectReference,
    pub(super) warning: bool,
    /// KAI's reasons.
    pub(super) reason: &'static str,
    pub(super) action: &'static str,
    pub(super) note: String,
}

/// Where they are left.
#[derive(Clone, Debug)]
pub(super) struct Notices(mpsc::Sender<Notice>);

impl Notices {
    /// Dropped when too many wait.
    pub(super) fn say(&self, notice: Notice) {
        if self.0.try_send(notice).is_err() {
            tracing::debug!("an event is dropped");
        }
    }
}

/// The mouth, and what publishes one after the other for as long as there is a mouth.
pub(super) fn channel(
    client: Client,
    controller: String,
    instance: String,
) -> (Notices, impl Future<Output = ()>) {
    let (sender, mut receiver) = mpsc::channel::<Notice>(WAITING);
    let publishing = async move {
        let reporter = Reporter {
            controller,
            instance: Some(instance),
        };
        let recorder = Recorder::new(client, reporter);
        while let Some(notice) = receiver.recv().await {
            let event = Event {
                type_: if notice.warning {
                    EventType::Warning
                } else {
                    EventType::Normal
                },
                reason: notice.reason.to_owned(),
                note: Some(cut(notice.note)),
                action: notice.action.to_owned(),
                secondary: None,
            };
            if let Err(error) = recorder.publish(&event, &notice.about).await {
                tracing::debug!(%error, "an event is not published");
            }
        }
    };
    (Notices(sender), publishing)
}

fn cut(mut note: String) -> String {
    if note.len() > MAX_NOTE {
        let mut end = MAX_NOTE - 3;
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        note.push_str("...");
    }
    note
}
