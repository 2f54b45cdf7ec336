//! One node's life, step by step.

mod claims;
mod drain;
mod faults;
mod liveness;
mod pressure;
mod random;
mod runtime;
mod servers;
mod slices;
mod strangers;
mod ungranted;

use super::*;
use crate::gpu::MigStrategy;
use crate::identity::{Checkpoint, Entry};
use crate::ledger::{AllocId, ProofName};
use crate::node::Pool;
use crate::node::prepare::{PrepareRequest, Source};
use crate::nvml::{Device, Identity, LayoutOrder, Observation, Process, Reading, Sample, Xid};
use crate::pods::{ContainerKind, ContainerView, PodView};
use crate::reconcile::Local;
use crate::reconcile::Proof;
use api::Mode;
use api::Signer;
use api::grant::{ContainerGrant, Grant, NodeIdentity, Verifier};
use api::units::Fence;
use proto::mps;
use random::{Step, step};
use std::sync::LazyLock;
use std::time::Duration;

static SIGNER: LazyLock<Signer> =
    LazyLock::new(|| Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap());

const UNGRANTED_GRACE: Duration = Duration::from_mins(1);
const CARDS: u32 = 3;
const TOTAL: u64 = 1000;

fn uuid(card: u32) -> GpuUuid {
    GpuUuid::from(format!("GPU-{card}").as_str())
}

fn observation(processes: &BTreeMap<u32, Vec<Process>>) -> Observation {
    let device = |index: u32| Device {
        identity: Identity {
            uuid: uuid(index),
            index,
            minor: index,
            product: "T4".into(),
            pci: String::new(),
            compute_capability: String::new(),
            numa: None,
            nvlink_peers: Vec::new(),
            slice: None,
        },
        reading: Ok(Reading {
            total: Mib(TOTAL),
            processes: processes.get(&index).cloned().unwrap_or_default(),
            ..Reading::default()
        }),
    };
    Observation {
        driver: Driver::Up {
            version: "570".into(),
        },
        devices: (0..CARDS).map(device).collect(),
    }
}

fn new_core() -> Core {
    Core::new(Terms {
        node: "n1".into(),
        cards: Settings {
            mps_reserve: Mib(0),
            client_slots: 4,
            context_allowance: Mib(0),
            mig_strategy: MigStrategy::Mixed,
        },
        serve_whole: true,
        watchdog_slack: Mib(16),
        ungranted_grace: UNGRANTED_GRACE,
        allow_ungranted_whole: false,
    })
}

