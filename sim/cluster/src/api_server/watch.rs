//! A watch: from a revision on, every change of a collection as a line of JSON.
//!
//! In: the shared store and its revision as a signal. Out: a stream of lines. An object that a
//! selector no longer matches is sent as DELETED, one that it begins to match as ADDED. Ends at its
//! timeout, when the server stops, and with 410 when its past is forgotten.

use super::error::ApiError;
use super::form::{Form, shown};
use super::resource::Resource;
use super::selector::Selector;
use super::shared::Shared;
use super::store::Change;
use futures::Stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The watched objects, and the options.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) resource: Resource,
    pub(crate) namespace: Option<String>,
    pub(crate) selector: Selector,
    /// `None`: begin with everything that is there.
    pub(crate) from: Option<u64>,
    /// `sendInitialEvents`: everything, then a bookmark that says so.
    pub(crate) streaming_list: bool,
    pub(crate) bookmarks: bool,
    pub(crate) timeout: Duration,
    /// The format of objects.
    pub(super) form: Form,
}

struct State {
    shared: Arc<Shared>,
    watch: Watch,
    signal: watch::Receiver<u64>,
    cursor: u64,
    lines: VecDeque<String>,
    deadline: Instant,
    bookmark_at: Instant,
    over: bool,
}

/// Starts a watch.
pub(crate) fn stream(
    shared: Arc<Shared>,
    watch: Watch,
) -> impl Stream<Item = Result<String, Infallible>> {
    let signal = shared.revision.subscribe();
    let mut state = State {
        cursor: watch.from.unwrap_or_default(),
        deadline: Instant::now() + watch.timeout,
        bookmark_at: Instant::now() + shared.bookmark_every,
        lines: VecDeque::new(),
        over: false,
        signal,
        shared,
        watch,
    };
    if state.watch.from.is_none() {
        state.everything();
    }
    futures::stream::unfold(state, |mut state| async move {
        let line = state.next().await?;
        Some((Ok(line), state))
    })
}

impl State {
    fn everything(&mut self) {
        let guard = self.shared.state();
        let collection = self.watch.resource.collection();
        let objects: Vec<Arc<Value>> = guard
            .store
            .list(&collection, self.watch.namespace.as_deref())
            .filter(|object| self.watch.selector.matches(object))
            .cloned()
            .collect();
        self.cursor = guard.store.revision();
        drop(guard);
        for object in objects {
            self.tell("ADDED", &object);
        }
        if self.watch.streaming_list {
            self.bookmark(true);
        }
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.over {
                return None;
            }
            self.signal.borrow_and_update();
            let changes = {
                let guard = self.shared.state();
                let changes = guard
                    .store
                    .since(&self.watch.resource.collection(), self.cursor);
                if changes.is_ok() {
                    self.cursor = guard.store.revision();
                }
                changes
            };
            match changes {
                Ok(changes) => changes.iter().for_each(|change| self.take(change)),
                Err(error) => self.fail(&error),
            }
            if !self.lines.is_empty() {
                continue;
            }
            tokio::select! {
                alive = self.signal.changed() => self.over |= alive.is_err(),
                () = tokio::time::sleep_until(self.bookmark_at) => {
                    self.bookmark_at = Instant::now() + self.shared.bookmark_every;
                    if self.watch.bookmarks {
                        self.bookmark(false);
                    }
                }
                () = tokio::time::sleep_until(self.deadline) => self.over = true,
                () = self.shared.stop.cancelled() => self.over = true,
            }
        }
    }

    fn take(&mut self, change: &Change) {
        let meant = |object: &Value| {
            self.watch
                .namespace
                .as_deref()
                .is_none_or(|wanted| super::object::namespace(object) == wanted)
                && self.watch.selector.matches(object)
        };
        let was = change.before.as_deref().is_some_and(meant);
        let is = !change.deleted && meant(&change.object);
        match (was, is) {
            (false, true) => self.tell("ADDED", &change.object),
            (true, true) => self.tell("MODIFIED", &change.object),
            (true, false) => self.tell("DELETED", &change.object),
            (false, false) => {}
        }
    }

    fn tell(&mut self, kind: &str, object: &Value) {
        let shown = shown(&self.watch.resource, object, &self.watch.form);
        self.lines
            .push_back(format!("{}\n", json!({"type": kind, "object": shown})));
    }

    fn bookmark(&mut self, initial_end: bool) {
        let mut meta =
            json!({"resourceVersion": self.cursor.to_string(), "creationTimestamp": null});
        if initial_end {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = json!({
            "apiVersion": self.watch.resource.api_version(), "kind": self.watch.resource.kind, "metadata": meta,
        });
        if self.watch.resource.is("", "pods") {
            // What a typed client needs in order to read the object at all.
            object["spec"] = json!({"containers": null});
        }
        self.lines.push_back(format!(
            "{}\n",
            json!({"type": "BOOKMARK", "object": object})
        ));
    }

    fn fail(&mut self, error: &ApiError) {
        self.lines.push_back(format!(
            "{}\n",
            json!({"type": "ERROR", "object": error.status()})
        ));
        self.over = true;
    }
}
