//! Fair share: KAI's division of one resource among sibling queues.
//!
//! Input: the available amount and each sibling's claim. Output: each sibling's share in the same
//! unit. The rule (KAI, `plugins/proportion/resource_division`) runs per resource, from the root of the
//! tree down; children divide what their parent got:
//! 1. Each queue gets the smaller of its quota and its request. An unlimited quota equals the available
//!    amount. Quotas whose sum exceeds the available amount are not scaled down.
//! 2. The rest is divided by weight, higher priorities first, in rounds. A sibling that requests
//!    less than its part gets what it requests; the others get their part, rounded down to whole
//!    units. Rounds continue as long as some sibling requested less than its part. The weight is
//!    `n + k (n - usage)`, at least zero, where n is the sibling's part of all weights with an
//!    open request.
//! 3. The rounding remainder, once every priority was served, is handed out unit by unit: higher
//!    priorities first, then the largest remainder, then the older queue, then by name.
//!
//! Units are KAI's: GPUs, millicores, bytes, as floating point, because rule 2 divides. Everything is
//! computed from the inputs in the order of names. Nothing is carried over, so errors cannot
//! accumulate.

use crate::units::Time;
use std::sync::Arc;

/// One sibling's claim on one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The last tie-breaker.
    pub name: Arc<str>,
    /// Higher is served first in rule 2.
    pub priority: i32,
    /// The older wins ties in rule 3.
    pub created: Time,
    /// Guaranteed; `None`: unlimited.
    pub quota: Option<f64>,
    /// Never more than; `None`: unlimited.
    pub limit: Option<f64>,
    /// Over-quota weight, 0 or more.
    pub weight: f64,
    /// Held and wanted together.
    pub request: f64,
    /// Past use as a part of the cluster, 0 to 1.
    pub usage: f64,
}

impl Claim {
    /// What of the request may be served at all.
    fn requestable(&self) -> f64 {
        self.limit
            .map_or(self.request, |limit| limit.min(self.request))
    }
}

/// Divides `total` among siblings, which are in order of name. `k`: how much past use counts, 0 or
/// more.
pub fn divide(total: f64, k: f64, claims: &[Claim]) -> Vec<f64> {
    let mut shares = vec![0.0; claims.len()];
    let mut left = total;
    for (claim, share) in claims.iter().zip(&mut shares) {
        let amount = claim.quota.unwrap_or(total).min(claim.requestable());
        *share = amount;
        left -= amount;
    }
    let mut priorities: Vec<i32> = claims.iter().map(|claim| claim.priority).collect();
    priorities.sort_unstable_by(|one, other| other.cmp(one));
    priorities.dedup();
    let mut crumbs = Vec::new();
    for priority in priorities {
        if left <= 0.0 {
            break;
        }
        let band: Vec<usize> = (0..claims.len())
            .filter(|index| claims[*index].priority == priority)
            .collect();
        let (rest, remainders) = divide_band(left, k, claims, &band, &mut shares);
        left = rest;
        crumbs.extend(remainders);
    }
    for index in crumbs {
        if left <= 0.0 {
            break;
        }
        let give = left.min(1.0);
        shares[index] += give;
        left -= give;
    }
    shares
}

/// Rule 2 within one priority. Returns what was not taken, and the order in which queues get the
/// remainder of rounding.
fn divide_band(
    mut left: f64,
    k: f64,
    claims: &[Claim],
    band: &[usize],
    shares: &mut [f64],
) -> (f64, Vec<usize>) {
    let mut remainders: Vec<Option<f64>> = vec![None; claims.len()];
    loop {
        let at_start = left;
        let weights = weights(k, claims, band, shares);
        let sum: f64 = weights.iter().sum();
        if sum == 0.0 {
            break;
        }
        let mut another_round = false;
        for (index, weight) in band.iter().copied().zip(&weights) {
            if left == 0.0 {
                break;
            }
            let claim = &claims[index];
            if is_satisfied(claim, shares[index]) || claim.weight == 0.0 {
                continue;
            }
            let wanted = (claim.requestable() - shares[index]).max(0.0);
            let part = at_start * (weight / sum);
            let give = if wanted <= part {
                remainders[index] = None;
                wanted
            } else {
                let whole = part.floor().max(0.0);
                if part - whole > 0.0 {
                    remainders[index] = Some(part - whole);
                }
                whole
            };
            if give == 0.0 {
                continue;
            }
            shares[index] += give;
            left -= give;
            another_round |= wanted < part;
        }
        if !another_round || left == 0.0 {
            break;
        }
    }
    let mut waiting: Vec<(usize, f64)> = remainders
        .iter()
        .enumerate()
        .filter_map(|(index, remainder)| Some((index, (*remainder)?)))
        .collect();
    waiting.sort_by(|one, other| {
        let (first, second) = (&claims[one.0], &claims[other.0]);
        other
            .1
            .total_cmp(&one.1)
            .then_with(|| first.created.cmp(&second.created))
            .then_with(|| first.name.cmp(&second.name))
    });
    (left, waiting.into_iter().map(|(index, _)| index).collect())
}

