//! A token → the node that it is bound to.
//!
//! The token is a projected one of the agent's service account, for our audience alone, bound to a
//! pod; the API server adds the pod's node to its review (`authentication.kubernetes.io/node-name`,
//! Kubernetes 1.30 and later).

use super::rate::Refusals;
use crate::lock::locked;
use axum::extract::ConnectInfo;
use k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use kube::api::{Api, PostParams};
use proto::names::{object, telemetry};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

/// How long an accepted token opens further streams without another review: all agents reconnect to
/// a replica that starts.
const HOLDS: Duration = Duration::from_secs(30);
/// How long a refused token stays refused.
const REFUSED: Duration = Duration::from_secs(10);
/// Tokens that are remembered; beyond those all are forgotten.
const KEPT: usize = 8192;
/// Questions to the API server at once.
const AT_ONCE: usize = 16;
/// Timeout for the API server, the wait for a permit included.
const PATIENCE: Duration = Duration::from_secs(10);

/// SHA-256 of a token: tokens themselves are not kept.
type Digest = [u8; 32];

/// When a token was judged, and its node or why it has none.
type Judged = (Instant, Result<String, Status>);

/// Judges tokens.
pub(super) struct Callers {
    reviews: Api<TokenReview>,
    account: String,
    known: Mutex<HashMap<Digest, Judged>>,
    refusals: Mutex<Refusals>,
    turns: Semaphore,
}

/// Where a request comes from, as the server of this process says it.
pub(super) fn peer_of(extensions: &tonic::Extensions) -> Option<IpAddr> {
    extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|ConnectInfo(peer)| peer.ip())
}

impl Callers {
    /// Of agents in this namespace.
    pub(super) fn new(client: kube::Client, namespace: &str) -> Self {
        Self {
            reviews: Api::all(client),
            account: format!(
                "system:serviceaccount:{namespace}:{}",
                object::AGENT_ACCOUNT
            ),
            known: Mutex::default(),
            refusals: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// The node for which the caller may report.
    ///
    /// # Errors `UNAUTHENTICATED` or `PERMISSION_DENIED` with one sentence; `UNAVAILABLE` when the
    /// API server did not answer; `RESOURCE_EXHAUSTED` for an address whose tokens were refused
    /// time and again.
    pub(super) async fn node(
        &self,
        metadata: &MetadataMap,
        peer: Option<IpAddr>,
    ) -> Result<String, Status> {
        let token = bearer(metadata)
            .ok_or_else(|| Status::unauthenticated("no bearer token in `authorization`"))?;
        let digest = digest(token);
        let now = Instant::now();
        let known = locked(&self.known).get(&digest).cloned();
        if let Some((_, verdict)) = known.filter(|(until, _)| now < *until) {
            return verdict;
        }
        let asked = tokio::time::timeout(PATIENCE, self.ask(token, peer)).await;
        let verdict = asked.unwrap_or_else(|_| {
            Err(Status::unavailable(
                "the token was not reviewed within 10 s",
            ))
        });
        let now = Instant::now();
        let holds = match &verdict {
            Ok(_) => HOLDS,
            Err(status) if matches!(status.code(), Code::Unavailable | Code::ResourceExhausted) => {
                return verdict;
            }
            Err(_) => REFUSED,
        };
        if let Some(peer) = peer {
            let mut refusals = locked(&self.refusals);
            match &verdict {
                Ok(_) => refusals.accepted(peer),
                Err(_) => refusals.refused(peer, now),
            }
        }
        let mut known = locked(&self.known);
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(digest, (now + holds, verdict.clone()));
        verdict
    }

    async fn ask(&self, token: &str, peer: Option<IpAddr>) -> Result<String, Status> {
        let _turn = self.turns.acquire().await;
        // The check follows the wait, in which other tokens of the address may have been refused.
        let now = Instant::now();
        if peer.is_some_and(|peer| locked(&self.refusals).must_wait(peer, now)) {
            return Err(Status::resource_exhausted(
                "too many tokens from this address were refused: wait 10 s",
            ));
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![telemetry::AUDIENCE.to_owned()]),
                token: token.to_owned(),
            },
            ..TokenReview::default()
        };
        let reviewed = self.reviews.create(&PostParams::default(), &review).await;
        let reviewed = reviewed.map_err(|error| {
            Status::unavailable(format!("the token cannot be reviewed: {error}"))
        })?;
        judge(&reviewed.status.unwrap_or_default(), &self.account)
    }
}

