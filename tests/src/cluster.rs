//! The cluster as one value, and what a test does with it.
//!
//! In: the folders of the daemons and of this workspace's programs. Out: a Ready node and an
//! admin's client; manifests applied, pods awaited, logs read. Must never hide a failure: every
//! wait says what it last saw.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, Node as NodeObject};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};

use crate::control_plane::ControlPlane;
use crate::daemon::{Command, Daemon};
use crate::fleet::Fleet;
use crate::gpu::{self, Gpus, Hardware};
use crate::image::Recipe;
use crate::kubectl::Kubectl;
use crate::machine::Machine;
use crate::namespace::Work;
use crate::node::{self, Node, Place};
use crate::operator::Operator;
use crate::programs::{self, Programs};
use crate::registry::Registry;
use crate::scheduler::{self, Admission, Replica, Scheduler};
use crate::simulated_agents::SimulatedAgents;
use crate::stand_in;
use crate::wait::{Seen, until};
use crate::{machine, manifest, ports, token};
use proto::names::resource;
use serde_json::{Value, json};

/// A running cluster, with one node.
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct Cluster<N = Node> {
    pub programs: Programs,
    pub work: Work,
    pub client: Client,
    pub kubectl: Kubectl,
    pub control_plane: ControlPlane,
    pub node: N,
    pub registry: Registry,
    /// The programs under test, once a claim has asked for them.
    pub admission: Option<Admission>,
    pub scheduler: Option<Scheduler>,
    pub gpus: Option<Gpus>,
    /// The operators that claims have asked for; they stay.
    pub(crate) operators: Vec<&'static Operator>,
    /// Simulated nodes, for as long as one claim.
    pub(crate) fleet: Option<Fleet>,
    /// Nodes whose agents this process simulates, for the duration of one claim.
    pub(crate) agents: Option<SimulatedAgents>,
    /// How many namespaces claims have been given.
    namespaces: u32,
    /// How long it took until the API server answered, and until the node was Ready.
    pub started: (Duration, Duration),
}

impl Cluster {
    /// Makes the machine and starts everything on it.
    pub async fn start(programs: Programs, work: Work) -> Result<Self> {
        Self::start_on(programs, work, async |place| Node::start(&place).await).await
    }

    /// After a failed claim: ends Aliquot's programs, in whatever state they are, so that
    /// the next claim begins with new ones, and starts again what of the node has ended.
    ///
    /// Answers the names of what had ended.
    pub async fn repair(&mut self) -> Result<Vec<String>> {
        let mut ended = Vec::new();
        if let Some(mut gpus) = self.gpus.take() {
            gpus.stop().await?;
        }
        if let Some(mut scheduler) = self.scheduler.take() {
            scheduler.daemon.stop().await?;
        }
        if let Some(mut admission) = self.admission.take() {
            admission.daemon.stop().await?;
        }
        for daemon in [&mut self.node.containerd, &mut self.node.kubelet] {
            if daemon.alive().is_err() {
                ended.push(daemon.name().to_owned());
                daemon.start_again()?;
            }
        }
        self.node_ready().await?;
        Ok(ended)
    }

