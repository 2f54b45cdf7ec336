//! One claim for each attack in `docs/security.md`: the attacker, and the result.

mod fence;
mod guard;
mod node;
mod scheduler;
mod server;

use aliquot_tests::suite::Claim;

pub(crate) fn claims() -> Vec<Claim> {
    [
        fence::claims(),
        server::claims(),
        node::claims(),
        guard::claims(),
        scheduler::claims(),
    ]
    .concat()
}
