//! A token → what its owner may see, judged by the API server.
//!
//! One `TokenReview` returns the account, one `SubjectAccessReview` per kind what it may list; the
//! result is cached for half a minute. An account that may not list all pods is checked by
//! namespace.
//!
//! A client that reaches the port can send any number of tokens. An address whose tokens are
//! refused again and again has to wait before another one is reviewed. A token that was accepted
//! before is not affected by the others of its address.

use super::answer::{Pods, Rights};
use crate::lock::locked;
use crate::telemetry::Refusals;
use futures::StreamExt as _;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use proto::names::page;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a result is cached: an account that loses a right keeps it for this time.
const HOLDS: Duration = Duration::from_secs(30);
/// The maximum number of readers that are remembered, and that of refused tokens.
const REMEMBERED: usize = 1000;
/// Questions to the API server at once, over all readers.
const AT_ONCE: usize = 8;
/// The maximum number of these questions for tokens that are not known. This number of tokens may
/// be refused before the first of them counts for its address.
const STRANGERS: usize = 2;
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
    /// The address of this token has to wait before another token is reviewed.
    #[error("too many tokens from this address were refused: wait 10 s")]
    TooMany,
}

/// SHA-256 of a token: tokens themselves are not kept.
type Digest = [u8; 32];

/// Either the owner of a token, or the reason why the token is not accepted.
type Verdict = Result<Reader, String>;

/// The verdicts by token, each with the time until which it holds. Refused tokens have a map of
/// their own: anyone can make any number of them, and they must not displace readers.
#[derive(Debug, Default)]
struct Verdicts {
    readers: HashMap<Digest, (Instant, Reader)>,
    refused: HashMap<Digest, (Instant, String)>,
}

impl Verdicts {
    fn recall(&self, digest: &Digest, now: Instant) -> Option<Verdict> {
        let reader = self.readers.get(digest).filter(|(until, _)| *until > now);
        let refused = self.refused.get(digest).filter(|(until, _)| *until > now);
        reader
            .map(|(_, reader)| Ok(reader.clone()))
            .or_else(|| refused.map(|(_, why)| Err(why.clone())))
    }

    /// Returns whether the token was accepted before, even if the verdict has expired.
    fn was_accepted(&self, digest: &Digest) -> bool {
        self.readers.contains_key(digest)
    }

    fn remember(&mut self, digest: Digest, verdict: Verdict, now: Instant) {
        match verdict {
            Ok(reader) => {
                self.refused.remove(&digest);
                remember(&mut self.readers, digest, reader, now);
            }
            Err(why) => {
                self.readers.remove(&digest);
                remember(&mut self.refused, digest, why, now);
            }
        }
    }

    fn reader(&mut self, digest: &Digest) -> Option<&mut Reader> {
        self.readers.get_mut(digest).map(|(_, reader)| reader)
    }
}