/// Everything outside of the agent.
struct World {
    pods: BTreeMap<String, PodView>,
    checkpoint: Checkpoint,
    files: BTreeMap<AllocId, Option<Vec<Share>>>,
    proofs: BTreeMap<ProofName, Option<Proof>>,
    /// Containers with a process.
    living: BTreeSet<String>,
    unreadable: BTreeMap<LocalSource, String>,
    /// Pods that left; a UID never comes back.
    gone: BTreeSet<u32>,
    next_alloc: u128,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self {
            pods: BTreeMap::new(),
            checkpoint: Checkpoint::default(),
            files: BTreeMap::new(),
            proofs: BTreeMap::new(),
            living: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            gone: BTreeSet::new(),
            next_alloc: 1,
            now: Instant::now(),
        }
    }

    fn local(&self) -> Local {
        Local {
            checkpoint: Some(self.checkpoint.clone()),
            files: self.files.clone(),
            proofs: self.proofs.clone(),
            folders: self.files.keys().copied().collect(),
            living: self.living.clone(),
            unreadable: self.unreadable.clone(),
        }
    }

    /// A core that starts now, and has received every event once. What it wants done is left.
    fn started(&self) -> Core {
        self.start().0
    }

    /// The agent restarts.
    fn restarted(&mut self) -> Core {
        let (core, effects) = self.start();
        self.carry_out(effects);
        core
    }

    fn start(&self) -> (Core, Vec<Effect>) {
        let mut core = new_core();
        let keys = BTreeMap::from([(SIGNER.key_id().to_owned(), SIGNER.public_key())]);
        let events = [
            Event::Local(self.local()),
            Event::Observed(Arc::new(observation(&BTreeMap::new()))),
            Event::Trust(Verifier::new("c", keys), String::new()),
            Event::NodeUid("nu1".into()),
            Event::PodsListed(self.pods.values().cloned().collect()),
        ];
        let effects = events.into_iter();
        let effects = effects
            .flat_map(|event| core.apply(event, self.now))
            .collect();
        (core, effects)
    }

    fn pod(&mut self, n: u32, whole: bool, card: u32, mib: u64) -> PodView {
        self.granted(n, whole, card, mib, None)
    }

    /// `kept`: what is kept for it, where that is less than its limit.
    fn granted(&mut self, n: u32, whole: bool, card: u32, mib: u64, kept: Option<Mib>) -> PodView {
        let identity = PodIdentity {
            uid: format!("u{n}"),
            namespace: "ns".into(),
            name: format!("p{n}"),
        };
        let mode = if whole { Mode::Exclusive } else { Mode::Mps };
        let grant = SIGNER.sign(Grant {
            v: 0,
            key: String::new(),
            cluster: "c".into(),
            pod: identity.clone(),
            node: NodeIdentity {
                name: "n1".into(),
                uid: "nu1".into(),
            },
            containers: vec![ContainerGrant {
                name: "main".into(),
                gpus: vec![uuid(card).to_string()],
                memory_mib: Mib(if whole { TOTAL } else { mib }),
                request_mib: kept,
                compute_percent: 100,
                mode,
                note: None,
                asked: None,
            }],
            decision: format!("d{n}"),
            queue: None,
            group: None,
        });
        let pod = PodView {
            identity,
            mirror_uid: None,
            grant: Some(grant),
            admitted: true,
            finished: false,
            deleting: false,
            grace: Duration::ZERO,
            runtime_class: None,
            way_around: None,
            containers: vec![ContainerView {
                name: "main".into(),
                kind: ContainerKind::App,
                tokens: u64::from(!whole),
                whole: u64::from(whole),
                claims: Vec::new(),
                running: None,
            }],
        };
        self.pods.insert(pod.identity.uid.clone(), pod.clone());
        pod
    }

    /// The kubelet allocates what the plugin prefers among what is free and healthy.
    fn allocate(&mut self, core: &mut Core, uid: &str) {
        let Some(pod) = self.pods.get(uid).filter(|pod| !pod.finished) else {
            return;
        };
        if self.checkpoint.entries.iter().any(|e| e.pod_uid == uid) {
            return;
        }
        let resource = if pod.containers[0].whole > 0 {
            Resource::Whole
        } else {
            Resource::Share
        };
        let taken: BTreeSet<&String> = self
            .checkpoint
            .entries
            .iter()
            .filter(|entry| entry.resource == resource.name())
            .flat_map(|entry| &entry.ids)
            .collect();
        let offer = core.offer();
        let free: Vec<String> = offer
            .list(resource)
            .iter()
            .filter(|d| d.health == "Healthy" && !taken.contains(&d.id))
            .map(|d| d.id.clone())
            .collect();
        let ids: BTreeSet<String> = offer.prefer(resource, &free, &[], 1).into_iter().collect();
        if ids.is_empty() {
            return;
        }
        let alloc = AllocId::new(self.next_alloc);
        self.next_alloc += 1;
        let minted = Event::Minted {
            alloc,
            resource,
            ids: ids.clone(),
        };
        core.apply(minted, self.now);
        self.checkpoint.entries.push(Entry {
            pod_uid: uid.to_owned(),
            container: "main".into(),
            resource: resource.name().into_owned(),
            ids,
            alloc: Some(alloc),
        });
    }

    /// One try of `PreStartContainer`.
    fn pre_start(&mut self, core: &mut Core, uid: &str) -> Option<Result<Share, String>> {
        let entry = self.checkpoint.entries.iter().find(|e| e.pod_uid == uid)?;
        let resource = [Resource::Share, Resource::Whole]
            .into_iter()
            .find(|r| r.name() == entry.resource)?;
        let ask = PrepareRequest {
            resource,
            ids: entry.ids.clone(),
            source: Source::Checkpoint(self.checkpoint.clone()),
        };
        let (outcomes, effects) = core.prepare(&ask, self.now);
        self.carry_out(effects);
        let mut own = None;
        for outcome in outcomes {
            if let Ok(share) = &outcome.result {
                let alloc = share.alloc_id.unwrap();
                let written = Share::from_record(alloc, &share.to_record());
                self.files.insert(alloc, Some(vec![written.unwrap()]));
            }
            if outcome.identity().uid == uid {
                own = Some(outcome.result.map_err(|why| why.reason));
            }
        }
        own
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Forget(alloc) => {
                    self.files.remove(&alloc);
                    self.proofs.retain(|name, _| name.alloc != alloc);
                }
                Effect::ForgetProof(name) => drop(self.proofs.remove(&name)),
                _ => {}
            }
        }
    }

    fn tell(&mut self, core: &mut Core, event: Event) {
        let effects = core.apply(event, self.now);
        self.carry_out(effects);
    }

    fn prove(&mut self, uid: &str) {
        let proven = self.files.values().flatten().flatten().find_map(|share| {
            let name = share.proof_name()?;
            (share.pod.uid == uid).then(|| (name, share.container.clone()))
        });
        if let Some((name, container)) = proven {
            let proof = Proof {
                pod_uid: uid.to_owned(),
                container,
                container_id: format!("c-{uid}"),
                ..Proof::default()
            };
            self.living.insert(proof.container_id.clone());
            self.proofs.insert(name, Some(proof));
        }
    }
}

