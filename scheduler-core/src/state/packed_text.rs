//! Names as they are kept: without what an `Arc` has beside the text, and UUIDs in 16 bytes.

use super::uid::uuid;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// A text, ordered as such. Controllers give groups, and some pods, names with a UUID in them.
///
/// It is kept once for each pod and each group, and read where one of them is decided about:
/// an action or a reason makes a text of it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PackedText(Box<[u8]>);

/// The next 16 bytes are those of a UUID. No text in UTF-8 has this byte.
const UUID: u8 = 0xff;

/// The bytes of a text: the same for the same text.
pub(super) fn pack(text: &str) -> Vec<u8> {
    let mut packed = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, uuid, after)) = next_uuid(rest) {
        packed.extend_from_slice(before.as_bytes());
        packed.push(UUID);
        packed.extend_from_slice(uuid.as_bytes());
        rest = after;
    }
    packed.extend_from_slice(rest.as_bytes());
    packed
}

/// The text before the first UUID, the UUID, and the text behind it.
fn next_uuid(text: &str) -> Option<(&str, Uuid, &str)> {
    let windows = text.as_bytes().windows(Hyphenated::LENGTH).enumerate();
    // Most names are looked through and have none.
    let mut likely = windows.filter(|(_, bytes)| bytes[8] == b'-' && bytes[13] == b'-');
    likely.find_map(|(at, _)| {
        let (before, rest) = text.split_at_checked(at)?;
        let (own, after) = rest.split_at_checked(Hyphenated::LENGTH)?;
        Some((before, uuid(own)?, after))
    })
}

impl PackedText {
    pub(crate) fn of(text: &str) -> Self {
        Self(pack(text).into_boxed_slice())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// It is the packed one of this text.
    pub(crate) fn is(&self, text: &str) -> bool {
        let mut rest = Some(text);
        self.each_part(|part| rest = rest.and_then(|rest| rest.strip_prefix(part)));
        rest == Some("")
    }

    fn text(&self) -> String {
        let mut text = String::with_capacity(self.0.len() + Hyphenated::LENGTH);
        self.each_part(|part| text.push_str(part));
        text
    }

    /// Its text.
    pub(crate) fn shared(&self) -> Arc<str> {
        match str::from_utf8(&self.0) {
            Ok(text) => Arc::from(text),
            // There is a UUID in it.
            Err(_) => Arc::from(self.text()),
        }
    }

    /// What its text is made of, in order.
    fn each_part(&self, mut take: impl FnMut(&str)) {
        let mut rest = &*self.0;
        while !rest.is_empty() {
            if let Some((&UUID, behind)) = rest.split_first()
                && let Some((uuid, behind)) = behind.split_first_chunk()
            {
                rest = behind;
                let uuid = Uuid::from_bytes(*uuid).hyphenated();
                take(uuid.encode_lower(&mut Uuid::encode_buffer()));
                continue;
            }
            let behind = rest.iter().skip(1).position(|byte| *byte == UUID);
            let (text, behind) = rest.split_at(behind.map_or(rest.len(), |at| at + 1));
            rest = behind;
            take(str::from_utf8(text).unwrap_or_default());
        }
    }
}

impl Ord for PackedText {
    fn cmp(&self, other: &Self) -> Ordering {
        let at = alike(&self.0, &other.0);
        match (self.0.get(at), other.0.get(at)) {
            // A UUID begins in one of them.
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
        fmt::Debug::fmt(&self.text(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_uuid_in_a_name_takes_17_bytes() {
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
