//! Several cores in one process, each with the nodes, queues and pods of one node pool.
//!
//! - `file`: the configuration file; `spec`: one of KAI's `SchedulingShard`s in it, and what
//!   its arguments mean for a core; `usage`: its `usageDBConfig`; `value`: the values in both;
//!   `remark`: what is wrong in one place.
//! - `live`: the same as an object, which changes while the scheduler runs.
//! - `pool`: which objects are of a shard; `router`: pure: every fact to its shard.
//! - `front`: the channels of all cores: outcomes to their core, queries to the core that can
//!   answer them, states and views as one.
//!
//! In: flags and a file. Out: [`Plan`]. Invalid input is an error with its line.

mod file;
mod front;
mod live;
mod pool;
mod remark;
mod router;
mod spec;
mod usage;
mod value;

pub use file::{ConfigError, Plan, Shard};
pub use front::{CoreChannels, run as front};
pub use live::{InForce, Kind, Live, Report, WantedCondition};
pub use pool::Pool;
pub use router::{Lane, run as route};
