use super::*;
use base64::Engine as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use sim_cluster::api_server::{ApiServer, Config};

const NS: &str = "default";

async fn server() -> (Client, tokio_util::sync::DropGuard) {
    let server = ApiServer::bind(Config::default()).await.unwrap();
    let client = Client::try_from(server.handle().config()).unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(server.serve(stop.clone()));
    (client, stop.drop_guard())
}

fn names() -> Vec<String> {
    vec![
        "aliquot-telemetry.aliquot-system.svc".into(),
        "127.0.0.1".into(),
    ]
}

#[tokio::test]
async fn replicas_that_start_at_once_agree() {
    let (client, _server) = server().await;
    let names = names();
    let (a, b, c) = tokio::join!(
        establish(&client, NS, &names),
        establish(&client, NS, &names),
        establish(&client, NS, &names),
    );
    let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    for other in [&b, &c] {
        assert_eq!(a.signer().key_id(), other.signer().key_id());
        assert_eq!(a.certificates().ca_pem(), other.certificates().ca_pem());
        assert_eq!(a.cluster_id(), other.cluster_id());
    }
    let again = establish(&client, NS, &names).await.unwrap();
    assert_eq!(a.signer().public_key(), again.signer().public_key());
}

/// Creates both Secrets empty, as `deploy/` does, but with another label.
async fn make_empty(secrets: &Api<Secret>) {
    for name in [object::GRANT_KEY_SECRET, object::TLS_SECRET] {
        let empty = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"a": "b"}}, "type": "Opaque",
        }));
        let (parameters, empty) = (PostParams::default(), empty.unwrap());
        secrets.create(&parameters, &empty).await.unwrap();
    }
}

#[tokio::test]
async fn empty_secrets_are_filled_once_and_keep_the_rest() {
    let (client, _server) = server().await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NS);
    make_empty(&secrets).await;
    let names = names();
    let (a, b, c) = tokio::join!(
        establish(&client, NS, &names),
        certificates(&client, NS, &names),
        establish(&client, NS, &names),
    );
    let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    assert_eq!(a.signer().key_id(), c.signer().key_id());
    for other in [&b, c.certificates()] {
        assert_eq!(a.certificates().ca_pem(), other.ca_pem());
    }
    let filled = secrets.get(object::GRANT_KEY_SECRET).await.unwrap();
    assert!(filled.metadata.labels.unwrap().contains_key("a"));
    let again = establish(&client, NS, &names).await.unwrap();
    assert_eq!(a.signer().public_key(), again.signer().public_key());
    let still = secrets.get(object::GRANT_KEY_SECRET).await.unwrap();
    assert_eq!(filled.data, still.data);
    // An entry without a byte counts as no key.
    let blank = Patch::Merge(json!({"data": {(object::GRANT_KEY_ENTRY): ""}}));
    secrets
        .patch(object::GRANT_KEY_SECRET, &PatchParams::default(), &blank)
        .await
        .unwrap();
    let other = establish(&client, NS, &names).await.unwrap();
    assert_ne!(a.signer().key_id(), other.signer().key_id());
}

/// The API server of this test has the namespace, and rejects the creation of a Secret.
#[tokio::test]
async fn a_secret_that_is_missing_and_may_not_be_created_is_named_with_the_fix() {
    let answer = |request: http::Request<kube::client::Body>| async move {
        let of_namespace = request.uri().path().ends_with("/namespaces/kube-system");
        let (code, body) = match *request.method() {
            http::Method::GET if of_namespace => (
                200,
                json!({"metadata": {"name": "kube-system", "uid": "u"}}),
            ),
            http::Method::GET => (404, json!({"code": 404, "reason": "NotFound"})),
            _ => (403, json!({"code": 403, "reason": "Forbidden"})),
        };
        let response = http::Response::builder().status(code);
        let body = kube::client::Body::from(body.to_string().into_bytes());
        Ok::<_, std::convert::Infallible>(response.body(body).unwrap())
    };
    let client = Client::new(tower::service_fn(answer), NS);
    let error = establish(&client, NS, &names()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no Secret default/aliquot-grant-key: apply deploy/scheduler.yaml, which has an empty one"
    );
}

