//! `aliquot keys`: which keys grants are signed with and believed of, a change of the signing
//! key, and the end of trust in one.
//!
//! Reads and writes the trust `ConfigMap`, and empties the Secret with the signing key: the
//! scheduler fills it with a new one. The private key is never read here.

use crate::connect::{Cluster, ClusterArgs, block_on};
use crate::failure::{Failure, Outcome};
use crate::report::{Cell, Column, Output, Report, Table, Tone};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use proto::names::{NAMESPACE, object};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A scheduler that runs sees a change at once; one that does not, never.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(200);
/// A write is tried so often before the others have won.
const TRIES: usize = 5;

/// Flags.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    /// Namespace of Aliquot.
    #[arg(long, default_value = NAMESPACE, global = true)]
    namespace: String,
    #[command(flatten)]
    place: ClusterArgs,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// List the keys that agents trust, and which of them signs.
    List,
    /// Make the scheduler sign with a new key. Grants of the former key stay valid.
    Rotate,
    /// Stop trusting a key: agents accept no grant of it any more. Running containers keep running.
    Revoke {
        /// Id of the key, as `aliquot keys list` prints it.
        #[arg(value_name = "KEY")]
        key: String,
    },
}

const COLUMNS: &[Column] = &[Column::text("key", "KEY"), Column::text("state", "STATE")];

/// Runs one of them.
pub(crate) fn run(args: &Args) -> Outcome {
    block_on(async {
        let keys = Keys::new(&args.place.connect().await?, &args.namespace);
        match &args.what {
            What::List => {}
            What::Rotate => keys.rotate().await?,
            What::Revoke { key } => keys.revoke(key).await?,
        }
        args.output.print(&Report::from(table(&keys.read().await?)))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What the `ConfigMap` says.
struct TrustedKeys {
    map: ConfigMap,
    /// Public keys by id.
    keys: BTreeMap<String, String>,
    signs: Option<String>,
}

fn table(known: &TrustedKeys) -> Table {
    let mut table = Table::new(COLUMNS, "no key: no scheduler has started yet");
    for key in known.keys.keys() {
        let signs = known.signs.as_ref() == Some(key);
        table.row(vec![
            key.clone().into(),
            if signs {
                Cell::from("signs").tone(Tone::Good)
            } else {
                Cell::from("believed")
            },
        ]);
    }
    table
}

struct Keys {
    maps: Api<ConfigMap>,
    secrets: Api<Secret>,
    namespace: String,
}

impl Keys {
    fn new(cluster: &Cluster, namespace: &str) -> Self {
        Self {
            maps: Api::namespaced(cluster.client.clone(), namespace),
            secrets: Api::namespaced(cluster.client.clone(), namespace),
            namespace: namespace.to_owned(),
        }
    }

    async fn read(&self) -> Result<TrustedKeys, Failure> {
        let name = object::TRUST_CONFIG_MAP;
        let what = format!("ConfigMap {}/{name}", self.namespace);
        let found = self.maps.get_opt(name).await;
        let map = found
            .map_err(|error| Failure::cluster(format!("{what} cannot be read: {error}")))?
            .ok_or_else(|| {
                Failure::no(format!(
                    "there is no {what}: no scheduler has started there; give --namespace where Aliquot is installed elsewhere"
                ))
            })?;
        let entry = |key: &str| map.data.as_ref().and_then(|data| data.get(key));
        let keys = match entry(object::TRUST_KEYS) {
            Some(text) => serde_json::from_str(text).map_err(|error| {
                Failure::no(format!(
                    "{what}: {} is no list of keys: {error}",
                    object::TRUST_KEYS
                ))
            })?,
            None => BTreeMap::new(),
        };
        let signs = entry(object::TRUST_SIGNING_KEY).cloned();
        Ok(TrustedKeys { map, keys, signs })
    }

    /// Takes the key out of its Secret, informs the schedulers, and waits until one of them has
    /// created another. The Secret stays: a scheduler has no right to create one.
    async fn rotate(&self) -> Result<(), Failure> {
        let before = self.read().await?.signs;
        let secret = object::GRANT_KEY_SECRET;
        let parameters = PatchParams::default();
        let empty = Patch::Merge(json!({ "data": null }));
        let emptied = self.secrets.patch_metadata(secret, &parameters, &empty);
        emptied.await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => Failure::no(format!(
                "there is no Secret {}/{secret}: apply deploy/scheduler.yaml, which has an empty one, and try again",
                self.namespace
            )),
            error => Failure::cluster(format!(
                "Secret {}/{secret} cannot be emptied: {error}",
                self.namespace
            )),
        })?;
        let news = Patch::Merge(json!({ "data": { object::TRUST_SIGNING_KEY: null } }));
        self.maps
            .patch(object::TRUST_CONFIG_MAP, &parameters, &news)
            .await
            .map_err(|error| self.unwritten(&error))?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let now = self.read().await?.signs;
            if now.is_some() && now != before {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(Failure::cluster(
            "the previous key is deleted, and no scheduler has created a new one in 30 s: the next one that starts will",
        ))
    }

    async fn revoke(&self, key: &str) -> Result<(), Failure> {
        for _ in 0..TRIES {
            let mut known = self.read().await?;
            if known.signs.as_deref() == Some(key) {
                return Err(Failure::no(format!(
                    "{key} is the signing key: rotate it first, with `aliquot keys rotate`"
                )));
            }
            if known.keys.remove(key).is_none() {
                return Err(Failure::input(format!(
                    "no key {key} is trusted; `aliquot keys list` lists the trusted keys"
                )));
            }
            let text = serde_json::to_string(&known.keys)
                .map_err(|error| Failure::cluster(format!("keys cannot be written: {error}")))?;
            let data = known.map.data.get_or_insert_default();
            data.insert(object::TRUST_KEYS.to_owned(), text);
            let name = object::TRUST_CONFIG_MAP;
            let parameters = PostParams::default();
            let written = self.maps.replace(name, &parameters, &known.map).await;
            match written {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(self.unwritten(&error)),
            }
        }
        Err(Failure::cluster(
            "the keys were changed by others each time: try again",
        ))
    }

    fn unwritten(&self, error: &kube::Error) -> Failure {
        Failure::cluster(format!(
            "ConfigMap {}/{} cannot be written: {error}",
            self.namespace,
            object::TRUST_CONFIG_MAP
        ))
    }
}
