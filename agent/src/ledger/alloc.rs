//! Names of allocations, and of what the hook leaves for their containers.

use super::HolderKey;
use ring::digest::{Context, SHA256};
use std::fmt;

/// Name of one answer to the kubelet's `Allocate`: 128 random bits, 32 hex digits. Of a claim
/// it is the claim's UID, or follows from that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocId(u128);

impl AllocId {
    /// From random bits.
    pub fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// From 32 lower-case hex digits; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if text.len() != 32 || !digits {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

impl AllocId {
    /// Of a `ResourceClaim`: its UID's 128 bits, so that what was prepared for a claim is found
    /// by its UID alone. `None` for a UID that is no UUID; the API server makes no other.
    pub fn of_claim(uid: &str) -> Option<Self> {
        let places = [8, 13, 18, 23];
        let dashes = uid.match_indices('-').map(|(place, _)| place);
        (uid.len() == 36 && dashes.eq(places)).then_some(())?;
        Self::parse(&uid.replace('-', ""))
    }

    /// Of a part of this claim, by the names of its requests. Always the same, so that a part
    /// that is prepared again is found.
    #[must_use]
    pub fn of_part<'a>(self, requests: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hash = Context::new(&SHA256);
        hash.update(&self.0.to_be_bytes());
        for request in requests {
            // No name has a slash.
            hash.update(b"/");
            hash.update(request.as_bytes());
        }
        let digest = hash.finish();
        let bits = digest.as_ref().iter().take(16);
        Self(bits.fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }
}

impl fmt::Display for AllocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for AllocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Name of a proof: of the allocation, and for a claim, which may have several containers, of
/// the container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProofName {
    /// The allocation.
    pub alloc: AllocId,
    /// `None`: of the one container that the allocation is for.
    pub holder: Option<HolderKey>,
}

impl ProofName {
    /// From a file's name; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let alloc = AllocId::parse(parts.next()?)?;
        let holder = match (parts.next(), parts.next()) {
            (None, _) => None,
            (Some(pod_uid), Some(container)) if !pod_uid.is_empty() && !container.is_empty() => {
                Some(HolderKey {
                    pod_uid: pod_uid.to_owned(),
                    container: container.to_owned(),
                })
            }
            _ => return None,
        };
        Some(Self { alloc, holder })
    }
}

impl fmt::Display for ProofName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alloc = self.alloc.to_string();
        f.write_str(&match &self.holder {
            None => alloc,
            Some(key) => cdi::hook::proof_name(&alloc, &key.pod_uid, &key.container),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_claim_has_a_name_of_its_own_that_is_always_the_same() {
        let claim = AllocId::new(7);
        let part = claim.of_part(["a", "b"]);
        assert_eq!(part, claim.of_part(["a", "b"]));
        for other in [
            claim.of_part(["ab"]),
            claim.of_part(["a"]),
            AllocId::new(8).of_part(["a", "b"]),
            claim,
        ] {
            assert_ne!(part, other);
        }
    }

    #[test]
    fn a_proofs_name_is_read_as_it_was_written() {
        let alloc = AllocId::new(7);
        let holder = HolderKey {
            pod_uid: "u-1".into(),
            container: "main".into(),
        };
        for holder in [None, Some(holder)] {
            let name = ProofName { alloc, holder };
            assert_eq!(ProofName::parse(&name.to_string()), Some(name));
        }
        for noise in [
            "",
            "x",
            &format!("{alloc}."),
            &format!("{alloc}.u"),
            &format!(".{alloc}"),
        ] {
            assert_eq!(ProofName::parse(noise), None, "{noise}");
        }
    }
}
