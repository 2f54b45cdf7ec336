//! The trust in this scheduler: the key that signs grants, the authority that signs its
//! certificates, and where both are published.
//!
//! - `certificate`: pure: an authority, and serving certificates of it.
//! - `objects`: the Secrets and the `ConfigMap`, filled when empty, never overwritten.
//! - `serve`: a TLS server with that certificate.
//!
//! A process with admission only holds [`Certificates`], and never the signing key.
//!
//! Replicas share the Secrets; each makes its own serving certificate, in memory. Public
//! keys and authorities of former signers stay in the `ConfigMap` until an admin takes
//! them out, so that grants of pods that run stay valid through a change of keys.
//!
//! To change the signing key, an admin empties the Secret and deletes the `ConfigMap`'s entry for
//! the signing key (`aliquot keys rotate`); the first replica that sees that creates a new key.

mod certificate;
mod error;
mod objects;
mod serve;

pub use certificate::CertificateError;
pub use error::TrustError;

use api::Signer;
use certificate::{Authority, Serving};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use kube::runtime::{WatchStreamExt as _, watcher};
use objects::{Objects, Publication};
use proto::names::object;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between two tries against an API server that does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two checks of the serving certificate; a fraction of its validity.
const RENEWAL: Duration = Duration::from_hours(12);

/// The certificate that this process shows to its clients. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Certificates(Arc<Shown>);

#[derive(Debug)]
struct Shown {
    authority: Authority,
    serving: Arc<Serving>,
    tls: Arc<rustls::ServerConfig>,
}

impl Certificates {
    async fn read(objects: &Objects, names: &[String]) -> Result<Self, TrustError> {
        let authority = objects.authority().await?;
        let serving = Arc::new(Serving::new(&authority, names)?);
        Ok(Self(Arc::new(Shown {
            tls: serving.tls()?,
            authority,
            serving,
        })))
    }

    /// The authority that agents and the API server are to believe, PEM.
    pub fn ca_pem(&self) -> &str {
        self.0.authority.pem()
    }

    /// For every server of this process; its certificate is renewed in place.
    pub fn tls(&self) -> Arc<rustls::ServerConfig> {
        self.0.tls.clone()
    }

    fn renew(&self, names: &[String]) {
        if let Err(error) = self.0.serving.renew(&self.0.authority, names) {
            tracing::error!(%error, "the certificate is not renewed");
        }
    }

    /// Keeps the certificate young, until `stop`.
    pub async fn keep(self, names: Vec<String>, stop: CancellationToken) {
        let mut renewal = tokio::time::interval(RENEWAL);
        renewal.tick().await;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = renewal.tick() => self.renew(&names),
            }
        }
    }
}

/// Keys and certificates of one process. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Trust(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    signer: RwLock<Arc<Signer>>,
    cluster_id: String,
    certificates: Certificates,
}

impl Trust {
    /// The certificate that it shows.
    pub fn certificates(&self) -> &Certificates {
        &self.0.certificates
    }

    /// Signs grants; another one once the key was changed.
    pub fn signer(&self) -> Arc<Signer> {
        let signer = self.0.signer.read();
        Arc::clone(&signer.unwrap_or_else(PoisonError::into_inner))
    }

    fn sign_with(&self, signer: Signer) {
        if signer.key_id() == self.signer().key_id() {
            return;
        }
        tracing::info!(key = signer.key_id(), "grants are signed with another key");
        let mut held = self
            .0
            .signer
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *held = Arc::new(signer);
    }

    /// The UID of namespace `kube-system`: as long as this lasts, it is this cluster.
    pub fn cluster_id(&self) -> &str {
        &self.0.cluster_id
    }

    fn publication(&self) -> Publication {
        Publication {
            ca_pem: self.certificates().ca_pem().to_owned(),
            key_id: self.signer().key_id().to_owned(),
            public_key: self.signer().public_key(),
            cluster_id: self.cluster_id().to_owned(),
        }
    }
}

/// Reads the keys, makes those that are missing, and makes the public ones known. The
/// certificate will carry these names. Waits for an API server that does not answer.
///
/// # Errors The API server refuses, or the stored object cannot be used.
pub async fn establish(
    client: &Client,
    namespace: &str,
    names: &[String],
) -> Result<Trust, TrustError> {
    let objects = Objects::new(client, namespace);
    patiently(|| attempt(&objects, names)).await
}

/// Reads the authority, or makes it where it is missing: what admission needs. As [`establish`].
///
/// # Errors The API server refuses, or the stored object cannot be used.
pub async fn certificates(
    client: &Client,
    namespace: &str,
    names: &[String],
) -> Result<Certificates, TrustError> {
    let objects = Objects::new(client, namespace);
    patiently(|| Certificates::read(&objects, names)).await
}

async fn patiently<T, F: Future<Output = Result<T, TrustError>>>(
    attempt: impl Fn() -> F,
) -> Result<T, TrustError> {
    loop {
        match attempt().await {
            Err(error) if error.passes() => {
                tracing::warn!(%error, "keys: trying again");
                tokio::time::sleep(RETRY).await;
            }
            done => return done,
        }
    }
}

async fn attempt(objects: &Objects, names: &[String]) -> Result<Trust, TrustError> {
    let cluster_id = objects.cluster_id().await?;
    let signer = RwLock::new(Arc::new(objects.signer().await?));
    let trust = Trust(Arc::new(Inner {
        signer,
        cluster_id,
        certificates: Certificates::read(objects, names).await?,
    }));
    objects.publish(&trust.publication()).await?;
    Ok(trust)
}

/// Keeps the public keys known and the certificate young, until `stop`.
pub async fn keep(
    trust: Trust,
    client: Client,
    namespace: String,
    names: Vec<String>,
    stop: CancellationToken,
) {
    let objects = Objects::new(&client, &namespace);
    let of_ours =
        watcher::Config::default().fields(&format!("metadata.name={}", object::TRUST_CONFIG_MAP));
    let mut changes = watcher::watcher(objects.config_maps(), of_ours)
        .default_backoff()
        .map_ok(|_| ())
        .boxed();
    let mut renewal = tokio::time::interval(RENEWAL);
    renewal.tick().await;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            change = changes.next() => match change {
                Some(Ok(())) => {
                    if let Err(error) = refresh(&trust, &objects).await {
                        tracing::warn!(%error, "keys");
                    }
                }
                Some(Err(error)) => tracing::debug!(%error, "keys: watch"),
                None => return,
            },
            _ = renewal.tick() => trust.certificates().renew(&names),
        }
    }
}

/// The key first: one that no replica signs with any more is not made known again.
async fn refresh(trust: &Trust, objects: &Objects) -> Result<(), TrustError> {
    loop {
        let done = async {
            trust.sign_with(objects.signer().await?);
            objects.publish(&trust.publication()).await
        };
        match done.await {
            // Another replica was quicker.
            Err(error) if error.conflicts() => tokio::time::sleep(RETRY).await,
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests;
