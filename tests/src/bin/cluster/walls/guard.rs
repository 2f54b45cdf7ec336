//! A tenant against admission: what may be written in a pod, and by whom.

use aliquot_tests::claims;
use aliquot_tests::suite::Claim;

pub(crate) fn claims() -> Vec<Claim> {
    claims![]
}