    /// Brings Aliquot up on this hardware: the manifests, the scheduler, the driver, the
    /// agent. What runs already on equal hardware is left as it is.
    pub async fn aliquot(&mut self, hardware: &Hardware) -> Result<()> {
        let (state, logs, authority) = (
            self.work.state(),
            self.work.logs(),
            self.control_plane.authority(),
        );
        if self.scheduler.is_none() {
            self.install().await?;
            self.admit().await?;
            self.scheduler = Some(self.start_scheduler(Replica::only()).await?);
            for (reference, recipe) in stand_in::images(&self.programs) {
                self.serve_image(&recipe, reference).await?;
            }
        }
        let same = self
            .gpus
            .as_mut()
            .is_some_and(|gpus| gpus.hardware == *hardware && gpus.alive().is_ok());
        if !same {
            if let Some(mut old) = self.gpus.take() {
                old.stop().await?;
                // Another machine: its kubelet knows nothing of the last one's cards.
                self.node.kubelet.stop().await?;
                if Path::new(node::CHECKPOINT).exists() {
                    fs::remove_file(node::CHECKPOINT)?;
                }
                self.forget_slices().await?;
                self.node.kubelet.start_again()?;
            }
            let place = programs::Place {
                programs: &self.programs,
                state: &state,
                logs: &logs,
                authority,
                cgroup: self.work.cgroup(),
            };
            self.gpus = Some(Gpus::start(&self.client, &place, hardware.clone()).await?);
        }
        let waited = self.shares_offered(hardware).await;
        self.alive()?;
        waited
    }

    /// Starts kwok, unless it runs: it keeps all nodes with its label Ready.
    pub fn keep_nodes(&mut self) -> Result<()> {
        if self.fleet.is_none() {
            let kubeconfig = self.control_plane.kubeconfig("admin");
            self.fleet = Some(Fleet::start(&self.programs, kubeconfig, &self.work.logs())?);
        }
        Ok(())
    }

    /// Creates nodes with this many GPUs each, and waits until they are Ready.
    pub async fn simulate_nodes(&mut self, names: &[&str], gpus: u32) -> Result<()> {
        self.keep_nodes()?;
        let fleet = self.fleet.as_mut().context("no kwok")?;
        fleet.simulate_nodes(&self.client, names, gpus).await
    }

    /// Creates nodes with this many cards each and an agent, once the manifests are applied. Their
    /// agents have no connection yet. The controllers are stopped until the claim ends.
    pub async fn gather(&mut self, nodes: usize, cards: u32) -> Result<()> {
        self.control_plane.dismiss_controllers().await?;
        self.agents = Some(SimulatedAgents::start(&self.client, nodes, cards).await?);
        Ok(())
    }

    /// The simulated agents that were started.
    pub fn simulated_agents(&self) -> Result<&SimulatedAgents> {
        self.agents
            .as_ref()
            .context("no simulated agents were started")
    }

