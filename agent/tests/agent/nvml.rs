//! Each call of NVML that the agent makes fails or does not return.

use crate::kubelet::Want;
use crate::machine::{Machine, SHARE, WHOLE, until};
use agent::gpu::{GpuUuid, MigStrategy};
use agent::inventory::health::HealthHistory;
use agent::nvml::{self, Driver, NvmlChannels, Observation, Watched};
use sim_gpu::hardware::Hardware;
use sim_gpu::wire::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

/// Two cards have a link between them, and the instances of the third are created and destroyed.
const CARDS: &str = r#"{"cards":[{"preset":"A100-40"},{"preset":"A100-40"},
    {"preset":"A100-40","mig":true,"mig_instances":["3g.20gb","1g.5gb"]}]}"#;
/// The time between two samples of the watched cards.
const SAMPLES: Duration = Duration::from_millis(20);
/// The return codes of a failing call: unknown, not supported, time-out, no permission, an error of
/// the operating system, driver not loaded.
const CODES: [u32; 6] = [999, 3, 10, 4, 17, 9];

/// Returns the request for a fault of a call. `card` restricts it to that card; `does` is a return
/// code, `hang`, `answer` or `ask`.
fn fault(card: Option<usize>, call: &str, does: &str, times: Option<u32>) -> Message {
    let request = Message::new("ctl-call")
        .with_some("index", card)
        .with_some("times", times);
    request.with("call", call).with("does", does)
}

/// NVML as the agent uses it, and the health that a node derives from it.
struct Watch {
    nvml: NvmlChannels,
    health: HealthHistory,
    /// The first two cards, which are watched.
    cards: [GpuUuid; 2],
    /// The time of the last sample of each card.
    sampled: BTreeMap<GpuUuid, Instant>,
    /// The longest time between two samples of each card.
    gaps: BTreeMap<GpuUuid, Duration>,
    xids: Vec<u64>,
    looks: u32,
    late: u32,
    /// The number of cards and slices in the last look.
    devices: usize,
    /// True if the third card is in MIG mode.
    mig: bool,
    _watched: watch::Sender<Watched>,
    _orders: std::sync::mpsc::Sender<nvml::LayoutOrder>,
    _stop: DropGuard,
}

impl Watch {
    async fn start(machine: &Machine) -> Self {
        let cards = [0, 1].map(|card: usize| GpuUuid::from(machine.cards[card].as_str()));
        let stop = tokio_util::sync::CancellationToken::new();
        let (watched_out, watched) = watch::channel(Watched {
            cards: BTreeSet::from(cards.clone()),
            closely: false,
        });
        let (orders_out, orders) = std::sync::mpsc::channel();
        let settings = nvml::Settings {
            libraries: vec![machine.config.nvml.clone()],
            interval: SAMPLES,
            sample_interval: SAMPLES,
            proc_root: machine.config.proc_root.clone(),
            slices: true,
        };
        let nvml = nvml::start(
            settings,
            watched,
            orders,
            &channel::Lengths::default(),
            stop.clone(),
        )
        .unwrap();
        let mut this = Self {
            nvml,
            health: HealthHistory::default(),
            cards,
            sampled: BTreeMap::new(),
            gaps: BTreeMap::new(),
            xids: Vec::new(),
            looks: 0,
            late: 0,
            devices: 0,
            mig: true,
            _watched: watched_out,
            _orders: orders_out,
            _stop: stop.drop_guard(),
        };
        this.follow("the first look", |this| this.looks > 2).await;
        this
    }

