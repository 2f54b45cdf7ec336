//! Cards, queues and tenants together.

use super::*;
use std::sync::Arc;

const CARDS: u64 = 4000;
const QUEUES: u64 = 1000;

struct Cluster {
    cards: Vec<String>,
    queues: Vec<String>,
    tenants: Vec<Tenant>,
}

impl Cluster {
    fn new() -> Self {
        Self {
            cards: (0..CARDS)
                .map(|at| format!("GPU-{at:08x}-0000-0000-0000-000000000000"))
                .collect(),
            queues: (0..QUEUES)
                .map(|at| format!("department-{at:04}"))
                .collect(),
            tenants: Vec::new(),
        }
    }

    /// Each card has two shares of workloads that live for a few hours.
    fn look(&mut self, history: &mut History, now: Time) {
        let slot = now.0 / PERIOD.0;
        let round = slot / 480;
        self.tenants = (0..CARDS / 2)
            .map(|at| Tenant {
                queue: self.queues[(at % QUEUES) as usize].as_str().into(),
                namespace: format!("namespace-{:04}", at % 200).into(),
                owner: format!("Job/training-of-a-model-{round}-{at}").into(),
                product: "".into(),
            })
            .collect();
        let cards = (0..).zip(&self.cards).map(|(at, uuid): (u64, _)| CardNow {
            uuid,
            total: 81_559,
            grantable: 80_944,
            granted: 60_000 + (at + slot) % 1000,
            used: (at * 7 + slot * 13) % 60_000,
        });
        let queues = (0..)
            .zip(&self.queues)
            .map(|(at, name): (u64, _)| QueueNow {
                name,
                held: u128::from((at + slot) % 900) * 100_000_000,
                waiting: u32::try_from((at + slot) % 300).unwrap(),
            });
        let shares = (0..CARDS * 2).map(|at| Held {
            tenant: &self.tenants[(at % (CARDS / 2)) as usize],
            product: "NVIDIA H100 80GB HBM3",
            granted: 30_000,
            used: Some((at + slot) % 30_000),
            part: 370_000_000,
            idle_minutes: 0,
        });
        let sample = Sample {
            cards: cards.collect(),
            queues: queues.collect(),
            shares: shares.collect(),
        };
        history.sample(now, &sample);
    }
}

#[test]
fn four_thousand_cards_and_a_thousand_queues_take_eight_mebibytes() {
    let begin = 490_000 * 3_600_000;
    let mut history = History::new(Time(begin));
    let mut cluster = Cluster::new();
    // Two weeks and a day, thinned: the last hour as it is, the day before it every five
    // minutes, else two looks in an hour.
    let minutes = 15 * 24 * 60;
    let mut largest = 0;
    for minute in 0..minutes {
        let left = minutes - minute;
        let at = begin + minute * 60_000;
        if minute % 60 == 0 || left <= 61 || left <= 25 * 60 && minute % 5 == 0 {
            cluster.look(&mut history, Time(at));
        }
        if minute % 60 == 0 || left <= 61 {
            cluster.look(&mut history, Time(at + PERIOD.0));
            largest = largest.max(history.bytes());
        }
    }
    eprintln!(
        "{largest} bytes: cards {}, queues {}, ledger {}",
        history.cards.bytes(),
        history.queues.bytes(),
        history.ledger.bytes(),
    );
    assert!(largest <= 8 << 20, "{largest} bytes");
    // All of it is there.
    let now = Time(begin + minutes * 60_000 - 1);
    let uuid = &cluster.cards[17];
    let points = |span| history.cards.points(uuid, span, now);
    assert_eq!(points(Span::Hour).iter().flat_map(|(_, p)| p).count(), 120);
    assert_eq!(points(Span::Day).iter().flat_map(|(_, p)| p).count(), 288);
    let queue = history
        .queues
        .points("department-0007", Span::Fortnight, now);
    assert_eq!(queue.iter().flat_map(|(_, p)| p).count(), 14 * 24);
    let hours = history.ledger.since(Time(0));
    assert_eq!(hours.from, Some(Time(begin + 24 * 3_600_000)));
}

#[test]
fn the_same_samples_give_the_same_answers() {
    let answers = || {
        let mut history = History::new(Time(0));
        let mut cluster = Cluster::new();
        cluster.cards.truncate(10);
        for slot in 0..50 {
            cluster.look(&mut history, Time(slot * PERIOD.0 + slot % 7));
        }
        let now = Time(50 * PERIOD.0);
        let cards = history.cards.points(&cluster.cards[3], Span::Hour, now);
        let queue = history.queues.points("department-0007", Span::Day, now);
        (
            cards,
            queue,
            history.cards.fleet(Span::Hour, now),
            history.ledger.since(Time(0)),
        )
    };
    assert_eq!(answers(), answers());
}

#[test]
fn what_nobody_looked_at_is_not_counted_and_a_clock_that_steps_back_is_waited_for() {
    let tenant = Tenant {
        queue: Arc::from("q"),
        ..Tenant::default()
    };
    let look = |history: &mut History, second: u64| {
        let card = CardNow {
            uuid: "GPU-1",
            total: 1000,
            grantable: 1000,
            granted: 1000,
            used: 1000,
        };
        let share = Held {
            tenant: &tenant,
            product: "",
            granted: 1000,
            used: Some(500),
            part: 1_000_000_000,
            idle_minutes: 0,
        };
        let sample = Sample {
            cards: vec![card],
            queues: Vec::new(),
            shares: vec![share],
        };
        history.sample(Time(second * 1000), &sample);
    };
    let mut history = History::new(Time(3_600_000));
    for second in [3600, 3610, 3630, 3660] {
        look(&mut history, second);
    }
    let seconds = |history: &History| history.ledger.since(Time(0)).idle.seconds;
    assert_eq!(seconds(&history), 60);
    // It was stopped for half an hour, and then the clock is set back.
    look(&mut history, 5460);
    look(&mut history, 4000);
    look(&mut history, 5490);
    assert_eq!(seconds(&history), 90);
    assert_eq!(history.since(), Time(3_600_000));
}
