use super::*;
use crate::gpu::GpuUuid;
use crate::inventory::{DriverLimits, Health};
use crate::ledger::{AllocId, Claim, Claimed, Ledger, ShareOptions, Turn};
use crate::node::Readiness;
use api::grant::NodeIdentity;
use api::grant::PodIdentity;
use api::{Mib, Mode};

fn card(n: u32) -> Card {
    Card {
        uuid: GpuUuid::from(format!("GPU-{n}A").as_str()),
        index: n,
        minor: n,
        product: "Tesla T4".into(),
        total: Mib(15_360),
        reserved: Mib(360),
        used: Mib(0),
        strangers: Vec::new(),
        grantable: Mib(15_000),
        health: Health::Healthy,
        compute_mode: crate::gpu::ComputeMode::Default,
        mig: false,
        slice: None,
        resource: crate::resource::Resource::Whole,
        cordoned: false,
        hidden_from_other_plugins: false,
        only_mode: None,
        only_front: None,
        switchable: vec![Mode::Exclusive, Mode::Mps, Mode::TimeSlicing],
        driver_limits: DriverLimits::None,
        minimum_fence: None,
        compute_capability: "7.5".into(),
        pci: "00000000:3B:00.0".into(),
        numa: Some(1),
        nvlink_peers: Vec::new(),
        server_reserve: Mib(64),
        client_slots: 48,
        context_allowance: Mib(512),
    }
}

fn node(cards: Vec<Card>) -> State {
    let mut state = State {
        node: NodeIdentity {
            name: "n1".into(),
            uid: "u".into(),
        },
        restored: true,
        ready: Readiness {
            nvml: true,
            ..Readiness::default()
        },
        ..State::default()
    };
    state.inventory.driver_version = "570.172.08".into();
    state.inventory.cards = cards;
    state
}

fn devices(state: &State) -> Vec<Device> {
    spec(state).unwrap().devices.unwrap()
}

/// Key, value and effect of each taint.
fn taints_of(state: &State) -> Vec<(String, String, String)> {
    let taints = devices(state).remove(0).taints.unwrap_or_default();
    let value = |taint: DeviceTaint| (taint.key, taint.value.unwrap_or_default(), taint.effect);
    taints.into_iter().map(value).collect()
}

fn grant(front: Front, mode: Mode, state: &State) -> Ledger {
    let claim = Claim {
        pod: PodIdentity {
            uid: "p".into(),
            namespace: "n".into(),
            name: "p".into(),
        },
        container: "c".into(),
        turn: Turn::default(),
        gpus: vec![state.inventory.cards[0].uuid.clone()],
        memory: Mib(1000),
        kept: Mib(1000),
        compute_percent: 100,
        mode,
        decision: String::new(),
        claimed: (front == Front::Dra).then(|| Claimed {
            uid: "c".into(),
            name: "c".into(),
            requests: ["gpu".to_owned()].into(),
        }),
        wishes: ShareOptions::default(),
    };
    let mut ledger = Ledger::default();
    let alloc = AllocId::new(1);
    ledger
        .bind(&claim, alloc, None, &state.inventory)
        .expect("an idle card");
    ledger
}

#[test]
fn a_card_is_one_device_of_memory_and_slots() {
    let state = node(vec![card(0)]);
    let [device] = &devices(&state)[..] else {
        panic!("not one device");
    };
    assert_eq!(device.name, "gpu-0a");
    assert_eq!(device.allow_multiple_allocations, Some(true));
    assert_eq!(device.taints, None);
    let json = serde_json::to_value(device).unwrap();
    assert_eq!(
        json["capacity"],
        serde_json::json!({
            "memory": {"value": "15000Mi", "requestPolicy":
                {"default": "15000Mi", "validRange": {"min": "0Mi", "step": "1Mi"}}},
            "slots": {"value": "48", "requestPolicy": {"default": "1", "validValues": ["1"]}},
        })
    );
    assert_eq!(
        json["attributes"],
        serde_json::json!({
            "whole": {"bool": true},
            "uuid": {"string": "GPU-0A"},
            "productName": {"string": "Tesla T4"},
            "mode": {"string": "mps"},
            "fence": {"string": "ClientLimit"},
            "driverVersion": {"version": "570.172.8"},
            "computeCapability": {"version": "7.5.0"},
            "numaNode": {"int": 1},
            "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
        })
    );
}

#[test]
fn nothing_is_said_before_it_is_known() {
    for forget in [
        (|state: &mut State| state.restored = false) as fn(&mut State),
        |state| state.node.uid.clear(),
        |state| {
            state.ready.nvml = false;
            state.inventory.cards.clear();
        },
    ] {
        let mut state = node(vec![card(0)]);
        forget(&mut state);
        assert_eq!(spec(&state), None);
    }
    let mut mig = card(1);
    mig.mig = true;
    assert_eq!(devices(&node(vec![card(0), mig])).len(), 1);
}

