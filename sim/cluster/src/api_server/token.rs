//! Service account tokens: minted by `TokenRequest`, judged by `TokenReview`.
//! Opaque strings that this server remembers, so that nothing but its own minting
//! makes one. Never persisted.

use super::error::ApiError;
use super::object::{at, text, uid};
use super::resource::Collection;
use super::store::{Key, Store};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What the API server itself accepts.
const OWN_AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";

/// All tokens that were minted.
#[derive(Debug, Default)]
pub(crate) struct Tokens(BTreeMap<String, Token>);

#[derive(Debug)]
struct Token {
    namespace: String,
    account: String,
    account_uid: String,
    audiences: Vec<String>,
    expires: jiff::Timestamp,
    extra: BTreeMap<String, Vec<String>>,
}

impl Tokens {
    /// POST `serviceaccounts/<name>/token`.
    pub(crate) fn mint(
        &mut self,
        store: &mut Store,
        key: &Key,
        request: &Value,
        now: jiff::Timestamp,
    ) -> Result<Value, ApiError> {
        let accounts = Collection::new("", "serviceaccounts");
        let Some(account) = store.get(&accounts, key).cloned() else {
            return Err(ApiError::not_found("serviceaccounts", &key.name));
        };
        let seconds = at(request, "spec.expirationSeconds")
            .as_i64()
            .unwrap_or(3600);
        if seconds < 600 {
            return Err(ApiError::invalid(
                "TokenRequest",
                &key.name,
                "spec.expirationSeconds: Invalid value: may not specify a duration less than 10 minutes",
            ));
        }
        let expires = now
            .checked_add(jiff::SignedDuration::from_secs(seconds))
            .map_err(|_| ApiError::bad_request("expirationSeconds is out of range"))?;
        let extra = bound_to(store, key, at(request, "spec.boundObjectRef"))?;
        let mut audiences = strings(at(request, "spec.audiences"));
        if audiences.is_empty() {
            audiences.push(OWN_AUDIENCE.to_owned());
        }
        let token = store.token();
        let answer = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": {"name": key.name, "namespace": key.namespace},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": at(request, "spec.boundObjectRef")},
            "status": {"token": token, "expirationTimestamp": super::verb::stamp(expires)},
        });
        self.0.insert(
            token,
            Token {
                namespace: key.namespace.clone(),
                account: key.name.clone(),
                account_uid: uid(&account).to_owned(),
                audiences,
                expires,
                extra,
            },
        );
        Ok(answer)
    }

    /// POST `tokenreviews`.
    pub(crate) fn review(&self, store: &Store, review: &Value, now: jiff::Timestamp) -> Value {
        let mut wanted = strings(at(review, "spec.audiences"));
        if wanted.is_empty() {
            wanted.push(OWN_AUDIENCE.to_owned());
        }
        let status = match self.judge(store, text(review, "spec.token"), &wanted, now) {
            Ok((token, audiences)) => json!({
                "authenticated": true, "audiences": audiences, "user": token.user(),
            }),
            Err(why) => json!({"authenticated": false, "error": why, "user": {}}),
        };
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
            "spec": at(review, "spec"), "status": status,
        })
    }

    fn judge<'a>(
        &'a self,
        store: &Store,
        token: &str,
        wanted: &[String],
        now: jiff::Timestamp,
    ) -> Result<(&'a Token, Vec<String>), &'static str> {
        let token = self.0.get(token).ok_or("invalid bearer token")?;
        if token.expires <= now {
            return Err("token has expired");
        }
        let accounts = Collection::new("", "serviceaccounts");
        let key = Key {
            namespace: token.namespace.clone(),
            name: token.account.clone(),
        };
        if store.get(&accounts, &key).map(|account| uid(account)) != Some(&token.account_uid) {
            return Err("service account of the token is gone");
        }
        let both: Vec<String> = token
            .audiences
            .iter()
            .filter(|audience| wanted.contains(audience))
            .cloned()
            .collect();
        if both.is_empty() {
            return Err("token audiences do not match the target audiences");
        }
        Ok((token, both))
    }

    /// The caller, for admission: no request is refused because of it.
    pub(crate) fn user(&self, authorization: Option<&str>) -> Value {
        authorization
            .and_then(|value| value.strip_prefix("Bearer "))
            .and_then(|token| self.0.get(token))
            .map_or_else(
                || json!({"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]}),
                Token::user,
            )
    }
}

impl Token {
    fn user(&self) -> Value {
        json!({
            "username": format!("system:serviceaccount:{}:{}", self.namespace, self.account),
            "uid": self.account_uid,
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{}", self.namespace), "system:authenticated"],
            "extra": self.extra,
        })
    }
}

/// What a bound token says of its pod and node.
fn bound_to(
    store: &Store,
    account: &Key,
    reference: &Value,
) -> Result<BTreeMap<String, Vec<String>>, ApiError> {
    let mut extra = BTreeMap::new();
    let mut say = |what: &str, value: &str| {
        extra.insert(
            format!("authentication.kubernetes.io/{what}"),
            vec![value.to_owned()],
        );
    };
    let name = text(reference, "name");
    let find = |plural: &str, namespace: &str, name: &str| {
        let key = Key {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        store
            .get(&Collection::new("", plural), &key)
            .cloned()
            .ok_or_else(|| ApiError::not_found(plural, name))
    };
    match text(reference, "kind") {
        "Pod" => {
            let pod = find("pods", &account.namespace, name)?;
            say("pod-name", name);
            say("pod-uid", uid(&pod));
            let node = text(&pod, "spec.nodeName");
            if !node.is_empty() {
                say("node-name", node);
                if let Ok(found) = find("nodes", "", node) {
                    say("node-uid", uid(&found));
                }
            }
        }
        "Node" => {
            let node = find("nodes", "", name)?;
            say("node-name", name);
            say("node-uid", uid(&node));
        }
        _ => {}
    }
    Ok(extra)
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|value| value.as_str().map(str::to_owned))
        .collect()
}
