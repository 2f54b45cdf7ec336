//! One of NVIDIA's programs: where it is, what it has in its environment, and what it
//! shares with tenants. It runs in the driver's own root ([`driver_root`]).

use driver_root::{DriverRoot, Shared};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// A program of the driver, ready to be started any number of times.
#[derive(Clone, Debug)]
pub struct Program {
    root: DriverRoot,
    /// As this process sees it.
    path: PathBuf,
    env: Vec<(OsString, OsString)>,
    /// The directories of all MPS daemons.
    shared: PathBuf,
}

impl Program {
    /// `path` as this process sees it. `own` is this process's environment, of which what
    /// would steer CUDA is left out; `extra` wins over it. `shared` is at the same path for
    /// the program.
    pub fn new(
        root: DriverRoot,
        path: PathBuf,
        own: impl Iterator<Item = (OsString, OsString)>,
        extra: &[(OsString, OsString)],
        shared: PathBuf,
    ) -> Self {
        let steers = |name: &OsString| {
            let name = name.to_string_lossy();
            name.starts_with("CUDA_") || name.starts_with("NVIDIA_")
        };
        let own = own.filter(|(name, _)| !steers(name)).collect();
        let mut env = root.environment(own);
        for (name, value) in extra {
            env.retain(|(other, _)| other != name);
            env.push((name.clone(), value.clone()));
        }
        Self {
            root,
            path,
            env,
            shared,
        }
    }

    /// As this process sees it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same, with more in its environment.
    #[must_use]
    pub fn with<'a>(mut self, env: impl IntoIterator<Item = (&'a str, OsString)>) -> Self {
        for (name, value) in env {
            self.env.push((name.into(), value));
        }
        self
    }

    /// Not started yet; `shm` is its `/dev/shm`, if it is to have one of its own.
    ///
    /// # Errors
    /// As [`DriverRoot::command`].
    pub fn command(&self, shm: Option<&Path>) -> io::Result<Command> {
        let shared = Shared {
            folder: Some(&self.shared),
            shm,
        };
        let mut command = Command::from(self.root.command(&self.path, shared)?);
        command
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gets_our_environment_without_what_steers_cuda() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let own = [
            pair("PATH", "/bin"),
            pair("CUDA_VISIBLE_DEVICES", "0"),
            pair("NVIDIA_VISIBLE_DEVICES", "all"),
            pair("SIM", "1"),
        ];
        let program = Program::new(
            DriverRoot::at(Path::new("/")),
            "/usr/bin/nvidia-smi".into(),
            own.into_iter(),
            &[pair("SIM", "2")],
            "/run/aliquot/mps".into(),
        );
        assert_eq!(program.env, [pair("PATH", "/bin"), pair("SIM", "2")]);
    }
}
