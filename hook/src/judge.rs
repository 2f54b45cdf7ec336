//! Expected and seen → let through, or one line that says why not.

use crate::refusal::HookError;
use crate::state::{Bundle, State};
use cdi::hook::{Arguments, Holders, ShareOwner};
use cdi::{ContainerEdits, Spec};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// For a pod that the agent does not know yet: the kubelet and the agent learn of it at the same
/// time.
pub const LISTED_WITHIN: Duration = Duration::from_secs(2);
/// Time between two readings of the file.
const AGAIN: Duration = Duration::from_millis(20);

/// Whether this is a container that the share is for. For one that the agent has not listed
/// yet waits until `until`.
///
/// # Errors
/// It is another, or it is not known that it is one.
pub fn admit(expected: &Arguments, state: &State, until: Instant) -> Result<(), HookError> {
    let (seen_pod, seen_container) = (state.pod_uid()?, state.container()?);
    match &expected.whose {
        ShareOwner::Container { pod_uid, container } => {
            let pairs = [
                ("pod", pod_uid, seen_pod),
                ("container", container, seen_container),
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
            Ok(())
        }
        ShareOwner::Listed(file) => loop {
            let why = match listed(file, &expected.alloc, seen_pod, seen_container)? {
                Listed::Yes => return Ok(()),
                Listed::NotYet => String::new(),
                Listed::Unknown(error) => format!(": {}: {error}", file.display()),
            };
            if Instant::now() >= until {
                return Err(HookError::NotListed {
                    pod_uid: seen_pod.to_owned(),
                    container: seen_container.to_owned(),
                    why,
                });
            }
            std::thread::sleep(AGAIN);
        },
    }
}

enum Listed {
    Yes,
    NotYet,
    /// The file does not say.
    Unknown(io::Error),
}

fn listed(file: &Path, alloc: &str, pod_uid: &str, container: &str) -> Result<Listed, HookError> {
    let holders = match Holders::read(file, alloc) {
        Ok(holders) => holders,
        Err(error) => return Ok(Listed::Unknown(error)),
    };
    match holders.admits(pod_uid, container) {
        Ok(()) => Ok(Listed::Yes),
        Err(None) => Ok(Listed::NotYet),
        Err(Some(why)) => Err(HookError::Refused(why.to_owned())),
    }
}

/// Whether the container has what should have been injected into it.
///
/// # Errors
/// The first thing that is not as it was expected to be.
pub fn judge(expected: &Arguments, injected: Option<(&Spec, &Bundle)>) -> Result<(), HookError> {
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
            whose: ShareOwner::Container {
                pod_uid: "u".into(),
                container: "c".into(),
            },
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
        assert_eq!(judge(&expected(), seen), Ok(()));
        assert_eq!(judge(&expected(), None), Ok(()));
        assert_eq!(admit(&expected(), &state(), Instant::now()), Ok(()));
    }

    #[test]
    fn another_pod_or_container_is_refused() {
        for (key, what) in [
            ("io.kubernetes.cri.sandbox-uid", "pod"),
            ("io.kubernetes.cri.container-name", "container"),
        ] {
            let mut state = state();
            state.annotations.insert(key.into(), "other".into());
            let refusal = admit(&expected(), &state, Instant::now()).unwrap_err();
            assert!(
                matches!(refusal, HookError::NotTheHolder { what: found, .. } if found == what),
                "{refusal}"
            );
        }
    }

    #[test]
    fn one_of_several_containers_is_waited_for_and_any_other_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("holders.json");
        let expected = Arguments {
            whose: ShareOwner::Listed(file.clone()),
            ..expected()
        };
        let admitted = |wait: Duration| admit(&expected, &state(), Instant::now() + wait);
        let list = |text: &str| {
            let temporary = folder.path().join("new");
            std::fs::write(&temporary, text).unwrap();
            std::fs::rename(temporary, &file).unwrap();
        };
        let of = |uid: &str, refused: &str| {
            format!(
                r#"{{"version":1,"allocId":"0a","holders":[{{"podUid":"{uid}","podName":"p","container":"c"}}],"refused":[{refused}]}}"#
            )
        };
        // Without a list every container is refused, with the reason.
        let refusal = admitted(Duration::ZERO).unwrap_err().to_string();
        assert!(refusal.contains("No such file"), "{refusal}");
        list("{");
        let refusal = admitted(Duration::ZERO).unwrap_err();
        assert!(matches!(refusal, HookError::NotListed { .. }), "{refusal}");
        list(&of("other", ""));
        let refusal = admitted(AGAIN).unwrap_err().to_string();
        assert!(refusal.ends_with("this GPU share is for"), "{refusal}");
        // Of one that must not, nothing is waited for.
        list(&of("other", r#"{"podUid":"u","why":"it is privileged"}"#));
        let refusal = admitted(Duration::from_mins(1)).unwrap_err();
        assert_eq!(refusal, HookError::Refused("it is privileged".into()));
        list(&of("other", ""));
        std::thread::scope(|scope| {
            let late = scope.spawn(|| admitted(Duration::from_mins(1)));
            std::thread::sleep(AGAIN * 3);
            list(&of("u", ""));
            assert_eq!(late.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn old_content_is_refused() {
        let bundle = bundle(&["LIMIT=9000", "EMPTY="]);
        let mut newer = spec();
        newer.devices[0].container_edits.env[0] = "LIMIT=9000".into();
        assert_eq!(
            judge(&expected(), Some((&newer, &bundle))),
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
            judge(&expected, seen),
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
            let refusal = judge(&expected(), Some((&spec(), &bundle(env)))).unwrap_err();
            assert!(
                matches!(&refusal, HookError::Overridden { seen, .. } if seen == other),
                "{env:?}: {refusal}"
            );
        }
    }
}
