//! Kubernetes events about pods and pod groups: best effort, never in the way of a decision.
//!
//! An event of a pod that comes again within minutes is counted on, whatever its text, as
//! kube-scheduler's are (`Recorder`): the pod's condition has the words of now. Events of groups,
//! those with annotations, and why a pod has no group are objects of their own ([`publish`]): each
//! is said once, and its text is what is new.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use std::collections::BTreeMap;
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
pub(crate) struct Notice {
    pub(crate) about: ObjectReference,
    pub(crate) warning: bool,
    /// KAI's reasons.
    pub(crate) reason: &'static str,
    pub(crate) action: &'static str,
    pub(crate) note: String,
}

/// What tools read of an event.
pub(crate) type Annotations = BTreeMap<String, String>;

/// Where they are left.
#[derive(Clone, Debug)]
pub(super) struct Notices(mpsc::Sender<(Notice, Annotations)>);

impl Notices {
    /// Dropped when too many wait.
    pub(super) fn say(&self, notice: Notice) {
        self.say_with(notice, Annotations::new());
    }

    /// As `say`, with annotations on the event.
    pub(super) fn say_with(&self, notice: Notice, annotations: Annotations) {
        if self.0.try_send((notice, annotations)).is_err() {
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
    let (sender, mut receiver) = mpsc::channel::<(Notice, Annotations)>(WAITING);
    let publishing = async move {
        let reporter = Reporter {
            controller,
            instance: Some(instance),
        };
        let recorder = Recorder::new(client.clone(), reporter.clone());
        while let Some((notice, annotations)) = receiver.recv().await {
            if annotations.is_empty() && notice.about.kind.as_deref() == Some("Pod") {
                let (event, about) = plain(notice);
                told(recorder.publish(&event, &about).await);
            } else {
                publish(&client, &reporter, notice, annotations).await;
            }
        }
    };
    (Notices(sender), publishing)
}

/// Publishes an event as an object of its own.
pub(crate) async fn publish(
    client: &Client,
    reporter: &Reporter,
    notice: Notice,
    annotations: Annotations,
) {
    let event = object(notice, annotations, reporter);
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Object> = Api::namespaced(client.clone(), namespace);
    told(api.create(&PostParams::default(), &event).await.map(drop));
}

fn told(published: kube::Result<()>) {
    if let Err(error) = published {
        tracing::debug!(%error, "an event is not published");
    }
}

fn plain(notice: Notice) -> (Event, ObjectReference) {
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
    (event, notice.about)
}

fn object(notice: Notice, annotations: Annotations, reporter: &Reporter) -> Object {
    let now = Timestamp::now();
    let Notice {
        about,
        warning,
        reason,
        action,
        note,
    } = notice;
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