#[tokio::test]
async fn what_is_published_verifies_what_is_signed() {
    let (client, _server) = server().await;
    let trust = establish(&client, NS, &names()).await.unwrap();
    let map: Api<ConfigMap> = Api::namespaced(client, NS);
    let data = map
        .get(object::TRUST_CONFIG_MAP)
        .await
        .unwrap()
        .data
        .unwrap();
    assert_eq!(data[object::TRUST_CLUSTER_ID], trust.cluster_id());
    assert_eq!(data[object::TRUST_CA], trust.certificates().ca_pem());
    let keys: std::collections::BTreeMap<String, String> =
        serde_json::from_str(&data[object::TRUST_KEYS]).unwrap();
    let key = base64::engine::general_purpose::STANDARD.decode(&keys[trust.signer().key_id()]);
    assert_eq!(key.unwrap(), trust.signer().public_key());
}

#[tokio::test]
async fn a_config_map_that_is_altered_or_deleted_comes_back() {
    let (client, _server) = server().await;
    let trust = establish(&client, NS, &names()).await.unwrap();
    let stop = CancellationToken::new();
    let kept = keep(
        trust.clone(),
        client.clone(),
        NS.into(),
        names(),
        stop.clone(),
    );
    let kept = tokio::spawn(kept);
    let maps: Api<ConfigMap> = Api::namespaced(client, NS);
    let whole = maps.get(object::TRUST_CONFIG_MAP).await.unwrap().data;
    let back = async || loop {
        let map = maps.get_opt(object::TRUST_CONFIG_MAP).await.unwrap();
        if map.is_some_and(|map| map.data == whole) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let patch = Patch::Merge(json!({"data": {"grant-keys.json": "{}"}}));
    maps.patch(object::TRUST_CONFIG_MAP, &PatchParams::default(), &patch)
        .await
        .unwrap();
    tokio::time::timeout(Duration::from_secs(10), back())
        .await
        .expect("altered");
    maps.delete(object::TRUST_CONFIG_MAP, &DeleteParams::default())
        .await
        .unwrap();
    tokio::time::timeout(Duration::from_secs(10), back())
        .await
        .expect("deleted");
    stop.cancel();
    kept.await.unwrap();
}

#[tokio::test]
async fn a_key_that_is_taken_away_is_replaced_by_one_in_all_replicas_and_stays_trusted() {
    let (client, _server) = server().await;
    let stop = CancellationToken::new();
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let trust = establish(&client, NS, &names()).await.unwrap();
        let kept = keep(
            trust.clone(),
            client.clone(),
            NS.into(),
            names(),
            stop.clone(),
        );
        tokio::spawn(kept);
        replicas.push(trust);
    }
    let old = replicas[0].signer().key_id().to_owned();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NS);
    let maps: Api<ConfigMap> = Api::namespaced(client, NS);
    let empty = Patch::Merge(json!({"data": null}));
    secrets
        .patch(object::GRANT_KEY_SECRET, &PatchParams::default(), &empty)
        .await
        .unwrap();
    let patch = Patch::Merge(json!({"data": {"signing-key": null}}));
    maps.patch(object::TRUST_CONFIG_MAP, &PatchParams::default(), &patch)
        .await
        .unwrap();
    let changed = async {
        loop {
            let ids: Vec<String> = replicas
                .iter()
                .map(|trust| trust.signer().key_id().to_owned())
                .collect();
            if ids[0] != old && ids[0] == ids[1] {
                return ids[0].clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let new = tokio::time::timeout(Duration::from_secs(10), changed)
        .await
        .expect("one new key");
    let published = async {
        loop {
            let map = maps.get(object::TRUST_CONFIG_MAP).await.unwrap();
            let data = map.data.unwrap();
            let both = [&old, &new]
                .iter()
                .all(|key| data[object::TRUST_KEYS].contains(key.as_str()));
            if both && data.get("signing-key") == Some(&new) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), published)
        .await
        .expect("both keys are trusted");
    stop.cancel();
}

#[tokio::test]
async fn a_secret_that_holds_something_else_is_named_and_not_overwritten() {
    let (client, _server) = server().await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NS);
    let foreign: Secret = serde_json::from_value(json!({
        "metadata": {"name": object::GRANT_KEY_SECRET}, "data": {"key.pk8": "AAEC"},
    }))
    .unwrap();
    secrets
        .create(&PostParams::default(), &foreign)
        .await
        .unwrap();
    let error = establish(&client, NS, &names())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("Secret default/aliquot-grant-key"),
        "{error}"
    );
    assert!(
        error.contains("delete it and apply deploy/scheduler.yaml"),
        "{error}"
    );
    let left = secrets.get(object::GRANT_KEY_SECRET).await.unwrap();
    assert_eq!(left.data, foreign.data);
}
