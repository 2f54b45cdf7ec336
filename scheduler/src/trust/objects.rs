//! This module reads the Secrets and the `ConfigMap`, and fills or creates those that are empty or
//! absent. Several replicas may start at once: the second one reads what the first one wrote.
//!
//! `deploy/` contains both Secrets, empty. RBAC cannot restrict a right to create to one name, so
//! its holder could create the other program's Secret with a key of its own.

use super::certificate::{Authority, Freshness};
use super::error::TrustError;
use api::Signer;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use proto::names::object;
use std::collections::BTreeMap;

/// Entries of the TLS Secret.
const CA: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const CA_NOT_AFTER: &str = "not-after";

/// The public part of a signer.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    pub(super) ca_pem: String,
    pub(super) key_id: String,
    pub(super) public_key: Vec<u8>,
    pub(super) cluster_id: String,
}

/// Access to the objects of one namespace.
#[derive(Clone)]
pub(super) struct Objects {
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    namespaces: Api<Namespace>,
    namespace: String,
}

impl Objects {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client.clone(), namespace),
            namespaces: Api::all(client.clone()),
            namespace: namespace.to_owned(),
        }
    }

    pub(super) fn config_maps(&self) -> Api<ConfigMap> {
        self.config_maps.clone()
    }

    /// The UID of `kube-system`.
    pub(super) async fn cluster_id(&self) -> Result<String, TrustError> {
        let found = self.namespaces.get("kube-system").await;
        let found = found.map_err(|e| api_error("read namespace kube-system", e))?;
        found.metadata.uid.ok_or_else(|| TrustError::Content {
            object: "namespace kube-system".to_owned(),
            why: "it has no UID".to_owned(),
        })
    }

    /// The key of the grants.
    pub(super) async fn signer(&self) -> Result<Signer, TrustError> {
        let make = || {
            Ok(BTreeMap::from([(
                object::GRANT_KEY_ENTRY,
                Signer::generate()?,
            )]))
        };
        let secret = self.secret(object::GRANT_KEY_SECRET, make).await?;
        let key = self.entry(&secret, object::GRANT_KEY_ENTRY)?;
        Signer::from_pkcs8(key).map_err(|e| self.unusable(&secret, e.to_string()))
    }

    /// The authority of the certificates.
    pub(super) async fn authority(&self) -> Result<Authority, TrustError> {
        let make = || Ok(authority_entries(&Authority::generate()?));
        let mut secret = self.secret(object::TLS_SECRET, make).await?;
        let text = |entry| -> Result<&str, TrustError> {
            std::str::from_utf8(self.entry(&secret, entry)?)
                .map_err(|_| self.unusable(&secret, format!("{entry} is no text")))
        };
        let key = text(CA_KEY)?;
        let (authority, freshness) = Authority::read(
            key,
            text(CA).unwrap_or_default(),
            text(CA_NOT_AFTER).unwrap_or_default(),
        )
        .map_err(|e| self.unusable(&secret, e.to_string()))?;
        if freshness == Freshness::Renewed {
            secret.data = Some(bytes(authority_entries(&authority)));
            let replaced = self
                .secrets
                .replace(object::TLS_SECRET, &PostParams::default(), &secret)
                .await;
            replaced.map_err(|e| api_error(&format!("write {}", self.name_of(&secret)), e))?;
        }
        Ok(authority)
    }

    /// Makes these keys known, beside those that are.
    pub(super) async fn publish(&self, publication: &Publication) -> Result<(), TrustError> {
        let name = object::TRUST_CONFIG_MAP;
        let what = format!("ConfigMap {}/{name}", self.namespace);
        let found = self.config_maps.get_opt(name).await;
        let found = found.map_err(|e| api_error(&format!("read {what}"), e))?;
        let known = found.as_ref().and_then(|map| map.data.as_ref());
        let data = published(known, publication);
        if known == Some(&data) {
            return Ok(());
        }
        let written = match found {
            Some(map) => {
                let map = ConfigMap {
                    data: Some(data),
                    ..map
                };
                self.config_maps
                    .replace(name, &PostParams::default(), &map)
                    .await
            }
            None => {
                let map = ConfigMap {
                    metadata: metadata(name),
                    data: Some(data),
                    ..ConfigMap::default()
                };
                self.config_maps.create(&PostParams::default(), &map).await
            }
        };
        written
            .map(|_| ())
            .map_err(|e| api_error(&format!("write {what}"), e))
    }

    /// Returns the Secret as it was found, or as it has been filled or created now.
    async fn secret(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<BTreeMap<&'static str, Vec<u8>>, TrustError>,
    ) -> Result<Secret, TrustError> {
        let what = |verb: &str| format!("{verb} Secret {}/{name}", self.namespace);
        let found = self.secrets.get_opt(name).await;
        let found = found.map_err(|e| api_error(&what("read"), e))?;
        // A conflict means that another writer was faster: the caller tries again and reads.
        match found {
            Some(found) if !is_empty(&found) => Ok(found),
            Some(empty) => {
                let filled = Secret {
                    data: Some(bytes(make()?)),
                    ..empty
                };
                let parameters = PostParams::default();
                let replaced = self.secrets.replace(name, &parameters, &filled).await;
                replaced.map_err(|e| api_error(&what("fill"), e))
            }
            None => {
                let secret = Secret {
                    metadata: metadata(name),
                    data: Some(bytes(make()?)),
                    type_: Some("Opaque".to_owned()),
                    ..Secret::default()
                };
                match self.secrets.create(&PostParams::default(), &secret).await {
                    Err(kube::Error::Api(status)) if status.code == 403 => {
                        Err(TrustError::Missing(self.name_of(&secret)))
                    }
                    made => made.map_err(|e| api_error(&what("make"), e)),
                }
            }
        }
    }

    fn entry<'a>(&self, secret: &'a Secret, entry: &str) -> Result<&'a [u8], TrustError> {
        secret
            .data
            .as_ref()
            .and_then(|data| data.get(entry))
            .map(|bytes| bytes.0.as_slice())
            .ok_or_else(|| self.unusable(secret, format!("it has no entry {entry}")))
    }

    fn unusable(&self, secret: &Secret, why: String) -> TrustError {
        let fix = "delete it and apply deploy/scheduler.yaml, whose empty Secret of that name is then filled";
        TrustError::Content {
            object: self.name_of(secret),
            why: format!("{why}; {fix}"),
        }
    }

    fn name_of(&self, secret: &Secret) -> String {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        format!("Secret {}/{name}", self.namespace)
    }
}

