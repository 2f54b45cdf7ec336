//! A remark about one place of a shard's document.

use serde_saphyr::Spanned;

/// Something in the text that is invalid, or has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) line: u64,
    /// Of a shard's spec; empty where it is of none.
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

/// Of a field of an object, which has no lines.
pub(super) fn remark_at(field: &str, why: impl Into<String>) -> Remark {
    Remark {
        line: 0,
        field: field.to_owned(),
        why: why.into(),
    }
}