    /// Removes slices of cards in MIG mode from the node's status. A kubelet leaves resources there
    /// that it does not know, and they count as GPUs of the cluster; another machine's `Node` would
    /// be another object.
    async fn forget_slices(&self) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let status = nodes.get(node::NAME).await?.status.unwrap_or_default();
        let nothing = |amounts: Option<BTreeMap<String, Quantity>>| {
            let names = amounts.unwrap_or_default().into_keys();
            let slices = names.filter(|name| name.starts_with(resource::MIG_PREFIX));
            slices
                .map(|name| (name, Value::Null))
                .collect::<serde_json::Map<_, _>>()
        };
        let (capacity, allocatable) = (nothing(status.capacity), nothing(status.allocatable));
        let patch = json!({ "status": { "capacity": capacity, "allocatable": allocatable } });
        let params = PatchParams::default();
        nodes
            .patch_status(node::NAME, &params, &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// The node's machine is recreated: kubelet and agent run, and the driver boots until
    /// [`Self::driver_boots`].
    pub async fn boot_without_driver(&mut self) -> Result<()> {
        let gpus = self.gpus.as_mut().context("no GPUs")?;
        gpus.stop().await?;
        fs::remove_dir_all(gpu::DRIVER_ROOT)?;
        self.node.kubelet.stop().await?;
        if Path::new(node::CHECKPOINT).exists() {
            fs::remove_file(node::CHECKPOINT)?;
        }
        self.node.kubelet.start_again()?;
        gpus.agent.start_again()
    }

    /// The driver has booted, with the hardware that was there before.
    pub async fn driver_boots(&mut self) -> Result<()> {
        let (state, logs) = (self.work.state(), self.work.logs());
        let place = programs::Place {
            programs: &self.programs,
            state: &state,
            logs: &logs,
            authority: self.control_plane.authority(),
            cgroup: self.work.cgroup(),
        };
        let gpus = self.gpus.as_mut().context("no GPUs")?;
        gpus.driver = gpu::Driver::start(&place, &gpus.hardware).await?;
        gpus.mps.start_again()
    }
}

impl<N: Machine> Cluster<N> {
    /// Makes the namespaces' machine, starts the control plane on it, and whatever `start` makes
    /// of the node.
    pub async fn start_on(
        programs: Programs,
        work: Work,
        start: impl AsyncFnOnce(Place<'_>) -> Result<N>,
    ) -> Result<Self> {
        let begin = Instant::now();
        machine::prepare(&work)?;
        let (bin, state, logs) = (programs.daemons.clone(), work.state(), work.logs());
        let mut control_plane = ControlPlane::start(&bin, &state, &logs)?;
        let registry = Registry::start(&bin, &state, &logs)?;
        let node = start(Place {
            bin: &bin,
            state: &state,
            logs: &logs,
            kubeconfig: control_plane.kubeconfig("kubelet"),
            cgroup: work.cgroup(),
        })
        .await?;
        registry.ready().await?;
        let images = state.join("images");
        let pause = Recipe::busybox()
            .entrypoint(["/bin/sleep", "2147483647"])
            .build(&images, "pause")?;
        let busybox = Recipe::busybox().build(&images, "busybox")?;
        registry.push(&pause, node::PAUSE).await?;
        registry.push(&busybox, "busybox").await?;

        let client = control_plane.ready(&bin, &logs).await?;
        let api_ready = begin.elapsed();
        let kubectl = Kubectl {
            program: bin.join("kubectl"),
            kubeconfig: control_plane.kubeconfig("admin"),
        };
        let mut cluster = Self {
            programs,
            work,
            client,
            kubectl,
            control_plane,
            node,
            registry,
            admission: None,
            scheduler: None,
            gpus: None,
            operators: Vec::new(),
            fleet: None,
            agents: None,
            namespaces: 0,
            started: (api_ready, api_ready),
        };
        cluster.node_ready().await?;
        cluster.started.1 = begin.elapsed();
        Ok(cluster)
    }

    /// Waits until the node is Ready and takes pods.
    pub async fn node_ready(&mut self) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let waited = until("node Ready", Duration::from_mins(1), || async {
            let node = nodes.get(node::NAME).await?;
            let tainted = node
                .spec
                .and_then(|spec| spec.taints)
                .is_some_and(|taints| !taints.is_empty());
            let condition = node
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default()
                .into_iter()
                .find(|condition| condition.type_ == "Ready");
            let ready = condition
                .as_ref()
                .is_some_and(|condition| condition.status == "True");
            Ok(Seen::when(
                ready && !tainted,
                condition
                    .and_then(|condition| condition.message)
                    .unwrap_or_default(),
            ))
        })
        .await;
        self.alive()?;
        waited
    }

    /// Fails if a daemon of the cluster has ended.
    pub fn alive(&mut self) -> Result<()> {
        self.control_plane.alive()?;
        self.registry.alive()?;
        self.node.alive()?;
        self.admission
            .as_mut()
            .map_or(Ok(()), |admission| admission.daemon.alive())?;
        self.scheduler
            .as_mut()
            .map_or(Ok(()), |scheduler| scheduler.daemon.alive())?;
        self.gpus.as_mut().map_or(Ok(()), Gpus::alive)
    }

    /// The manifests of `deploy/`, without the programs.
    pub async fn install(&self) -> Result<()> {
        self.make_namespace(proto::names::NAMESPACE).await?;
        for document in scheduler::manifests(&self.programs.tree)? {
            self.apply_one(&document).await?;
        }
        Ok(())
    }

