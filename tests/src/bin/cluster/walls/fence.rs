//! A tenant against the fence of its share: limits, processes that no list shows, names.

use aliquot_tests::claims;
use aliquot_tests::suite::Claim;

pub(crate) fn claims() -> Vec<Claim> {
    claims![]
}
