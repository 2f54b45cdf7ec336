//! The way into a cluster: which one, and its objects as lists.
//!
//! In: kubeconfig, context. Out: typed lists, or one sentence with what to do. Reads with
//! `get` and `list` alone; nothing is watched and nothing is kept.

use crate::failure::Failure;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DynamicObject, NamespaceResourceScope, PartialObjectMeta};
use kube::{Client, Config, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::path::PathBuf;

/// Flags of every verb that connects to a cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Kubeconfig; else $KUBECONFIG, ~/.kube/config, or the pod's own account.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
}

/// A connection to a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Where it is, for messages.
    pub(crate) url: String,
    /// Of the context.
    pub(crate) namespace: String,
}

impl ClusterArgs {
    /// Reads the configuration; nothing is sent yet.
    pub(crate) async fn connect(&self) -> Result<Cluster, Failure> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| {
                    Failure::input(format!(
                        "the kubeconfig {} cannot be read: {error}",
                        path.display()
                    ))
                })?;
                Config::from_custom_kubeconfig(file, &options)
                    .await
                    .map_err(|error| {
                        Failure::input(format!("the kubeconfig {}: {error}", path.display()))
                    })?
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options)
                .await
                .map_err(|error| Failure::input(format!("the kubeconfig: {error}")))?,
            None => Config::infer().await.map_err(|_| {
                Failure::input(
                    "no cluster is configured: give --kubeconfig FILE or set KUBECONFIG; without a cluster, try `aliquot demo`",
                )
            })?,
        };
        let url = config.cluster_url.to_string();
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config)
            .map_err(|error| Failure::input(format!("the kubeconfig: {error}")))?;
        Ok(Cluster {
            client,
            url: url.trim_end_matches('/').to_owned(),
            namespace,
        })
    }
}

impl Cluster {
    /// Everything of one cluster-scoped kind, or of a namespaced kind in all namespaces.
    /// A kind that the cluster does not know is an empty list.
    pub(crate) async fn list<K>(&self) -> Result<Vec<K>, Failure>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        self.listed(Api::all(self.client.clone()), true).await
    }

    /// As [`Self::list`], but a kind that the cluster does not know is a failure.
    pub(crate) async fn list_known<K>(&self) -> Result<Vec<K>, Failure>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        self.listed(Api::all(self.client.clone()), false).await
    }

    /// Lists the metadata of all objects of one kind. The list is empty if the cluster does not
    /// know the kind.
    pub(crate) async fn list_names<K>(&self) -> Result<Vec<PartialObjectMeta<K>>, Failure>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let api = Api::<K>::all(self.client.clone());
        let what = K::plural(&K::DynamicType::default()).into_owned();
        match api.list_metadata(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(self.failure(&what, &error)),
        }
    }

    /// Lists all objects of a kind that is known by its name only. The list is empty if the
    /// cluster does not know the kind.
    pub(crate) async fn list_any(&self, kind: &ApiResource) -> Result<Vec<DynamicObject>, Failure> {
        let api = Api::<DynamicObject>::all_with(self.client.clone(), kind);
        match api.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(self.failure(&kind.plural, &error)),
        }
    }

    /// Everything of one kind in one namespace.
    pub(crate) async fn list_in<K>(&self, namespace: &str) -> Result<Vec<K>, Failure>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        self.listed(Api::namespaced(self.client.clone(), namespace), false)
            .await
    }

    async fn listed<K>(&self, api: Api<K>, or_empty: bool) -> Result<Vec<K>, Failure>
    where
        K: Resource + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let what = K::plural(&K::DynamicType::default()).into_owned();
        match api.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 && or_empty => Ok(Vec::new()),
            Err(error) => Err(self.failure(&what, &error)),
        }
    }

    /// What an error of the client means to a person.
    pub(crate) fn failure(&self, what: &str, error: &kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) if status.code == 404 => Failure::cluster(format!(
                "the cluster at {} has no {what}: is Aliquot installed there (kubectl apply -k deploy)?",
                self.url
            )),
            kube::Error::Api(status) if status.code == 403 || status.code == 401 => {
                Failure::cluster(format!(
                    "the cluster refuses {what}: {}; the right to get and list them is needed",
                    status.message
                ))
            }
            kube::Error::Api(status) => {
                Failure::cluster(format!("the cluster refuses {what}: {}", status.message))
            }
            other => Failure::cluster(format!(
                "the cluster at {} does not answer ({what}): {}",
                self.url,
                innermost(other)
            )),
        }
    }
}

/// The last of an error's causes: the one that says it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

impl Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Runs one verb to its end, on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::no(format!("no runtime: {error}")))?
        .block_on(work)
}