/// The device plugin's cards are taken from the first on.
#[test]
fn the_last_card_is_the_first_to_be_allocated() {
    let names: Vec<String> = devices(&node(vec![card(0), card(1), card(2)]))
        .into_iter()
        .map(|device| device.name)
        .collect();
    let expected = [2, 1, 0].map(|n| device_name(&card(n).uuid));
    assert_eq!(names, expected);
}

type Change = fn(&mut State);

#[test]
fn what_takes_nothing_new_is_tainted_and_says_why() {
    let slow = |lasting| Health::Unhealthy {
        reason: "x".into(),
        lasting,
    };
    let front: Change = |state| state.ledger = grant(Front::Plugin, Mode::Mps, state);
    let whole: Change = |state| state.ledger = grant(Front::Plugin, Mode::Exclusive, state);
    let closed: Change = |state| {
        state.ledger = grant(Front::Dra, Mode::Mps, state);
        state.inventory.cards[0].only_front = Some(Front::Plugin);
    };
    let cases: [(Change, &str, &str, &str); 6] = [
        (front, names::TAINT_FRONT, "plugin", "NoSchedule"),
        (closed, names::TAINT_FRONT, "plugin", "NoSchedule"),
        (whole, names::TAINT_FRONT, "plugin", "NoSchedule"),
        (
            |state| state.inventory.cards[0].cordoned = true,
            names::TAINT_CORDONED,
            "",
            "NoSchedule",
        ),
        (
            |state| state.not_offering = Some("x".into()),
            names::TAINT_NOT_OFFERING,
            "",
            "NoSchedule",
        ),
        (
            |state| state.inventory.cards[0].switchable.clear(),
            names::TAINT_NOT_OFFERING,
            "",
            "NoSchedule",
        ),
    ];
    for (change, key, value, effect) in cases {
        let mut state = node(vec![card(0)]);
        change(&mut state);
        let wanted = (key.to_owned(), value.to_owned(), effect.to_owned());
        assert_eq!(taints_of(&state), [wanted]);
    }
    for (lasting, effect) in [(false, "NoSchedule"), (true, "NoExecute")] {
        let mut state = node(vec![card(0)]);
        state.inventory.cards[0].health = slow(lasting);
        let wanted = (names::TAINT_UNHEALTHY.into(), String::new(), effect.into());
        assert_eq!(taints_of(&state), [wanted]);
    }
    // Its own shares do not close it.
    let mut state = node(vec![card(0)]);
    state.ledger = grant(Front::Dra, Mode::Mps, &state);
    assert_eq!(taints_of(&state), []);
}

#[test]
fn a_claims_share_has_the_mode_that_its_card_is_in() {
    let mut state = node(vec![card(0)]);
    let mode = |state: &State| mode_of(state, &state.inventory.cards[0]);
    assert_eq!(mode(&state), Some(Mode::Mps));
    let mut policy = crate::node::Policy::default();
    policy.spec.default_mode = Some(Mode::TimeSlicing);
    state.policy = Some(policy);
    assert_eq!(mode(&state), Some(Mode::TimeSlicing));
    state.ledger = grant(Front::Dra, Mode::Mps, &state);
    assert_eq!(mode(&state), Some(Mode::Mps));
    // Nothing comes beside it any more.
    state.inventory.cards[0].switchable = vec![Mode::Exclusive, Mode::TimeSlicing];
    assert_eq!(mode(&state), None);
    state.ledger = Ledger::default();
    state.inventory.cards[0].switchable = vec![Mode::Exclusive];
    assert_eq!(mode(&state), Some(Mode::Exclusive));
    state.ledger = grant(Front::Dra, Mode::Exclusive, &state);
    assert_eq!(mode(&state), Some(Mode::Exclusive));
    state.inventory.cards[0].only_mode = Some(Mode::Exclusive);
    state.ledger = Ledger::default();
    assert_eq!(mode(&state), Some(Mode::Exclusive));
}

#[test]
fn the_memory_of_servers_of_isolated_shares_is_not_offered() {
    let mut state = node(vec![card(0)]);
    let memory = |state: &State| {
        let capacity = devices(state).remove(0).capacity.unwrap();
        capacity[names::MEMORY].value.0.clone()
    };
    state.inventory.cards[0].switchable.push(Mode::MpsIsolated);
    state.ledger = grant(Front::Dra, Mode::Mps, &state);
    assert_eq!(memory(&state), "15000Mi");
    state.ledger = grant(Front::Dra, Mode::MpsIsolated, &state);
    assert_eq!(memory(&state), "14936Mi");
}

#[test]
fn versions_and_addresses_are_kubernetes() {
    for (text, version) in [
        ("615.1", Some("615.1.0")),
        ("1.2.3.4", None),
        ("", None),
        ("x.1", None),
    ] {
        assert_eq!(semver(text).as_deref(), version, "{text}");
    }
    for (text, address) in [
        ("0000:01:00.0", Some("0000:01:00.0")),
        ("1:0.0", None),
        ("", None),
    ] {
        assert_eq!(pci(text).as_deref(), address, "{text}");
    }
}
