//! `libnvidia-ml.so.1` for the simulated driver, in the order of a call's way:
//!
//! - `abi`: NVML's numbers, structs and out-parameters;
//! - `link`: the connection to the driver, found from the library's own path;
//! - `system`: init, versions, error texts;
//! - `enumerate`: counts and handles;
//! - `device`: identity, memory, modes, readings of one card;
//! - `mig`: MIG mode, and instances as devices;
//! - `instances`: GPU instances and compute instances, made and destroyed;
//! - `processes`: processes on a card;
//! - `topology`: links and neighbours;
//! - `health`: ECC, rows, field values;
//! - `events`: event sets and XIDs.
//!
//! No state but handles, event sets and idle connections; every answer is fetched again. A dead
//! driver is an error code. No dependencies, since the library is built into other programs.

// The C ABI is this crate's whole purpose; each block says why it holds.
#![allow(unsafe_code)]
// The names are NVIDIA's.
#![allow(non_snake_case)]

mod abi;
mod device;
mod enumerate;
mod events;
mod health;
mod instances;
mod link;
mod mig;
mod processes;
mod system;
mod topology;
