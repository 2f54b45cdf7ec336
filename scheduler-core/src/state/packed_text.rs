//! Names as they are kept: without what an `Arc` has beside the text, and a UUID at the end in 16
//! bytes.

use super::uid::uuid;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// A text, ordered as such. KAI's names of groups have their owner's UUID at the end, and so have
/// ours of pods without a group.
///
/// It is kept once for each pod and each group, and read where one of them is decided about:
/// an action or a reason makes a text of it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PackedText(Box<[u8]>);

/// Before the last 16 bytes, which are those of a UUID. No text in UTF-8 has this byte.
const UUID: u8 = 0xff;

/// The bytes of a text: the same for the same text.
pub(super) fn pack(text: &str) -> Vec<u8> {
    let Some((before, uuid)) = at_end(text) else {
        return text.into();
    };
    let mut packed = Vec::with_capacity(before.len() + 17);
    packed.extend_from_slice(before.as_bytes());
    packed.push(UUID);
    packed.extend_from_slice(uuid.as_bytes());
    packed
}

/// The UUID at the end, and the text before it.
fn at_end(text: &str) -> Option<(&str, Uuid)> {
    let at = text.len().checked_sub(Hyphenated::LENGTH)?;
    let (before, last) = text.split_at_checked(at)?;
    Some((before, uuid(last)?))
}

impl PackedText {
    pub(crate) fn of(text: &str) -> Self {
        Self(pack(text).into_boxed_slice())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// What is before the UUID, and that, where there is one.
    fn parts(&self) -> (&str, Option<Uuid>) {
        let (text, uuid) = match self.0.split_last_chunk() {
            Some(([before @ .., UUID], uuid)) => (before, Some(Uuid::from_bytes(*uuid))),
            _ => (&*self.0, None),
        };
        (str::from_utf8(text).unwrap_or_default(), uuid)
    }

    /// It is the packed one of this text.
    pub(crate) fn is(&self, text: &str) -> bool {
        match self.parts() {
            (own, None) => own == text,
            (own, Some(uuid)) => at_end(text) == Some((own, uuid)),
        }
    }

    fn text(&self) -> Cow<'_, str> {
        match self.parts() {
            (text, None) => Cow::Borrowed(text),
            (before, Some(uuid)) => {
                let mut buffer = Uuid::encode_buffer();
                Cow::Owned([before, uuid.hyphenated().encode_lower(&mut buffer)].concat())
            }
        }
    }

    /// Its text.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::from(self.text())
    }
}

impl Ord for PackedText {
    fn cmp(&self, other: &Self) -> Ordering {
        let at = alike(&self.0, &other.0);
        match (self.0.get(at), other.0.get(at)) {
            // A UUID begins in one of them, or has this byte.
            (Some(&UUID), Some(_)) | (Some(_), Some(&UUID)) => self.text().cmp(&other.text()),
            // Bytes of UTF-8, and those of two UUIDs, are in the order of the texts.
            (one, other) => one.cmp(&other),
        }
    }
}

/// So many bytes are the same from the beginning.
fn alike(one: &[u8], other: &[u8]) -> usize {
    // By words: names have much in common, and all groups are sorted by theirs.
    let words = one.chunks_exact(8).zip(other.chunks_exact(8));
    let from = words.take_while(|(one, other)| one == other).count() * 8;
    let rest = one.iter().zip(other).skip(from);
    from + rest.take_while(|(one, other)| one == other).count()
}

impl PartialOrd for PackedText {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for PackedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl fmt::Debug for PackedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_uuid_at_the_end_of_a_name_takes_17_bytes() {
        let name = "team-a/pg-train-8e5f1a2b-0c3d-4e5f-8a7b-9c0d1e2f3a4b";
        assert_eq!(PackedText::of(name).0.len(), "team-a/pg-train-".len() + 17);
        assert_eq!(PackedText::of("train-x7k2p").0.len(), 11);
    }

    fn texts() -> impl Strategy<Value = String> {
        let uuid = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}";
        let alike = "0000000[01]-0000-0000-0000-00000000000[01]";
        let part = prop_oneof![
            uuid,
            alike,
            "[ab/-]{0,4}",
            "[0-9a-fA-F-]{0,40}",
            "\\PC{0,3}"
        ];
        proptest::collection::vec(part, 0..4).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn it_is_its_text(one in texts(), other in texts()) {
            let [packed, packed_other] = [&one, &other].map(|text| PackedText::of(text));
            prop_assert_eq!(&*packed.shared(), one.as_str());
            prop_assert_eq!(packed.to_string(), one.clone());
            prop_assert_eq!(packed.cmp(&packed_other), one.cmp(&other));
            prop_assert_eq!(packed == packed_other, one == other);
            prop_assert!(packed.is(&one));
            prop_assert_eq!(packed.is(&other), one == other);
        }
    }
}
