//! A tenant, or a node that was taken over, against what the scheduler is told.

use aliquot_tests::claims;
use aliquot_tests::suite::Claim;

pub(crate) fn claims() -> Vec<Claim> {
    claims![]
}