    /// Receives the outputs until `done` returns true, and checks that no card is lost for good
    /// meanwhile.
    async fn follow(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            assert!(Instant::now() < deadline, "not within 20 s: {what}");
            let tick = tokio::time::sleep(Duration::from_millis(5));
            tokio::select! {
                Ok(()) = self.nvml.observations.changed() => {
                    let seen = self.nvml.observations.borrow_and_update().clone();
                    self.observe(what, &seen);
                }
                Some(sample) = self.nvml.samples.recv() => {
                    for card in &sample.cards {
                        let last = self.sampled.insert(card.uuid.clone(), card.at);
                        let gap = card.at - last.unwrap_or(card.at);
                        let longest = self.gaps.entry(card.uuid.clone()).or_default();
                        *longest = gap.max(*longest);
                    }
                }
                Some(xid) = self.nvml.xids.recv() => self.xids.push(xid.number),
                () = tick => {}
            }
        }
    }

    fn observe(&mut self, what: &str, seen: &Arc<Observation>) {
        let now = Instant::now();
        self.health.observe(seen, now);
        match &seen.driver {
            Driver::Gone { reason } => {
                assert_eq!(self.looks, 0, "{what}: the driver is gone: {reason}");
            }
            Driver::Late { .. } => self.late += 1,
            Driver::Up { .. } => {
                self.looks += 1;
                self.devices = seen.devices.len();
            }
        }
        for card in &self.cards {
            let health = self.health.health(card, now);
            assert!(!health.is_lasting(), "{what}: {card} {health:?}");
        }
    }

    fn is_healthy(&self, card: usize) -> bool {
        self.health
            .health(&self.cards[card], Instant::now())
            .is_healthy()
    }

    /// Creates or destroys the instances of the third card, so that the library is loaded again.
    /// Waits until the driver's events are heard again, which takes a second where listening has
    /// failed.
    async fn loads_again(&mut self, machine: &Machine, what: &str) {
        self.mig = !self.mig;
        load_again(machine, self.mig);
        let wanted = if self.mig { 5 } else { 3 };
        self.follow(what, |this| this.devices == wanted).await;
        self.looks(what, 10).await;
        if what.contains("Event") {
            let until = Instant::now() + Duration::from_millis(1500);
            self.follow(what, |_| Instant::now() > until).await;
        }
    }

    /// Waits for this number of further looks at all cards.
    async fn looks(&mut self, what: &str, count: u32) {
        let until = self.looks + count;
        self.follow(what, |this| this.looks >= until).await;
    }

    /// Reports a fault by the driver, and waits until it is heard.
    async fn hears(&mut self, machine: &Machine, what: &str) {
        let number = 900 + u64::try_from(self.xids.len()).unwrap();
        machine.ctl(&Message::new("ctl-xid").with("index", 0).with("xid", number));
        self.follow(what, |this| this.xids.contains(&number)).await;
    }
}

/// Creates or destroys the instances of the third card, so that the library is loaded again.
fn load_again(machine: &Machine, mig: bool) {
    let set = Message::new("ctl-set").with("index", 2).with("key", "mig");
    machine.ctl(&set.with("value", u8::from(mig)));
}

async fn machine() -> Machine {
    Machine::on(Hardware::parse(CARDS).unwrap()).await
}

