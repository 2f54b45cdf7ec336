//! A real Karpenter beside the scheduler: how many nodes it makes for shares, and when it removes
//! them. Its configuration is the one in `docs/operations.md`.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::karpenter::{InstanceType, Karpenter, POOL, nodes_of};
use aliquot_tests::manifest::documents;
use aliquot_tests::pod::describe;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::share::pod;
use aliquot_tests::simulated_agents::{self, Cards, Enlisted};
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use proto::names::{kai, resource, scale_up as names};
use serde_json::{Value, json};

use crate::scale_up::{asked, explained, queue, still};

/// The pool of the documentation.
const L4: &str = "l4";
/// Its cards.
const CARDS: Cards = Cards {
    count: 1,
    product: "NVIDIA L4",
    total_mib: 23_034,
    grantable_mib: 22_528,
};
/// What there is to choose from: the pool allows the second alone.
const TYPES: [InstanceType; 3] = [
    of("m7i.2xlarge", 0, 0.4),
    of("g6.2xlarge", 1, 1.0),
    of("g6.12xlarge", 4, 4.0),
];
/// Taint of a node until its driver and its agent are there. Machines of kwok list their GPUs from
/// the beginning, and Karpenter would take them for initialized; those of a cloud list none until a
/// device plugin registers.
const STARTS: &str = "sim.dev/driver-starts";
/// A plan of the scheduler, a batch of Karpenter, and a node's start.
const COMES: Duration = Duration::from_mins(1);
/// Two batches of Karpenter at least.
const QUIET: Duration = Duration::from_secs(12);
/// Seconds after which shares are moved off an underused node.
const DELAY: u64 = 5;
/// From an agent's first word to a binding.
const PLACEABLE: Duration = Duration::from_secs(5);
/// Nodes that a gang needs, and that the pool may not have beside three.
const TOO_MANY: usize = 18;

const fn of(name: &'static str, gpus: u32, price: f64) -> InstanceType {
    InstanceType {
        name,
        cpu: 8,
        memory_gib: 32,
        gpus,
        price,
    }
}

/// The block of YAML in the documentation that has this line.
fn written(docs: &str, line: &str) -> Result<String> {
    let mut blocks = docs.split("```yaml\n").skip(1);
    let block = blocks.find_map(|rest| {
        let block = rest.split("```").next()?;
        block.lines().any(|one| one == line).then_some(block)
    });
    Ok(block
        .with_context(|| format!("no block with {line}"))?
        .to_owned())
}

pub(crate) async fn shares_bring_nodes(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let tree = cluster.programs.tree.clone();
    let docs = std::fs::read_to_string(tree.join("docs/operations.md"))?;
    let manifests = tree.join("deploy/autoscaling/autoscaling.yaml");
    for document in documents(&std::fs::read_to_string(manifests)?)? {
        cluster.apply_one(&document).await?;
    }
    let file = cluster.work.state().join("node-templates.yaml");
    std::fs::write(&file, written(&docs, "nodeTemplates:")?)?;
    let mut replica = Replica::only();
    replica.args.extend([
        "--cluster-autoscaling".to_owned(),
        format!("--node-templates={}", file.display()),
    ]);
    cluster.replace_scheduler(replica.clone()).await?;
    let mut site = Site {
        karpenter: Karpenter::start(cluster, &TYPES).await?,
        agents: Vec::new(),
        ns: cluster.namespace().await?,
    };
    site.pool(cluster, &docs).await?;
    site.claims(cluster).await?;
    replica.args.push(format!("--scale-down-delay-s={DELAY}"));
    cluster.replace_scheduler(replica).await?;
    site.an_underused_node_is_emptied(cluster).await?;
    site.leave(cluster).await?;
    cluster.replace_scheduler(Replica::only()).await?;
    let args = ["delete", "namespace", names::NAMESPACE, "--timeout=60s"];
    cluster.kubectl.run(&args).await?;
    Ok(())
}

struct Site {
    karpenter: Karpenter,
    agents: Vec<Enlisted>,
    ns: String,
}

