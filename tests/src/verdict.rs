//! What the API server says to one write, without the write taking place.
//!
//! In: a client with an account's credentials, a write. Out: admitted, with the warnings that a
//! user would see, or refused, in the server's own words. Every write is a dry run: admission
//! judges it as it would judge the real one. Must never change the cluster.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// One write.
#[derive(Debug, Clone)]
pub struct Write {
    method: &'static str,
    content: &'static str,
    path: String,
    body: Value,
}

impl Write {
    /// A creation: `path` is the collection's, or the subresource's.
    pub fn create(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: "POST",
            content: "application/json",
            path: path.into(),
            body,
        }
    }

    /// Returns the pod that the write creates in a namespace. `None`: it does something else.
    ///
    /// # Errors
    /// The pod cannot be read.
    pub fn created_pod(&self, namespace: &str) -> Result<Option<Pod>> {
        let creates =
            self.method == "POST" && self.path == format!("/api/v1/namespaces/{namespace}/pods");
        let pod = creates.then(|| serde_json::from_value(self.body.clone()));
        pod.transpose().context("the pod cannot be read")
    }

    /// A replacement: the body has the object's resource version.
    pub fn replace(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: "PUT",
            ..Self::create(path, body)
        }
    }

    /// A merge patch.
    pub fn patch(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: "PATCH",
            content: "application/merge-patch+json",
            path: path.into(),
            body,
        }
    }

    /// A deletion. With a body the API server reads no options from the query.
    pub fn delete(path: impl Into<String>) -> Self {
        Self {
            method: "DELETE",
            ..Self::create(path, serde_json::json!({ "dryRun": ["All"] }))
        }
    }

    /// A merge patch that knows lists by their keys.
    pub fn strategic(path: impl Into<String>, body: Value) -> Self {
        Self {
            content: "application/strategic-merge-patch+json",
            ..Self::patch(path, body)
        }
    }
}

/// What the server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Yes, with these warnings.
    Admitted(Vec<String>),
    /// No, for this reason.
    Refused(String),
}

/// Asks for the server's verdict.
pub async fn judge(client: &Client, write: &Write) -> Result<Verdict> {
    let request = http::Request::builder()
        .method(write.method)
        .uri(format!("{}?dryRun=All", write.path))
        .header("content-type", write.content)
        .body(Body::from(serde_json::to_vec(&write.body)?))?;
    let response = client.send(request).await?;
    if response.status().is_success() {
        let warnings = response.headers().get_all("warning");
        return Ok(Verdict::Admitted(
            warnings
                .iter()
                .map(|warning| String::from_utf8_lossy(warning.as_bytes()).into_owned())
                .collect(),
        ));
    }
    let bytes = response.into_body().collect_bytes().await?;
    let status: Value = serde_json::from_slice(&bytes)
        .with_context(|| String::from_utf8_lossy(&bytes).into_owned())?;
    let message = status["message"].as_str().context("no message")?;
    Ok(Verdict::Refused(message.to_owned()))
}
