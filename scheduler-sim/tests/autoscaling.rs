//! An autoscaler that knows nothing of shares, and the real scheduler that asks it for machines.
//!
//! - `SHARES=n`: so many in a storm; `MINUTES=n`: so long a traffic; `SEED=n`: that one alone.
//!   `tests/run` asks for more, in a faster profile; a thousand and an hour are for by hand.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.
#![allow(clippy::print_stdout)] // Its figures are its output.

use scheduler_sim::demand::{storm, traffic};

/// In milliseconds, as the world counts.
const MINUTE: u64 = 60_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    number("SEED").map_or(usual, |seed| seed..seed + 1)
}

#[test]
fn a_storm_of_shares_ends_with_the_fewest_machines() {
    let shares = usize::try_from(number("SHARES").unwrap_or(30)).unwrap();
    for seed in seeds(0..2) {
        let parts = if seed.is_multiple_of(2) {
            ["0.5", "0.25", "0.125", "0.125"]
        } else {
            ["0.1", "0.2", "0.3", "0.5"]
        };
        let outcome = storm(seed, shares, &parts);
        println!("seed {seed}, {parts:?}: {outcome:?}");
        assert_eq!(outcome.violations, Vec::<String>::new());
        assert_eq!((outcome.bound, outcome.placeholders), (shares, 0));
        // The sum of what is asked for needs no fewer, and the plan needs no more.
        assert_eq!(outcome.planned, outcome.bound_below);
        assert_eq!(outcome.asked, outcome.planned);
        assert_eq!(outcome.left, outcome.planned);
    }
}

#[test]
fn arrivals_and_departures_do_not_oscillate() {
    let lasts = number("MINUTES").unwrap_or(3) * MINUTE;
    for seed in seeds(0..2) {
        let scale_down = (!seed.is_multiple_of(2)).then_some(60);
        let outcome = traffic(seed, lasts, scale_down);
        println!("seed {seed}, emptied after {scale_down:?} s: {outcome:?}");
        assert_eq!(outcome.violations, Vec::<String>::new());
        assert_eq!(outcome.bound, outcome.pods);
        assert_eq!((outcome.left, outcome.placeholders), (0, 0));
        assert_eq!(outcome.removed, outcome.asked);
    }
}

#[test]
fn a_storm_is_the_same_run_whenever_and_wherever_it_runs() {
    let run = || storm(5, 24, &["0.5", "0.25"]).digest;
    let first = run();
    // After another run, and on a thread of its own.
    storm(6, 24, &["0.3"]);
    assert_eq!(std::thread::spawn(run).join().unwrap(), first);
}
