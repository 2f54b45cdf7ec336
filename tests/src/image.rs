//! Images from static binaries, without a builder.
//!
//! In: files of the host and what the image runs. Out: an OCI layout of one uncompressed layer.
//! Must never need the network.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, Digest, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifestBuilder, MediaType, OciLayoutBuilder, Os, RootFsBuilder, SCHEMA_VERSION,
};
use ring::digest::{SHA256, digest};

use crate::programs::Programs;

/// Debian's `busybox-static`.
const BUSYBOX: &str = "/bin/busybox";

/// The image of the simulation's workload, as manifests name it.
pub const WORKLOAD_IMAGE: &str = "aliquot.test/workload:1";
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
    /// Busybox with all its names; runs `sh` by default.
    pub fn busybox() -> Self {
        Self {
            command: vec!["sh".to_owned()],
            ..Self::default()
        }
    }

    /// Stands in for a GPU image: the simulation's workload as entrypoint. Whatever its arguments,
    /// it runs `script`; a pod's `SIM_WORKLOAD` says otherwise.
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
        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs)?;
        let layer = put(&blobs, MediaType::ImageLayer, &self.files()?.pack()?)?;
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
        let env: Vec<String> = std::iter::once(&path).chain(&self.env).cloned().collect();
        let config = ConfigBuilder::default()
            .env(env)
            .entrypoint(self.entrypoint.clone())
            .cmd(self.command.clone())
            .user(self.user.clone())
            .build()?;
        let rootfs = RootFsBuilder::default()
            .typ("layers")
            .diff_ids([layer.digest().to_string()])
            .build()?;
        let config = ImageConfigurationBuilder::default()
            .architecture(Arch::default())
            .os(Os::Linux)
            .config(config)
            .rootfs(rootfs)
            .history([])
            .build()?;
        let config = put(
            &blobs,
            MediaType::ImageConfig,
            &serde_json::to_vec(&config)?,
        )?;
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(config)
            .layers([layer])
            .build()?;
        let manifest = serde_json::to_vec(&manifest)?;
        let manifest = put(&blobs, MediaType::ImageManifest, &manifest)?;
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests([manifest])
            .build()?;
        index.to_file(layout.join("index.json"))?;
        let version = OciLayoutBuilder::default()
            .image_layout_version("1.0.0")
            .build()?;
        version.to_file(layout.join("oci-layout"))?;
        Ok(Image { layout })
    }

    /// All files of the image.
    fn files(&self) -> Result<Files> {
        let mut files = Files::default();
        for folder in [
            "bin",
            "etc",
            "tmp",
            "run",
            "usr/bin",
            "usr/local/bin",
            "root",
        ] {
            files.folder(Path::new(folder));
        }
        let passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n";
        files.put("etc/passwd", File::Bytes(passwd.into(), 0o644));
        files.put("bin/busybox", File::Host(BUSYBOX.into()));
        let names = Command::new(BUSYBOX)
            .arg("--list")
            .output()
            .with_context(|| format!("{BUSYBOX} (busybox-static)"))?
            .stdout;
        for name in String::from_utf8(names)?
            .lines()
            .filter(|name| *name != "busybox")
        {
            files.put(&format!("bin/{name}"), File::Link("busybox".into()));
        }
        for (host, path) in &self.files {
            files.put(path, File::Host(host.clone()));
        }
        for (path, text) in &self.scripts {
            // A script replaces the link to busybox of the same name.
            let text = format!("#!/bin/busybox sh\n{text}");
            files.put(path, File::Bytes(text.into(), 0o755));
        }
        Ok(files)
    }
}

/// One entry of a layer.
enum File {
    Folder,
    /// A file of the host, with its mode.
    Host(PathBuf),
    /// Content and mode.
    Bytes(Vec<u8>, u32),
    /// A symbolic link to this path.
    Link(PathBuf),
}

/// The entries of a layer by path, without a leading slash.
#[derive(Default)]
struct Files(BTreeMap<PathBuf, File>);

impl Files {
    /// Adds a file, and the folders that it is in.
    fn put(&mut self, path: &str, file: File) {
        let path = Path::new(path.trim_start_matches('/'));
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.0.insert(path.to_owned(), file);
    }

    fn folder(&mut self, path: &Path) {
        for folder in path.ancestors().filter(|path| *path != Path::new("")) {
            self.0.entry(folder.to_owned()).or_insert(File::Folder);
        }
    }

    /// The same bytes for the same entries: sorted, owned by root, without times.
    fn pack(&self) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, file) in &self.0 {
            let mut header = tar::Header::new_gnu();
            let mut content = Vec::new();
            match file {
                File::Folder => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(0o755);
                }
                File::Host(host) => {
                    let of = || format!("{} into an image", host.display());
                    let mode = fs::metadata(host).with_context(of)?.permissions().mode();
                    header.set_mode(mode & 0o7777);
                    content = fs::read(host).with_context(of)?;
                }
                File::Bytes(bytes, mode) => {
                    header.set_mode(*mode);
                    content.clone_from(bytes);
                }
                File::Link(to) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, to)?;
                    continue;
                }
            }
            header.set_size(u64::try_from(content.len())?);
            tar.append_data(&mut header, path, content.as_slice())?;
        }
        Ok(tar.into_inner()?)
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

/// Bytes in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes a blob under its digest and describes it.
fn put(blobs: &Path, kind: MediaType, bytes: &[u8]) -> Result<Descriptor> {
    let hex = hex(digest(&SHA256, bytes).as_ref());
    fs::write(blobs.join(&hex), bytes)?;
    let digest = format!("sha256:{hex}").parse::<Digest>()?;
    Ok(Descriptor::new(kind, u64::try_from(bytes.len())?, digest))
}
