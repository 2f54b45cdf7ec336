//! One decision of the core on a cluster of its own, built from events outside the clock.
//!
//! `cargo bench -p aliquot-tests --bench core [-- FILTER]`: the same clusters as
//! `bench-core`, in sizes that criterion can repeat, each compared with its last run.
//! `-- --test` runs each once.

use std::time::Duration;

use aliquot_tests::workloads::{self, NOW, full};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use scheduler_core::{Config, Core, Event, Step};

/// A core that knows the cluster and takes these actions alone.
fn built(events: &[Event], actions: &[Step]) -> Core {
    let mut core = Core::new(Config {
        actions: actions.to_vec(),
        ..Config::default()
    });
    for event in events {
        let problems = core.apply(event.clone());
        assert!(problems.is_empty(), "{problems:?}");
    }
    core
}

fn decisions(criterion: &mut Criterion) {
    let all = &Step::ALL[..];
    let mut group = criterion.benchmark_group("decide");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(2));
    let rows: [(&str, usize, &[Step], Vec<Event>); 17] = [
        ("full cycle", 62, all, workloads::full_cycle(62)),
        ("full cycle", 500, all, workloads::full_cycle(500)),
        ("proof of 10 x 8", 100, all, workloads::proof(100, 0)),
        ("120 shapes placed", 625, all, workloads::shapes(625, 5000)),
        (
            "250 x 2 reclaimed",
            500,
            all,
            workloads::reclaim_gang(500, 250, 2),
        ),
        ("shares placed", 500, all, workloads::fractions(500, 20_000)),
        (
            "full of shares",
            500,
            all,
            full::of_shares(500, 10_000, true),
        ),
        ("gang of 64", 100, all, workloads::one_gang(100, 64)),
        ("gang of 512", 100, all, workloads::one_gang(100, 512)),
        ("gang of 5000", 1000, all, workloads::one_gang(1000, 5000)),
        (
            "allocate",
            100,
            &[Step::Allocate],
            workloads::waiting(100, 500),
        ),
        (
            "allocate",
            1000,
            &[Step::Allocate],
            workloads::waiting(1000, 5000),
        ),
        (
            "reclaim large jobs",
            100,
            &[Step::Reclaim],
            workloads::reclaim_gang(100, 50, 8),
        ),
        (
            "reclaim large jobs",
            500,
            &[Step::Reclaim],
            workloads::reclaim_gang(500, 250, 8),
        ),
        (
            "consolidation",
            100,
            &[Step::Consolidation],
            workloads::mixed(100, 500),
        ),
        (
            "preempt",
            500,
            &[Step::Preempt],
            workloads::mixed(500, 2500),
        ),
        ("in blocks and racks", 100, all, workloads::in_topology(100)),
    ];
    for (name, nodes, actions, events) in rows {
        group.bench_function(BenchmarkId::new(name, nodes), |bencher| {
            bencher.iter_batched(
                || built(&events, actions),
                |mut core| {
                    let decision = core.decide(NOW);
                    // Dropped outside the clock.
                    (core, decision)
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
