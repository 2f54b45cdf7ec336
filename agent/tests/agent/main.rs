//! The agent over real sockets: a simulated driver and its NVML, an API server in memory, a
//! kubelet played by hand, an MPS supervisor that says what the test wants.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]
#![expect(unreachable_pub, reason = "modules of one test")]

mod kubelet;
mod machine;
mod mps;
mod nvml;
mod refusals;
mod restart;
mod shares;
mod slices;
mod whole;
