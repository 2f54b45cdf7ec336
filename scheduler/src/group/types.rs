//! Defaults of types of workloads: the priority class and the preemptibility of those that name
//! none, as an admin writes them into a config map.
//!
//! As KAI's pod grouper reads them (`--default-priorities-configmap-name`,
//! `plugins/defaultgrouper`): the key `types` holds a list in JSON, in which a type is named by its
//! kind, or by kind and API group. Followed while the process runs; existing groups keep their
//! values until another pod of theirs is created.

use super::object::Reference;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use proto::names::kai;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The key of the list.
const KEY: &str = "types";

/// Where the config map is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypesAt {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// By `Kind.group`, or by kind without a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Types(BTreeMap<String, OfType>);

/// What the workloads of one type have that name nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct OfType {
    type_name: String,
    group: String,
    priority_name: String,
    preemptibility: String,
}

impl Types {
    /// From the list. An entry that is written twice counts as it is written last.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let list: Vec<OfType> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let named = |one: OfType| (key(&one.type_name, &one.group), one);
        Ok(Self(list.into_iter().map(named).collect()))
    }

    fn get(&self, owner: &Reference) -> Option<&OfType> {
        let full = key(&owner.kind, owner.group());
        self.0.get(&full).or_else(|| self.0.get(&owner.kind))
    }

    /// The priority class of an owner's type.
    pub(super) fn class(&self, owner: &Reference) -> Option<&str> {
        let name = self.get(owner)?.priority_name.as_str();
        (!name.is_empty()).then_some(name)
    }

    /// Its preemptibility, where that is one of KAI's words, in any case.
    pub(super) fn preemptibility(&self, owner: &Reference) -> Option<String> {
        let word = self.get(owner)?.preemptibility.to_lowercase();
        kai::PREEMPTIBILITIES
            .contains(&word.as_str())
            .then_some(word)
    }
}

fn key(kind: &str, group: &str) -> String {
    if group.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}.{group}")
    }
}

/// Follows the config map without end. `told`: `None` until it was looked up.
pub(super) async fn follow(client: Client, at: TypesAt, told: &watch::Sender<Option<Arc<Types>>>) {
    let api: Api<ConfigMap> = Api::namespaced(client, &at.namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={}", at.name));
    let mut events = std::pin::pin!(watcher(api, only).default_backoff());
    let mut last = String::new();
    let mut say = |why: &str| {
        if why != last {
            tracing::warn!(
                namespace = at.namespace,
                name = at.name,
                "the config map of default priorities: {why}"
            );
            why.clone_into(&mut last);
        }
    };
    let mut is_there = false;
    while let Some(event) = events.next().await {
        let read = match event {
            Ok(Event::Init) => {
                is_there = false;
                continue;
            }
            Ok(Event::Apply(map) | Event::InitApply(map)) => {
                is_there = true;
                read(&map)
            }
            Ok(Event::InitDone) if is_there => continue,
            Ok(Event::InitDone | Event::Delete(_)) => Err("it is not there".to_owned()),
            // The last state stays.
            Err(error) => {
                say(&error.to_string());
                continue;
            }
        };
        let types = read.unwrap_or_else(|why| {
            say(&format!("{why}; no type has a default"));
            Types::default()
        });
        told.send_if_modified(|before| {
            let types = Some(Arc::new(types));
            let is_new = *before != types;
            *before = types;
            is_new
        });
    }
}

fn read(map: &ConfigMap) -> Result<Types, String> {
    let text = map.data.as_ref().and_then(|data| data.get(KEY));
    let text = text.ok_or_else(|| format!("it has no key {KEY}"))?;
    Types::of(text).map_err(|why| {
        format!("its key {KEY} is no list such as [{{\"typeName\": \"Deployment\", \"priorityName\": \"inference\"}}] ({why})")
    })
}
