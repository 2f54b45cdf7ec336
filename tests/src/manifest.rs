//! Manifests: applied as a user applies them.
//!
//! In: the YAML of a file. Out: the objects, or the server's own words where it refuses one. Must
//! never change what a manifest says.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt, discovery};
use serde_json::Value;

use crate::wait::{Seen, until};

/// The field manager, for server-side apply.
const FIELD_MANAGER: &str = "aliquot-tests";

/// The documents of a YAML text, empty ones left out.
pub fn documents(yaml: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

/// What a moment later is not refused. Our own webhook is waited for only until the scheduler
/// has written its authority: that it answers is for claims to say.
fn passes(refusal: &str) -> bool {
    let webhook = refusal.contains("failed to call webhook")
        && refusal.contains("connection refused")
        && !refusal.contains("aliquot");
    webhook
        || refusal.contains("certificate signed by unknown authority")
        || refusal.contains("serviceaccount \"default\" not found")
        || refusal.contains("error looking up service account")
}

/// Applies one object.
pub async fn apply(client: &Client, document: &Value) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(document.clone())?;
    let name = object.name_any();
    let api = api_of(client, &object).await?;
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let kind = object
        .types
        .as_ref()
        .map(|types| types.kind.clone())
        .unwrap_or_default();
    // A fresh namespace has no default service account for a moment, and an operator that
    // is available no webhook: both are refused in words that say so.
    let begin = Instant::now();
    loop {
        match api.patch(&name, &parameters, &Patch::Apply(&object)).await {
            Ok(applied) => return Ok(applied),
            Err(kube::Error::Api(status))
                if begin.elapsed() < Duration::from_secs(30) && passes(&status.message) =>
            {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            // What the API server says is what a user reads: passed on as it is.
            Err(kube::Error::Api(status)) => bail!("{kind}/{name}: {}", status.message),
            Err(error) => return Err(error).with_context(|| format!("{kind}/{name}")),
        }
    }
}

async fn api_of(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object
        .types
        .as_ref()
        .context("a document without apiVersion and kind")?;
    let kind = GroupVersionKind::try_from(types)?;
    let (resource, capabilities) = until(
        &format!("the API of {kind:?}"),
        Duration::from_secs(15),
        || async { Ok(Seen::Done(discovery::pinned_kind(client, &kind).await?)) },
    )
    .await?;
    Ok(match (capabilities.scope, object.namespace()) {
        (discovery::Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
        (discovery::Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
        (discovery::Scope::Namespaced, None) => {
            Api::default_namespaced_with(client.clone(), &resource)
        }
    })
}