#[test]
fn an_answer_that_came_and_went_between_two_looks_is_held_for_a_minute() {
    let mut world = World::new();
    let mut core = world.started();
    for one in [
        Step::Bind(3, true, 0, 1),
        Step::Bind(0, false, 0, 1),
        Step::Allocate(3),
        Step::Finish(3),
        Step::KubeletForgets(3),
        Step::Look,
    ] {
        step(&mut world, &mut core, &one);
    }
    // The share has the card by now. As far as is known a pod holds it whole, and an ID that is
    // held keeps its card's health.
    assert_eq!(core.ledger.mode_of(&uuid(0)), Some(Mode::Mps));
    assert_eq!(core.offer().whole[0].health, "Healthy");
    world.now += reconcile::MINTED_GRACE;
    step(&mut world, &mut core, &Step::Look);
    assert_eq!(core.offer().whole[0].health, "Unhealthy");
}

fn new_core_offer() -> Offer {
    World::new().started().offer()
}

#[test]
fn a_dead_pods_memory_is_free_when_its_processes_are_gone() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 600));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    step(&mut world, &mut core, &Step::Prove(1));
    step(&mut world, &mut core, &Step::Look);
    let process = Process {
        pid: 7,
        memory: Some(Mib(550)),
        mps_client: true,
        sm_percent: None,
        works: None,
        origin: crate::attribute::Origin {
            pod_uid: Some("u1".into()),
            container_id: Some("c-u1".into()),
            command: "python".into(),
        }
        .into(),
    };
    let busy = observation(&BTreeMap::from([(0, vec![process])]));
    world.tell(&mut core, Event::Observed(Arc::new(busy)));
    let share = core.ledger.shares().next().unwrap();
    assert_eq!(share.used, Mib(550));
    assert!(core.cards.inventory.cards[0].strangers.is_empty());
    step(&mut world, &mut core, &Step::Gone(1));
    step(&mut world, &mut core, &Step::ContainerEnds(1));
    step(&mut world, &mut core, &Step::Look);
    let share = core.ledger.shares().next().unwrap();
    assert_eq!(share.phase, SharePhase::Terminating);
    step(&mut world, &mut core, &Step::Bind(2, false, 0, 600));
    step(&mut world, &mut core, &Step::Allocate(2));
    let refused = world.pre_start(&mut core, "u2").unwrap().unwrap_err();
    assert!(refused.contains("400 MiB left of 1000 MiB"), "{refused}");
    let idle = observation(&BTreeMap::new());
    world.tell(&mut core, Event::Observed(Arc::new(idle)));
    assert!(world.pre_start(&mut core, "u2").unwrap().is_ok());
    assert_eq!(core.ledger.shares().count(), 1);
}

#[test]
fn a_share_whose_processes_do_nothing_is_idle_and_nothing_is_known_where_nvml_does_not_say() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 600));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    step(&mut world, &mut core, &Step::Prove(1));
    step(&mut world, &mut core, &Step::Look);
    let minutes = |core: &Core| core.ledger.shares().next().unwrap().idle_minutes;
    let mut look = |core: &mut Core, busy, works| {
        let process = Process {
            works,
            ..servers::client(7, "u1")
        };
        let mut seen = observation(&BTreeMap::from([(0, vec![process])]));
        for device in &mut seen.devices {
            device.reading.as_mut().unwrap().busy = busy;
        }
        world.now += Duration::from_mins(1);
        world.tell(core, Event::Observed(Arc::new(seen)));
        minutes(core)
    };
    assert_eq!(look(&mut core, Some(true), Some(true)), Some(0));
    assert_eq!(look(&mut core, Some(false), Some(false)), Some(1));
    assert_eq!(look(&mut core, Some(false), Some(false)), Some(2));
    assert_eq!(look(&mut core, Some(true), Some(false)), None);
    assert_eq!(look(&mut core, Some(false), Some(false)), Some(1));
    assert_eq!(look(&mut core, None, None), None);
    step(&mut world, &mut core, &Step::ContainerEnds(1));
    assert_eq!(minutes(&core), None);
}

