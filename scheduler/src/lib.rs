//! The scheduler's shell: everything around `scheduler-core` that touches the world.
//!
//! ```text
//! watch ─► convert ─► cycle: Core::apply, Core::decide ─► act ─► Outcome ─┐
//! telemetry ─► convert ─┘ ▲                                               │
//!                         └───────────────────────────────────────────────┘
//! ```
//!
//! In the order of the data's way:
//! - [`config`]: flags; [`shard`]: several node pools, each with a core of its own;
//!   `endpoints`: where requests come in; [`run()`]: starts everything, ends with the first part
//!   that ends.
//! - [`preflight`]: checks for other schedulers: nothing starts beside another one for the same
//!   pods.
//! - [`trust`]: the grant key, the serving certificate, and the `ConfigMap` that agents trust.
//! - [`admission`]: the webhook that adds token and amount, or refuses in one sentence.
//! - [`limits`]: how large an object may be that decisions read; [`bursts`]: how far above its
//!   request a share may be held.
//! - [`watch`]: the API server's objects; [`telemetry`]: what agents say; both as facts.
//! - [`convert`]: a fact into the core's events; [`usage`]: what queues used in the past.
//! - [`selector`]: which devices a request may have, by CEL.
//! - [`cycle`]: the only owner of the core; coalesces, decides; [`clock`]: by which time;
//!   `cycles`: one for each shard.
//! - [`act`]: carries decisions out: bindings, evictions, conditions; one outcome each.
//! - `mig_layout`: other slices of cards in MIG mode, for pods that wait for one.
//! - [`group`]: the pod group of each workload, before its pods reach the cycle.
//! - `lease`: which replica acts; [`leader`]: the client whose writes only that one sends.
//! - [`observe`]: what would be done where another scheduler decides; then nothing acts.
//! - [`trial`]: what would be decided, tried on a copy of the core.
//! - [`forecast`]: when waiting pods start, as a copy of the core plays it.
//! - [`report`]: status and metrics of queues and pod groups.
//! - [`snapshot`]: the cluster for KAI's tools.
//! - [`status`]: metrics, health and the view, as one page each; `download`: how large ones are
//!   sent.
//! - `history`: past values of cards, queues and tenants, bounded, from agents and the API server.
//! - [`page`]: the status page for people with a browser, from notes of facts and words.
//! - [`crash`]: why containers of a pod do not run.
//! - [`prometheus`]: a client of Prometheus' API.
//! - [`serve`]: the one way in which all of these are served; `lock`: how all take a mutex.
//!
//! Decides nothing itself.
#![forbid(unsafe_code)]

pub mod act;
pub mod admission;
pub mod bursts;
pub mod clock;
pub mod config;
pub mod convert;
pub mod crash;
pub mod cycle;
mod cycles;
mod download;
mod endpoints;
pub mod forecast;
pub mod group;
mod history;
mod label_selector;
pub mod leader;
mod lease;
pub mod limits;
mod lock;
mod mig_layout;
pub mod observe;
mod off_thread;
pub mod page;
pub mod page_link;
pub mod preflight;
pub mod prometheus;
mod queue_label;
pub mod report;
mod run;
pub mod scale_up;
pub mod selector;
pub mod serve;
pub mod shard;
pub mod snapshot;
pub mod status;
mod stored_pod;
pub mod telemetry;
pub mod trial;
pub mod trust;
mod unsupported;
pub mod usage;
pub mod watch;

pub use config::{Config, Role};
pub use endpoints::{Endpoints, Listeners};
pub use leader::ApiAccess;
pub use run::{RunError, run, run_in, run_on};
