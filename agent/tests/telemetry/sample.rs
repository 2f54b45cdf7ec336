//! A sample node.

use agent::fence::ActiveFence;
use agent::gpu::{ComputeMode, GpuUuid, Profile, Slice};
use agent::inventory::{Card, DriverLimits, Health, Inventory, Stranger};
use agent::ledger::{AllocId, Ledger, Share, SharePhase, Turn};
use agent::node::{MpsView, Pool, Readiness, State};
use agent::resource::Resource;
use api::grant::{NodeIdentity, PodIdentity};
use api::units::Fence;
use api::{Mib, Mode};
use proto::mps::{Client, Observation, ServerPhase, ServerState};

pub(crate) fn card(index: u32) -> Card {
    Card {
        uuid: uuid(index),
        index,
        minor: index + 4,
        product: "NVIDIA RTX 6000 Ada Generation".into(),
        total: Mib(49140),
        reserved: Mib(564),
        used: Mib(300),
        strangers: Vec::new(),
        grantable: Mib(48576),
        health: Health::Healthy,
        compute_mode: ComputeMode::Default,
        mig: false,
        slice: None,
        resource: Resource::Whole,
        cordoned: false,
        hidden_from_other_plugins: false,
        only_mode: None,
        only_front: None,
        switchable: vec![Mode::Exclusive, Mode::Mps],
        driver_limits: DriverLimits::None,
        minimum_fence: None,
        compute_capability: "8.9".into(),
        pci: format!("00000000:0{index}:00.0"),
        numa: None,
        nvlink_peers: Vec::new(),
        server_reserve: Mib(64),
        client_slots: 48,
        context_allowance: Mib(512),
    }
}

pub(crate) fn uuid(index: u32) -> GpuUuid {
    GpuUuid::from(format!("GPU-{index}").as_str())
}

pub(crate) fn share(pod: &str, index: u32, memory: u64) -> Share {
    Share {
        pod: PodIdentity {
            uid: format!("uid-{pod}"),
            namespace: "ns".into(),
            name: pod.into(),
        },
        container: "main".into(),
        turn: Turn::default(),
        gpus: vec![uuid(index)],
        memory: Mib(memory),
        kept: Mib(memory),
        compute_percent: 50,
        mode: Mode::Mps,
        claimed: None,
        wishes: agent::ledger::ShareOptions::default(),
        decision: format!("d-{pod}"),
        phase: SharePhase::Running,
        alloc_id: Some(AllocId::new(0xab)),
        fence: Some(ActiveFence {
            backend: None,
            level: Fence::ClientLimit,
            limit: Some(Mib(8000)),
            reach: Mib(8000),
        }),
        container_id: Some("c1".into()),
        used: Mib(1200),
        sm_percent: Some(40),
        idle_minutes: Some(3),
    }
}

/// Two cards; the first one with a share of 2000 MiB, a stranger and a server.
pub(crate) fn state() -> State {
    let mut first = card(0);
    first.strangers.push(Stranger {
        pod_uid: None,
        pid: 77,
        command: "Xorg".into(),
        container_id: None,
        memory: Mib(200),
    });
    first.grantable = Mib(48376);
    let mut second = card(1);
    second.numa = Some(1);
    second.cordoned = true;
    second.minimum_fence = Some(Fence::ServerLimit);
    let mut ledger = Ledger::default();
    ledger.restore(share("p", 0, 2000));
    State {
        claims: std::collections::BTreeMap::new(),
        node: NodeIdentity {
            name: "n1".into(),
            uid: "node-uid".into(),
        },
        inventory: Inventory {
            driver_version: "570.86.10".into(),
            cards: vec![first, second],
        },
        ledger,
        complaints: std::collections::BTreeMap::default(),
        evicted_strangers: std::collections::BTreeSet::default(),
        mode_faults: std::collections::BTreeMap::default(),
        mps: MpsView {
            seen: Observation {
                servers: vec![ServerState {
                    name: "GPU-0".into(),
                    phase: ServerPhase::Ready.into(),
                    clients: vec![Client::default(); 2],
                    restarts: 3,
                    ..ServerState::default()
                }],
                ..Observation::default()
            },
            ..MpsView::default()
        },
        admitted: std::collections::BTreeSet::default(),
        numa: None,
        topology_manager: None,
        layouts: agent::node::LayoutsView::default(),
        kubelet_pools: [(uuid(0), Pool::Shared), (uuid(1), Pool::Whole)].into(),
        restored: true,
        mirrors: std::collections::BTreeMap::new(),
        ungranted: Vec::new(),
        unreadable: std::collections::BTreeSet::default(),
        doubted: std::collections::BTreeSet::default(),
        not_offering: None,
        unguarded: std::collections::BTreeMap::new(),
        stale_samples: 7,
        policy: Some(agent::node::Policy::default()),
        trusted_ca: String::new(),
        ready: Readiness {
            nvml: true,
            registered: true,
            cluster: true,
        },
    }
}

/// The same with the first card in MIG mode, and a slice of it: by its profile, or as a GPU.
pub(crate) fn sliced(profile: Option<&str>) -> State {
    let mut state = state();
    state.ledger = Ledger::default();
    let cards = &mut state.inventory.cards;
    let mut slice = card(0);
    slice.uuid = GpuUuid::from("MIG-0");
    slice.switchable = vec![Mode::Exclusive];
    slice.slice = Some(Slice {
        parent: uuid(0),
        profile: Profile::parse("1g.10gb"),
        gpu_instance: 7,
        compute_instance: 0,
    });
    if let Some(profile) = profile.and_then(Profile::parse) {
        slice.resource = Resource::Slice(profile);
    }
    cards[0].mig = true;
    cards[0].grantable = Mib(0);
    cards[0].switchable.clear();
    cards.insert(1, slice);
    state
}
