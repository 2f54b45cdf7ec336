//! The status page, for clients with a token of this API server.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::machine::ADDRESS;
use aliquot_tests::ports::PAGE_PORT;
use aliquot_tests::share::pod;
use aliquot_tests::token::{self, AccountToken, Credential};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DeleteParams;
use kube::client::Body;
use kube::{Api, Client};
use proto::names::{NAMESPACE, object};
use serde_json::{Value, json};

pub(crate) async fn a_reader_sees_what_his_token_may_list_and_nothing_else(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let (own, foreign) = (cluster.namespace().await?, cluster.namespace().await?);
    for ns in [&own, &foreign] {
        // More than is left once one runs: two wait.
        let waits = pod(ns, "waits", &[("gpu-memory", "99000")], "report hold");
        cluster.apply_one(&waits).await?;
    }
    for name in ["tenant", "admin"] {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": own}});
        cluster.apply_one(&account).await?;
    }
    let subject = |name: &str| json!([{"kind": "ServiceAccount", "name": name, "namespace": own}]);
    let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    let tenant = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "reads", "namespace": own},
        "roleRef": role("view"), "subjects": subject("tenant")});
    let admin_name = format!("reads-{own}");
    let admin = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": admin_name},
        "roleRef": role("cluster-admin"), "subjects": subject("admin")});
    cluster.apply_one(&tenant).await?;
    cluster.apply_one(&admin).await?;
    let outcome = read(cluster, &own, &foreign).await;
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> =
        Api::all(cluster.client.clone());
    bindings
        .delete(&admin_name, &DeleteParams::default())
        .await?;
    outcome
}

async fn read(cluster: &Cluster, own: &str, foreign: &str) -> Result<()> {
    let admin = reader(cluster, own, "admin").await?;
    let tenant = reader(cluster, own, "tenant").await?;
    until("both pods on the page", Duration::from_secs(20), || async {
        let seen = namespaces(&get(&admin, "/api/pods?state=waiting").await.map_err(told)?);
        let both = [own, foreign]
            .iter()
            .all(|ns| seen.contains(&(*ns).to_owned()));
        Ok(Seen::when(both, format!("{seen:?}")))
    })
    .await?;
    let pods = namespaces(
        &get(&tenant, "/api/pods?state=waiting")
            .await
            .map_err(told)?,
    );
    ensure!(pods == [own], "the tenant sees pods of {pods:?}");
    let cards = get(&admin, "/api/cards").await.map_err(told)?;
    ensure!(cards.to_string().contains("Tesla T4"), "cards: {cards}");
    let refused = get(&tenant, "/api/cards").await;
    ensure!(
        matches!(refused, Err((403, _))),
        "cards, to a tenant: {refused:?}"
    );
    let stranger = client(cluster, "stranger", "no.such.token").await?;
    let refused = get(&stranger, "/api/pods").await;
    ensure!(
        matches!(refused, Err((401, _))),
        "pods, to a stranger: {refused:?}"
    );
    Ok(())
}

fn told((code, words): (u16, String)) -> anyhow::Error {
    anyhow!("the page answers {code}: {words}")
}

fn namespaces(page: &Value) -> Vec<String> {
    let rows = page["rows"].as_array().into_iter().flatten();
    rows.filter_map(|row| Some(row["namespace"].as_str()?.to_owned()))
        .collect()
}

/// The page's answer, and its code where that is not 200.
async fn get(reader: &Client, path: &str) -> Result<Value, (u16, String)> {
    let failed = |error: &dyn std::fmt::Display| (0, error.to_string());
    let request = http::Request::get(path).body(Body::empty());
    let request = request.map_err(|error| failed(&error))?;
    let answer = reader.send(request).await.map_err(|error| failed(&error))?;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await;
    let body = body.map_err(|error| failed(&error))?;
    if code != 200 {
        return Err((code, String::from_utf8_lossy(&body).into_owned()));
    }
    serde_json::from_slice(&body).map_err(|error| failed(&error))
}

async fn reader(cluster: &Cluster, ns: &str, account: &str) -> Result<Client> {
    let file = cluster.work.state().join(format!("page-{account}.token"));
    let token = AccountToken {
        namespace: ns.to_owned(),
        account: account.to_owned(),
        node: None,
        audience: None,
        file: file.clone(),
    };
    token.write(&cluster.client).await?;
    client(cluster, account, &std::fs::read_to_string(file)?).await
}

/// A client of the page: it trusts what agents trust.
async fn client(cluster: &Cluster, name: &str, token: &str) -> Result<Client> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let trust = maps
        .get(object::TRUST_CONFIG_MAP)
        .await?
        .data
        .unwrap_or_default();
    let authority = cluster.work.state().join("page-ca.crt");
    std::fs::write(&authority, trust.get(object::TRUST_CA).context("no CA")?)?;
    let kubeconfig = cluster.work.state().join(format!("page-{name}.kubeconfig"));
    let server = format!("https://{ADDRESS}:{PAGE_PORT}");
    let credential = Credential::Token(token.to_owned());
    token::write_kubeconfig(&kubeconfig, &server, &authority, &credential)?;
    token::client(&kubeconfig).await
}
