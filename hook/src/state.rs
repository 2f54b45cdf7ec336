//! What the runtime says: the OCI state on standard input, and the bundle's `config.json`.
//!
//! Bounded reads: the annotations in both are the tenant's text.

use crate::refusal::HookError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Kubernetes allows 256 KiB of annotations in all.
const MAX_STATE_BYTES: u64 = 1 << 20;
/// A large image's environment, seccomp profile and mounts stay far below.
const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// Annotations in which container runtimes name the pod's UID: containerd, CRI-O.
const POD_UID_KEYS: [&str; 2] = ["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"];
/// The same for the container's name.
const CONTAINER_KEYS: [&str; 2] = [
    "io.kubernetes.cri.container-name",
    "io.kubernetes.container.name",
];

/// The OCI state, as far as the guard needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct State {
    /// The container, as the runtime names it.
    pub id: String,
    /// Its first process, in the runtime's pid namespace.
    #[serde(default)]
    pub pid: u32,
    /// The folder with `config.json`.
    #[serde(default)]
    pub bundle: PathBuf,
    /// The container's, some of them written by its runtime.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// `config.json`, as far as the guard needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Bundle {
    /// The container's first process.
    #[serde(default)]
    pub process: Process,
}

/// The container's first process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Process {
    /// `NAME=value`, as the process will get it.
    #[serde(default)]
    pub env: Vec<String>,
}

impl State {
    /// From the runtime.
    ///
    /// # Errors
    /// [`HookError::Unreadable`].
    pub fn read(input: impl Read) -> Result<Self, HookError> {
        parse("OCI state on standard input", input, MAX_STATE_BYTES)
    }

    /// UID of the container's pod, by the runtime's account.
    ///
    /// # Errors
    /// No annotation, or two that differ: one of them is the tenant's own.
    pub fn pod_uid(&self) -> Result<&str, HookError> {
        self.agreed("pod UID", POD_UID_KEYS)
    }

    /// The container's name, by the runtime's account.
    ///
    /// # Errors
    /// As [`State::pod_uid`].
    pub fn container(&self) -> Result<&str, HookError> {
        self.agreed("container name", CONTAINER_KEYS)
    }

    /// A runtime sets one form; the other can only come from the pod's annotations.
    fn agreed(&self, what: &'static str, keys: [&'static str; 2]) -> Result<&str, HookError> {
        let mut values = keys.iter().filter_map(|key| self.annotations.get(*key));
        let first = values.next().ok_or(HookError::Unnamed { what })?;
        match values.find(|other| *other != first) {
            None => Ok(first),
            Some(second) => Err(HookError::Ambiguous {
                what,
                first: first.clone(),
                second: second.clone(),
            }),
        }
    }
}

impl Bundle {
    /// From the bundle's `config.json`.
    ///
    /// # Errors
    /// [`HookError::Unreadable`].
    pub fn read(bundle: &Path) -> Result<Self, HookError> {
        let path = bundle.join("config.json");
        let what = path.display().to_string();
        let file =
            File::open(&path).map_err(|error| HookError::Unreadable(format!("{what}: {error}")))?;
        parse(&what, file, MAX_CONFIG_BYTES)
    }

    /// From the text of a `config.json`.
    ///
    /// # Errors
    /// [`HookError::Unreadable`].
    pub fn parse(text: &[u8]) -> Result<Self, HookError> {
        parse("config.json", text, MAX_CONFIG_BYTES)
    }
}

fn parse<T: for<'de> Deserialize<'de>>(
    what: &str,
    input: impl Read,
    limit: u64,
) -> Result<T, HookError> {
    let mut text = Vec::new();
    input
        .take(limit + 1)
        .read_to_end(&mut text)
        .map_err(|error| HookError::Unreadable(format!("{what}: {error}")))?;
    if text.len() as u64 > limit {
        return Err(HookError::Unreadable(format!(
            "{what}: larger than {limit} bytes"
        )));
    }
    serde_json::from_slice(&text).map_err(|error| HookError::Unreadable(format!("{what}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As runc hands it over under containerd 2.
    const CONTAINERD: &str = r#"{"ociVersion":"1.2.0","id":"4f1c","status":"creating","pid":4711,
        "bundle":"/run/containerd/io.containerd.runtime.v2.task/k8s.io/4f1c",
        "annotations":{"io.kubernetes.cri.container-name":"main","io.kubernetes.cri.container-type":"container",
        "io.kubernetes.cri.sandbox-id":"9a","io.kubernetes.cri.sandbox-name":"p",
        "io.kubernetes.cri.sandbox-namespace":"default","io.kubernetes.cri.sandbox-uid":"u-1"}}"#;
    const CRIO: &str = r#"{"ociVersion":"1.2.0","id":"4f1c","status":"creating","pid":4711,"bundle":"/b",
        "annotations":{"io.kubernetes.pod.uid":"u-1","io.kubernetes.container.name":"main",
        "io.kubernetes.cri-o.SandboxName":"k8s_p"}}"#;

    #[test]
    fn both_runtimes_forms_are_read() {
        for text in [CONTAINERD, CRIO] {
            let state = State::read(text.as_bytes()).unwrap();
            assert_eq!(state.pod_uid().unwrap(), "u-1");
            assert_eq!(state.container().unwrap(), "main");
            assert_eq!(state.pid, 4711);
        }
    }

    #[test]
    fn a_second_form_that_disagrees_is_refused_and_one_that_agrees_is_not() {
        let mut state = State::read(CONTAINERD.as_bytes()).unwrap();
        let mut set = |value: &str| {
            state
                .annotations
                .insert("io.kubernetes.pod.uid".into(), value.into());
            state.pod_uid().map(str::to_owned)
        };
        assert_eq!(set("u-1").unwrap(), "u-1");
        assert!(matches!(set("u-2"), Err(HookError::Ambiguous { .. })));
    }

    #[test]
    fn a_state_without_names_noise_and_a_flood_are_refused() {
        let bare = State::read(r#"{"id":"x"}"#.as_bytes()).unwrap();
        assert!(matches!(bare.pod_uid(), Err(HookError::Unnamed { .. })));
        for noise in ["", "{", "[]", "{\"pid\":-1,\"id\":\"x\"}"] {
            assert!(State::read(noise.as_bytes()).is_err(), "{noise:?}");
        }
        let flood = std::io::repeat(b' ');
        let refusal = State::read(flood).unwrap_err().to_string();
        assert!(refusal.contains("larger than 1048576 bytes"), "{refusal}");
    }

    proptest! {
        #[test]
        fn no_input_is_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = State::read(bytes.as_slice());
        }
    }
}
