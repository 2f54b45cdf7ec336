//! A KAI Scheduler that runs, and for which pods: its image and its flags say so.

use super::error::PreflightError;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use proto::names::kai;

/// Pods of one answer.
const PAGE: u32 = 500;
/// In every image of KAI's scheduler.
const IMAGE: &str = "kai-scheduler/scheduler";

/// Which pods a scheduler takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSelection {
    /// The name in their specs.
    pub scheduler: String,
    /// Values of the node pool's label, empty for nodes without; `None`: all nodes.
    pub pools: Option<Vec<String>>,
}

impl PodSelection {
    fn meets(&self, scheduler: &str, pool: &str) -> bool {
        let here = |pools: &Vec<String>| pools.iter().any(|ours| ours == pool);
        self.scheduler == scheduler && self.pools.as_ref().is_none_or(here)
    }
}

pub(super) async fn look(client: &Client, territory: &PodSelection) -> Result<(), PreflightError> {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut params = ListParams::default()
        .fields("status.phase=Running,spec.schedulerName=default-scheduler")
        .limit(PAGE);
    loop {
        let page = pods
            .list(&params)
            .await
            .map_err(|source| PreflightError::Api {
                what: "list pods",
                source: Box::new(source),
            })?;
        let more = page.metadata.continue_.clone().unwrap_or_default();
        for pod in &page.items {
            if let Some((scheduler, pool)) = theirs(pod)
                && territory.meets(&scheduler, &pool)
            {
                return Err(PreflightError::Kai {
                    pod: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
                    scheduler,
                    pool: if pool.is_empty() {
                        "nodes without a node pool".to_owned()
                    } else {
                        format!("node pool {pool}")
                    },
                });
            }
        }
        if more.is_empty() {
            return Ok(());
        }
        params = params.continue_token(&more);
    }
}

/// Name and pool, if this pod is KAI's scheduler and stays.
fn theirs(pod: &Pod) -> Option<(String, String)> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let containers = &pod.spec.as_ref()?.containers;
    let container = containers.iter().find(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        image.contains(IMAGE)
    })?;
    let flag = |name| flag(container, name);
    let scheduler = flag("scheduler-name").unwrap_or_else(|| kai::SCHEDULER_NAME.to_owned());
    Some((scheduler, flag("partition-label-value").unwrap_or_default()))
}

/// `--name=value`, `--name value`, with one dash or two.
fn flag(container: &Container, name: &str) -> Option<String> {
    let words = container.command.iter().chain(&container.args).flatten();
    let words: Vec<&str> = words.map(String::as_str).collect();
    words.iter().enumerate().find_map(|(at, word)| {
        let word = word.strip_prefix('-')?;
        let word = word.strip_prefix('-').unwrap_or(word);
        match word.split_once('=') {
            Some((key, value)) if key == name => Some(value.to_owned()),
            None if word == name => words.get(at + 1).map(|next| (*next).to_owned()),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(image: &str, args: &[&str]) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "s"},
            "spec": {"containers": [{"name": "c", "image": image, "args": args}]}}))
        .unwrap()
    }

    #[test]
    fn its_flags_say_for_which_pods_it_is() {
        let image = "ghcr.io/nvidia/kai-scheduler/scheduler:v0.13.0";
        for (args, expected) in [
            (vec![], ("kai-scheduler", "")),
            (
                vec![
                    "--scheduler-name=other",
                    "--partition-label-value",
                    "pool-a",
                ],
                ("other", "pool-a"),
            ),
            (vec!["-partition-label-value=b"], ("kai-scheduler", "b")),
        ] {
            let found = theirs(&pod(image, &args)).unwrap();
            assert_eq!((found.0.as_str(), found.1.as_str()), expected, "{args:?}");
        }
        assert_eq!(
            theirs(&pod("ghcr.io/nvidia/kai-scheduler/binder:v0.13.0", &[])),
            None
        );
        assert_eq!(theirs(&pod("registry/scheduler:1", &[])), None);
    }

    #[test]
    fn two_meet_where_name_and_pool_are_the_same() {
        let ours = |pools: Option<&[&str]>| PodSelection {
            scheduler: "kai-scheduler".into(),
            pools: pools.map(|pools| pools.iter().map(|pool| (*pool).to_owned()).collect()),
        };
        for (pools, scheduler, pool, meet) in [
            (None, "kai-scheduler", "a", true),
            (None, "other", "", false),
            (Some(&["a", "b"][..]), "kai-scheduler", "b", true),
            (Some(&["a"][..]), "kai-scheduler", "", false),
            (Some(&[""][..]), "kai-scheduler", "", true),
        ] {
            assert_eq!(
                ours(pools).meets(scheduler, pool),
                meet,
                "{pools:?} {scheduler} {pool}"
            );
        }
    }
}
