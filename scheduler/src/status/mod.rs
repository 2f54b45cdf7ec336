//! Metrics, health and the state, as pages.
//!
//! - `cycle_status`: where the cycle is; `meters`: counters and times; `kai`: under KAI's names;
//!   `pages`: `/metrics`, `/healthz`, `/readyz`, `/readyz/scheduling`, `/snapshot`, `/explain`,
//!   `/observed`, `/report`; `requests`: counts requests to the API server.
//!
//! Reads, changes nothing.

mod cycle_status;
mod kai;
mod meters;
mod pages;
mod requests;

pub use cycle_status::Status;
pub use kai::Victim;
pub use meters::Meters;
pub use pages::{Pages, router};
pub use requests::counted;
