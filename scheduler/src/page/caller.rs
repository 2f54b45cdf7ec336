//! A token → what its owner may see, judged by the API server.
//!
//! One `TokenReview` returns the account, one `SubjectAccessReview` per kind what it may list; the
//! result is cached for half a minute. An account that may not list all pods is checked by
//! namespace.

use super::answer::{Pods, Rights};
use crate::lock::locked;
use futures::StreamExt as _;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use proto::names::page;
use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a result is cached: an account that loses a right keeps it for this time.
const HOLDS: Duration = Duration::from_secs(30);
/// Verdicts that are remembered.
const REMEMBERED: usize = 1000;
/// Questions to the API server at once, over all readers.
const AT_ONCE: usize = 8;
/// Largest number of namespaces that are checked for one account.
const NAMESPACES: usize = 100;
/// Timeout for one answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing is shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallerError {
    /// No token, or none that is accepted.
    #[error("{0}")]
    Unknown(String),
    /// The API server did not answer.
    #[error("the API server did not review your token: {0}")]
    Unavailable(String),
}

/// SHA-256 of a token: tokens themselves are not kept.
type Digest = [u8; 32];

#[derive(Clone, Debug)]
struct CachedVerdict {
    until: Instant,
    verdict: Result<Reader, String>,
}

#[derive(Clone, Debug)]
struct Reader {
    user: UserInfo,
    cards: bool,
    queues: bool,
    all_pods: bool,
    /// Whether its pods may be listed, by namespace, as far as that was asked for.
    namespaces: HashMap<String, bool>,
    /// The same of its events.
    events: HashMap<String, bool>,
}

/// Judges tokens.
#[derive(Debug)]
pub(super) struct Callers {
    tokens: Api<TokenReview>,
    accesses: Api<SubjectAccessReview>,
    known: Mutex<HashMap<Digest, CachedVerdict>>,
    turns: Semaphore,
}

/// A token that was judged; never shown.
#[derive(Clone, Copy)]
pub(super) struct Digested(Digest);

impl std::fmt::Debug for Digested {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a token")
    }
}

impl Callers {
    pub(super) fn new(client: kube::Client) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            accesses: Api::all(client),
            known: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// Whose token it is, and what he may see of cards and queues; of pods nothing but
    /// whether he may see all, see [`Callers::namespaces`].
    ///
    /// # Errors The token is not accepted, or the API server did not answer.
    pub(super) async fn rights(&self, token: &str) -> Result<(Digested, Rights), CallerError> {
        let digest = digest(token);
        let known = self.recall(&digest);
        let verdict = match known {
            Some(known) => known.verdict,
            None => {
                let verdict = self.judge(token).await?;
                self.remember(digest, verdict.clone());
                verdict
            }
        };
        let reader = verdict.map_err(CallerError::Unknown)?;
        let pods = if reader.all_pods {
            Pods::All
        } else {
            Pods::In(BTreeSet::new())
        };
        let rights = Rights {
            cards: reader.cards,
            queues: reader.queues,
            pods,
        };
        Ok((Digested(digest), rights))
    }

    /// Those of `wanted` whose pods the owner of the token may list.
    ///
    /// # Errors The API server did not answer.
    pub(super) async fn namespaces(
        &self,
        Digested(digest): Digested,
        wanted: BTreeSet<String>,
    ) -> Result<BTreeSet<String>, CallerError> {
        let Some(CachedVerdict {
            verdict: Ok(reader),
            ..
        }) = self.recall(&digest)
        else {
            return Ok(BTreeSet::new());
        };
        let asked: Vec<String> = wanted
            .iter()
            .filter(|namespace| !reader.namespaces.contains_key(*namespace))
            .take(NAMESPACES)
            .cloned()
            .collect();
        let user = &reader.user;
        let answers: Vec<Result<(String, bool), CallerError>> = futures::stream::iter(asked)
            .map(|namespace| async move {
                let allowed = self.may(user, "", "pods", Some(&namespace)).await?;
                Ok((namespace, allowed))
            })
            .buffered(AT_ONCE)
            .collect()
            .await;
        let fresh: HashMap<String, bool> = answers.into_iter().collect::<Result<_, _>>()?;
        let mut seen = reader.namespaces;
        seen.extend(fresh.clone());
        let mut known = locked(&self.known);
        if let Some(CachedVerdict {
            verdict: Ok(reader),
            ..
        }) = known.get_mut(&digest)
        {
            reader.namespaces.extend(fresh);
        }
        drop(known);
        Ok(wanted
            .into_iter()
            .filter(|namespace| seen.get(namespace) == Some(&true))
            .collect())
    }

