//! Images from static binaries, without a builder.
//!
//! Comes in: files of the host and what the image runs. Goes out: an OCI layout of one
//! uncompressed layer. Must never need the network.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::cluster::Programs;

/// Debian's `busybox-static`.
const BUSYBOX: &str = "/bin/busybox";

/// The workload in an image; the multi-call program knows itself by this name.
pub const WORKLOAD: &str = "/usr/local/bin/workload";

/// What an image holds and runs.
#[derive(Debug, Clone, Default)]
pub struct Recipe {
    files: Vec<(PathBuf, String)>,
    scripts: Vec<(String, String)>,
    entrypoint: Vec<String>,
    command: Vec<String>,
    env: Vec<String>,
    user: String,
}

impl Recipe {
    /// Busybox with all its names; runs `sh` unless told otherwise.
    pub fn busybox() -> Self {
        Self {
            command: vec!["sh".to_owned()],
            ..Self::default()
        }
    }

    /// Stands in for a GPU image: the simulation's workload as entrypoint. Whatever the
    /// image would have been told as arguments, it runs `script`; a pod's `SIM_WORKLOAD`
    /// says otherwise.
    pub fn workload(programs: &Programs, script: &str) -> Self {
        Self::busybox()
            .file(programs.ours_static.join("sim-gpu"), WORKLOAD)
            .entrypoint([WORKLOAD])
            .env("SIM_WORKLOAD", script)
    }

    /// Adds an executable of the host at an absolute path in the image.
    #[must_use]
    pub fn file(mut self, host: impl Into<PathBuf>, path: impl Into<String>) -> Self {
        self.files.push((host.into(), path.into()));
        self
    }

    /// Adds a shell script at an absolute path in the image.
    #[must_use]
    pub fn script(mut self, path: impl Into<String>, text: impl Into<String>) -> Self {
        self.scripts.push((path.into(), text.into()));
        self
    }

    #[must_use]
    pub fn entrypoint<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.entrypoint = words.into_iter().map(Into::into).collect();
        self.command.clear();
        self
    }

    #[must_use]
    pub fn command<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push(format!("{key}={value}"));
        self
    }

    /// `uid[:gid]`; root if unset.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.user);
        self
    }

    /// Builds the layout in a new folder `folder/name`.
    pub fn build(&self, folder: &Path, name: &str) -> Result<Image> {
        let layout = folder.join(name);
        let root = folder.join(format!("{name}.root"));
        self.lay_out(&root)?;
        let tar = folder.join(format!("{name}.tar"));
        pack(&root, &tar)?;
        let layer = fs::read(&tar)?;
        fs::remove_dir_all(&root)?;
        fs::remove_file(&tar)?;

        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs)?;
        let layer = put(&blobs, "application/vnd.oci.image.layer.v1.tar", &layer)?;
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
        let env: Vec<&String> = std::iter::once(&path).chain(&self.env).collect();
        let config = json!({
            "architecture": go_architecture(),
            "os": "linux",
            "config": {
                "Env": env,
                "Entrypoint": self.entrypoint,
                "Cmd": self.command,
                "User": self.user,
            },
            "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
        });
        let config = put(
            &blobs,
            "application/vnd.oci.image.config.v1+json",
            &serde_json::to_vec(&config)?,
        )?;
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer] });
        let manifest = put(&blobs, kind, &serde_json::to_vec(&manifest)?)?;
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        fs::write(layout.join("index.json"), serde_json::to_vec(&index)?)?;
        fs::write(
            layout.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        Ok(Image { layout })
    }

    fn lay_out(&self, root: &Path) -> Result<()> {
        for folder in [
            "bin",
            "etc",
            "tmp",
            "run",
            "usr/bin",
            "usr/local/bin",
            "root",
        ] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::write(
            root.join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n",
        )?;
        fs::copy(BUSYBOX, root.join("bin/busybox"))
            .with_context(|| format!("{BUSYBOX} (busybox-static)"))?;
        let names = Command::new(BUSYBOX).arg("--list").output()?.stdout;
        for name in String::from_utf8(names)?
            .lines()
            .filter(|name| *name != "busybox")
        {
            symlink("busybox", root.join("bin").join(name))?;
        }
        for (host, path) in &self.files {
            let target = root.join(path.trim_start_matches('/'));
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(host, &target).with_context(|| format!("{} into an image", host.display()))?;
        }
        for (path, text) in &self.scripts {
            let target = root.join(path.trim_start_matches('/'));
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            // Busybox's own name of it is a link to busybox.
            if target.is_symlink() {
                fs::remove_file(&target)?;
            }
            fs::write(&target, format!("#!/bin/busybox sh\n{text}"))?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }
}

/// A built image.
#[derive(Debug, Clone)]
pub struct Image {
    layout: PathBuf,
}

impl Image {
    /// One that something else has made.
    pub fn at(layout: impl Into<PathBuf>) -> Self {
        Self {
            layout: layout.into(),
        }
    }

    /// The folder with `index.json` in it.
    pub fn layout(&self) -> &Path {
        &self.layout
    }
}

fn pack(root: &Path, tar: &Path) -> Result<()> {
    let status = Command::new("tar")
        .args([
            "--create",
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mtime=@0",
        ])
        .arg("--file")
        .arg(tar)
        .arg("--directory")
        .arg(root)
        .arg(".")
        .status()
        .context("tar")?;
    if !status.success() {
        bail!("tar: {status}");
    }
    Ok(())
}

/// Bytes in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes a blob under its digest and describes it.
fn put(blobs: &Path, kind: &str, bytes: &[u8]) -> Result<Value> {
    let hex = hex(digest(&SHA256, bytes).as_ref());
    fs::write(blobs.join(&hex), bytes)?;
    Ok(json!({ "mediaType": kind, "digest": format!("sha256:{hex}"), "size": bytes.len() }))
}

fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}
