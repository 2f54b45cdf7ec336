//! What happens to a queue whose children have more quota than it.

/// What the webhook answers where the quotas of children exceed their parent's (KAI's
/// `OverSubscriptionMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OverSubscription {
    /// Nothing.
    #[default]
    None,
    /// A warning for each resource.
    Warning,
    /// The queue is refused.
    Block,
}
