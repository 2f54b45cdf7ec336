//! The configuration file: KAI's `SchedulingShard`s, and one document of our own for what
//! KAI has no field for.
//!
//! ```yaml
//! apiVersion: aliquot.dev/v1alpha1
//! kind: SchedulerConfiguration
//! queueLabelKey: kai.scheduler/queue
//! nodePoolLabelKey: kai.scheduler/node-pool
//! ---
//! apiVersion: kai.scheduler/v1
//! kind: SchedulingShard
//! metadata:
//!   name: default
//! spec:
//!   placementStrategy: {gpu: binpack, cpu: binpack}
//! ```

use super::pool::Pool;
use super::remark::{Remark, remark};
use super::spec::{self, Spec};
use crate::Config;
use proto::names::kai;
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Why the file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It does not exist.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Something in it is invalid.
    #[error("{path}, line {line}: {why}", path = path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// The error.
        why: String,
    },
}

/// One core and its scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name, for people, and of the live object over it.
    pub name: String,
    /// Whether there may be such an object.
    pub live: bool,
    /// Which objects are its.
    pub pool: Pool,
    /// How it decides.
    pub core: scheduler_core::Config,
    /// Where its queues' past use comes from. `None`: it does not count.
    pub usage: Option<crate::usage::Settings>,
}

/// The cores to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Key of the label that names a workload's queue.
    pub queue_label: String,
    /// At least one.
    pub shards: Vec<Shard>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Spanned<String>,
    kind: Spanned<String>,
}

/// Our own document.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "apiVersion and kind are read apart, and allowed here"
)]
struct Ours {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    queue_label_key: Option<String>,
    node_pool_label_key: Option<String>,
    keep_empty_nodes: Option<u32>,
    /// Search steps of one decision.
    search_budget: Option<u64>,
    /// MiB over which shares of a product are counted, by the product's name.
    #[serde(default)]
    product_base_mib: BTreeMap<String, Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "apiVersion and kind are read apart, and allowed here"
)]
struct ShardDocument {
    api_version: String,
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: serde_json::Value,
}

/// Everything else in it is the API server's.
#[derive(Debug, Deserialize)]
struct Metadata {
    name: Spanned<String>,
}

impl Shard {
    /// The only one of a scheduler with these flags; `core`: what they say of decisions.
    pub fn of_all(config: &Config, core: scheduler_core::Config) -> Self {
        let pool = config
            .node_pool
            .as_ref()
            .map_or(Pool::All, |value| Pool::Of {
                key: config.node_pool_label_key.clone(),
                value: value.clone(),
            });
        let name = config.shard.as_deref();
        Self {
            name: name.unwrap_or_else(|| pool.name()).to_owned(),
            live: config.reads_shards(),
            pool,
            core,
            usage: None,
        }
    }
}

impl Plan {
    /// From flags and file. `epoch`: of the first core; the others' follow. What has no
    /// effect is logged.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is invalid.
    pub fn of(config: &Config, epoch: u64) -> Result<Self, ConfigError> {
        let Some(path) = &config.config else {
            return Ok(Self::alone(config, epoch));
        };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        let (plan, remarks) =
            Self::read(&text, config, epoch).map_err(|remark| at(path, remark))?;
        for remark in remarks {
            tracing::warn!("{}", at(path, remark));
        }
        Ok(plan)
    }

    fn alone(config: &Config, epoch: u64) -> Self {
        Self {
            queue_label: config.queue_label_key.clone(),
            shards: vec![Shard::of_all(config, config.core(epoch))],
        }
    }

    /// Pure. The remarks are about what has no effect.
    pub(super) fn read(
        text: &str,
        config: &Config,
        epoch: u64,
    ) -> Result<(Self, Vec<Remark>), Remark> {
        let mut base = config.clone();
        let mut ours = None;
        let mut shards = Vec::new();
        let mut remarks = Vec::new();
        for document in documents(text) {
            let head: Head = parse(&document)?;
            match (head.api_version.value.as_str(), head.kind.value.as_str()) {
                ("aliquot.dev/v1alpha1", "SchedulerConfiguration") => {
                    if ours.is_some() {
                        return Err(remark(
                            &head.kind,
                            "",
                            "there is a SchedulerConfiguration already",
                        ));
                    }
                    ours = Some(parse::<Ours>(&document)?);
                }
                (version, "SchedulingShard") if version.strip_prefix(kai::PREFIX) == Some("v1") => {
                    shards.push(parse::<ShardDocument>(&document)?);
                }
                (version, kind) => {
                    let why = format!("{version} {kind} is nothing that belongs here");
                    return Err(remark(&head.kind, "", why));
                }
            }
        }
        let ours = ours.unwrap_or_default();
        if let Some(key) = ours.queue_label_key {
            base.queue_label_key = key;
        }
        if let Some(key) = ours.node_pool_label_key {
            base.node_pool_label_key = key;
        }
        if let Some(count) = ours.keep_empty_nodes {
            base.keep_empty_nodes = count;
        }
        let mut bases = BTreeMap::new();
        for (product, mib) in ours.product_base_mib {
            if mib.value == 0 {
                return Err(remark(&mib, "", format!("{product} cannot have 0 MiB")));
            }
            bases.insert(product, mib.value);
        }
        let mut plan = Self::alone(&base, epoch);
        if !shards.is_empty() {
            plan.shards.clear();
        }
        let mut pools = BTreeSet::new();
        let mut names = BTreeSet::new();
        for (epoch, document) in (epoch..).zip(shards) {
            let name = &document.metadata.name;
            let mut core = base.core(epoch);
            let read = spec::read(document.spec, &mut core, &mut remarks)?;
            let key = read
                .pool_key
                .unwrap_or_else(|| base.node_pool_label_key.clone());
            let pool = read.pool.unwrap_or_default();
            if !pools.insert((key.clone(), pool.clone())) {
                let why = format!("another shard has the same nodes as {}", name.value);
                return Err(remark(name, "", why));
            }
            if !names.insert(name.value.clone()) {
                return Err(remark(
                    name,
                    "",
                    format!("another shard is named {}", name.value),
                ));
            }
            plan.shards.push(Shard {
                name: name.value.clone(),
                live: base.reads_shards(),
                pool: Pool::Of { key, value: pool },
                core,
                usage: read.usage,
            });
        }
        for shard in &mut plan.shards {
            shard.core.bases.clone_from(&bases);
            if let Some(budget) = ours.search_budget {
                shard.core.budget = budget;
            }
        }
        Ok((plan, remarks))
    }

    /// Values of the node pools' label; `None`: all nodes.
    pub fn pools(&self) -> Option<Vec<String>> {
        let values = self.shards.iter().map(|shard| shard.pool.value());
        values.map(|value| value.map(str::to_owned)).collect()
    }
}

fn at(path: &Path, remark: Remark) -> ConfigError {
    ConfigError::Line {
        path: path.to_owned(),
        line: remark.line,
        why: remark.why,
    }
}

/// Each document with its lines; empty ones left out.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for (at, line) in text.lines().enumerate() {
        if line.trim_end() == "---" {
            documents.push("\n".repeat(at + 1));
            continue;
        }
        if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents.retain(|document| {
        let says = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        document.lines().any(says)
    });
    documents
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(document: &str) -> Result<T, Remark> {
    serde_saphyr::from_str(document).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        let text = error.without_snippet().to_string();
        let first = text.lines().next().unwrap_or_default();
        Remark {
            line,
            field: String::new(),
            why: first.to_owned(),
        }
    })
}

#[cfg(test)]
mod tests;