impl Site {
    /// The pool as it is documented, with machines of kwok in place of a cloud's.
    async fn pool(&self, cluster: &Cluster, docs: &str) -> Result<()> {
        let class =
            json!({ "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default" });
        cluster
            .apply_one(&json!({ "apiVersion": "karpenter.kwok.sh/v1alpha1",
                "kind": class["kind"], "metadata": { "name": class["name"] }, "spec": {} }))
            .await?;
        for mut document in documents(&written(docs, "kind: NodePool")?)? {
            let spec = &mut document["spec"]["template"]["spec"];
            spec["nodeClassRef"] = class.clone();
            spec["startupTaints"] = json!([{ "key": STARTS, "effect": "NoSchedule" }]);
            cluster.apply_one(&document).await?;
        }
        Ok(())
    }

    /// Its nodes are removed when they have been empty for this time, all at once: by default
    /// Karpenter removes a tenth of them at a time.
    async fn empty_for(&self, cluster: &Cluster, time: &str) -> Result<()> {
        let disruption = json!({ "consolidateAfter": time, "budgets": [{ "nodes": "100%" }] });
        let patch = json!({ "spec": { "disruption": disruption } }).to_string();
        let args = ["patch", "nodepool", L4, "--type=merge", "--patch", &patch];
        cluster.kubectl.run(&args).await.map(drop)
    }

    fn share(&self, name: &str, queue: &str, annotations: &[(&str, &str)]) -> Value {
        let mut share = pod(&self.ns, name, annotations, "report hold");
        share["metadata"]["labels"] = json!({ "kai.scheduler/queue": queue });
        share["spec"]["nodeSelector"] = json!({ POOL: L4 });
        share["spec"]["tolerations"] =
            json!([{ "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" }]);
        share
    }

    async fn halves(&self, cluster: &Cluster, names: &[&str]) -> Result<()> {
        for name in names {
            let half = self.share(name, "scale", &[("gpu-fraction", "0.5")]);
            cluster.apply_one(&half).await?;
        }
        Ok(())
    }

    async fn gang(&self, cluster: &Cluster, name: &str, size: usize) -> Result<()> {
        cluster
            .apply_one(&json!({
                "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                "metadata": { "namespace": self.ns, "name": name },
                "spec": { "minMember": size, "queue": "scale" },
            }))
            .await?;
        for member in 0..size {
            let annotations = [
                ("gpu-fraction", "0.9"),
                (kai::SKIP_GROUPER, "true"),
                (kai::POD_GROUP, name),
            ];
            let member = self.share(&format!("{name}-{member}"), "scale", &annotations);
            cluster.apply_one(&member).await?;
        }
        Ok(())
    }

    async fn end(&self, cluster: &Cluster) -> Result<()> {
        let args = [
            "-n",
            &self.ns,
            "delete",
            "deployments,pods,podgroups",
            "--all",
            "--wait=true",
        ];
        cluster.kubectl.run(&args).await.map(drop)
    }

    /// This number of nodes is created, and no more; each one's agent reports as soon as the node
    /// exists.
    async fn come(&mut self, cluster: &Cluster, all: usize) -> Result<()> {
        let nodes = self.karpenter.nodes(cluster, L4, all, COMES).await?;
        for node in &nodes {
            if self
                .agents
                .iter()
                .all(|agent| agent.node != node.name_any())
            {
                self.enlist(cluster, node).await?;
            }
        }
        Ok(())
    }

    async fn enlist(&mut self, cluster: &Cluster, node: &Node) -> Result<()> {
        let scheduler = cluster.scheduler.as_ref().context("no scheduler")?;
        let to = scheduler.replica.telemetry();
        self.agents
            .push(simulated_agents::enlist(&cluster.client, node, CARDS, to).await?);
        has_started(cluster, &node.name_any()).await
    }

    async fn stay(&self, cluster: &Cluster, count: usize) -> Result<()> {
        stays(&format!("{count} nodes of Karpenter"), QUIET, || async {
            let nodes = nodes_of(cluster, L4).await?.len();
            Ok(Seen::when(nodes == count, nodes.to_string()))
        })
        .await
    }

