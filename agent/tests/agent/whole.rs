//! Whole cards, and their hand-over between whole and shared use.

use crate::kubelet::{Entry, Want};
use crate::machine::{Machine, SHARE, WHOLE, until};
use api::Mode;

async fn whole_pod(machine: &Machine, name: &str, cards: &[usize]) -> String {
    let amount = u32::try_from(cards.len()).unwrap();
    let uid = machine
        .create(name, &[("main", false, WHOLE, amount)])
        .await;
    let grant = machine.grant(name, &uid, &[("main", Mode::Exclusive, cards, 15_000)]);
    machine.bind(name, &uid, Some(&grant)).await;
    uid
}

async fn admit(
    machine: &Machine,
    name: &str,
    uid: &str,
    count: i32,
    ids: Option<&[&str]>,
) -> Entry {
    let want = Want {
        pod_uid: uid,
        pod: name,
        container: "main",
        init: false,
        resource: WHOLE,
        count,
        ids,
    };
    machine.kubelet.allocate(want).await.unwrap()
}

/// The agent has seen the grant of a whole card: its tokens are gone.
async fn seen(machine: &Machine, card: usize) {
    until("the grant is seen", || async {
        let healthy = machine.healthy(SHARE);
        (!healthy
            .iter()
            .any(|id| id.starts_with(&machine.cards[card])))
        .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_cards_are_steered_and_their_tokens_withdrawn() {
    let machine = Machine::new(3).await;
    let uid = whole_pod(&machine, "p", &[0, 2]).await;
    seen(&machine, 2).await;
    let entry = admit(&machine, "p", &uid, 2, None).await;
    let expected = [machine.cards[0].clone(), machine.cards[2].clone()];
    assert_eq!(entry.ids, expected.clone().into());
    machine.kubelet.pre_start(&entry).await.unwrap();
    assert_eq!(
        machine.env(&entry, "CUDA_VISIBLE_DEVICES").unwrap(),
        expected.join(",")
    );
    assert_eq!(machine.env(&entry, "CUDA_MPS_PIPE_DIRECTORY"), None);
    assert!(
        machine
            .healthy(SHARE)
            .iter()
            .all(|id| id.starts_with(&machine.cards[1]))
    );
    assert!(
        expected
            .iter()
            .all(|card| machine.healthy(WHOLE).contains(card))
    );
    machine.delete("p").await;
    machine.kubelet.forget(&uid);
    until("the tokens are back", || async {
        (machine.healthy(SHARE).len() == 3 * 48).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_free_card_that_the_kubelet_picked_is_adopted_and_a_held_one_is_not() {
    let machine = Machine::new(3).await;
    let uid = whole_pod(&machine, "p", &[0]).await;
    let picked = machine.cards[1].clone();
    let entry = admit(&machine, "p", &uid, 1, Some(&[&picked])).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    assert_eq!(machine.env(&entry, "CUDA_VISIBLE_DEVICES").unwrap(), picked);
    let share = machine.share_pod("s", 2, 100).await;
    let token = machine.admit("s", &share).await;
    machine.kubelet.pre_start(&token).await.unwrap();
    let uid = whole_pod(&machine, "q", &[0]).await;
    let held = machine.cards[2].clone();
    let entry = admit(&machine, "q", &uid, 1, Some(&[&held])).await;
    let refused = machine.kubelet.pre_start(&entry).await.unwrap_err();
    assert_eq!(
        refused.message(),
        format!("card {held} is in mode mps, held by default/s")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_another_scheduler_gets_a_free_card_where_the_admin_allows_it() {
    for allowed in [false, true] {
        let mut machine = Machine::bare(1).await;
        machine.config.allow_ungranted_whole = allowed;
        machine.start_agent();
        machine.registered().await;
        let uid = machine.create("p", &[("main", false, WHOLE, 1)]).await;
        machine.bind("p", &uid, None).await;
        let entry = admit(&machine, "p", &uid, 1, None).await;
        let result = machine.kubelet.pre_start(&entry).await;
        assert_eq!(result.is_ok(), allowed, "{result:?}");
        assert_eq!(machine.cdi(&entry).is_some(), allowed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_in_one_process_know_their_own_cards_only() {
    let (a, b) = tokio::join!(Machine::new(1), Machine::new(2));
    assert_eq!(a.healthy(WHOLE), a.cards.iter().cloned().collect());
    assert_eq!(b.healthy(WHOLE), b.cards.iter().cloned().collect());
    assert!(a.healthy(WHOLE).is_disjoint(&b.healthy(WHOLE)));
}
