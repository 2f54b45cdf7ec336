//! A token → the node that it speaks for.
//!
//! The token is a projected one of the agent's service account, for our audience alone,
//! bound to a pod; the API server adds the pod's node to what it says of it
//! (`authentication.kubernetes.io/node-name`, Kubernetes 1.30 and later).

use k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use kube::api::{Api, PostParams};
use proto::names::{object, telemetry};
use tonic::Status;
use tonic::metadata::MetadataMap;

/// Judges tokens.
pub(super) struct Callers {
    reviews: Api<TokenReview>,
    account: String,
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
        }
    }

    /// The node for which the caller may speak.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` or `PERMISSION_DENIED` with one sentence; `UNAVAILABLE` when the
    /// API server could not be asked.
    pub(super) async fn node(&self, metadata: &MetadataMap) -> Result<String, Status> {
        let token = bearer(metadata)
            .ok_or_else(|| Status::unauthenticated("no bearer token in `authorization`"))?;
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
