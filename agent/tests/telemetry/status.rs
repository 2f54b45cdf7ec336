//! The `GpuNode`'s status, and what is worth a write.

use crate::sample;
use agent::inventory::DriverLimits;
use agent::telemetry::status::{Urgency, status, urgency};
use api::{Mib, Mode};
use cdi::hook::Backend;
use jiff::Timestamp;
use proptest::prelude::*;
use proto::mps::ServerPhase;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn the_status_sums_up_the_node() {
    let status = status(&sample::state(), None, at(1));
    assert_eq!((status.gpu_count, status.share_count), (2, 1));
    assert_eq!(
        (status.granted_mib, status.grantable_mib),
        (Mib(2000), Mib(48376 + 48576))
    );
    assert_eq!(status.product, "NVIDIA RTX 6000 Ada Generation");
    let gpu = &status.gpus[0];
    assert_eq!(
        (gpu.mode, gpu.mps.as_str(), gpu.ready),
        (Some(Mode::Mps), "Ready", true)
    );
    assert_eq!(gpu.grants[0].pod, "ns/p");
    assert_eq!(gpu.strangers[0].pid, 77);
    assert_eq!(
        (status.gpus[1].mode, status.gpus[1].mps.as_str()),
        (None, "")
    );
}

#[test]
fn memory_in_use_is_quantised_and_does_not_flicker() {
    let mut state = sample::state();
    let mut shown = status(&state, None, at(1));
    // A hundredth of the card is 491 MiB.
    assert_eq!(shown.gpus[0].used_mib, Mib(491));
    for used in [0, 500, 900, 982] {
        state.inventory.cards[0].used = Mib(used);
        let next = status(&state, Some(&shown), at(2));
        assert_eq!(urgency(&shown, &next), Urgency::None, "{used}");
        shown = next;
    }
    state.inventory.cards[0].used = Mib(983);
    let next = status(&state, Some(&shown), at(2));
    assert_eq!(next.gpus[0].used_mib, Mib(982));
    assert_eq!(urgency(&shown, &next), Urgency::Low);
}

#[test]
fn anything_but_memory_in_use_is_urgent() {
    let state = sample::state();
    let shown = status(&state, None, at(1));
    let changes: [fn(&mut agent::node::State); 4] = [
        |state| state.ledger.restore(sample::share("q", 1, 10)),
        |state| state.inventory.cards[0].cordoned = true,
        |state| state.mps.seen.servers[0].set_phase(ServerPhase::Dead),
        |state| state.not_offering = Some("no CDI".into()),
    ];
    for change in changes {
        let mut state = state.clone();
        change(&mut state);
        let next = status(&state, Some(&shown), at(2));
        assert_eq!(urgency(&shown, &next), Urgency::High);
    }
}

#[test]
fn a_conditions_time_is_that_of_its_last_change() {
    let mut state = sample::state();
    let first = status(&state, None, at(1));
    let condition = |status: &api::GpuNodeStatus| {
        let condition = status.conditions[0].clone();
        (
            condition.status,
            condition.message,
            condition.last_transition_time.0,
        )
    };
    let later = status(&state, Some(&first), at(9));
    assert_eq!(condition(&later), ("True".into(), String::new(), at(1)));
    state.not_offering = Some("no CDI".into());
    let off = status(&state, Some(&later), at(20));
    assert_eq!(condition(&off), ("False".into(), "no CDI".into(), at(20)));
    state.not_offering = Some("the driver does not answer".into());
    let other = status(&state, Some(&off), at(30));
    assert_eq!(condition(&other).2, at(20));
}

#[test]
fn a_node_says_whether_its_driver_limits_memory_and_which_part_is_missing() {
    let mut state = sample::state();
    let said = |state: &agent::node::State| {
        let status = status(state, None, at(1));
        let mut conditions = status.conditions.into_iter();
        let limits = conditions.find(|one| one.type_ == "DriverLimits");
        limits.map(|one| (one.status, one.reason, one.message))
    };
    assert_eq!(said(&state), None, "an older driver has none to speak of");
    let card = state.inventory.cards[0].uuid.clone();
    for (limits, expected) in [
        (
            DriverLimits::Unknown,
            ("False", "Missing", "not probed yet"),
        ),
        (
            DriverLimits::Missing("echo +dmem > x".into()),
            ("False", "Missing", "echo +dmem > x"),
        ),
        (
            DriverLimits::Lost("echo +dmem > x".into()),
            ("False", "Lost", "echo +dmem > x"),
        ),
        (
            DriverLimits::Kept(Backend::Misc),
            ("True", "Probed", "misc"),
        ),
    ] {
        state.inventory.cards[0].driver_limits = limits;
        let (status, reason, part) = expected;
        let message = format!("card {card}: {part}");
        let expected = (status.to_owned(), reason.to_owned(), message);
        assert_eq!(said(&state), Some(expected));
    }
    // A card that lost them is named before one that never had them.
    let second = sample::card(1);
    let lost = format!("card {}: slow", second.uuid);
    state.inventory.cards.truncate(1);
    state.inventory.cards.push(second);
    state.inventory.cards[0].driver_limits = DriverLimits::Missing("no dmem".into());
    state.inventory.cards[1].driver_limits = DriverLimits::Lost("slow".into());
    let expected = ("False".to_owned(), "Lost".to_owned(), lost);
    assert_eq!(said(&state), Some(expected));
}

#[test]
fn a_crowded_node_keeps_its_status_small() {
    let mut state = sample::state();
    state.inventory.cards = (0..64).map(sample::card).collect();
    for index in 0..64 {
        for pod in 0..48 {
            let mut share = sample::share(&format!("a-pod-with-a-long-name-{pod}"), index, 10);
            share.pod.uid = format!("{index}-{pod}");
            state.ledger.restore(share);
        }
    }
    let status = status(&state, None, at(1));
    let size = serde_json::to_string(&status).unwrap().len();
    assert!(size <= 128 << 10, "{size}");
    assert_eq!((status.gpus.len(), status.share_count), (64, 64 * 48 + 1));
}

proptest! {
    /// However memory moves, what is shown is within one and a half steps of it.
    #[test]
    fn what_is_shown_stays_near_what_is(samples in proptest::collection::vec(0_u64..49140, 1..40)) {
        let mut state = sample::state();
        let mut shown = None;
        for used in samples {
            state.inventory.cards[0].used = Mib(used);
            let next = status(&state, shown.as_ref(), at(1));
            let told = next.gpus[0].used_mib.0;
            prop_assert!(told.abs_diff(used) <= 491, "{told} for {used}");
            shown = Some(next);
        }
    }
}

#[test]
fn a_node_counts_its_cards_and_what_its_slices_have() {
    let state = sample::sliced(Some("1g.10gb"));
    let status = status(&state, None, at(1));
    assert_eq!((status.gpu_count, status.gpus.len()), (2, 3));
    let one = status.gpus[1].grantable_mib;
    assert_eq!(
        status.grantable_mib.0,
        one.0 + status.gpus[2].grantable_mib.0
    );
    assert!(status.gpus[0].mig_enabled && !status.gpus[1].mig_enabled);
    assert_eq!(status.gpus[1].mig_profile, "1g.10gb");
}
