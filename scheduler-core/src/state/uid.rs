//! UIDs as they are kept: a UUID, as Kubernetes gives them, in 16 bytes.

use crate::ids::PodUid;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// A UID, ordered by its text. The text is made when it is needed.
///
/// As text it would be 52 bytes beside the row, for each pod and each group.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Uid {
    /// One that is printed as it was read: with hyphens, in lower case.
    Uuid(Uuid),
    /// Any other text.
    Text(Arc<str>),
}

impl Uid {
    /// From its text, which is shared where it has to be kept.
    pub(crate) fn of(text: &Arc<str>) -> Self {
        uuid(text).map_or_else(|| Self::Text(Arc::clone(text)), Self::Uuid)
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }

    /// What reads its text in place.
    pub(crate) fn with_text<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        match self {
            Self::Uuid(uuid) => read(uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer())),
            Self::Text(text) => read(text),
        }
    }

    /// Its text.
    pub(crate) fn shared(&self) -> Arc<str> {
        match self {
            Self::Uuid(uuid) => {
                Arc::from(&*uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
            }
            Self::Text(text) => Arc::clone(text),
        }
    }

    /// As actions and reasons say it.
    pub(crate) fn of_pod(&self) -> PodUid {
        PodUid::of(self.shared())
    }
}

/// `None`: it is none, or another text that means one.
pub(super) fn uuid(text: &str) -> Option<Uuid> {
    let has_upper = |text: &str| {
        text.bytes()
            .fold(false, |any, byte| any | byte.is_ascii_uppercase())
    };
    let is_usual = text.len() == Hyphenated::LENGTH && !has_upper(text);
    is_usual.then(|| Uuid::try_parse(text).ok())?
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        uuid(text).map_or_else(|| Self::Text(Arc::from(text)), Self::Uuid)
    }
}

impl From<&PodUid> for Uid {
    fn from(uid: &PodUid) -> Self {
        uuid(uid.as_str()).map_or_else(|| Self::Text(uid.shared()), Self::Uuid)
    }
}

impl Ord for Uid {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            // Digits come before letters in ASCII, and the hyphens are where they are in all of
            // them: the bytes are in the order of the texts.
            (Self::Uuid(one), Self::Uuid(other)) => one.cmp(other),
            _ => self.with_text(|one| other.with_text(|other| one.cmp(other))),
        }
    }
}

impl PartialOrd for Uid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.write_str(text))
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| fmt::Debug::fmt(text, f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_uuid_takes_16_bytes_and_only_as_kubernetes_writes_it() {
        let usual = "8e5f1a2b-0c3d-4e5f-8a7b-9c0d1e2f3a4b";
        assert!(matches!(Uid::from(usual), Uid::Uuid(_)));
        for other in [
            &usual.to_uppercase(),
            &usual.replace('-', ""),
            &format!("{{{usual}}}"),
            "8e5f1a2b-0c3d-4e5f-8a7b09c0d1e2f3a4b",
            "",
            "a",
        ] {
            assert!(matches!(Uid::from(other), Uid::Text(_)), "{other}");
        }
        assert_eq!(size_of::<Uid>(), 24);
    }

    proptest! {
        /// UUIDs and other texts of the same letters.
        #[test]
        fn it_is_its_text(texts in proptest::collection::vec(
            prop_oneof!["[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "[0-9A-Fa-f-]{0,36}"],
            2,
        )) {
            let shared: Vec<Arc<str>> = texts.iter().map(|text| Arc::from(text.as_str())).collect();
            let [one, other] = [Uid::of(&shared[0]), Uid::of(&shared[1])];
            prop_assert_eq!(one.to_string(), texts[0].clone());
            prop_assert_eq!(one.shared(), shared[0].clone());
            prop_assert_eq!(one.cmp(&other), texts[0].cmp(&texts[1]));
            prop_assert_eq!(one == other, texts[0] == texts[1]);
            prop_assert_eq!(&Uid::from(&PodUid::new(&texts[0])), &one);
        }
    }
}
