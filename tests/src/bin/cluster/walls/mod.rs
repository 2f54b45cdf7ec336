//! One claim for each attack that `docs/security.md` names: who tries what, and what it gets.

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
