//! The registry inside the namespace.
//!
//! In: image layouts. Out: every public name resolves here, because containerd is configured with
//! this as the mirror of all registries; so manifests run unmodified, `:latest` with its implied
//! `Always` included. Must never reach a real registry: there is no route to one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::daemon::{Command, Daemon};
use crate::image::Image;
use crate::wait::{Seen, until};

/// Where it listens, for programs in the cluster's network namespace.
pub const ADDRESS: &str = "127.0.0.1:5000";
/// It listens for a machine beside that, too.
const EVERYWHERE: &str = "0.0.0.0:5000";

/// The running registry.
#[derive(Debug)]
pub struct Registry {
    daemon: Daemon,
    crane: PathBuf,
}

impl Registry {
    pub fn start(bin: &Path, state: &Path, logs: &Path) -> Result<Self> {
        let disk = state.join("registry");
        std::fs::create_dir_all(&disk)?;
        let crane = bin.join("crane");
        let daemon = Command::new("registry", &crane)
            .args(["registry", "serve", "--address", EVERYWHERE, "--disk"])
            .arg(disk)
            .start(logs)?;
        Ok(Self { daemon, crane })
    }

    pub async fn ready(&self) -> Result<()> {
        until("the registry", Duration::from_secs(10), || async {
            tokio::net::TcpStream::connect(ADDRESS).await?;
            Ok(Seen::Done(()))
        })
        .await
    }

    /// Serves an image under a reference as users write it: `ubuntu`, `vllm/vllm-openai:latest`,
    /// `nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0`.
    pub async fn push(&self, image: &Image, reference: &str) -> Result<()> {
        let target = format!("{ADDRESS}/{}", path_of(reference));
        let output = tokio::process::Command::new(&self.crane)
            .args(["push", "--insecure"])
            .arg(image.layout())
            .arg(&target)
            .output()
            .await
            .context("crane push")?;
        if !output.status.success() {
            bail!("push {target}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    pub fn alive(&mut self) -> Result<()> {
        self.daemon.alive()
    }
}

/// The repository and tag that containerd asks a mirror for: the reference without its
/// registry, with Docker's implied `library/`.
fn path_of(reference: &str) -> String {
    match reference.split_once('/') {
        Some((registry, rest)) if registry.contains(['.', ':']) || registry == "localhost" => {
            rest.to_owned()
        }
        Some(_) => reference.to_owned(),
        None => format!("library/{reference}"),
    }
}

#[cfg(test)]
mod tests {
    use super::path_of;

    #[test]
    fn a_reference_is_served_where_the_runtime_asks_a_mirror_for_it() {
        for (reference, path) in [
            ("ubuntu", "library/ubuntu"),
            ("ubuntu:24.04", "library/ubuntu:24.04"),
            ("vllm/vllm-openai:latest", "vllm/vllm-openai:latest"),
            (
                "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
                "nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
            ),
            ("localhost/x", "x"),
            ("registry:5000/a/b", "a/b"),
        ] {
            assert_eq!(path_of(reference), path);
        }
    }
}