    /// Whether the owner of the token may list the events of this namespace.
    ///
    /// # Errors The API server did not answer.
    pub(super) async fn events(
        &self,
        Digested(digest): Digested,
        namespace: &str,
    ) -> Result<bool, CallerError> {
        let Some(CachedVerdict {
            verdict: Ok(reader),
            ..
        }) = self.recall(&digest)
        else {
            return Ok(false);
        };
        if let Some(may) = reader.events.get(namespace) {
            return Ok(*may);
        }
        let may = self
            .may(&reader.user, "", "events", Some(namespace))
            .await?;
        if let Some(CachedVerdict {
            verdict: Ok(reader),
            ..
        }) = locked(&self.known).get_mut(&digest)
        {
            reader.events.insert(namespace.to_owned(), may);
        }
        Ok(may)
    }

    async fn judge(&self, token: &str) -> Result<Result<Reader, String>, CallerError> {
        // A token for the page alone has no other use, even if it leaks here; one for the API
        // server is taken too, as browsers and `kubectl` have no other.
        let mut user = Err("it is not known".to_owned());
        for audiences in [Some(vec![page::AUDIENCE.to_owned()]), None] {
            user = self.user(token, audiences).await?;
            if user.is_ok() {
                break;
            }
        }
        let user = match user {
            Ok(user) => user,
            Err(why) => return Ok(Err(format!("the token is not accepted: {why}"))),
        };
        let (cards, queues, pods) = futures::try_join!(
            self.may(&user, "aliquot.dev", "gpunodes", None),
            self.may(&user, "scheduling.run.ai", "queues", None),
            self.may(&user, "", "pods", None),
        )?;
        Ok(Ok(Reader {
            user,
            cards,
            queues,
            all_pods: pods,
            namespaces: HashMap::new(),
            events: HashMap::new(),
        }))
    }

    /// Whose token it is, for one of these audiences; `None`: for the API server's own.
    async fn user(
        &self,
        token: &str,
        audiences: Option<Vec<String>>,
    ) -> Result<Result<UserInfo, String>, CallerError> {
        let own = audiences.is_some();
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences,
                token: token.to_owned(),
            },
            ..TokenReview::default()
        };
        let status = self.ask(&self.tokens, &review).await?.status;
        let status = status.unwrap_or_default();
        // An authenticator that knows no audiences leaves the list empty.
        let audiences = status.audiences.unwrap_or_default();
        let meant = !own || audiences.iter().any(|one| one == page::AUDIENCE);
        Ok(match (status.authenticated, status.user) {
            (Some(true), Some(user)) if meant => Ok(user),
            _ => Err(status.error.unwrap_or_else(|| "it is not known".to_owned())),
        })
    }

    /// Whether this user may list that; in one namespace, or everywhere.
    async fn may(
        &self,
        user: &UserInfo,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
    ) -> Result<bool, CallerError> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username.clone(),
                uid: user.uid.clone(),
                groups: user.groups.clone(),
                extra: user.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some("list".to_owned()),
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    namespace: namespace.map(str::to_owned),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviewed = self.ask(&self.accesses, &review).await?;
        Ok(reviewed
            .status
            .is_some_and(|status| status.allowed && status.denied != Some(true)))
    }

    async fn ask<K>(&self, api: &Api<K>, review: &K) -> Result<K, CallerError>
    where
        K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    {
        let _turn = self.turns.acquire().await;
        let parameters = PostParams::default();
        let asked = api.create(&parameters, review);
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(reviewed)) => Ok(reviewed),
            Ok(Err(error)) => Err(CallerError::Unavailable(error.to_string())),
            Err(_) => Err(CallerError::Unavailable("no answer in time".to_owned())),
        }
    }

    fn recall(&self, digest: &Digest) -> Option<CachedVerdict> {
        let known = locked(&self.known);
        known
            .get(digest)
            .filter(|known| known.until > Instant::now())
            .cloned()
    }

    fn remember(&self, digest: Digest, verdict: Result<Reader, String>) {
        let now = Instant::now();
        let mut known = locked(&self.known);
        if known.len() >= REMEMBERED {
            known.retain(|_, known| known.until > now);
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let until = now + HOLDS;
        known.insert(digest, CachedVerdict { until, verdict });
    }
}

fn digest(token: &str) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}
