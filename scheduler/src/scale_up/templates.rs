//! What nodes of a group have: as a person wrote it down, or as the last node of the group had it.
//!
//! ```yaml
//! nodeTemplates:
//!   - name: l4
//!     labels: {karpenter.sh/nodepool: l4}
//!     taints: [{key: nvidia.com/gpu, effect: NoSchedule}]
//!     cards: 1
//!     cardMemory: 22528Mi
//!     cpu: "8"
//!     memory: 32Gi
//!     maxNodes: 20
//! ```

use api::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::names::resource;
use scheduler_core::ids::ResourceName;
use scheduler_core::model::{Card, Effect, Labels, Mode, Node, Taint};
use scheduler_core::scale_up::{Groups, NodeTemplate};
use scheduler_core::units::{Bytes, CpuMilli};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Labels whose values name a group of nodes, by who sets them: Karpenter, EKS, GKE, AKS, kOps.
pub(super) const GROUP_KEYS: [&str; 5] = [
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "kops.k8s.io/instancegroup",
];
/// Tokens that an agent offers for each card: as many as MPS has clients.
const TOKENS: u64 = 48;

/// Why the file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// It does not exist.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not such a file.
    #[error("{path}: {why}", path = path.display())]
    Text {
        /// Which file.
        path: PathBuf,
        /// Where, and what.
        why: String,
    },
    /// A value that means nothing.
    #[error("{path}: nodeTemplates {name:?}: {why}", path = path.display())]
    Value {
        /// Which file.
        path: PathBuf,
        /// Which template.
        name: String,
        /// The field, and its valid values.
        why: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    node_templates: Vec<Written>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    name: String,
    labels: BTreeMap<String, String>,
    #[serde(default)]
    taints: Vec<WrittenTaint>,
    #[serde(default)]
    cards: u32,
    card_memory: Option<Quantity>,
    #[serde(default)]
    product: String,
    #[serde(default)]
    mode: Option<String>,
    cpu: Quantity,
    memory: Quantity,
    #[serde(default = "pods")]
    pods: u64,
    max_nodes: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTaint {
    key: String,
    #[serde(default)]
    value: String,
    effect: String,
}

/// The kubelet's default.
fn pods() -> u64 {
    110
}

/// All templates of the file.
///
/// # Errors The file, the template, the field, and its valid values.
pub(super) fn read(path: &Path) -> Result<Vec<NodeTemplate>, TemplateError> {
    let text = std::fs::read_to_string(path).map_err(|source| TemplateError::Read {
        path: path.to_owned(),
        source,
    })?;
    let file: File = serde_saphyr::from_str(&text).map_err(|error| TemplateError::Text {
        path: path.to_owned(),
        why: error.to_string(),
    })?;
    let written = file.node_templates.into_iter();
    written
        .map(|written| {
            let name = written.name.clone();
            template(written).map_err(|why| TemplateError::Value {
                path: path.to_owned(),
                name,
                why,
            })
        })
        .collect()
}

fn template(written: Written) -> Result<NodeTemplate, String> {
    if written.labels.is_empty() {
        return Err("labels: the labels that its nodes have, one at least".to_owned());
    }
    let labels: Labels = written
        .labels
        .iter()
        .map(|(key, value)| (Arc::from(key.as_str()), Arc::from(value.as_str())))
        .collect();
    let mode = match written.mode.as_deref() {
        None => Mode::Mps,
        Some(name) => Mode::parse(name).ok_or_else(|| {
            let known: Vec<_> = Mode::ALL.iter().map(|mode| mode.as_str()).collect();
            format!("mode: {name:?} is none of {}", known.join(", "))
        })?,
    };
    let amount = |field: &str, text: &Quantity| {
        quantity::down(text).ok_or_else(|| format!("{field}: {:?} is no quantity", text.0))
    };
    let card = match (&written.card_memory, written.cards) {
        (Some(memory), _) => amount("cardMemory", memory)? >> 20,
        (None, 0) => 0,
        (None, _) => {
            return Err("cardMemory: the memory of one card, such as 22528Mi".to_owned());
        }
    };
    let taints = written.taints.into_iter().map(|taint| {
        let effect = match taint.effect.as_str() {
            "NoSchedule" => Effect::NoSchedule,
            "NoExecute" => Effect::NoExecute,
            "PreferNoSchedule" => Effect::PreferNoSchedule,
            other => return Err(format!("taints: {other:?} is no effect of a taint")),
        };
        Ok(Taint {
            key: Arc::from(taint.key),
            value: Arc::from(taint.value),
            effect,
        })
    });
    let cpu = quantity::milli_down(&written.cpu)
        .ok_or_else(|| format!("cpu: {:?} is no quantity", written.cpu.0))?;
    Ok(NodeTemplate {
        node: Node {
            labels: labels.clone(),
            taints: taints.collect::<Result<_, _>>()?,
            cpu: CpuMilli(cpu),
            memory: Bytes(amount("memory", &written.memory)?),
            pods: written.pods,
            extended: [(
                ResourceName::new(resource::SHARE),
                TOKENS * u64::from(written.cards),
            )]
            .into_iter()
            .collect(),
            ..Node::named(&written.name)
        },
        cards: (0..written.cards)
            .map(|index| Card::named("template", index, &written.product, card))
            .collect(),
        default_mode: mode,
        most: written.max_nodes.unwrap_or(u32::MAX),
        known_by: labels,
        name: Arc::from(written.name),
    })
}

/// Known groups: described ones come before observed ones.
#[derive(Debug, Default)]
pub(super) struct NodeGroups {
    described: Vec<NodeTemplate>,
    /// By name, also of groups that have no node now.
    seen: BTreeMap<Arc<str>, NodeTemplate>,
}

impl NodeGroups {
    pub(super) fn new(described: Vec<NodeTemplate>) -> Self {
        Self {
            described,
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn groups(&self) -> Groups {
        Groups {
            keys: GROUP_KEYS.map(Arc::from).to_vec(),
            described: self
                .described
                .iter()
                .map(|template| template.known_by.clone())
                .collect(),
        }
    }

    pub(super) fn see(&mut self, templates: Vec<NodeTemplate>) {
        for template in templates {
            self.seen.insert(Arc::clone(&template.name), template);
        }
    }

    /// Described ones in their order; of the others, those with the fewest GPUs first, so that a
    /// small share does not bring a large node.
    pub(super) fn all(&self) -> Vec<NodeTemplate> {
        let mut seen: Vec<_> = self.seen.values().cloned().collect();
        seen.sort_by_key(|template| {
            let memory: u64 = template.cards.iter().map(|card| card.total.0).sum();
            (memory, Arc::clone(&template.name))
        });
        self.described.iter().cloned().chain(seen).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<NodeTemplate>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("templates.yaml");
        std::fs::write(&path, text).expect("a file");
        read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_template_is_a_node_as_its_group_makes_it() {
        let text = "nodeTemplates:\n- name: l4\n  labels: {karpenter.sh/nodepool: l4}\n  \
            taints: [{key: nvidia.com/gpu, effect: NoSchedule}]\n  cards: 2\n  \
            cardMemory: 22528Mi\n  cpu: '8'\n  memory: 32Gi\n  maxNodes: 20\n";
        let templates = read_text(text).expect("templates");
        let [template] = templates.as_slice() else {
            panic!("{templates:?}");
        };
        assert_eq!(template.cards[1].grantable.0, 22_528);
        assert_eq!((template.node.cpu.0, template.most), (8_000, 20));
        assert_eq!(template.node.extended.values().sum::<u64>(), 96);
    }

    #[test]
    fn what_means_nothing_is_named() {
        let cases = [
            (
                "labels: {}\n  cpu: '8'\n  memory: 1Gi",
                "labels: the labels",
            ),
            (
                "labels: {a: b}\n  cpu: '8'\n  memory: 1Gi\n  cards: 1",
                "cardMemory: the memory of one card",
            ),
            (
                "labels: {a: b}\n  cpu: many\n  memory: 1Gi",
                "cpu: \"many\"",
            ),
            (
                "labels: {a: b}\n  cpu: '8'\n  memory: 1Gi\n  mode: fast",
                "mode: \"fast\" is none of exclusive",
            ),
            (
                "labels: {a: b}\n  cpu: '8'\n  memory: 1Gi\n  gpus: 1",
                "gpus",
            ),
        ];
        for (fields, said) in cases {
            let text = format!("nodeTemplates:\n- name: x\n  {fields}\n");
            let error = read_text(&text).expect_err(fields);
            assert!(error.contains(said), "{error}");
        }
    }
}
