//! MPS: plan, client, supervisor.
