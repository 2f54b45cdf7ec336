//! The same clusters and pods for Aliquot and for kube-scheduler's own plugins: where one of them
//! would let a pod in and the other would not, they differ, and where rules about other pods make
//! a node worth more or less to one of them.
//!
//! Random clusters as JSON go through the scheduler's conversion into its core, whose
//! `explain` says which nodes would do, and what each is worth; and to
//! `tests/cluster/tools/kubernetes/filters`, which asks the plugins of the pinned Kubernetes.

use super::program::Program;
use super::seeds::{Seeds, objects};
use aliquot_tests::random_cluster;
use anyhow::{Context as _, Result};
use scheduler::convert::World;
use scheduler::watch::{Fact, Seen};
use scheduler_core::model::Queue;
use scheduler_core::{Config, Core, Event};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The verdict on each node.
type Answer = BTreeMap<String, Said>;

#[derive(Debug, Deserialize)]
struct Said {
    /// Why it will not do; none where it will.
    reasons: Vec<String>,
    /// The raw score of `InterPodAffinity`.
    preference: i64,
}

/// Whether all agree.
pub(crate) fn compare(seeds: &Seeds) -> Result<bool> {
    let mut kube = Program::start("filters", &[])?;
    let (mut agreed, mut differed, mut closed, mut preferred) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    for seed in seeds.all() {
        let cluster = random_cluster::cluster(seed);
        let theirs: Vec<Answer> = kube.ask(&cluster)?;
        let ours = ours(&cluster).with_context(|| format!("seed {seed}"))?;
        let pods = cluster["incoming"].as_array().context("incoming")?;
        for ((pod, theirs), ours) in pods.iter().zip(&theirs).zip(&ours) {
            for (node, theirs) in theirs {
                let ours = ours
                    .get(node)
                    .with_context(|| format!("no word of {node}"))?;
                let alike = theirs.reasons.is_empty() == ours.reasons.is_empty();
                if alike && theirs.preference == ours.preference {
                    agreed += 1;
                    closed += u64::from(!theirs.reasons.is_empty());
                    preferred += u64::from(theirs.preference != 0);
                    for why in &theirs.reasons {
                        *reasons.entry(why.clone()).or_default() += 1;
                    }
                    continue;
                }
                differed += 1;
                if differed <= 5 {
                    println!(
                        "seed {seed}, pod {} on {node}: kube-scheduler {theirs:?}, Aliquot {ours:?}\n{pod}",
                        pod["metadata"]["name"]
                    );
                }
            }
        }
    }
    kube.end()?;
    println!("of them {closed} where neither lets the pod in:");
    for (why, count) in reasons {
        println!("{count:>8}  {why}");
    }
    println!("and {preferred} that are worth more or less by preferences about other pods");
    println!("{agreed} agreed, {differed} differed");
    Ok(differed == 0)
}

/// What the core says of each incoming pod.
fn ours(cluster: &Value) -> Result<Vec<Answer>> {
    let mut world = World::new("kai-scheduler").with_storage_listed();
    let mut core = Core::new(Config::default());
    core.apply(Event::Queue(Queue::unlimited("default-queue")));
    let mut take = |fact: Fact| {
        for event in world.take(fact) {
            core.apply(event);
        }
    };
    for namespace in objects(&cluster["namespaces"])? {
        take(Fact::Namespace(Seen::There(namespace)));
    }
    for node in objects(&cluster["csinodes"])? {
        take(Fact::CsiNode(Seen::There(node)));
    }
    for volume in objects(&cluster["volumes"])? {
        take(Fact::Volume(Seen::There(volume)));
    }
    for claim in objects(&cluster["claims"])? {
        take(Fact::Claim(Seen::There(claim)));
    }
    for node in objects(&cluster["nodes"])? {
        take(Fact::Node(Seen::There(node)));
    }
    for pod in objects(&cluster["pods"])? {
        take(Fact::Pod(Seen::There(pod)));
    }
    for pod in objects(&cluster["incoming"])? {
        take(Fact::Pod(Seen::There(pod)));
    }
    let incoming = cluster["incoming"].as_array().into_iter().flatten();
    let uids = incoming.filter_map(|pod| pod["metadata"]["uid"].as_str());
    uids.map(|uid| {
        let explanation = core.explain(&uid.into());
        let explanation = explanation.with_context(|| format!("{uid} is not known"))?;
        let nodes = explanation.nodes.into_iter().map(|node| {
            let mut why: Vec<String> = node.reasons.iter().map(ToString::to_string).collect();
            if !node.fits && why.is_empty() {
                why.push("for no reason".to_owned());
            }
            let said = Said {
                reasons: why,
                preference: node.preference,
            };
            (node.node.to_string(), said)
        });
        Ok(nodes.collect())
    })
    .collect()
}
