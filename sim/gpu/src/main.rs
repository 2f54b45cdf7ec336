//! The multi-call binary: `nvidia-smi`, `nvidia-cuda-mps-control`,
//! `nvidia-cuda-mps-server` and `workload` by the name it is called under,
//! everything by its first argument. All logic lives in the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sim_gpu::multicall(std::env::args().collect())
}
