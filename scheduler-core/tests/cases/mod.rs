//! How many cases the properties try, and which; each says how it is run again.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// Few, or the number in `PROPTEST_CASES`. The same cases each time, so that a failure points to a
/// change, or those of `PROPTEST_RNG_SEED`.
pub(crate) fn tried(few: u32) -> ProptestConfig {
    of_cases(few, 1)
}

/// Few, or a fifth of `PROPTEST_CASES`: for the four properties of which one case takes as long as
/// ten of another. They would take three quarters of the time.
pub(crate) fn tried_less(few: u32) -> ProptestConfig {
    of_cases(few, 5)
}

fn of_cases(few: u32, divisor: u32) -> ProptestConfig {
    let is_said = |variable| std::env::var_os(variable).is_some();
    // Has read both variables.
    let said = ProptestConfig::default();
    let config = ProptestConfig {
        cases: if is_said("PROPTEST_CASES") {
            said.cases.div_ceil(divisor)
        } else {
            few
        },
        rng_seed: if is_said("PROPTEST_RNG_SEED") {
            said.rng_seed
        } else {
            RngSeed::Fixed(4)
        },
        failure_persistence: None,
        ..said
    };
    // Shown where a property fails, and with `--nocapture`.
    if let RngSeed::Fixed(seed) = config.rng_seed {
        eprintln!(
            "again with PROPTEST_RNG_SEED={seed} PROPTEST_CASES={}",
            config.cases.saturating_mul(divisor)
        );
    }
    config
}
