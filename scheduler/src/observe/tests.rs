//! Claims about what is compared, on a core that is fed by hand.

use super::*;
use prometheus_client::registry::Registry;
use scheduler_core::text;

const CLUSTER: &str = "\
node n1 cpu=64000 memory=274877906944 pods=110 gpus=1
node n2 cpu=64000 memory=274877906944 pods=110 gpus=1
queue default-queue
";

struct Site {
    core: Core,
    observer: Observer,
}

impl Site {
    fn new(cluster: &str) -> Self {
        let config = scheduler_core::Config::verified();
        let meters = Arc::new(Meters::registered(&mut Registry::default()));
        let mut site = Self {
            core: Core::new(config),
            observer: Observer::new("kai-scheduler", meters),
        };
        site.feed(cluster, 0);
        site
    }

    fn feed(&mut self, lines: &str, now: u64) {
        for event in text::read(lines).unwrap() {
            for event in self.observer.take(&self.core, event, Time(now)) {
                self.core.apply(event);
            }
        }
    }

    fn decide(&mut self, now: u64) {
        self.observer.decide(&self.core, Time(now));
        // A look out of turn is always spared.
        self.observer.took = Duration::ZERO;
    }

    /// `kind pod: here / there / why`, the lasting ones first.
    fn report(&self, now: u64) -> Vec<String> {
        let report = self.observer.report(Time(now));
        let all = report.open.into_iter().chain(report.over);
        all.map(|d| {
            let kind = d.kind.as_str();
            format!("{kind} {}: {} / {} / {}", d.pod, d.here, d.there, d.why)
        })
        .collect()
    }

    fn same(&self) -> u64 {
        self.observer.report(Time(0)).bound.same
    }
}

#[test]
fn what_is_done_there_as_it_would_be_here_is_counted_and_nothing_else() {
    let mut site = Site::new(CLUSTER);
    site.feed("pod a gpus.main=1\n", 1);
    site.decide(1);
    site.feed("pod a gpus.main=1 on=n1\n", 2);
    assert_eq!(site.report(10_000), Vec::<String>::new());
    assert_eq!(site.same(), 1);
}

#[test]
fn another_node_is_told_with_what_that_node_has_against_it() {
    let mut site = Site::new(CLUSTER);
    site.feed("pod a gpus.main=1\npod b gpus.main=1 selector.zone=x\n", 1);
    site.decide(1);
    site.feed("pod a gpus.main=1 on=n2\n", 2);
    site.feed("pod b gpus.main=1 selector.zone=x on=n1\n", 3);
    let told = site.report(3);
    assert!(
        told[0].starts_with("other-node default/a: node n1 / node n2 / node n2 would do too"),
        "{told:?}"
    );
    assert!(
        told[1].starts_with("waits-here default/b: waits: ")
            && told[1].contains("/ node n1 / node n1: "),
        "{told:?}"
    );
}

#[test]
fn nothing_that_was_not_done_is_believed() {
    let mut site = Site::new(CLUSTER);
    site.feed("pod a gpus.main=1\n", 1);
    for now in 1..50 {
        site.decide(now);
    }
    // Had the first decision been kept, one of these would have no room.
    site.feed("pod b gpus.main=1\npod c gpus.main=1\npod-gone a\n", 50);
    site.decide(50);
    site.feed("pod b gpus.main=1 on=n1\npod c gpus.main=1 on=n2\n", 51);
    assert_eq!(site.same(), 2, "{:?}", site.report(60_000));
}

#[test]
fn a_place_that_is_not_taken_is_told_after_a_while_with_the_others_reason() {
    let mut site = Site::new(CLUSTER);
    site.feed("pod a gpus.main=1\n", 1);
    site.decide(1);
    assert_eq!(site.report(4_000), Vec::<String>::new());
    site.decide(5_001);
    let told = site.report(5_001);
    assert_eq!(
        told,
        ["waits-there default/a: node n1 / waits / the other scheduler says nothing"]
    );
    site.feed("pod-gone a\n", 6_000);
    assert_eq!(site.report(6_000), Vec::<String>::new());
}

#[test]
fn an_eviction_that_does_not_come_is_told_as_long_as_it_would_be_made() {
    let mut site = Site::new(
        "node n1 cpu=64000 memory=274877906944 pods=110 gpus=1\nqueue default-queue\n\
         pod low gpus.main=1 priority=50 on=n1\n",
    );
    site.feed("pod high gpus.main=1 priority=90\n", 1);
    site.decide(1);
    let told = site.report(1);
    assert!(
        told[0].starts_with("evicted-here default/low: evicted / runs on / "),
        "{told:?}"
    );
    site.feed("pod-gone high\n", 2);
    site.decide(3);
    assert_eq!(site.report(3), Vec::<String>::new());
}

#[test]
fn sharers_of_one_group_are_on_one_card_and_others_on_cards_of_their_own() {
    let node = "node n1 cpu=64000 memory=274877906944 pods=110 gpus=2 \
                label.nvidia.com/gpu.count=2 label.nvidia.com/gpu.memory=24000\nqueue default-queue\n";
    let mut site = Site::new("");
    // The pods are seen before their node.
    let events = text::read(
        "pod a gpu-memory.main=12000 on=n1\npod b gpu-memory.main=6000 on=n1\n\
         pod c gpus.main=1 on=n1\n",
    )
    .unwrap();
    for event in events {
        let Event::Pod(mut pod) = event else { panic!() };
        if &*pod.name != "c" {
            pod.labels.insert("runai-gpu-group".into(), "g".into());
        }
        for event in site.observer.take(&site.core, Event::Pod(pod), Time(0)) {
            site.core.apply(event);
        }
    }
    site.feed(node, 0);
    let state = text::write(&site.core.snapshot());
    assert!(state.contains("n1#0") && state.contains("n1#1"), "{state}");
    // 6000 MiB are left beside the two, and nothing on the other card.
    site.feed(
        "pod d gpu-memory.main=6001\npod e gpu-memory.main=6000\n",
        1,
    );
    site.decide(1);
    site.feed("pod e gpu-memory.main=6000 on=n1\n", 2);
    assert_eq!(site.same(), 1, "{:?}", site.report(2));
    site.feed("pod d gpu-memory.main=6001 on=n1\n", 2);
    assert!(
        site.report(2)[0].starts_with("waits-here default/d"),
        "{:?}",
        site.report(2)
    );
}
