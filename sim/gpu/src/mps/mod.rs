//! The MPS stand-ins: `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server`.
//!
//! - [`cli`]: the control program without options: commands in, answers out.

pub mod cli;

use std::process::ExitCode;

/// `nvidia-cuda-mps-control`.
pub fn control(args: &[String]) -> ExitCode {
    let _ = args;
    cli::run()
}

/// `nvidia-cuda-mps-server`.
pub fn server() -> ExitCode {
    ExitCode::FAILURE
}
