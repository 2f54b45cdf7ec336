//! The message for schedulers.

use crate::sample;
use agent::inventory::Health;
use agent::telemetry::report::{is_ready, node_state};
use proto::mps::ServerPhase;

#[test]
fn a_card_in_use_is_reported_with_its_mode_server_and_sums() {
    let told = node_state(&sample::state());
    assert_eq!(
        (told.node.as_str(), told.node_uid.as_str()),
        ("n1", "node-uid")
    );
    let [first, second] = told.gpus.as_slice() else {
        panic!("{told:?}")
    };
    assert_eq!(first.memory_granted_mib, 2000);
    assert_eq!(first.memory_grantable_mib, 48376);
    assert_eq!(
        (first.mode.as_str(), first.mps_state.as_str()),
        ("mps", "Ready")
    );
    assert_eq!(first.switchable_modes, ["exclusive", "mps"]);
    assert_eq!((first.client_slots, first.client_slots_used), (48, 1));
    assert_eq!((first.numa_node, second.numa_node), (-1, 1));
    assert_eq!(
        (first.kubelet_pool.as_str(), second.kubelet_pool.as_str()),
        ("shared", "whole")
    );
    assert_eq!(
        (second.mode.as_str(), second.mps_state.as_str()),
        ("", "Absent")
    );
    assert!(second.cordoned && first.ready && second.ready);
    assert_eq!(
        (first.minimum_fence.as_str(), second.minimum_fence.as_str()),
        ("", "ServerLimit")
    );
}

#[test]
fn a_share_is_reported_with_what_is_really_active() {
    let told = node_state(&sample::state());
    let [share] = told.shares.as_slice() else {
        panic!("{told:?}")
    };
    assert_eq!(
        (share.pod_name.as_str(), share.container.as_str()),
        ("p", "main")
    );
    assert_eq!(
        (
            share.memory_mib,
            share.memory_used_mib,
            share.observed_limit_mib,
            share.reach_mib
        ),
        (2000, 1200, 8000, 8000)
    );
    assert_eq!(
        (share.fence.as_str(), share.phase.as_str()),
        ("ClientLimit", "Running")
    );
    assert_eq!(share.alloc_id, format!("{:032x}", 0xab));
    assert_eq!(told.strangers[0].command, "Xorg");
    let mut before = sample::share("q", 1, 10);
    (before.fence, before.alloc_id) = (None, None);
    let mut state = sample::state();
    state.ledger.restore(before);
    let told = node_state(&state);
    let share = told
        .shares
        .iter()
        .find(|share| share.pod_name == "q")
        .unwrap();
    assert_eq!(
        (
            share.fence.as_str(),
            share.observed_limit_mib,
            share.alloc_id.as_str()
        ),
        ("", 0, "")
    );
}

#[test]
fn a_card_is_ready_when_a_container_on_it_could_start() {
    let ready =
        |state: &agent::node::State, index: usize| is_ready(state, &state.inventory.cards[index]);
    // A pod may join a server that is starting, because `PreStartContainer` waits for it; a broken
    // server admits none.
    for (phase, joined) in [
        (ServerPhase::Absent, true),
        (ServerPhase::Starting, true),
        (ServerPhase::Ready, true),
        (ServerPhase::ServerFault, false),
        (ServerPhase::Draining, false),
        (ServerPhase::Dead, false),
    ] {
        let mut state = sample::state();
        state.mps.seen.servers[0].set_phase(phase);
        // The start itself switches the idle card.
        assert_eq!((ready(&state, 0), ready(&state, 1)), (joined, true));
    }
    let mut state = sample::state();
    state.mps.seen.servers.clear();
    assert!(ready(&state, 0), "the supervisor has not begun it yet");
    let mut state = sample::state();
    state.mps.unreachable = "no socket".into();
    assert_eq!((ready(&state, 0), ready(&state, 1)), (false, true));
    let mut state = sample::state();
    state.inventory.cards[1].health = Health::Unhealthy {
        reason: "XID 79".into(),
        lasting: true,
    };
    assert_eq!((ready(&state, 0), ready(&state, 1)), (true, false));
    state.not_offering = Some("the runtime ignores CDI".into());
    assert!(!ready(&state, 0));
    assert_eq!(node_state(&state).not_offering, "the runtime ignores CDI");
}

#[test]
fn slices_that_kubernetes_counts_are_no_gpus_and_those_that_are_gpus_are() {
    for (profile, gpus, slices) in [(None, 3, 0), (Some("1g.10gb"), 2, 1)] {
        let told = node_state(&sample::sliced(profile));
        assert_eq!((told.gpus.len(), told.slices.len()), (gpus, slices));
        assert!(told.gpus[0].mig_enabled);
        let slice = told.gpus.iter().chain(&told.slices);
        let slice = slice.filter(|gpu| !gpu.parent_uuid.is_empty());
        let [slice] = slice.collect::<Vec<_>>()[..] else {
            panic!("{told:?}")
        };
        assert_eq!(
            (slice.parent_uuid.as_str(), slice.mig_profile.as_str()),
            ("GPU-0", "1g.10gb")
        );
    }
    // One that is offered in no way is no GPU either.
    let mut state = sample::sliced(None);
    state.inventory.cards[1].switchable.clear();
    assert_eq!(node_state(&state).gpus.len(), 2);
}