/// What each of the band weighs in this round, in the band's order.
fn weights(k: f64, claims: &[Claim], band: &[usize], shares: &[f64]) -> Vec<f64> {
    let total: f64 = band
        .iter()
        .filter(|index| claims[**index].requestable() > shares[**index])
        .map(|index| claims[*index].weight)
        .sum();
    band.iter()
        .map(|index| {
            let claim = &claims[*index];
            if total == 0.0 || is_satisfied(claim, shares[*index]) {
                return 0.0;
            }
            let part = claim.weight / total;
            (part + k * (part - claim.usage)).max(0.0)
        })
        .collect()
}

fn is_satisfied(claim: &Claim, share: f64) -> bool {
    claim.request <= share || claim.limit.is_some_and(|limit| limit <= share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, quota: f64, request: f64, weight: f64) -> Claim {
        Claim {
            name: Arc::from(name),
            priority: 100,
            created: Time(0),
            quota: Some(quota),
            limit: None,
            weight,
            request,
            usage: 0.0,
        }
    }

    /// The table of KAI's own documents and maintainers.
    #[test]
    fn shares_are_kais() {
        let with = |mut claim: Claim, change: fn(&mut Claim)| {
            change(&mut claim);
            claim
        };
        let c = claim;
        let cases: Vec<(f64, f64, Vec<Claim>, Vec<f64>)> = vec![
            (
                100.0,
                1.0,
                vec![c("a", 10.0, 100.0, 3.0), c("b", 10.0, 100.0, 1.0)],
                vec![70.0, 30.0],
            ),
            (
                10.0,
                1.0,
                vec![
                    c("a", 0.0, 10.0, 1.0),
                    c("b", 0.0, 10.0, 1.0),
                    c("c", 0.0, 10.0, 1.0),
                ],
                vec![4.0, 3.0, 3.0],
            ),
            (
                5.0,
                1.0,
                vec![
                    with(c("A", 1.0, 1.0, 1.0), |claim| claim.priority = 2),
                    with(c("B", 1.0, 3.0, 2.0), |claim| claim.priority = 1),
                    with(c("C", 0.0, 2.0, 1.0), |claim| claim.priority = 1),
                ],
                vec![1.0, 3.0, 1.0],
            ),
            (
                8.0,
                1.0,
                vec![c("a", 4.0, 8.0, 0.0), c("b", 2.0, 8.0, 1.0)],
                vec![4.0, 4.0],
            ),
            (
                10.0,
                1.0,
                vec![c("a", 6.0, 10.0, 1.0), c("b", 6.0, 10.0, 1.0)],
                vec![6.0, 6.0],
            ),
            (
                10.0,
                1.0,
                vec![
                    with(c("a", 2.0, 10.0, 1.0), |claim| claim.limit = Some(5.0)),
                    c("b", 2.0, 10.0, 1.0),
                ],
                vec![5.0, 5.0],
            ),
            (
                10.0,
                1.0,
                vec![c("a", 0.0, 0.5, 1.0), c("b", 0.0, 10.0, 1.0)],
                vec![0.5, 9.5],
            ),
            (
                10.0,
                1.0,
                vec![
                    with(c("a", 0.0, 10.0, 1.0), |claim| claim.usage = 0.5),
                    c("b", 0.0, 10.0, 1.0),
                ],
                vec![3.0, 7.0],
            ),
            (
                10.0,
                1.0,
                vec![
                    with(c("a", 0.0, 10.0, 1.0), |claim| claim.usage = 1.0),
                    c("b", 0.0, 10.0, 1.0),
                ],
                vec![0.0, 10.0],
            ),
            (
                7.0,
                1.0,
                vec![
                    with(c("hi", 2.0, 2.0, 1.0), |claim| claim.priority = 200),
                    c("lo1", 1.0, 10.0, 1.0),
                    c("lo2", 1.0, 10.0, 3.0),
                ],
                vec![2.0, 2.0, 3.0],
            ),
            (
                5.0,
                0.0,
                vec![
                    with(c("1", 2.0, 5.0, 2.0), |claim| claim.priority = 2),
                    with(c("2", 2.0, 5.0, 2.0), |claim| claim.priority = 2),
                    with(c("3", 1.0, 0.0, 2.0), |claim| claim.priority = 1),
                ],
                vec![3.0, 2.0, 0.0],
            ),
        ];
        for (total, k, claims, expected) in cases {
            assert_eq!(
                divide(total, k, &claims),
                expected,
                "{total} among {claims:?}"
            );
        }
    }

    #[test]
    fn an_unlimited_quota_takes_what_it_requests() {
        let mut a = claim("a", 0.0, 7.0, 0.0);
        a.quota = None;
        assert_eq!(
            divide(10.0, 0.0, &[a, claim("b", 0.0, 10.0, 1.0)]),
            [7.0, 3.0]
        );
    }
}
