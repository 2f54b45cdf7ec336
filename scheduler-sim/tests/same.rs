//! One seed is one run, byte for byte.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.

use scheduler_sim::{Shape, run};

#[test]
fn a_world_without_faults_binds_what_fits() {
    let shape = Shape {
        faults: false,
        ..Shape::default()
    };
    for seed in 0..5 {
        let report = run(seed, shape);
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        assert!(report.bound > 0);
    }
}

#[test]
fn a_seed_is_the_same_run_whenever_and_wherever_it_runs() {
    let keep = Shape {
        keep: true,
        ..Shape::default()
    };
    for seed in 0..4 {
        let first = run(seed, keep);
        // After another run, and on a thread of its own.
        run(seed + 100, Shape::default());
        let second = std::thread::spawn(move || run(seed, keep)).join().unwrap();
        let texts = (first.trace.unwrap(), second.trace.unwrap());
        let differs = texts
            .0
            .lines()
            .zip(texts.1.lines())
            .position(|(a, b)| a != b);
        if let Some(at) = differs {
            let around = |text: &str| -> String {
                let lines: Vec<&str> = text.lines().skip(at.saturating_sub(5)).take(8).collect();
                lines.join("\n")
            };
            // A run keeps panics for its own report.
            drop(std::panic::take_hook());
            panic!(
                "seed {seed}, line {at}:\n{}\n\nand\n{}",
                around(&texts.0),
                around(&texts.1)
            );
        }
        assert_eq!(first.digest, second.digest);
    }
}