    async fn bound(&self, cluster: &Cluster, count: usize, within: Duration) -> Result<Vec<Pod>> {
        let bound = until(&format!("{count} pods bound"), within, || async {
            let pods = cluster.pods(&self.ns);
            let pods = pods.list(&ListParams::default()).await?.items;
            let is_bound = |pod: &&Pod| pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
            let bound: Vec<Pod> = pods.iter().filter(is_bound).cloned().collect();
            let waits: Vec<String> = pods
                .iter()
                .filter(|pod| !is_bound(pod))
                .map(describe)
                .collect();
            let done = bound.len() == count;
            Ok(Seen::from_option(done.then_some(bound), waits.join("; ")))
        })
        .await?;
        // A card that shares are on is no whole GPU any more: its agent takes it off the
        // kubelet's list, and autoscalers see that a placeholder finds none there.
        let mut taken: Vec<_> = (bound.iter())
            .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
            .collect();
        taken.sort_unstable();
        taken.dedup();
        for node in taken {
            // With a later heartbeat than the one that listed tokens and cards.
            initialized(cluster, &node).await?;
            lists(cluster, &node, "allocatable", 0).await?;
        }
        Ok(bound)
    }

    async fn claims(&mut self, cluster: &mut Cluster) -> Result<()> {
        cluster.apply_one(&queue("scale", 100)).await?;
        cluster.apply_one(&queue("over", 0)).await?;
        self.two_halves_then_a_third(cluster).await?;
        self.all_go(cluster).await?;
        // Two cards and a half.
        self.halves(cluster, &["a", "b", "c", "d", "e"]).await?;
        self.come(cluster, 3).await?;
        self.bound(cluster, 5, COMES).await?;
        asked(cluster, 0).await?;

        // Over its quota: the half that is free would do for one, none is brought for the other.
        let whole = [("gpu-fraction", "0.9")];
        cluster
            .apply_one(&self.share("borrower", "over", &whole))
            .await?;
        self.gang(cluster, "huge", TOO_MANY).await?;
        still(cluster, 0).await?;
        self.stay(cluster, 3).await?;
        self.bound(cluster, 5, QUIET).await?;
        // All three members, each on a card of its own, beside the three nodes that are there.
        self.gang(cluster, "gang", 3).await?;
        self.come(cluster, 6).await?;
        self.bound(cluster, 8, COMES).await?;
        asked(cluster, 0).await?;
        self.stay(cluster, 6).await?;
        self.all_go(cluster).await
    }

    async fn two_halves_then_a_third(&mut self, cluster: &mut Cluster) -> Result<()> {
        self.halves(cluster, &["half-1", "half-2"]).await?;
        let nodes = self.karpenter.nodes(cluster, L4, 1, COMES).await?;
        let node = &nodes[0];
        let name = node.name_any();
        let instance = node.labels().get("node.kubernetes.io/instance-type");
        ensure!(
            instance.is_some_and(|it| it == "g6.2xlarge"),
            "{instance:?}"
        );
        // Until a device plugin registers, the kubelet lists none of what it will offer.
        lists(cluster, &name, "allocatable", 0).await?;
        lists(cluster, &name, "capacity", 0).await?;
        // The node is starting: it keeps its placeholder, and is not removed.
        let starting = format!("node {name} is starting, and will have room for it");
        let ns = self.ns.clone();
        until("who waits for the node", COMES, || async {
            let said = explained(cluster, &ns, "half-2").await?;
            Ok(Seen::when(said.contains(&starting), said))
        })
        .await?;
        still(cluster, 1).await?;
        self.stay(cluster, 1).await?;

        let begin = Instant::now();
        self.enlist(cluster, node).await?;
        self.bound(cluster, 2, PLACEABLE).await?;
        say("two halves", begin.elapsed());
        asked(cluster, 0).await?;

        self.halves(cluster, &["half-3"]).await?;
        self.come(cluster, 2).await?;
        self.bound(cluster, 3, COMES).await?;
        asked(cluster, 0).await?;
        self.stay(cluster, 2).await
    }

