//! Credentials: kubeconfigs, and service account tokens as a pod would get them.
//!
//! In: an API server, a service account. Out: files that a program under test reads exactly as it
//! would read its mounted ones, kept fresh by [`Refresher`]. Must never hand a program under test
//! the admin's credentials.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;

/// How long a token is good for. Half of it is the time between refreshes.
const LIFETIME: Duration = Duration::from_hours(1);

/// What a kubeconfig authenticates with.
#[derive(Debug, Clone)]
pub enum Credential {
    /// The token itself.
    Token(String),
    /// A file that is read again while the program runs.
    File(PathBuf),
}

/// Writes a kubeconfig with one context.
pub fn write_kubeconfig(
    path: &Path,
    server: &str,
    authority: &Path,
    credential: &Credential,
) -> Result<()> {
    let user = match credential {
        Credential::Token(token) => json!({ "token": token }),
        Credential::File(file) => json!({ "tokenFile": file }),
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": { "server": server, "certificate-authority": authority } }],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "user" } }],
        "current-context": "test",
    });
    fs::write(path, serde_json::to_vec_pretty(&config)?).with_context(|| path.display().to_string())
}

/// A client from a kubeconfig.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A token of a service account, as the kubelet would project it into a pod.
#[derive(Debug, Clone)]
pub struct AccountToken {
    pub namespace: String,
    pub account: String,
    /// The Node that the token is bound to: the API server then vouches for the node
    /// name in it, as it does for a pod's token.
    pub node: Option<String>,
    /// `None`: the API server's own audience.
    pub audience: Option<String>,
    /// Where it is written.
    pub file: PathBuf,
}

impl AccountToken {
    /// Asks for the token and puts it into place by rename.
    pub async fn write(&self, client: &Client) -> Result<()> {
        let token = self.ask(client).await?;
        let new = self.file.with_extension("new");
        fs::write(&new, token)?;
        fs::rename(&new, &self.file)?;
        Ok(())
    }

    /// Asks for the token.
    pub async fn ask(&self, client: &Client) -> Result<String> {
        let bound = match &self.node {
            Some(name) => {
                let node = Api::<Node>::all(client.clone()).get(name).await?;
                Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    uid: node.uid(),
                    name: Some(name.clone()),
                })
            }
            None => None,
        };
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: self.audience.clone().map(|audience| vec![audience]),
                bound_object_ref: bound,
                expiration_seconds: Some(i64::try_from(LIFETIME.as_secs())?),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        let answer = accounts
            .create_token_request(&self.account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("token of {}/{}", self.namespace, self.account))?;
        answer
            .status
            .and_then(|status| status.token)
            .context("a token request without a token")
    }
}

/// Keeps tokens fresh for as long as it lives.
#[derive(Debug)]
pub struct Refresher {
    task: tokio::task::JoinHandle<()>,
}

impl Refresher {
    /// Writes every token once, then again and again in the background.
    pub async fn start(client: Client, tokens: Vec<AccountToken>) -> Result<Self> {
        for token in &tokens {
            token.write(&client).await?;
        }
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LIFETIME / 2).await;
                for token in &tokens {
                    // The old one is valid for as long again; the next round tries again.
                    if let Err(error) = token.write(&client).await {
                        eprintln!("refresh of a token: {error:#}");
                    }
                }
            }
        });
        Ok(Self { task })
    }
}

impl Drop for Refresher {
    fn drop(&mut self) {
        self.task.abort();
    }
}
