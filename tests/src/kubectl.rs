//! What only kubectl says.
//!
//! In: a command line as a user would type it. Out: what it prints. Must never be used where the
//! API client serves: a kubectl costs a tenth of a second.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::daemon::{Command, Daemon};

/// The built kubectl with the admin's kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
}

impl Kubectl {
    /// Runs it and answers its standard output; fails with its standard error.
    pub async fn run(&self, args: &[&str]) -> Result<String> {
        let output = self.bytes(args).await?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// The same where that is no text.
    pub async fn bytes(&self, args: &[&str]) -> Result<Vec<u8>> {
        let output = self.command(args).output().await.context("kubectl")?;
        if !output.status.success() {
            bail!(
                "kubectl {}: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(output.stdout)
    }

    /// Runs a command in a container.
    pub async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> Result<String> {
        let mut args = vec!["exec", "-n", namespace, pod, "-c", container, "--"];
        args.extend(command);
        self.run(&args).await
    }

    /// Starts one that keeps running, such as `port-forward`, its output in a log named `name`.
    pub fn start(&self, name: &str, args: &[&str], logs: &Path) -> Result<Daemon> {
        Command::new(name, &self.program)
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .start(logs)
    }

    fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .kill_on_drop(true);
        command
    }
}
