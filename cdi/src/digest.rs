//! One number for the content of a spec, carried by the spec's own hook.
//!
//! A runtime learns of a changed file by inotify, so for a moment it can inject the file's previous
//! content. The injected content itself gives the hook the digest, and the hook compares it with
//! the current file: old content is detected.
//!
//! The digest covers everything but itself: the argument that follows [`FLAG`] counts as
//! empty. It is taken over the compact JSON of the parsed spec, so white space and the
//! order of keys in the file do not matter.

use crate::spec::Spec;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// The hook's argument before the digest.
pub const FLAG: &str = "--digest";

/// SHA-256 of a spec's content; 64 hexadecimal digits when printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

/// Not 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hexadecimal digits")]
pub struct DigestError;

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let nibble = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(DigestError),
        };
        let text = text.as_bytes();
        if text.len() != 64 {
            return Err(DigestError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

/// Of a spec as it was read or is about to be written, sealed or not.
pub fn digest(spec: &Spec) -> Digest {
    let mut blank = spec.clone();
    put(&mut blank, "");
    let text = serde_json::to_string(&blank)
        .expect("strings, integers and maps with string keys always print");
    Digest(Sha256::digest(text.as_bytes()).into())
}

/// Puts the digest behind [`FLAG`] in every hook that has it, and answers it.
pub fn seal(spec: &mut Spec) -> Digest {
    let digest = digest(spec);
    put(spec, &digest.to_string());
    digest
}

fn put(spec: &mut Spec, text: &str) {
    let edits = spec
        .devices
        .iter_mut()
        .map(|device| &mut device.container_edits)
        .chain(std::iter::once(&mut spec.container_edits));
    for hook in edits.flat_map(|edits| &mut edits.hooks) {
        let mut after_flag = false;
        for argument in &mut hook.args {
            if after_flag {
                text.clone_into(argument);
            }
            after_flag = argument == FLAG;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{ContainerEdits, Device, Hook};

    fn spec() -> Spec {
        Spec {
            cdi_version: "0.5.0".into(),
            kind: "aliquot.dev/grant".into(),
            devices: vec![Device {
                name: "0a".into(),
                container_edits: ContainerEdits {
                    env: vec!["A=1".into()],
                    hooks: vec![Hook {
                        hook_name: "createRuntime".into(),
                        path: "/hook".into(),
                        args: ["aliquot-hook", "--digest", "", "--pod-uid", "u"]
                            .map(str::to_owned)
                            .to_vec(),
                        ..Hook::default()
                    }],
                    ..ContainerEdits::default()
                },
                ..Device::default()
            }],
            ..Spec::default()
        }
    }

    #[test]
    fn sealing_does_not_change_the_digest() {
        let mut sealed = spec();
        let told = seal(&mut sealed);
        assert_eq!(
            sealed.devices[0].container_edits.hooks[0].args[2],
            told.to_string()
        );
        assert_eq!(digest(&sealed), told);
        let reread: Spec = serde_json::from_str(&sealed.to_json()).unwrap();
        assert_eq!(digest(&reread), told);
    }

    #[test]
    fn any_other_change_shows() {
        let before = digest(&spec());
        let mut other_env = spec();
        other_env.devices[0].container_edits.env[0] = "A=2".into();
        let mut other_pod = spec();
        other_pod.devices[0].container_edits.hooks[0].args[4] = "v".into();
        let mut no_hook = spec();
        no_hook.devices[0].container_edits.hooks.clear();
        for changed in [other_env, other_pod, no_hook] {
            assert_ne!(digest(&changed), before);
        }
    }

    #[test]
    fn a_digest_reads_back_and_noise_does_not() {
        let told = digest(&spec());
        assert_eq!(told.to_string().parse(), Ok(told));
        for noise in ["", "00", &"g".repeat(64), &"A".repeat(64), &"é".repeat(32)] {
            assert_eq!(noise.parse::<Digest>(), Err(DigestError));
        }
    }

    #[test]
    fn the_digest_is_sha_256_of_the_compact_json() {
        // Must never change: an agent and a hook of different versions must agree.
        assert_eq!(
            digest(&spec()).to_string(),
            "4bfca2f7d5d6f3a73082d9babc5b8604e4bf110c09a30e964e230b4ff0736a90"
        );
    }
}