#[test]
fn without_the_api_server_what_runs_is_known_and_what_the_kubelet_dropped_ends() {
    let mut world = World::new();
    let mut core = world.started();
    for n in [1, 2] {
        step(&mut world, &mut core, &Step::Bind(n, false, 0, 300));
        step(&mut world, &mut core, &Step::Allocate(n));
        step(&mut world, &mut core, &Step::PreStart(n));
        step(&mut world, &mut core, &Step::Prove(n));
    }
    world
        .checkpoint
        .entries
        .retain(|entry| entry.pod_uid != "u2");
    step(&mut world, &mut core, &Step::ContainerEnds(2));
    let mut alone = new_core();
    alone.apply(Event::Local(world.local()), world.now);
    alone.apply(
        Event::Observed(Arc::new(observation(&BTreeMap::new()))),
        world.now,
    );
    let held = |core: &Core| -> Vec<String> {
        core.ledger
            .shares()
            .map(|share| share.pod.uid.clone())
            .collect()
    };
    assert_eq!(held(&alone), ["u1", "u2"]);
    assert_eq!(
        alone.ledger.shares().next().unwrap().phase,
        SharePhase::Running
    );
    let effects = alone.apply(Event::Tick, world.now + reconcile::MISSING_GRACE);
    assert_eq!(held(&alone), ["u1"]);
    // Its file may be all that is known of a container: it stays until the pods are read.
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Forget(_)))
    );
}

#[test]
fn a_lost_file_is_told_by_grant_checkpoint_and_proof() {
    let mut world = World::new();
    let mut core = world.started();
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 300));
    step(&mut world, &mut core, &Step::Allocate(1));
    step(&mut world, &mut core, &Step::PreStart(1));
    step(&mut world, &mut core, &Step::Prove(1));
    step(&mut world, &mut core, &Step::Look);
    world.files.clear();
    let mut rebuilt = world.started();
    step(&mut world, &mut rebuilt, &Step::Look);
    assert_eq!(core.ledger, rebuilt.ledger);
}

#[test]
fn a_policy_that_asks_for_a_stronger_fence_refuses_shares() {
    let mut world = World::new();
    let mut core = world.started();
    let mut policy = Policy::default();
    policy.spec.minimum_fence = Some(Fence::DriverLimit);
    step(&mut world, &mut core, &Step::Bind(1, false, 0, 300));
    step(&mut world, &mut core, &Step::Allocate(1));
    world.tell(&mut core, Event::Policy(Some(policy)));
    let refused = world.pre_start(&mut core, "u1").unwrap().unwrap_err();
    assert_eq!(
        refused,
        "the node's minimum fence is DriverLimit, mode mps gives at best ServerLimit"
    );
}

#[test]
fn the_admins_word_on_the_topology_manager_goes_before_that_of_the_topology_object() {
    use api::gpu_node::{TopologyManager, TopologyPolicy};
    let manager = |policy| TopologyManager {
        policy,
        scope: None,
    };
    let mut world = World::new();
    let mut core = world.started();
    let policy = |core: &Core| core.state().topology_manager.map(|manager| manager.policy);
    let seen = |policy| Event::TopologyManager(Some(manager(policy)));
    let said = |said: Option<TopologyPolicy>| {
        let mut policy = Policy::default();
        policy.spec.topology_manager = said.map(manager);
        Event::Policy(Some(policy))
    };
    assert_eq!(policy(&core), None);
    world.tell(&mut core, seen(TopologyPolicy::BestEffort));
    assert_eq!(policy(&core), None, "it refuses no pod");
    world.tell(&mut core, seen(TopologyPolicy::Restricted));
    assert_eq!(policy(&core), Some(TopologyPolicy::Restricted));
    let single = TopologyPolicy::SingleNumaNode;
    world.tell(&mut core, said(Some(single)));
    assert_eq!(policy(&core), Some(single));
    world.tell(&mut core, said(Some(TopologyPolicy::None)));
    assert_eq!(policy(&core), None, "the admin says that it refuses none");
    world.tell(&mut core, said(None));
    assert_eq!(policy(&core), Some(TopologyPolicy::Restricted));
    world.tell(&mut core, Event::TopologyManager(None));
    assert_eq!(policy(&core), None);
}

#[test]
fn another_plugin_closes_the_node_but_for_cards_that_are_hidden_from_it() {
    let mut world = World::new();
    let mut core = world.started();
    let why = "another device plugin serves whole cards".to_owned();
    world.tell(
        &mut core,
        Event::Obstacle(Obstacle::OtherPlugin, Some(why.clone())),
    );
    let open = |core: &Core| -> BTreeSet<String> {
        let offer = core.offer();
        offer
            .share
            .iter()
            .chain(&offer.whole)
            .filter(|d| d.health == "Healthy")
            .map(|d| d.id.split("::").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(core.state().not_offering, Some(why));
    assert!(open(&core).is_empty());
    let mut policy = Policy::default();
    policy.spec.gpus = vec![api::gpu_node::GpuPolicy {
        uuid: "GPU-1".into(),
        hidden_from_other_plugins: true,
        ..Default::default()
    }];
    world.tell(&mut core, Event::Policy(Some(policy)));
    assert_eq!(core.state().not_offering, None);
    assert_eq!(open(&core), BTreeSet::from(["GPU-1".to_owned()]));
}
