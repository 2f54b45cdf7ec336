//! Pods and writes that the admission policies alone judge, and what they must say to each.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::scheduler;
use aliquot_tests::verdict::{Verdict, Write, judge};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use kube::Client;
use proto::names::NAMESPACE;
use serde_json::{Value, json};

/// A policy is in force some time after it was applied, and not before.
pub(super) const IN_FORCE: Duration = Duration::from_secs(20);

/// What must be refused and what must be admitted, by one policy.
pub(crate) struct Table {
    client: Client,
    policy: &'static str,
    namespace: String,
    refused: Vec<(Write, String)>,
    admitted: Vec<Write>,
}

impl Table {
    pub(crate) fn new(cluster: &Cluster, policy: &'static str, namespace: &str) -> Self {
        Self {
            client: cluster.client.clone(),
            policy,
            namespace: namespace.to_owned(),
            refused: Vec::new(),
            admitted: Vec::new(),
        }
    }

    /// The same as another user.
    pub(crate) fn by(self, client: Client) -> Self {
        Self { client, ..self }
    }

    /// A pod that differs from a plain one by `pod` is refused, in a line with `word`.
    pub(crate) fn refused(&mut self, pod: Value, word: &str) {
        self.refused_write(creates(&self.namespace, &pod), word);
    }

    pub(crate) fn refused_write(&mut self, write: Write, word: &str) {
        self.refused.push((write, word.to_owned()));
    }

    /// A pod that differs from a plain one by `pod` is admitted.
    pub(crate) fn admitted(&mut self, pod: Value) {
        self.admitted_write(creates(&self.namespace, &pod));
    }

    pub(crate) fn admitted_write(&mut self, write: Write) {
        self.admitted.push(write);
    }

    /// Both sides; what must be admitted comes last, when the policy is in force.
    pub(crate) async fn holds(self) -> Result<()> {
        self.refuses().await?;
        self.admits().await
    }

    /// The one side alone.
    pub(crate) async fn refuses(&self) -> Result<()> {
        let policy = self.policy;
        ensure!(!self.refused.is_empty(), "nothing to refuse");
        let mut limit = IN_FORCE;
        for (write, word) in &self.refused {
            let why = until(&format!("{policy} refuses {write:?}"), limit, || async {
                Ok(match judge(&self.client, write).await? {
                    Verdict::Refused(why) => Seen::Done(why),
                    Verdict::Admitted(_) => Seen::NotYet("admitted".to_owned()),
                })
            })
            .await?;
            ensure!(
                why.contains(&format!("'{policy}'")) && why.contains(word.as_str()),
                "{write:?} is refused, but not by {policy} with `{word}`: {why}"
            );
            ensure!(why.lines().count() == 1, "more than one line: {why}");
            self.foreseen(write, true)?;
            // The first one waited for the policy; from here on it is in force.
            limit = Duration::ZERO;
        }
        Ok(())
    }

    /// `aliquot plan` foresees what the policies for pods do, from a copy of their rules. Pods of other
    /// namespaces are left out: these may be exempt.
    fn foreseen(&self, write: &Write, is_refused: bool) -> Result<()> {
        let pod = write.created_pod(&self.namespace)?;
        let Some(pod) = pod.filter(|_| api::guard::POLICIES.contains(&self.policy)) else {
            return Ok(());
        };
        let foreseen = api::guard::refusal(&pod);
        ensure!(
            foreseen.as_ref().map(|one| one.policy) == is_refused.then_some(self.policy),
            "{write:?}: the policy and api::guard disagree: {foreseen:?}"
        );
        Ok(())
    }

    /// The other side alone.
    pub(crate) async fn admits(&self) -> Result<()> {
        ensure!(!self.admitted.is_empty(), "nothing to admit");
        for write in &self.admitted {
            if let Verdict::Refused(why) = judge(&self.client, write).await? {
                anyhow::bail!("{write:?} is refused: {why}");
            }
            self.foreseen(write, false)?;
        }
        Ok(())
    }
}

/// `deploy/` is applied, and nothing of ours runs that need not. Answers a namespace.
pub(crate) async fn guarded(cluster: &mut Cluster) -> Result<String> {
    if cluster.scheduler.is_none() {
        cluster.make_namespace(NAMESPACE).await?;
        for document in scheduler::manifests(&cluster.programs.tree)? {
            // No webhook server would answer.
            if document["webhooks"].is_null() {
                cluster.apply_one(&document).await?;
            }
        }
    }
    cluster.namespace().await
}

/// A pod that no scheduler places.
pub(crate) fn pod(namespace: &str, change: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": namespace, "name": "pod" },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{ "name": "main", "image": "busybox" }],
        },
    });
    merge(&mut pod, change);
    pod
}

/// One that is really made, beside those that are only judged.
pub(crate) fn live(namespace: &str, change: &Value) -> Value {
    let mut pod = pod(namespace, change);
    pod["metadata"]["name"] = json!("live");
    pod
}

pub(crate) fn creates(namespace: &str, change: &Value) -> Write {
    Write::create(
        format!("/api/v1/namespaces/{namespace}/pods"),
        pod(namespace, change),
    )
}

/// `container main` with these fields, in a pod with these.
pub(crate) fn with_container(container: &Value, spec: &Value) -> Value {
    in_pod("containers", "main", container, spec)
}

pub(super) fn with_init_container(container: &Value, spec: &Value) -> Value {
    in_pod("initContainers", "prepare", container, spec)
}

fn in_pod(list: &str, name: &str, container: &Value, spec: &Value) -> Value {
    let mut whole = json!({ "name": name, "image": "busybox" });
    merge(&mut whole, container);
    let mut change = json!({ "spec": { list: [whole] } });
    merge(&mut change["spec"], spec);
    change
}

pub(super) fn mounts(path: &str) -> Value {
    json!({ "spec": { "volumes": [{ "name": "host", "hostPath": { "path": path } }] } })
}

/// The same pod, asking for a share.
pub(crate) fn share(change: &Value) -> Value {
    let mut change = change.clone();
    merge(
        &mut change,
        &json!({ "metadata": { "annotations": { "gpu-memory": "2000" } } }),
    );
    change
}

/// The same pod, asking for a share in each way.
pub(super) fn shares(change: &Value) -> Vec<Value> {
    [
        ("gpu-memory", "2000"),
        ("gpu-fraction", "0.5"),
        ("nvidia.com/container.main.gpu-memory.request", "2000Mi"),
        ("nvidia.com/container.main.gpu-memory.limit", "2000Mi"),
    ]
    .into_iter()
    .map(|(key, value)| {
        let mut change = change.clone();
        merge(
            &mut change,
            &json!({ "metadata": { "annotations": { key: value } } }),
        );
        change
    })
    .collect()
}

/// Objects are merged, everything else is replaced.
pub(super) fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change.clone(),
    }
}
