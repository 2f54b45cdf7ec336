//! A tenant, or a fault, against what the agent remembers and reads.

use aliquot_tests::claims;
use aliquot_tests::suite::Claim;

pub(crate) fn claims() -> Vec<Claim> {
    claims![]
}
