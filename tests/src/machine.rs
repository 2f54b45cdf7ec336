//! The inside of the namespaces before any daemon runs: what a machine gives its node.
//!
//! In: the work folder. Out: a bridge with the node's address, private folders under every fixed
//! path that a daemon writes to, a cgroup root. Must never run outside the namespaces: it mounts
//! over `/run`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};

use crate::namespace::{Work, cgroup_hierarchies};

/// The node's address, reachable from every pod.
pub const ADDRESS: &str = "10.99.0.1";
/// The first address of the Services, at which every pod expects the API server.
pub const API_SERVICE: &str = "10.96.0.1";
/// The processors that the node counts: users' manifests ask for more than a test
/// machine has, and nothing here computes.
const PROCESSORS: usize = 64;
/// The pods' network.
pub const POD_NETWORK: &str = "10.98.0.0/24";

/// Directories that daemons always write to, whatever their flags: each gets a file system of its
/// own, so that the host's are neither seen nor touched.
const PRIVATE: [&str; 5] = [
    // The device-plugin folder is a constant below it, whatever the kubelet's root is.
    "/var/lib/kubelet",
    "/var/lib/aliquot",
    "/var/lib/cni",
    "/var/log/containers",
    "/var/log/pods",
];

/// The machine on which the pods run: namespaces of the host, or a virtual machine.
pub trait Machine {
    /// Returns an error if a daemon of the machine has ended.
    fn alive(&mut self) -> Result<()>;
}

/// Makes the machine.
pub fn prepare(work: &Work) -> Result<()> {
    mount_private(work)?;
    whole_sysfs()?;
    device_folder(work)?;
    processors()?;
    network()?;
    cgroup_root(&work.cgroup())
}

fn mount_private(work: &Work) -> Result<()> {
    tmpfs(&work.state())?;
    // Folders that are missing on the host can only be made on a layer above it.
    for parent in ["/var/lib", "/var/log"] {
        overlay(
            Path::new(parent),
            &work
                .state()
                .join("layers")
                .join(parent.trim_start_matches('/')),
        )?;
    }
    // Sockets of the host's own containerd, NRI and CDI files live here: hidden, not layered.
    tmpfs(Path::new("/run"))?;
    if !fs::symlink_metadata("/var/run")?.is_symlink() {
        tmpfs(Path::new("/var/run"))?;
    }
    for folder in PRIVATE {
        fs::create_dir_all(folder).with_context(|| folder.to_owned())?;
        tmpfs(Path::new(folder))?;
    }
    for folder in ["/run/aliquot", "/run/cdi", "/run/containerd"] {
        fs::create_dir_all(folder)?;
    }
    // One of its own, which a claim can fill.
    tmpfs(Path::new("/run/cdi"))?;
    // The kubelet and the runtime hand mounts to containers and back.
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_SHARED,
        None::<&str>,
    )
    .context("make / shared")
}

/// An empty file system over a folder.
pub(crate) fn tmpfs(target: &Path) -> Result<()> {
    mount(
        Some("tmpfs"),
        target,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )
    .with_context(|| format!("tmpfs on {}", target.display()))
}

fn overlay(target: &Path, layer: &Path) -> Result<()> {
    let (upper, scratch) = (layer.join("upper"), layer.join("work"));
    fs::create_dir_all(&upper)?;
    fs::create_dir_all(&scratch)?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        target.display(),
        upper.display(),
        scratch.display()
    );
    mount(
        Some("overlay"),
        target,
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .with_context(|| format!("overlay on {}", target.display()))
}

fn network() -> Result<()> {
    let address = format!("{ADDRESS}/24");
    let api_service = format!("addr add {API_SERVICE}/32 dev lo");
    for line in [
        "link set lo up",
        &api_service,
        // The API server and the kubelet look for a default route and for an address
        // that is not loopback. A bridge serves where the kernel has no `dummy`.
        "link add n1 type bridge",
        &format!("addr add {address} dev n1"),
        "link set n1 up",
        "route add default dev n1",
    ] {
        let status = Command::new("ip")
            .args(line.split(' '))
            .status()
            .context("ip (iproute2)")?;
        if !status.success() {
            bail!("ip {line}: {status}");
        }
    }
    Ok(())
}

