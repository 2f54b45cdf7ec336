//! A finding: what one check of `aliquot doctor` saw, and what to do about it.

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// All is as it must be.
    Fine,
    /// The check could not be made.
    Unknown,
    /// The item works, and not as well as it could.
    Warning,
    /// The item does not work.
    Broken,
}

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The checked item.
    pub(super) check: &'static str,
    pub(super) state: State,
    /// One sentence that says what was found.
    pub(super) what: String,
    /// One sentence that says what to do. It is empty if nothing is to be done.
    pub(super) fix: String,
}

impl Finding {
    pub(super) fn fine(check: &'static str, what: impl Into<String>) -> Self {
        Self::of(check, State::Fine, what, "")
    }

    pub(super) fn unknown(
        check: &'static str,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::of(check, State::Unknown, what, fix)
    }

    pub(super) fn warning(
        check: &'static str,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::of(check, State::Warning, what, fix)
    }

    pub(super) fn broken(
        check: &'static str,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::of(check, State::Broken, what, fix)
    }

    pub(super) fn of(
        check: &'static str,
        state: State,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            check,
            state,
            what: what.into(),
            fix: fix.into(),
        }
    }
}
