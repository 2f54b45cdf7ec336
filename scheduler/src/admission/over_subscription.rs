//! The answer to a queue whose children have more quota than it.

/// The answer of the webhook if the quotas of children exceed their parent's (KAI's
/// `OverSubscriptionMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OverSubscription {
    /// The queue is accepted without a word.
    #[default]
    None,
    /// The queue is accepted with a warning for each resource.
    Warning,
    /// The queue is refused.
    Block,
}