/// sysfs once more, with nothing mounted over any of it: only where there is such a one may
/// a container mount its own in a user namespace (`mount_too_revealing` in the kernel).
fn whole_sysfs() -> Result<()> {
    const NOTHING: Option<&str> = None;
    let whole = Path::new("/run/sys");
    fs::create_dir_all(whole)?;
    mount(Some("/sys"), whole, NOTHING, MsFlags::MS_BIND, NOTHING).context("/sys on /run/sys")?;
    // What is mounted over the other one does not come along.
    mount(NOTHING, whole, NOTHING, MsFlags::MS_PRIVATE, NOTHING).context("make /run/sys private")
}

/// `/dev` as it is, with a layer of its own for what a claim adds. Terminals stay.
fn device_folder(work: &Work) -> Result<()> {
    const NOTHING: Option<&str> = None;
    let (terminals, aside) = (Path::new("/dev/pts"), Path::new("/run/pts"));
    let bind = |from: &Path, to: &Path| {
        mount(Some(from), to, NOTHING, MsFlags::MS_BIND, NOTHING)
            .with_context(|| to.display().to_string())
    };
    fs::create_dir_all(aside)?;
    bind(terminals, aside)?;
    overlay(Path::new("/dev"), &work.state().join("layers/dev"))?;
    bind(aside, terminals)?;
    tmpfs(Path::new("/dev/shm"))
}

/// Shows the kubelet [`PROCESSORS`] processors on one memory node, where it counts them.
///
/// It writes their numbers into cgroups, which take only those that exist: so each that
/// exists is there under several names, with more and more zeros before its number.
fn processors() -> Result<()> {
    let node = Path::new("/sys/devices/system/node");
    // A machine that does not publish its nodes is counted differently.
    if !node.exists() {
        return Ok(());
    }
    let first = node.join("node0");
    let memory = fs::read(first.join("meminfo"));
    let mut real: Vec<usize> = fs::read_dir(&first)?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.strip_prefix("cpu")?.parse().ok()
        })
        .collect();
    real.sort_unstable();
    if real.is_empty() {
        return Ok(());
    }
    tmpfs(node)?;
    for core in 0..PROCESSORS {
        let (zeros, number) = ("0".repeat(core / real.len()), real[core % real.len()]);
        let topology = first.join(format!("cpu{zeros}{number}/topology"));
        fs::create_dir_all(&topology)?;
        fs::write(topology.join("core_id"), format!("{core}\n"))?;
        fs::write(topology.join("physical_package_id"), "0\n")?;
    }
    fs::write(first.join("distance"), "10\n")?;
    fs::create_dir(first.join("hugepages"))?;
    if let Ok(memory) = memory {
        fs::write(first.join("meminfo"), memory)?;
    }
    Ok(())
}

/// Makes the folder that the kubelet gets as its cgroup root, in every hierarchy.
fn cgroup_root(name: &str) -> Result<()> {
    for hierarchy in cgroup_hierarchies() {
        // cgroup v2: a child has the controllers that its parent hands down.
        let controllers =
            fs::read_to_string(hierarchy.join("cgroup.controllers")).unwrap_or_default();
        for controller in controllers.split_whitespace() {
            // One that cannot be handed down is missed, and named, by the kubelet.
            let _ = fs::write(
                hierarchy.join("cgroup.subtree_control"),
                format!("+{controller}"),
            );
        }
        let root = hierarchy.join(name);
        fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        // cgroup v1: a cpuset begins empty and takes no process until it is filled.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = fs::read_to_string(hierarchy.join(file))
                && root.join(file).exists()
                && !hierarchy.join("cgroup.controllers").exists()
            {
                fs::write(root.join(file), value).with_context(|| file.to_owned())?;
            }
        }
    }
    Ok(())
}
