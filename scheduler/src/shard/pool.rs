//! Which objects are of a shard.

use std::collections::BTreeMap;

/// By the label of node pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pool {
    /// All there are.
    All,
    /// Those whose label of that key has that value.
    Of {
        /// The label's key.
        key: String,
        /// Its value; empty for those without the label, as in KAI.
        value: String,
    },
}

impl Pool {
    /// Whether an object with these labels is in it.
    pub fn holds(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let Self::Of { key, value } = self else {
            return true;
        };
        let found = labels.and_then(|labels| labels.get(key));
        if value.is_empty() {
            found.is_none()
        } else {
            found == Some(value)
        }
    }

    /// As KAI names it in messages.
    pub fn name(&self) -> &str {
        match self {
            Self::Of { value, .. } if !value.is_empty() => value,
            _ => "default",
        }
    }

    /// The label's value; `None`: all nodes.
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Of { value, .. } => Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_a_value_is_what_has_no_label() {
        let of = |value: &str| Pool::Of {
            key: "pool".into(),
            value: value.into(),
        };
        let labels = BTreeMap::from([("pool".to_owned(), "a".to_owned())]);
        for (pool, labels, holds) in [
            (of(""), None, true),
            (of(""), Some(&labels), false),
            (of("a"), Some(&labels), true),
            (of("b"), Some(&labels), false),
            (of("a"), None, false),
            (Pool::All, Some(&labels), true),
        ] {
            assert_eq!(pool.holds(labels), holds, "{pool:?} {labels:?}");
        }
    }
}