    /// Applies every document of a YAML text, in order, on the server's side.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<DynamicObject>> {
        let mut applied = Vec::new();
        for document in manifest::documents(yaml)? {
            applied.push(self.apply_one(&document).await?);
        }
        Ok(applied)
    }

    /// Applies a file of the source tree.
    pub async fn apply_file(&self, path: &str) -> Result<Vec<DynamicObject>> {
        let path = self.programs.tree.join(path);
        let yaml = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        self.apply(&yaml).await
    }

    /// Applies one object.
    pub async fn apply_one(&self, document: &Value) -> Result<DynamicObject> {
        manifest::apply(&self.client, document).await
    }

    /// Kubernetes' own scheduler beside whatever runs; it is the caller's. Its client's limit is
    /// raised, which is 50 requests a second by default: it would bind no faster.
    pub fn start_kube_scheduler(&self) -> Result<Daemon> {
        let program = self.programs.daemons.join("kube-scheduler");
        Command::new("kube-scheduler", program)
            .flag("--kubeconfig", self.control_plane.kubeconfig("admin"))
            .flag("--leader-elect", "false")
            .flag("--secure-port", "0")
            .flag("--kube-api-qps", "1000")
            .flag("--kube-api-burst", "1000")
            .start(&self.work.logs())
    }

    /// A scheduler beside whatever runs; it is the caller's.
    pub async fn start_scheduler(&self, replica: Replica) -> Result<Scheduler> {
        let (state, logs) = (self.work.state(), self.work.logs());
        let place = programs::Place {
            programs: &self.programs,
            state: &state,
            logs: &logs,
            authority: self.control_plane.authority(),
            cgroup: self.work.cgroup(),
        };
        Scheduler::start(&self.client, &place, replica).await
    }

    /// Starts admission, unless it runs.
    pub async fn admit(&mut self) -> Result<()> {
        if self.admission.is_none() {
            let (state, logs) = (self.work.state(), self.work.logs());
            let place = programs::Place {
                programs: &self.programs,
                state: &state,
                logs: &logs,
                authority: self.control_plane.authority(),
                cgroup: self.work.cgroup(),
            };
            self.admission = Some(Admission::start(&self.client, &place).await?);
        }
        Ok(())
    }

    /// Ends admission and removes its webhooks for pods. Answers whether it ran; if so, the
    /// caller installs and starts it again.
    pub async fn end_admission(&mut self) -> Result<bool> {
        let Some(mut admission) = self.admission.take() else {
            return Ok(false);
        };
        admission.daemon.stop().await?;
        let name = proto::names::object::WEBHOOK_CONFIGURATION;
        let args = ["delete", "mutatingwebhookconfiguration", name];
        self.kubectl.run(&args).await?;
        Ok(true)
    }

    /// Ends the scheduler that runs and starts this one in its place.
    pub async fn replace_scheduler(&mut self, replica: Replica) -> Result<()> {
        if let Some(mut old) = self.scheduler.take() {
            old.daemon.stop().await?;
        }
        let mut restarted = self.start_scheduler(replica).await?;
        restarted.ready().await?;
        self.scheduler = Some(restarted);
        Ok(())
    }

