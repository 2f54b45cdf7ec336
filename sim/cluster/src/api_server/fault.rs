//! Faults that a test plans: the next request that fits is answered wrongly, once.
//! Never acts by itself.

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is done, its answer breaks off: the caller cannot know.
    LoseAnswer,
    /// Nothing is done or answered, and the connection stays open.
    NoAnswer,
    /// 429, nothing done.
    TooManyRequests,
    /// 500, nothing done.
    InternalError,
    /// 403, nothing done, as by a policy.
    Forbidden,
}

/// The faults that still wait for their request.
#[derive(Debug, Default)]
pub(crate) struct Plan(Vec<(String, String, Fault)>);

impl Plan {
    pub(crate) fn add(&mut self, method: &str, path: &str, fault: Fault) {
        self.0.push((method.to_owned(), path.to_owned(), fault));
    }

    /// The fault of this request, which is then over.
    pub(crate) fn take(&mut self, method: &str, path: &str) -> Option<Fault> {
        let place = self
            .0
            .iter()
            .position(|(wanted, part, _)| wanted == method && path.contains(part.as_str()))?;
        Some(self.0.remove(place).2)
    }
}
