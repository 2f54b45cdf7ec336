//! `gpu enter`: what the simulated runtime starts as a container's process, on a real driver.
//!
//! A container of that runtime has its mounts as links below a folder, which the stand-ins of
//! the driver understand and the real libraries do not. So paths in the environment are
//! followed, and shared memory is mounted, in a mount namespace of the process's own. In: the
//! container's environment. Out: the CUDA program, in the same process.

use crate::program::own_mounts;
use anyhow::Context as _;
use nix::mount::{MsFlags, mount};
use proto::names::env::MPS_PIPE_DIRECTORY;
use sim_gpu::paths::ROOT_ENV;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn run(words: &[String]) -> anyhow::Result<()> {
    let root = PathBuf::from(std::env::var_os(ROOT_ENV).context("no container")?);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("cuda").args(words);
    if let Some(pipe) = std::env::var_os(MPS_PIPE_DIRECTORY) {
        let inside = below(&root, Path::new(&pipe));
        let pipe = inside
            .canonicalize()
            .with_context(|| inside.display().to_string())?;
        command.env(MPS_PIPE_DIRECTORY, pipe);
    }
    let shm = below(&root, Path::new("/dev/shm"));
    if let Ok(shm) = shm.canonicalize()
        && shm != Path::new("/dev/shm")
    {
        own_mounts()?;
        let nothing = None::<&str>;
        mount(Some(&shm), "/dev/shm", nothing, MsFlags::MS_BIND, nothing)?;
    }
    Err(command.exec()).context("the program cannot be started")
}

fn below(root: &Path, inside: &Path) -> PathBuf {
    root.join(inside.strip_prefix("/").unwrap_or(inside))
}