    /// Waits until the node offers the shares of this hardware, and no other's.
    async fn shares_offered(&self, hardware: &Hardware) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let (cards, gpus) = (hardware.cards(), hardware.gpus());
        until(
            "shares in the node's allocatable",
            Duration::from_secs(30),
            || async {
                let node = nodes.get(node::NAME).await?;
                let allocatable = node
                    .status
                    .and_then(|status| status.allocatable)
                    .unwrap_or_default();
                let amount = |name: &str| {
                    allocatable
                        .get(name)
                        .and_then(|amount| quantity(&amount.0))
                        .unwrap_or(0)
                };
                Ok(Seen::when(
                    (amount(resource::SHARE) > 0) == (cards > 0)
                        && (amount(resource::MEMORY_MIB) > 0) == (cards > 0)
                        && amount(resource::MILLI) == u64::from(cards) * 1000
                        && amount(resource::GPU) == u64::from(gpus),
                    format!("{allocatable:?}"),
                ))
            },
        )
        .await?;
        self.cards_known().await
    }

    /// The scheduler knows these very cards: the previous ones may have had the same UUIDs, which
    /// real cards never have.
    async fn cards_known(&self) -> Result<()> {
        let gpus = self.gpus.as_ref().context("no GPUs")?;
        let single = gpus.hardware.gpus() > gpus.hardware.cards();
        until(
            "the node's cards at the scheduler",
            Duration::from_secs(30),
            || async {
                let has = |line: &str| -> Option<u64> {
                    let bytes = line.strip_prefix("aliquot_gpu_memory_total_bytes{")?;
                    // Kubernetes counts slices, unless each is a GPU.
                    if bytes.contains("GPU_I_ID") && !single {
                        return None;
                    }
                    Some(bytes.rsplit(' ').next()?.parse::<u64>().ok()? >> 20)
                };
                let mut cards: Vec<u64> = gpus.metrics().await?.lines().filter_map(has).collect();
                let snapshot = crate::http::get(ports::SCHEDULER_METRICS, "/snapshot").await?;
                let knows = |line: &str| -> Option<u64> {
                    let card = line.trim_start().strip_prefix("card ")?;
                    let mut pairs = card.split(' ');
                    pairs.find_map(|pair| pair.strip_prefix("total=")?.parse().ok())
                };
                let mut known: Vec<u64> = snapshot.lines().filter_map(knows).collect();
                cards.sort_unstable();
                known.sort_unstable();
                let seen = format!("{known:?}, not {cards:?}");
                Ok(Seen::when(!cards.is_empty() && cards == known, seen))
            },
        )
        .await
    }

    /// An image of this workspace's making, served under `reference`.
    pub async fn serve_image(&self, recipe: &Recipe, reference: &str) -> Result<()> {
        let name: String = reference
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '-' })
            .collect();
        let folder = self.work.state().join("images");
        let layout = folder.join(&name);
        if layout.exists() {
            fs::remove_dir_all(&layout)?;
        }
        let image = recipe.build(&folder, &name)?;
        self.registry.push(&image, reference).await
    }

    /// Makes a namespace that no claim has used before, and answers its name.
    pub async fn namespace(&mut self) -> Result<String> {
        self.namespaces += 1;
        let name = format!("claim-{}", self.namespaces);
        self.make_namespace(&name).await?;
        Ok(name)
    }

    /// Makes a namespace of this name, after an older one of this name is gone.
    pub async fn make_namespace(&self, name: &str) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        until(
            &format!("the old namespace {name} gone"),
            Duration::from_secs(30),
            || async {
                let old = namespaces.get_opt(name).await?;
                let ending = old.is_some_and(|old| old.metadata.deletion_timestamp.is_some());
                Ok(Seen::when(!ending, "still ending"))
            },
        )
        .await?;
        let document = serde_json::json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.apply_one(&document).await?;
        Ok(())
    }

    /// The namespaces that claims use: all but the cluster's own and the operators'.
    pub(crate) async fn claimed_namespaces(&self) -> Result<Vec<String>> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        Ok(namespaces
            .list(&ListParams::default())
            .await?
            .into_iter()
            .map(|namespace| namespace.name_any())
            .filter(|name| !name.starts_with("kube-") && name != proto::names::NAMESPACE)
            .filter(|name| !self.operators.iter().any(|one| one.namespace == name))
            .collect())
    }

    /// A client with the credentials of a kubeconfig file.
    pub async fn client_of(&self, kubeconfig: &Path) -> Result<Client> {
        token::client(kubeconfig).await
    }
}

/// A whole number as Kubernetes prints it: `2000` and `2k`.
pub fn quantity(text: &str) -> Option<u64> {
    let (digits, factor) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1000),
        None => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}