fn digest(token: &str) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    let mut out = Digest::default();
    out.copy_from_slice(digest.as_ref());
    out
}

fn bearer(metadata: &MetadataMap) -> Option<&str> {
    let value = metadata.get("authorization")?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The API server's verdict → the node.
fn judge(status: &TokenReviewStatus, account: &str) -> Result<String, Status> {
    if status.authenticated != Some(true) {
        let why = status.error.as_deref().unwrap_or("it is not known");
        return Err(Status::unauthenticated(format!(
            "the token is not accepted: {why}"
        )));
    }
    // An authenticator that knows no audiences leaves the list empty: that is not ours.
    let audience = telemetry::AUDIENCE;
    if !status.audiences.iter().flatten().any(|one| one == audience) {
        return Err(Status::unauthenticated(format!(
            "the token is not for audience {audience}"
        )));
    }
    let none = UserInfo::default();
    let user = status.user.as_ref().unwrap_or(&none);
    let name = user.username.as_deref().unwrap_or_default();
    if name != account {
        return Err(Status::permission_denied(format!(
            "the token is of {name}, not of {account}"
        )));
    }
    let node = user
        .extra
        .as_ref()
        .and_then(|extra| extra.get(telemetry::NODE_NAME_EXTRA));
    match node.map(Vec::as_slice) {
        Some([node]) if !node.is_empty() => Ok(node.clone()),
        _ => Err(Status::permission_denied(
            "the token names no node: it must be a projected one, bound to the agent's pod",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tonic::Code;

    /// Written out: what the API server says, not what we believe it says.
    const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
    const ACCOUNT: &str = "system:serviceaccount:aliquot-system:aliquot-agent";

    fn verdict(change: impl FnOnce(&mut Value)) -> Result<String, Code> {
        let mut status = json!({
            "authenticated": true,
            "audiences": ["aliquot.dev/telemetry"],
            "user": {"username": ACCOUNT, "extra": {NODE_NAME: ["n1"]}},
        });
        change(&mut status);
        let status = serde_json::from_value(status).expect("a status");
        judge(&status, ACCOUNT).map_err(|status| {
            assert_eq!(status.message().lines().count(), 1, "{status}");
            status.code()
        })
    }

    #[test]
    fn only_an_agents_token_for_us_that_names_its_node_speaks() {
        use Code::{PermissionDenied, Unauthenticated};
        assert_eq!(verdict(|_| {}), Ok("n1".to_owned()));
        let user =
            |name: &str, nodes: &[&str]| json!({"username": name, "extra": {NODE_NAME: nodes}});
        for (field, value, code) in [
            ("authenticated", json!(false), Unauthenticated),
            ("authenticated", Value::Null, Unauthenticated),
            ("audiences", json!(["x"]), Unauthenticated),
            ("audiences", Value::Null, Unauthenticated),
            (
                "user",
                user("system:serviceaccount:a:aliquot-agent", &["n1"]),
                PermissionDenied,
            ),
            ("user", Value::Null, PermissionDenied),
            ("user", json!({"username": ACCOUNT}), PermissionDenied),
            ("user", user(ACCOUNT, &[]), PermissionDenied),
            ("user", user(ACCOUNT, &[""]), PermissionDenied),
            ("user", user(ACCOUNT, &["n1", "n2"]), PermissionDenied),
        ] {
            let got = verdict(|status| status[field] = value.clone());
            assert_eq!(got, Err(code), "{field}: {value}");
        }
    }

    #[test]
    fn a_bearer_token_is_read_as_rfc_6750_says() {
        let of = |value: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", value.parse().expect("ascii"));
            bearer(&metadata).map(str::to_owned)
        };
        assert_eq!(of("Bearer t"), Some("t".to_owned()));
        assert_eq!(of("bearer  t"), Some("t".to_owned()));
        assert_eq!(of("Basic t"), None);
        assert_eq!(of("Bearer "), None);
        assert_eq!(bearer(&MetadataMap::new()), None);
    }
}
