//! Kubernetes events about pods and pod groups: best effort, never in the way of a decision.
//!
//! An event of a pod that comes again within minutes is counted on, whatever its text, as
//! kube-scheduler's are (`Recorder`): the pod's condition has the words of now. Events of groups,
//! those with annotations, and why a pod has no group are objects of their own ([`publish`]): each
//! is said once, and its text is what is new.

use crate::status::Meters;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// More than so many that wait are dropped: conditions say the same.
const WAITING: usize = 4096;
/// An event's note has at most so many bytes (`events.k8s.io/v1` validation).
const MAX_NOTE: usize = 1024;

/// A pod, as an event names it.
pub(crate) fn pod(namespace: &str, name: &str, uid: &str) -> ObjectReference {
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
pub(crate) struct KubeEvent {
    pub(crate) about: ObjectReference,
    pub(crate) warning: bool,
    /// KAI's reasons.
    pub(crate) reason: &'static str,
    pub(crate) action: &'static str,
    pub(crate) note: String,
}

/// What tools read of an event.
pub(crate) type Annotations = BTreeMap<String, String>;

/// Takes events to be published.
#[derive(Clone, Debug)]
pub(super) struct EventRecorder {
    events: mpsc::Sender<(KubeEvent, Annotations)>,
    meters: Arc<Meters>,
}

impl EventRecorder {
    /// Dropped when too many wait.
    pub(super) fn record(&self, event: KubeEvent) {
        self.record_annotated(event, Annotations::new());
    }

    /// As `record`, with annotations on the event.
    pub(super) fn record_annotated(&self, event: KubeEvent, annotations: Annotations) {
        if self.events.try_send((event, annotations)).is_err() {
            self.meters.lost_event();
            tracing::debug!("an event is dropped");
        }
    }
}

/// A recorder, and the future that publishes its events one after the other.
pub(super) fn channel(
    client: Client,
    controller: String,
    instance: String,
    meters: Arc<Meters>,
) -> (EventRecorder, impl Future<Output = ()>) {
    let (events, mut receiver) = mpsc::channel::<(KubeEvent, Annotations)>(WAITING);
    let lost = Arc::clone(&meters);
    let publishing = async move {
        let reporter = Reporter {
            controller,
            instance: Some(instance),
        };
        let recorder = Recorder::new(client.clone(), reporter.clone());
        while let Some((event, annotations)) = receiver.recv().await {
            let of_pod = event.about.kind.as_deref() == Some("Pod");
            let taken = if annotations.is_empty() && of_pod {
                let (published, about) = plain(event);
                told(recorder.publish(&published, &about).await)
            } else {
                publish(&client, &reporter, event, annotations).await
            };
            if !taken {
                lost.lost_event();
            }
        }
    };
    (EventRecorder { events, meters }, publishing)
}

/// Publishes an event as an object of its own. Returns whether the API server has taken it.
pub(crate) async fn publish(
    client: &Client,
    reporter: &Reporter,
    event: KubeEvent,
    annotations: Annotations,
) -> bool {
    let event = object(event, annotations, reporter);
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Object> = Api::namespaced(client.clone(), namespace);
    told(api.create(&PostParams::default(), &event).await.map(drop))
}

fn told(published: kube::Result<()>) -> bool {
    if let Err(error) = &published {
        tracing::debug!(%error, "an event is not published");
    }
    published.is_ok()
}

fn plain(event: KubeEvent) -> (Event, ObjectReference) {
    let published = Event {
        type_: if event.warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: event.reason.to_owned(),
        note: Some(cut(event.note)),
        action: event.action.to_owned(),
        secondary: None,
    };
    (published, event.about)
}

fn object(event: KubeEvent, annotations: Annotations, reporter: &Reporter) -> Object {
    let now = Timestamp::now();
    let KubeEvent {
        about,
        warning,
        reason,
        action,
        note,
    } = event;
    Object {
        metadata: ObjectMeta {
            // Of an object in no namespace they are there, as client-go has it.
            namespace: Some(about.namespace.clone().unwrap_or("default".to_owned())),
            name: about
                .name
                .as_ref()
                .map(|name| format!("{name}.{:x}", now.as_nanosecond())),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(reporter.controller.clone()),
        reporting_instance: reporter.instance.clone(),
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(reason.to_owned()),
        action: Some(action.to_owned()),
        note: Some(cut(note)),
        regarding: Some(about),
        ..Object::default()
    }
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