    /// The share of a server moves beside another one, and Karpenter removes the node that it left.
    async fn an_underused_node_is_emptied(&mut self, cluster: &mut Cluster) -> Result<()> {
        self.halves(cluster, &["stays", "ends"]).await?;
        self.come(cluster, 1).await?;
        self.bound(cluster, 2, COMES).await?;
        let half = self.share("web", "scale", &[("gpu-fraction", "0.5")]);
        let (labels, metadata) = (json!({ "app": "web" }), &half["metadata"]);
        let mut server = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "namespace": self.ns, "name": "web", "labels": {
                "priorityClassName": "train", "kai.scheduler/queue": "scale",
            } },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels, "annotations": metadata["annotations"] },
                    "spec": half["spec"],
                },
            },
        });
        // A Deployment's pods always restart.
        server["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
        cluster.apply_one(&server).await?;
        self.come(cluster, 2).await?;
        self.bound(cluster, 3, COMES).await?;
        self.empty_for(cluster, "5s").await?;
        self.stay(cluster, 2).await?;
        cluster.delete_pod(&self.ns, "ends").await?;
        self.karpenter.nodes(cluster, L4, 1, COMES).await?;
        self.bound(cluster, 2, PLACEABLE).await?;
        self.stay(cluster, 1).await?;
        asked(cluster, 0).await?;
        self.all_go(cluster).await
    }

    /// Its pods end, and Karpenter removes the nodes, which have been empty then.
    async fn all_go(&mut self, cluster: &Cluster) -> Result<()> {
        self.end(cluster).await?;
        self.empty_for(cluster, "5s").await?;
        self.karpenter.nodes(cluster, L4, 0, COMES).await?;
        self.empty_for(cluster, "1m").await?;
        simulated_agents::discharge(&cluster.client, std::mem::take(&mut self.agents)).await
    }

    /// What Karpenter made goes with its finalizers, and so before it ends.
    async fn leave(mut self, cluster: &Cluster) -> Result<()> {
        self.end(cluster).await?;
        let args = ["delete", "nodepool", L4, "--wait=true", "--timeout=60s"];
        cluster.kubectl.run(&args).await?;
        self.karpenter.nodes(cluster, L4, 0, COMES).await?;
        simulated_agents::discharge(&cluster.client, std::mem::take(&mut self.agents)).await?;
        self.karpenter.stop().await
    }
}

/// The node's driver and agent are there.
async fn has_started(cluster: &Cluster, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    until(&format!("node {node} started"), COMES, || async {
        let mut now = nodes.get(node).await?;
        let taints = now.spec.get_or_insert_default();
        let taints = taints.taints.get_or_insert_default();
        taints.retain(|taint| taint.key != STARTS);
        // Karpenter writes taints, too.
        let done = nodes.replace(node, &PostParams::default(), &now).await;
        Ok(Seen::when(done.is_ok(), format!("{done:?}")))
    })
    .await
}

/// Karpenter takes the node for one that has all it was made for.
async fn initialized(cluster: &Cluster, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    until(&format!("node {node} initialized"), COMES, || async {
        let labels = nodes.get(node).await?.metadata.labels.unwrap_or_default();
        let is = labels.get("karpenter.sh/initialized");
        Ok(Seen::when(
            is.is_some_and(|value| value == "true"),
            format!("{labels:?}"),
        ))
    })
    .await
}

/// The node's kubelet lists this many whole GPUs.
async fn lists(cluster: &Cluster, node: &str, what: &str, gpus: u32) -> Result<()> {
    let status = json!({ "status": { what: { resource::GPU: gpus.to_string() } } });
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let params = PatchParams::default();
    nodes
        .patch_status(node, &params, &Patch::Merge(status))
        .await?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the figure is what is asked for")]
fn say(what: &str, took: Duration) {
    println!(
        "    {what}: bound {:.2} s after the agent's first word",
        took.as_secs_f32()
    );
}
