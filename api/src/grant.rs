//! The signed grant: what the scheduler decided for one pod, as one annotation.
//!
//! Text form: `<base64url signature>.<JSON>`. The Ed25519 signature covers the JSON's exact bytes,
//! so nothing has to be printed again to check it. A grant that is altered, copied to another pod,
//! or replayed after the pod was recreated does not match: it names pod UID, node UID and cluster.

use crate::units::{Mib, Mode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The only version there is.
pub const VERSION: u32 = 1;

/// What one pod was granted on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// [`VERSION`].
    pub v: u32,
    /// Which of the scheduler's keys signed.
    pub key: String,
    /// UID of the cluster's kube-system namespace.
    pub cluster: String,
    /// The pod, by UID.
    pub pod: PodIdentity,
    /// The node, by UID.
    pub node: NodeIdentity,
    /// One entry per container that holds cards.
    pub containers: Vec<ContainerGrant>,
    /// The decision that this came from.
    pub decision: String,
    /// The queue that the pod is charged to while it is bound, whatever its labels say later. None
    /// in a grant that was signed before grants had this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Name of its pod group in its namespace, whatever its annotation says later. None: it
    /// was bound as a group of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Which pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodIdentity {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl fmt::Display for PodIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// What one container holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerGrant {
    /// The container's name.
    pub name: String,
    /// UUIDs of the cards.
    pub gpus: Vec<String>,
    /// Limit on each of them; the card's whole grantable memory in mode `exclusive`.
    pub memory_mib: Mib,
    /// The part of each that is kept for it, if less than its limit: what it holds above that is
    /// reclaimed when the shares for which it is kept need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_mib: Option<Mib>,
    /// Compute ceiling, 1 to 100 per cent.
    pub compute_percent: u8,
    /// How the cards are shared.
    pub mode: Mode,
    /// Set where the last share of a card got its remainder instead of its full allowance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What of each card was asked for, and is charged, where that is not the limit: a
    /// fraction has an allowance beside it, the last share of a card may have less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
}

impl ContainerGrant {
    /// What of each card is kept for it: what the card's grants sum to.
    pub fn kept(&self) -> Mib {
        self.request_mib
            .map_or(self.memory_mib, |request| request.min(self.memory_mib))
    }
}

/// How much of a card was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Asked {
    /// MiB.
    MemoryMib(Mib),
    /// Billionths of the card.
    NanoGpu(u64),
}

/// Why a grant is not honoured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// Not of the form that we write.
    #[error("grant is not readable: {0}")]
    Malformed(&'static str),
    /// Written by a newer scheduler.
    #[error("grant has version {0}, this agent knows {VERSION}")]
    Version(u32),
    /// The key is not among those that the cluster publishes.
    #[error("grant is signed with key {0}, which is not in the aliquot-trust ConfigMap")]
    UnknownKey(String),
    /// The bytes are not those that were signed.
    #[error("grant's signature does not match: it was altered")]
    Signature,
    /// Signed for something else.
    #[error("grant is for {what} {granted}, not {actual}")]
    NotForThis {
        /// "cluster", "pod", "pod UID", "node" or "node UID".
        what: &'static str,
        /// What the grant says.
        granted: String,
        /// What is here.
        actual: String,
    },
}

/// Signs grants. The private key never leaves this type.
pub struct Signer {
    pair: Ed25519KeyPair,
    key_id: String,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// A key that cannot be used, or a machine without randomness.
#[derive(Debug, thiserror::Error)]
#[error("the grant key cannot be used: {0}")]
pub struct KeyError(String);

impl Signer {
    /// A new key, as PKCS#8 v2 DER, for the Secret.
    pub fn generate() -> Result<Vec<u8>, KeyError> {
        Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map(|document| document.as_ref().to_vec())
            .map_err(|_| KeyError("no randomness".to_owned()))
    }

    /// From what [`Signer::generate`] made.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::from_pkcs8(der).map_err(|e| KeyError(e.to_string()))?;
        let key_id = key_id(pair.public_key().as_ref());
        Ok(Self { pair, key_id })
    }

    /// Derived from the public key, so that two schedulers name one key alike.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// For the trust `ConfigMap`.
    pub fn public_key(&self) -> Vec<u8> {
        self.pair.public_key().as_ref().to_vec()
    }

