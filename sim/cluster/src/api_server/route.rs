//! The parts of a URL: resource, namespace, name, subresource, and its query. Never reads objects,
//! except the CRDs that add resources.

use super::resource::{Resource, built_in};
use super::shared::Shared;
use super::store::Key;
use axum::http::Uri;
use std::collections::BTreeMap;

/// The query, decoded.
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    pub(super) fn parse(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&');
        Self(
            pairs
                .filter(|pair| !pair.is_empty())
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(key, value)| (decode(key), decode(value)))
                .collect(),
        )
    }

    pub(super) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub(super) fn is_set(&self, key: &str) -> bool {
        matches!(self.get(key), "true" | "1")
    }
}

pub(super) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let escape = bytes
            .get(position + 1..position + 3)
            .filter(|_| bytes[position] == b'%')
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = escape {
            out.push(byte);
            position += 3;
        } else {
            out.push(if bytes[position] == b'+' {
                b' '
            } else {
                bytes[position]
            });
            position += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) resource: Resource,
    /// `None` on a namespaced resource: all of them.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) sub: Option<String>,
}

impl Target {
    pub(super) fn key(&self) -> Key {
        Key {
            namespace: self.namespace.clone().unwrap_or_default(),
            name: self.name.clone().unwrap_or_default(),
        }
    }
}

pub(super) fn target(
    shared: &Shared,
    group: &str,
    version: &str,
    rest: &[String],
) -> Option<Target> {
    let words: Vec<&str> = rest.iter().map(String::as_str).collect();
    let (namespace, words) = match words[..] {
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, &words[..]),
        ["namespaces", namespace, ..] => (Some(namespace.to_owned()), &words[2..]),
        _ => (None, &words[..]),
    };
    let (plural, name, sub) = match *words {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some(name), None),
        [plural, name, sub] => (plural, Some(name), Some(sub)),
        _ => return None,
    };
    let resource = built_in(group, version, plural).or_else(|| {
        let custom = shared.state().store.custom_resources();
        custom
            .into_iter()
            .find(|one| one.is(group, plural) && one.version == version)
    })?;
    if namespace.is_some() && !resource.namespaced
        || name.is_some() && resource.namespaced && namespace.is_none()
    {
        return None;
    }
    Some(Target {
        resource,
        namespace,
        name: name.map(str::to_owned),
        sub: sub.map(str::to_owned),
    })
}
