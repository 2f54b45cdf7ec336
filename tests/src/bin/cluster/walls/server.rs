//! A tenant against its card's MPS server: its directories, its control pipe, its slots.

use aliquot_tests::claims;
use aliquot_tests::suite::Claim;

pub(crate) fn claims() -> Vec<Claim> {
    claims![]
}