/// Adds an entry. If the map is full, expired entries go first, then the one that expires first.
fn remember<T>(map: &mut HashMap<Digest, (Instant, T)>, digest: Digest, value: T, now: Instant) {
    if map.len() >= REMEMBERED && !map.contains_key(&digest) {
        map.retain(|_, (until, _)| *until > now);
    }
    if map.len() >= REMEMBERED && !map.contains_key(&digest) {
        let first = map.iter().min_by_key(|(_, (until, _))| *until);
        if let Some(first) = first.map(|(digest, _)| *digest) {
            map.remove(&first);
        }
    }
    map.insert(digest, (now + HOLDS, value));
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
    known: Mutex<Verdicts>,
    refusals: Mutex<Refusals>,
    turns: Semaphore,
    strangers: Semaphore,
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
            refusals: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
            strangers: Semaphore::new(STRANGERS),
        }
    }

    /// Returns the account of the token and its rights to cards and queues; of its right to pods,
    /// only whether it may see all (see [`Callers::namespaces`]). `peer` is `None` for a client
    /// that does not connect through a network.
    ///
    /// # Errors
    /// Returns an error if the token is not accepted or not reviewed now, or if the API server does
    /// not answer.
    pub(super) async fn rights(
        &self,
        token: &str,
        peer: Option<IpAddr>,
    ) -> Result<(Digested, Rights), CallerError> {
        let digest = digest(token);
        let verdict = match self.recall(&digest) {
            Some(verdict) => verdict,
            None if locked(&self.known).was_accepted(&digest) => {
                self.reviewed(digest, token, peer).await?
            }
            None => self.first_reviewed(digest, token, peer).await?,
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
        let Some(Ok(reader)) = self.recall(&digest) else {
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
        if let Some(reader) = locked(&self.known).reader(&digest) {
            reader.namespaces.extend(fresh);
        }
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
        let Some(Ok(reader)) = self.recall(&digest) else {
            return Ok(false);
        };
        if let Some(may) = reader.events.get(namespace) {
            return Ok(*may);
        }
        let may = self
            .may(&reader.user, "", "events", Some(namespace))
            .await?;
        if let Some(reader) = locked(&self.known).reader(&digest) {
            reader.events.insert(namespace.to_owned(), may);
        }
        Ok(may)
    }

    /// Returns the verdict on a token that was not accepted before.
    async fn first_reviewed(
        &self,
        digest: Digest,
        token: &str,
        peer: Option<IpAddr>,
    ) -> Result<Verdict, CallerError> {
        let _turn = self.strangers.acquire().await;
        // A page sends several requests at once with a new token, so the verdict may be known by
        // now.
        if let Some(verdict) = self.recall(&digest) {
            return Ok(verdict);
        }
        // The time is taken after the wait, in which other tokens of the address may have been
        // refused.
        let now = tokio::time::Instant::now();
        if peer.is_some_and(|peer| locked(&self.refusals).must_wait(peer, now)) {
            return Err(CallerError::TooMany);
        }
        self.reviewed(digest, token, peer).await
    }

    async fn reviewed(
        &self,
        digest: Digest,
        token: &str,
        peer: Option<IpAddr>,
    ) -> Result<Verdict, CallerError> {
        let verdict = self.judge(token).await?;
        if let Some(peer) = peer {
            let mut refusals = locked(&self.refusals);
            match &verdict {
                Ok(_) => refusals.accepted(peer),
                Err(_) => refusals.refused(peer, tokio::time::Instant::now()),
            }
        }
        locked(&self.known).remember(digest, verdict.clone(), Instant::now());
        Ok(verdict)
    }

    async fn judge(&self, token: &str) -> Result<Verdict, CallerError> {
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

    fn recall(&self, digest: &Digest) -> Option<Verdict> {
        locked(&self.known).recall(digest, Instant::now())
    }
}

fn digest(token: &str) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Returns the callers of an API server that accepts tokens that begin with `good`, and the
    /// number of its reviews.
    fn callers() -> (Arc<Callers>, Arc<AtomicUsize>) {
        let reviews = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reviews);
        let answer = move |request: http::Request<kube::client::Body>| {
            let counted = Arc::clone(&counted);
            async move {
                let bytes = request.into_body().collect().await.unwrap().to_bytes();
                let mut review: Value = serde_json::from_slice(&bytes).unwrap();
                review["status"] = match review["spec"]["token"].as_str() {
                    Some(token) => {
                        counted.fetch_add(1, Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        let good = token.starts_with("good");
                        json!({"authenticated": good, "user": {"username": token},
                            "audiences": [page::AUDIENCE]})
                    }
                    None => json!({"allowed": true}),
                };
                let body = kube::client::Body::from(review.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            }
        };
        let client = kube::Client::new(tower::service_fn(answer), "default");
        (Arc::new(Callers::new(client)), reviews)
    }

    /// Lets all verdicts on readers expire.
    fn expire(callers: &Callers) {
        let mut known = locked(&callers.known);
        for (until, _) in known.readers.values_mut() {
            *until = Instant::now();
        }
    }

    #[tokio::test]
    async fn tokens_without_end_are_reviewed_a_few_times_and_readers_behind_the_same_proxy_stay() {
        let (callers, reviews) = callers();
        let proxy: IpAddr = [10, 0, 0, 1].into();
        assert!(callers.rights("good", Some(proxy)).await.is_ok());
        assert_eq!(reviews.swap(0, Ordering::Relaxed), 1);
        let flood = (0..400).map(|number| {
            let callers = Arc::clone(&callers);
            async move { callers.rights(&format!("junk {number}"), Some(proxy)).await }
        });
        let answers = futures::future::join_all(flood).await;
        let unknown =
            |answer: &Result<_, CallerError>| matches!(answer, Err(CallerError::Unknown(_)));
        let refused = answers.iter().filter(|answer| unknown(answer)).count();
        assert!((5..5 + STRANGERS).contains(&refused), "{refused}");
        assert!(
            answers
                .iter()
                .all(|answer| unknown(answer) || matches!(answer, Err(CallerError::TooMany)))
        );
        // Each token was reviewed once for the page's audience and once for the API server's.
        assert_eq!(reviews.swap(0, Ordering::Relaxed), 2 * refused);
        // A current reader goes on reading the page, and is reviewed again when the verdict
        // expires.
        assert!(callers.rights("good", Some(proxy)).await.is_ok());
        assert_eq!(reviews.load(Ordering::Relaxed), 0);
        expire(&callers);
        assert!(callers.rights("good", Some(proxy)).await.is_ok());
        assert_eq!(reviews.load(Ordering::Relaxed), 1);
        // A new reader at another address is accepted at once.
        let other: IpAddr = [10, 0, 0, 2].into();
        assert!(callers.rights("good too", Some(other)).await.is_ok());
    }

    #[tokio::test]
    async fn refused_tokens_take_no_room_from_readers() {
        let (callers, reviews) = callers();
        let peer = |number: u16| -> IpAddr {
            let [high, low] = number.to_be_bytes();
            [10, 0, high, low].into()
        };
        assert!(callers.rights("good", Some(peer(0))).await.is_ok());
        for number in 0..2 * u16::try_from(REMEMBERED).unwrap() {
            let junk = format!("junk {number}");
            let answer = callers.rights(&junk, Some(peer(number))).await;
            assert!(matches!(answer, Err(CallerError::Unknown(_))));
        }
        assert_eq!(locked(&callers.known).refused.len(), REMEMBERED);
        reviews.store(0, Ordering::Relaxed);
        assert!(callers.rights("good", Some(peer(0))).await.is_ok());
        assert_eq!(reviews.load(Ordering::Relaxed), 0);
        // When too many readers come, only the one whose verdict expires first is forgotten.
        for number in 0..REMEMBERED {
            let token = format!("good {number}");
            assert!(callers.rights(&token, None).await.is_ok());
        }
        let known = locked(&callers.known);
        assert_eq!(known.readers.len(), REMEMBERED);
        assert!(!known.was_accepted(&digest("good")));
        assert!(known.was_accepted(&digest("good 0")));
    }
}