/// Returns whether the Secret has no entry, or only entries without a byte.
fn is_empty(secret: &Secret) -> bool {
    let entries = secret.data.iter().flatten();
    entries.into_iter().all(|(_, bytes)| bytes.0.is_empty())
}

fn authority_entries(authority: &Authority) -> BTreeMap<&'static str, Vec<u8>> {
    BTreeMap::from([
        (CA, authority.pem().as_bytes().to_vec()),
        (CA_KEY, authority.key_pem().into_bytes()),
        (CA_NOT_AFTER, authority.not_after().into_bytes()),
    ])
}

fn bytes(entries: BTreeMap<&'static str, Vec<u8>>) -> BTreeMap<String, ByteString> {
    entries
        .into_iter()
        .map(|(entry, bytes)| (entry.to_owned(), ByteString(bytes)))
        .collect()
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(BTreeMap::from([(
            "app.kubernetes.io/part-of".to_owned(),
            "aliquot".to_owned(),
        )])),
        ..ObjectMeta::default()
    }
}

fn api_error(what: &str, source: kube::Error) -> TrustError {
    TrustError::Api {
        what: what.to_owned(),
        source: Box::new(source),
    }
}

/// The `ConfigMap`'s entries with these keys among them. Entries that are not ours stay; an
/// unreadable list of keys is replaced.
fn published(
    known: Option<&BTreeMap<String, String>>,
    publication: &Publication,
) -> BTreeMap<String, String> {
    let mut data = known.cloned().unwrap_or_default();
    let mut keys: BTreeMap<String, String> = data
        .get(object::TRUST_KEYS)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    keys.insert(
        publication.key_id.clone(),
        STANDARD.encode(&publication.public_key),
    );
    let keys = serde_json::to_string(&keys).unwrap_or_default();
    data.insert(object::TRUST_KEYS.to_owned(), keys);
    data.insert(
        object::TRUST_SIGNING_KEY.to_owned(),
        publication.key_id.clone(),
    );
    data.insert(
        object::TRUST_CLUSTER_ID.to_owned(),
        publication.cluster_id.clone(),
    );
    let authorities = data.entry(object::TRUST_CA.to_owned()).or_default();
    if !authorities.contains(publication.ca_pem.trim()) {
        if !authorities.is_empty() && !authorities.ends_with('\n') {
            authorities.push('\n');
        }
        authorities.push_str(&publication.ca_pem);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(n: u8) -> Publication {
        Publication {
            ca_pem: format!("-----BEGIN {n}-----\n"),
            key_id: format!("k{n}"),
            public_key: vec![n],
            cluster_id: "c".into(),
        }
    }

    #[test]
    fn keys_of_former_signers_stay_known() {
        let first = published(None, &publication(1));
        let second = published(Some(&first), &publication(2));
        assert_eq!(second[object::TRUST_KEYS], r#"{"k1":"AQ==","k2":"Ag=="}"#);
        assert_eq!(
            second[object::TRUST_CA],
            "-----BEGIN 1-----\n-----BEGIN 2-----\n"
        );
        assert_eq!(second[object::TRUST_SIGNING_KEY], "k2");
        assert_eq!(published(Some(&second), &publication(2)), second);
    }

    #[test]
    fn what_another_writer_altered_is_mended_and_what_is_not_ours_stays() {
        let mut data = published(None, &publication(1));
        data.insert("note".into(), "mine".into());
        let whole = data.clone();
        for entry in [
            object::TRUST_KEYS,
            object::TRUST_CA,
            object::TRUST_CLUSTER_ID,
            object::TRUST_SIGNING_KEY,
        ] {
            data.remove(entry);
            assert_eq!(published(Some(&data), &publication(1)), whole);
        }
        data.insert(object::TRUST_KEYS.into(), "[]".into());
        assert_eq!(published(Some(&data), &publication(1)), whole);
    }
}
