//! Expected and seen → let through, or one line that says why not.

use crate::state::{Bundle, State};
use cdi::hook::{Arguments, ArgumentsError};
use cdi::{ContainerEdits, Spec};

/// Why the container must not start. One line each; the kubelet shows it in the pod's
/// events, and its back-off tries again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// Our agent did not write this command line.
    #[error(transparent)]
    Arguments(#[from] ArgumentsError),
    /// Nothing to compare with.
    #[error("cannot read {0}")]
    Unreadable(String),
    /// The runtime did not say who the container is.
    #[error("the container runtime names no {what} in its annotations")]
    Unnamed {
        /// "pod UID" or "container name".
        what: &'static str,
    },
    /// It said so twice, differently.
    #[error("annotations name two {what}s: {first} and {second}")]
    Ambiguous {
        /// "pod UID" or "container name".
        what: &'static str,
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// This share is another container's.
    #[error("this GPU share belongs to {what} {expected}, not {seen}")]
    NotTheHolder {
        /// "pod" or "container".
        what: &'static str,
        /// Whose it is.
        expected: String,
        /// Who is here.
        seen: String,
    },
    /// The runtime injected what the CDI file said before.
    #[error("the container was given an older version of its GPU share; it is tried again")]
    Stale,
    /// The file does not define the device.
    #[error("the CDI file does not define {0}")]
    NoDevice(String),
    /// Something set a variable of the share after the share.
    #[error("{name} is {seen:?} in the container, its GPU share says {expected:?}")]
    Overridden {
        /// The variable.
        name: String,
        /// By the share.
        expected: String,
        /// In the container; empty when it is not set.
        seen: String,
    },
    /// The node's minimum fence is the driver's own limit.
    #[error("the driver's memory limit is not set: {0}")]
    NoLimit(String),
    /// The agent could not be told.
    #[error("cannot leave proof: {0}")]
    Proof(String),
}

/// Whether the container may have what was injected into it.
///
/// # Errors
/// The first thing that is not as it was expected to be.
pub fn judge(
    expected: &Arguments,
    state: &State,
    injected: Option<(&Spec, &Bundle)>,
) -> Result<(), HookError> {
    let pairs = [
        ("pod", &expected.pod_uid, state.pod_uid()?),
        ("container", &expected.container, state.container()?),
    ];
    for (what, expected, seen) in pairs {
        if expected != seen {
            return Err(HookError::NotTheHolder {
                what,
                expected: expected.clone(),
                seen: seen.to_owned(),
            });
        }
    }
    let Some((spec, bundle)) = injected else {
        return Ok(());
    };
    if Some(cdi::digest(spec)) != expected.digest {
        return Err(HookError::Stale);
    }
    let device = spec
        .devices
        .iter()
        .find(|device| device.name == expected.alloc)
        .ok_or_else(|| HookError::NoDevice(expected.alloc.clone()))?;
    let mut edits = spec.container_edits.clone();
    edits.merge(device.container_edits.clone());
    environment_holds(&edits, bundle)
}

/// Every variable of the share must have its value, and no second one: which of two a
/// program sees is its C library's choice.
fn environment_holds(edits: &ContainerEdits, bundle: &Bundle) -> Result<(), HookError> {
    for pair in &edits.env {
        let Some((name, expected)) = pair.split_once('=') else {
            continue;
        };
        let mut seen = bundle
            .process
            .env
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .filter(|(other, _)| *other == name)
            .map(|(_, value)| value)
            .peekable();
        let other = if seen.peek().is_none() {
            Some("")
        } else {
            seen.find(|value| *value != expected)
        };
        if let Some(other) = other {
            return Err(HookError::Overridden {
                name: name.to_owned(),
                expected: expected.to_owned(),
                seen: other.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Process;
    use cdi::Device;

    fn spec() -> Spec {
        Spec {
            kind: "aliquot.dev/grant".into(),
            devices: vec![Device {
                name: "0a".into(),
                container_edits: ContainerEdits {
                    env: vec!["LIMIT=2000".into(), "EMPTY=".into()],
                    ..ContainerEdits::default()
                },
                ..Device::default()
            }],
            ..Spec::default()
        }
    }

    fn expected() -> Arguments {
        Arguments {
            pod_uid: "u".into(),
            container: "c".into(),
            alloc: "0a".into(),
            digest: Some(cdi::digest(&spec())),
            proof: "/p".into(),
            spec: Some("/s".into()),
            limit: None,
        }
    }

    fn state() -> State {
        State {
            id: "x".into(),
            annotations: [
                ("io.kubernetes.cri.sandbox-uid", "u"),
                ("io.kubernetes.cri.container-name", "c"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            ..State::default()
        }
    }

    fn bundle(env: &[&str]) -> Bundle {
        Bundle {
            process: Process {
                env: env.iter().map(ToString::to_string).collect(),
            },
        }
    }

    #[test]
    fn the_holder_with_its_own_share_passes() {
        let bundle = bundle(&["PATH=/bin", "LIMIT=2000", "EMPTY="]);
        let seen = Some((&spec(), &bundle));
        assert_eq!(judge(&expected(), &state(), seen), Ok(()));
        assert_eq!(judge(&expected(), &state(), None), Ok(()));
    }

    #[test]
    fn another_pod_or_container_is_refused() {
        for (key, what) in [
            ("io.kubernetes.cri.sandbox-uid", "pod"),
            ("io.kubernetes.cri.container-name", "container"),
        ] {
            let mut state = state();
            state.annotations.insert(key.into(), "other".into());
            let refusal = judge(&expected(), &state, None).unwrap_err();
            assert!(
                matches!(refusal, HookError::NotTheHolder { what: found, .. } if found == what),
                "{refusal}"
            );
        }
    }

    #[test]
    fn old_content_is_refused() {
        let bundle = bundle(&["LIMIT=9000", "EMPTY="]);
        let mut newer = spec();
        newer.devices[0].container_edits.env[0] = "LIMIT=9000".into();
        assert_eq!(
            judge(&expected(), &state(), Some((&newer, &bundle))),
            Err(HookError::Stale)
        );
    }

    #[test]
    fn a_file_without_the_device_is_refused() {
        let expected = Arguments {
            alloc: "0b".into(),
            ..expected()
        };
        let seen = Some((&spec(), &bundle(&[])));
        assert_eq!(
            judge(&expected, &state(), seen),
            Err(HookError::NoDevice("0b".into()))
        );
    }

    #[test]
    fn a_variable_that_was_raised_removed_or_doubled_is_refused() {
        let table: [(&[&str], &str); 4] = [
            (&["LIMIT=9000", "EMPTY="], "9000"),
            (&["EMPTY="], ""),
            (&["LIMIT=2000", "EMPTY=", "LIMIT=9000"], "9000"),
            (&["LIMIT=2000"], ""),
        ];
        for (env, other) in table {
            let refusal = judge(&expected(), &state(), Some((&spec(), &bundle(env)))).unwrap_err();
            assert!(
                matches!(&refusal, HookError::Overridden { seen, .. } if seen == other),
                "{env:?}: {refusal}"
            );
        }
    }
}