/// Returns the calls that an agent makes in its life.
async fn calls(machine: &Machine, watch: &mut Watch) -> Vec<String> {
    for _ in 0..2 {
        watch
            .loads_again(machine, "the library is loaded again")
            .await;
    }
    let made = machine
        .ctl(&fault(None, "nvmlInit_v2", "ask", None))
        .rows("made");
    let made: Vec<String> = made.into_iter().flatten().collect();
    for call in [
        "nvmlInit_v2",
        "nvmlDeviceGetCount_v2",
        "nvmlEventSetWait_v2",
        "nvmlShutdown",
    ] {
        assert!(made.iter().any(|name| name == call), "{call}: {made:?}");
    }
    assert!(made.len() > 25, "{made:?}");
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_fails_once_costs_no_card_and_no_fault_that_the_driver_reports() {
    let machine = machine().await;
    let mut watch = Watch::start(&machine).await;
    for (round, call) in calls(&machine, &mut watch).await.iter().enumerate() {
        let code = CODES[round % CODES.len()];
        let what = &format!("{call} answers {code} once");
        machine.ctl(&fault(None, call, &code.to_string(), Some(1)));
        watch.looks(what, 3).await;
        let asked = machine.ctl(&fault(None, call, "ask", None));
        if asked.parsed::<u32>("left").unwrap() > 0 {
            // The fault concerns a call that is made when the library is loaded.
            watch.loads_again(&machine, what).await;
        }
        // The fault is lifted, because a call that fails again would be a second fault.
        machine.ctl(&fault(None, call, "answer", None));
        watch.looks(what, 3).await;
        watch.hears(&machine, what).await;
        assert!(watch.is_healthy(0) && watch.is_healthy(1), "{what}");
    }
    assert!(watch.late > 0, "no fault was one of the driver as a whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_hangs_once_costs_its_own_card_alone_and_that_only_for_as_long_as_it_does() {
    let machine = machine().await;
    let mut watch = Watch::start(&machine).await;
    for call in calls(&machine, &mut watch).await {
        let what = &format!("{call} of card 0 hangs");
        machine.ctl(&fault(Some(0), &call, "hang", Some(1)));
        watch.mig = !watch.mig;
        load_again(&machine, watch.mig);
        let begun = Instant::now();
        // The call hangs for less than `HANGS_AFTER`, which keeps the test short.
        watch
            .follow(what, |_| begun.elapsed() > Duration::from_millis(300))
            .await;
        machine.ctl(&fault(Some(0), &call, "answer", None));
        watch.loads_again(&machine, what).await;
        watch.hears(&machine, what).await;
        assert!(watch.is_healthy(0) && watch.is_healthy(1), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_whose_calls_hang_leaves_the_others_their_looks_samples_and_faults() {
    for call in [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlEventSetWait_v2",
    ] {
        let machine = machine().await;
        let mut watch = Watch::start(&machine).await;
        watch.gaps.clear();
        machine.ctl(&fault(Some(0), call, "hang", Some(100)));
        watch.follow(call, |this| !this.is_healthy(0)).await;
        let health = watch.health.health(&watch.cards[0], Instant::now());
        let named = health.reason().contains(watch.cards[0].as_str());
        assert!(named || call == "nvmlEventSetWait_v2", "{health:?}");
        assert!(watch.is_healthy(1));
        // The library is loaded again several times; the card keeps its identity and gets no other
        // thread.
        for _ in 0..3 {
            watch.loads_again(&machine, call).await;
            assert!(!watch.is_healthy(0) && watch.is_healthy(1), "{call}");
        }
        let asked = machine.ctl(&fault(Some(0), call, "ask", None));
        assert_eq!(
            asked.parsed::<u32>("left").unwrap(),
            99,
            "{call}: only one hangs"
        );
        let number = 77;
        machine.ctl(&Message::new("ctl-xid").with("index", 1).with("xid", number));
        watch.follow(call, |this| this.xids.contains(&number)).await;
        // The longest gap is much shorter than the time after which a card is unguarded. It
        // includes the time for loading the library again.
        let gap = watch.gaps[&watch.cards[1]];
        assert!(gap < Duration::from_millis(1500), "{call}: {gap:?}");
        machine.ctl(&fault(Some(0), call, "answer", None));
        watch.follow(call, |this| this.is_healthy(0)).await;
        watch.hears(&machine, call).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_counts_no_cards_once_withdraws_no_id() {
    let mut machine = machine().await;
    machine.config.mig_strategy = MigStrategy::Mixed;
    machine.start_agent();
    machine.registered().await;
    let uid = machine.share_pod("p", 0, 1000).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    machine.prove(&entry);
    // Returns the first withdrawn ID that should have stayed healthy: a token of one of the first two
    // cards, or the second card as a whole.
    let of_first = |ids: BTreeSet<String>| {
        let [first, second] = [0, 1].map(|card: usize| machine.cards[card].as_str());
        let mut ids = ids.into_iter();
        ids.find(|id| id.starts_with(second) || id.starts_with(&format!("{first}::")))
    };
    machine.kubelet.withdrawn();
    let mut mig = true;
    for call in [
        "nvmlDeviceGetCount_v2",
        "nvmlSystemGetDriverVersion",
        "nvmlInit_v2",
    ] {
        for (does, lasts) in [("999", 50), ("9", 50), ("hang", 3000)] {
            machine.ctl(&fault(None, call, does, Some(1)));
            mig = !mig;
            load_again(&machine, mig);
            until("the fault is met", || async {
                let asked = machine.ctl(&fault(None, call, "ask", None));
                (asked.parsed::<u32>("left").unwrap() == 0).then_some(())
            })
            .await;
            tokio::time::sleep(Duration::from_millis(lasts)).await;
            machine.ctl(&fault(None, call, "answer", None));
            until("a look", || async {
                let gpu = machine.healthy(SHARE);
                let whole = machine.healthy(WHOLE);
                (!whole.is_empty() && gpu.len() >= 96).then_some(())
            })
            .await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            let withdrawn = of_first(machine.kubelet.withdrawn());
            assert_eq!(withdrawn, None, "{call} {does}");
            assert!(machine.cdi(&entry).is_some());
        }
    }
    // A driver that has gone makes all tokens unhealthy except those that are held.
    machine.stop_driver();
    until("no free token is healthy", || async {
        (machine.healthy(SHARE) == entry.ids).then_some(())
    })
    .await;
}

/// The memory of GB10 and Jetson is the machine's, and NVML reports none. Such a card is given whole,
/// as NVIDIA's plugin gives it, and is not shared, since no limit on its memory could be enforced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_without_memory_of_its_own_is_given_whole_and_not_shared() {
    let mut machine = machine().await;
    for call in ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"] {
        machine.ctl(&fault(Some(1), call, "3", None));
    }
    machine.start_agent();
    machine.registered().await;
    let card = machine.cards[1].clone();
    until("the card is offered whole", || async {
        machine.healthy(WHOLE).contains(&card).then_some(())
    })
    .await;
    let shares = machine.healthy(SHARE);
    assert!(!shares.is_empty() && !shares.iter().any(|id| id.starts_with(&card)));

    let uid = machine.create("p", &[("main", false, WHOLE, 1)]).await;
    let grant = machine.grant("p", &uid, &[("main", api::Mode::Exclusive, &[1], 0)]);
    machine.bind("p", &uid, Some(&grant)).await;
    let want = Want {
        pod_uid: &uid,
        pod: "p",
        container: "main",
        init: false,
        resource: WHOLE,
        count: 1,
        ids: Some(&[&card]),
    };
    let entry = machine.kubelet.allocate(want).await.unwrap();
    machine.kubelet.pre_start(&entry).await.unwrap();
    assert!(machine.cdi(&entry).is_some());
}