    /// The annotation's value. Sets version and key id.
    #[allow(clippy::missing_panics_doc)] // Strings and integers always print.
    pub fn sign(&self, mut grant: Grant) -> String {
        grant.v = VERSION;
        grant.key.clone_from(&self.key_id);
        let payload = serde_json::to_string(&grant).expect("strings and integers always print");
        let signature = self.pair.sign(payload.as_bytes());
        format!("{}.{payload}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

/// Eight bytes of SHA-256 of the public key, in hex.
fn key_id(public_key: &[u8]) -> String {
    use std::fmt::Write as _;
    let digest = ring::digest::digest(&ring::digest::SHA256, public_key);
    digest
        .as_ref()
        .iter()
        .take(8)
        .fold(String::new(), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
}

/// Checks grants against the keys that the cluster publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verifier {
    cluster: String,
    keys: BTreeMap<String, Vec<u8>>,
}

impl Verifier {
    /// Of this cluster, with these public keys by id.
    pub fn new(cluster: impl Into<String>, keys: BTreeMap<String, Vec<u8>>) -> Self {
        Self {
            cluster: cluster.into(),
            keys,
        }
    }

    /// Reads and checks a grant for this very pod and node.
    ///
    /// # Errors
    /// Every way in which it is not exactly what the scheduler signed for them.
    pub fn verify(
        &self,
        text: &str,
        pod: &PodIdentity,
        node: &NodeIdentity,
    ) -> Result<Grant, GrantError> {
        let (signature, payload) = text
            .split_once('.')
            .ok_or(GrantError::Malformed("no signature"))?;
        let signature = URL_SAFE_NO_PAD
            .decode(signature)
            .map_err(|_| GrantError::Malformed("its signature is not base64url"))?;
        let grant = Grant::peek(text)?;
        if grant.v != VERSION {
            return Err(GrantError::Version(grant.v));
        }
        let key = self
            .keys
            .get(&grant.key)
            .ok_or_else(|| GrantError::UnknownKey(grant.key.clone()))?;
        UnparsedPublicKey::new(&ED25519, key)
            .verify(payload.as_bytes(), &signature)
            .map_err(|_| GrantError::Signature)?;
        let pairs = [
            ("cluster", &grant.cluster, &self.cluster),
            ("pod namespace", &grant.pod.namespace, &pod.namespace),
            ("pod", &grant.pod.name, &pod.name),
            ("pod UID", &grant.pod.uid, &pod.uid),
            ("node", &grant.node.name, &node.name),
            ("node UID", &grant.node.uid, &node.uid),
        ];
        for (what, granted, actual) in pairs {
            if granted != actual {
                return Err(GrantError::NotForThis {
                    what,
                    granted: granted.clone(),
                    actual: actual.clone(),
                });
            }
        }
        Ok(grant)
    }
}

impl Grant {
    /// Reads a grant without checking it: for display, and for a scheduler that takes in
    /// what it signed itself. Decides nothing on a node.
    pub fn peek(text: &str) -> Result<Self, GrantError> {
        let (_, payload) = text
            .split_once('.')
            .ok_or(GrantError::Malformed("no signature"))?;
        serde_json::from_str(payload).map_err(|_| GrantError::Malformed("its JSON is not ours"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodIdentity {
        PodIdentity {
            uid: "u1".into(),
            namespace: "ns".into(),
            name: "p".into(),
        }
    }

    fn node() -> NodeIdentity {
        NodeIdentity {
            name: "n1".into(),
            uid: "nu1".into(),
        }
    }

    fn signed() -> (String, Verifier) {
        let signer = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
        let text = signer.sign(Grant {
            v: 0,
            key: String::new(),
            cluster: "c".into(),
            pod: pod(),
            node: node(),
            containers: vec![ContainerGrant {
                name: "main".into(),
                gpus: vec!["GPU-1".into()],
                memory_mib: Mib(2000),
                request_mib: None,
                compute_percent: 100,
                mode: Mode::Mps,
                note: None,
                asked: Some(Asked::NanoGpu(500_000_000)),
            }],
            decision: "d1".into(),
            queue: Some("q".into()),
            group: None,
        });
        let keys = BTreeMap::from([(signer.key_id().to_owned(), signer.public_key())]);
        (text, Verifier::new("c", keys))
    }

    #[test]
    fn a_grant_comes_back_as_it_was_signed() {
        let (text, verifier) = signed();
        let grant = verifier.verify(&text, &pod(), &node()).unwrap();
        assert_eq!(grant.containers[0].memory_mib, Mib(2000));
        assert_eq!(grant.v, VERSION);
    }

    #[test]
    fn an_altered_byte_is_refused() {
        let (text, verifier) = signed();
        let altered = text.replace("2000", "9000");
        assert_eq!(
            verifier.verify(&altered, &pod(), &node()),
            Err(GrantError::Signature)
        );
    }

    #[test]
    fn a_grant_of_another_pod_node_or_cluster_is_refused() {
        let (text, verifier) = signed();
        let remade = PodIdentity {
            uid: "u2".into(),
            ..pod()
        };
        let other = NodeIdentity {
            uid: "nu2".into(),
            ..node()
        };
        assert!(matches!(
            verifier.verify(&text, &remade, &node()),
            Err(GrantError::NotForThis {
                what: "pod UID",
                ..
            })
        ));
        assert!(matches!(
            verifier.verify(&text, &pod(), &other),
            Err(GrantError::NotForThis {
                what: "node UID",
                ..
            })
        ));
        let elsewhere = Verifier {
            cluster: "other".into(),
            ..verifier
        };
        assert!(matches!(
            elsewhere.verify(&text, &pod(), &node()),
            Err(GrantError::NotForThis {
                what: "cluster",
                ..
            })
        ));
    }

    #[test]
    fn a_grant_of_an_unknown_key_is_refused() {
        let (text, verifier) = signed();
        let keyless = Verifier {
            keys: BTreeMap::new(),
            ..verifier
        };
        assert!(matches!(
            keyless.verify(&text, &pod(), &node()),
            Err(GrantError::UnknownKey(_))
        ));
    }

    #[test]
    fn noise_is_malformed_and_never_a_panic() {
        let (_, verifier) = signed();
        for noise in [
            "",
            ".",
            "x",
            "AAAA.{}",
            "AAAA.[1]",
            "é.{}",
            "....",
            "AAAA.{\"v\":1}",
        ] {
            assert!(
                verifier.verify(noise, &pod(), &node()).is_err(),
                "{noise:?}"
            );
        }
    }
}
