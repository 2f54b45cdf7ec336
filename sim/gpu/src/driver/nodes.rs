//! The driver root: device nodes, the NVML stand-in, the programs.
//!
//! Owns what the driver puts into its root. In: the root and the cards. Out: [`Nodes`], which
//! identifies a presented descriptor. With root the nodes are character devices with NVIDIA's
//! numbers, without it plain files, distinguished by their inode. Must never: replace a file that
//! is not the simulation's own.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::hardware::mig as hardware;
use crate::paths::Root;

/// Major of cards and `nvidiactl`.
pub const MAJOR: u64 = 195;
/// Major of `nvidia-uvm`; a real kernel hands out a free one.
pub const UVM_MAJOR: u64 = 510;
/// Major of `nvidia-caps`; a real kernel hands out a free one.
pub const CAPS_MAJOR: u64 = 507;
const CONTROL_MINOR: u64 = 255;

/// What a device node represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A card, by minor.
    Card(u32),
    /// `nvidiactl`.
    Control,
    /// `nvidia-uvm`.
    Uvm,
    /// `nvidia-uvm-tools`.
    UvmTools,
    /// A MIG capability, `nvidia-caps/nvidia-cap<minor>`.
    Capability(u32),
}

/// What `stat` says about a presented descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFileStat {
    character: bool,
    rdev: u64,
    dev: u64,
    ino: u64,
}

/// The nodes of one driver root.
#[derive(Debug)]
pub struct Nodes {
    plain: Option<BTreeMap<(u64, u64), Node>>,
    known: Vec<Node>,
}

impl DeviceFileStat {
    /// Checks a descriptor that this process holds.
    pub fn of(raw: i32) -> io::Result<Self> {
        let meta = std::fs::metadata(format!("/proc/self/fd/{raw}"))?;
        Ok(Self {
            character: meta.file_type().is_char_device(),
            rdev: meta.rdev(),
            dev: meta.dev(),
            ino: meta.ino(),
        })
    }
}

impl Nodes {
    /// Makes the nodes: character devices where the kernel lets us and `plain`
    /// does not forbid it, else plain files. The cards in `mig` can have instances: all their
    /// capability nodes are made, and the file that says which is which.
    pub fn make(root: &Root, cards: u32, mig: &[u32], plain_wanted: bool) -> io::Result<Self> {
        let dev = root.dev();
        std::fs::create_dir_all(&dev)?;
        let mut wanted: Vec<(String, Node)> = (0..cards)
            .map(|n| (format!("nvidia{n}"), Node::Card(n)))
            .collect();
        wanted.push(("nvidiactl".to_owned(), Node::Control));
        wanted.push(("nvidia-uvm".to_owned(), Node::Uvm));
        wanted.push(("nvidia-uvm-tools".to_owned(), Node::UvmTools));
        if !mig.is_empty() {
            std::fs::create_dir_all(dev.join("nvidia-caps"))?;
            let minors = root.path().join("proc/driver/nvidia-caps/mig-minors");
            make_parent(&minors)?;
            std::fs::write(minors, hardware::minors_file(cards))?;
        }
        for card in mig {
            for (id, compute) in
                (0..hardware::INSTANCE_IDS).flat_map(|id| [(id, None), (id, Some(0))])
            {
                let minor = hardware::capability_minor(*card, id, compute);
                let name = format!("nvidia-caps/nvidia-cap{minor}");
                wanted.push((name, Node::Capability(minor)));
            }
        }
        let mut plain = BTreeMap::new();
        for (name, node) in &wanted {
            let path = dev.join(name);
            let (major, minor) = numbers(*node);
            let device = makedev(major, minor);
            let there = what_is_at(&path, device)?;
            let mut is_device = there == Some(Kind::Device) && !plain_wanted;
            if !is_device && !plain_wanted {
                if there.is_some() {
                    std::fs::remove_file(&path)?;
                }
                let mode = Mode::from_bits_truncate(0o666);
                is_device = mknod(&path, SFlag::S_IFCHR, mode, device).is_ok();
            } else if plain_wanted && there == Some(Kind::Device) {
                std::fs::remove_file(&path)?;
            }
            if !is_device && !path.exists() {
                std::fs::write(&path, [])?;
            }
            // The umask removes write bits that all users need.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
            if !is_device {
                let meta = std::fs::metadata(&path)?;
                plain.insert((meta.dev(), meta.ino()), *node);
            }
        }
        Ok(Self {
            plain: (!plain.is_empty()).then_some(plain),
            known: wanted.into_iter().map(|(_, node)| node).collect(),
        })
    }

    /// What a descriptor is, if it is one of our nodes.
    pub fn identify(&self, presented: DeviceFileStat) -> Option<Node> {
        if let Some(plain) = &self.plain {
            return plain.get(&(presented.dev, presented.ino)).copied();
        }
        if !presented.character {
            return None;
        }
        let mut nodes = self.known.iter().copied();
        nodes.find(|node| {
            let (major, minor) = numbers(*node);
            presented.rdev == makedev(major, minor)
        })
    }

    /// True where nodes are character devices, and device cgroups apply.
    pub fn are_devices(&self) -> bool {
        self.plain.is_none()
    }
}

/// Major and minor of a node.
pub fn numbers(node: Node) -> (u64, u64) {
    match node {
        Node::Card(minor) => (MAJOR, u64::from(minor)),
        Node::Control => (MAJOR, CONTROL_MINOR),
        Node::Uvm => (UVM_MAJOR, 0),
        Node::UvmTools => (UVM_MAJOR, 1),
        Node::Capability(minor) => (CAPS_MAJOR, u64::from(minor)),
    }
}

/// What an earlier simulation left at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Device,
    Plain,
}

/// Checks a path; anything that is not the simulation's own is an error.
fn what_is_at(path: &Path, rdev: u64) -> io::Result<Option<Kind>> {
    let meta = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if meta.file_type().is_char_device() && meta.rdev() == rdev {
        return Ok(Some(Kind::Device));
    }
    if meta.is_file() && meta.len() == 0 {
        return Ok(Some(Kind::Plain));
    }
    Err(io::Error::other(format!(
        "{} is there and not ours",
        path.display()
    )))
}

/// Puts the NVML stand-in and the programs where a driver's installer would.
/// `binary` is the multi-call program.
pub fn install(root: &Root, nvml: Option<&Path>, binary: Option<&Path>) -> io::Result<()> {
    if let Some(nvml) = nvml {
        let target = root.nvml();
        make_parent(&target)?;
        let temporary = target.with_extension("new");
        std::fs::copy(nvml, &temporary)?;
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o755))?;
        std::fs::rename(&temporary, &target)?;
    }
    if let Some(binary) = binary {
        std::fs::create_dir_all(root.bin())?;
        for name in [
            "nvidia-smi",
            "nvidia-cuda-mps-control",
            "nvidia-cuda-mps-server",
        ] {
            let target = root.bin().join(name);
            let temporary = root.bin().join(format!(".{name}.new"));
            let _ = std::fs::remove_file(&temporary);
            // A hard link works from inside a chroot too; other file systems get a symbolic one.
            if std::fs::hard_link(binary, &temporary).is_err() {
                symlink(binary, &temporary)?;
            }
            std::fs::rename(&temporary, &target)?;
        }
    }
    Ok(())
}

/// Makes the folder of a path, traversable by all users.
pub fn make_parent(path: &Path) -> io::Result<PathBuf> {
    let parent = path.parent().map(Path::to_owned).unwrap_or_default();
    std::fs::create_dir_all(&parent)?;
    Ok(parent)
}
