//! How far above its request a share may be held, whatever limit its pod names: the admin's word.
//! Pure.

use api::request::{Amount, GpuRequest, PodRequest, ShareRequest};
use std::fmt;

/// A request in thousandths of itself.
const WHOLE: u64 = 1000;
/// A card has no more than a million times any request of 1 MiB.
const MOST: f64 = 1e6;

/// The largest ratio of limit to request, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts(u64);

impl Bursts {
    /// Whatever a pod names.
    pub const ANY: Self = Self(u64::MAX);
    /// Each share is held to its request.
    pub const NONE: Self = Self(WHOLE);

    /// A number of at least 1.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let ratio: f64 = text.parse().map_err(|_| "it must be a number".to_owned())?;
        if !(1.0..=MOST).contains(&ratio) {
            return Err("it must be at least 1 and at most 1000000".to_owned());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "1000 to 1e9"
        )]
        Ok(Self((ratio * 1000.0).round() as u64))
    }

    /// The limit that a share has which asks for so much, and at most for `limit`. `None`: its
    /// request.
    pub(crate) fn limit(self, request: u64, limit: u64) -> Option<u64> {
        let most = u128::from(request) * u128::from(self.0) / u128::from(WHOLE);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let limit = if self == Self::ANY {
            limit
        } else {
            limit.min(most)
        };
        (limit > request).then_some(limit)
    }

    /// A sentence for each container whose limit is not what its pod names.
    pub(crate) fn warnings(self, request: &PodRequest) -> Vec<String> {
        let is_cut = |share: &ShareRequest| match (share.amount, share.limit) {
            (Amount::Memory(request), Some(Amount::Memory(limit))) => {
                self.limit(request.0, limit.0) != Some(limit.0)
            }
            (Amount::Fraction(request), Some(Amount::Fraction(limit))) => {
                self.limit(request, limit) != Some(limit)
            }
            _ => false,
        };
        let containers = request.containers.iter();
        let cut =
            containers.filter(|one| matches!(&one.gpus, GpuRequest::Share(share) if is_cut(share)));
        cut.map(|one| {
            format!(
                "container {}: its limit of GPU memory is not followed: the admin holds shares to {self}",
                one.name
            )
        })
        .collect()
    }
}

impl Default for Bursts {
    fn default() -> Self {
        Self::ANY
    }
}

impl fmt::Display for Bursts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / WHOLE, self.0 % WHOLE);
        match (*self, rest) {
            (Self::ANY, _) => f.write_str("their limits"),
            (Self::NONE, _) => f.write_str("their requests"),
            (_, 0) => write!(f, "{whole} times their requests"),
            _ => {
                let decimals = format!("{rest:03}");
                let decimals = decimals.trim_end_matches('0');
                write!(f, "{whole}.{decimals} times their requests")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_at_most_so_many_times_the_request() {
        for (ratio, request, limit, held) in [
            ("1", 1000, 3000, None),
            ("2", 1000, 3000, Some(2000)),
            ("2.5", 1001, 3000, Some(2502)),
            ("4", 1000, 3000, Some(3000)),
            ("1.0004", 1000, 3000, None),
        ] {
            let bursts = Bursts::parse(ratio).unwrap();
            assert_eq!(bursts.limit(request, limit), held, "{ratio}");
        }
        assert_eq!(Bursts::ANY.limit(1, u64::MAX), Some(u64::MAX));
        for wrong in ["0.9", "-2", "x", "NaN", "inf", "1000001"] {
            assert!(Bursts::parse(wrong).is_err(), "{wrong}");
        }
        let said = |ratio| Bursts::parse(ratio).unwrap().to_string();
        assert_eq!(said("2.50"), "2.5 times their requests");
        assert_eq!(said("3"), "3 times their requests");
    }
}
