//! A finding: what one check of `aliquot doctor` saw, and what to do about it.

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// As it must be.
    Fine,
    /// It could not be checked.
    Unknown,
    /// It works, and not as well as it could.
    Warning,
    /// It does not work.
    Broken,
}

/// One check's outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The checked item.
    pub(super) check: &'static str,
    pub(super) state: State,
    /// The finding.
    pub(super) what: String,
    /// What to do; empty where nothing is to be done.
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
