//! A remark about one field of a shard's document, which is invalid or has no effect.

use serde_saphyr::Spanned;

/// A field that is invalid or has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) line: u64,
    /// The path of the field in a shard's spec. It is empty if the remark is about no field.
    pub(super) field: String,
    pub(super) why: String,
}

pub(super) fn remark<T>(at: &Spanned<T>, field: &str, why: impl Into<String>) -> Remark {
    Remark {
        line: at.referenced.line(),
        field: field.to_owned(),
        why: why.into(),
    }
}

/// Returns a remark about a field of an object, which has no lines.
pub(super) fn remark_at(field: &str, why: impl Into<String>) -> Remark {
    Remark {
        line: 0,
        field: field.to_owned(),
        why: why.into(),
    }
}
