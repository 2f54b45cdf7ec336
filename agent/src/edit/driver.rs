//! What of the driver a container needs: found under the driver root, or taken from
//! NVIDIA's own CDI spec where there is one.
//!
//! In: the driver root, as the runtime and as this process see it. Out: [`DriverFiles`].
//! Reads folders only. Must never: hand out a device node that was not asked for, or the
//! MPS programs, with which a tenant could drive its control pipe.

use cdi::{ContainerEdits, DeviceNode, Mount};
use driver_root::LIBRARIES;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// How NVIDIA's libraries begin.
const PREFIXES: [&str; 5] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-",
    "libnvcuvid.so",
    "libnvoptix.so",
];
/// How libraries and files begin that only programs need that draw: as NVIDIA's toolkit has
/// them for its capabilities `graphics` and `display`.
const GRAPHICS: [&str; 16] = [
    "libEGL_nvidia.so",
    "libGLESv1_CM_nvidia.so",
    "libGLESv2_nvidia.so",
    "libGLX_nvidia.so",
    "libglxserver_nvidia.so",
    "nvidia_drv.so",
    "libnvidia-egl-",
    "libnvidia-eglcore.so",
    "libnvidia-glcore.so",
    "libnvidia-glsi.so",
    "libnvidia-glvkspirv.so",
    "libnvidia-vulkan-producer.so",
    "libnvidia-fbc.so",
    "libnvidia-tls.so",
    "nvidia_icd",
    "nvidia_layers.json",
];
/// And parts of paths that hold nothing else.
const GRAPHICS_FOLDERS: [&str; 3] = ["/egl_external_platform.d/", "/glvnd/", "/gbm/"];
/// Programs, relative to the root. The MPS ones are left out on purpose.
const PROGRAMS: [&str; 2] = ["usr/bin/nvidia-smi", "usr/bin/nvidia-debugdump"];
/// Sockets, relative to the root.
const SOCKETS: [&str; 1] = ["run/nvidia-persistenced/socket"];
/// Device nodes that every card needs, relative to the root.
const COMMON_NODES: [&str; 3] = ["dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-uvm-tools"];
/// As NVIDIA mounts its files.
const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// The files found, by name; independent of any card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverFiles {
    /// As the runtime sees the root.
    root: PathBuf,
    /// Relative to the root, sorted.
    mounts: Vec<PathBuf>,
    /// Relative to the root.
    nodes: Vec<PathBuf>,
}

impl DriverFiles {
    /// Looks under `here`, which the runtime sees as `root`. Missing folders are empty ones.
    ///
    /// # Errors
    /// A folder that exists and cannot be listed.
    pub fn find(root: &Path, here: &Path) -> io::Result<Self> {
        let mut mounts: Vec<PathBuf> = Vec::new();
        for folder in LIBRARIES {
            let entries = match std::fs::read_dir(here.join(folder)) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let name = entry?.file_name();
                let text = name.to_string_lossy();
                // `.so` alone is for compilers; `.so.1` is what a loader asks for.
                if PREFIXES.iter().any(|p| text.starts_with(p)) && text.contains(".so.") {
                    mounts.push(Path::new(folder).join(&name));
                }
            }
        }
        let fixed = PROGRAMS.iter().chain(&SOCKETS).map(PathBuf::from);
        mounts.extend(fixed.filter(|path| here.join(path).exists()));
        mounts.sort();
        let nodes = COMMON_NODES.iter().map(PathBuf::from);
        Ok(Self {
            root: root.to_owned(),
            mounts,
            nodes: nodes.filter(|path| here.join(path).exists()).collect(),
        })
    }

    /// The edits for cards with these minors, and for slices with these capabilities of them.
    pub fn edits(&self, minors: &BTreeSet<u32>, capabilities: &[u32]) -> ContainerEdits {
        let cards = minors
            .iter()
            .map(|n| PathBuf::from(format!("dev/nvidia{n}")));
        let capabilities = capabilities
            .iter()
            .map(|n| PathBuf::from(format!("dev/nvidia-caps/nvidia-cap{n}")));
        let cards = cards.chain(capabilities);
        ContainerEdits {
            device_nodes: cards
                .chain(self.nodes.iter().cloned())
                .map(|path| DeviceNode {
                    path: text(&Path::new("/").join(&path)),
                    host_path: text(&self.root.join(&path)),
                    permissions: "rw".to_owned(),
                    ..DeviceNode::default()
                })
                .collect(),
            mounts: self
                .mounts
                .iter()
                .map(|path| {
                    let mut options = READ_ONLY.map(str::to_owned).to_vec();
                    if SOCKETS.iter().any(|socket| path == Path::new(socket)) {
                        options.push("noexec".to_owned());
                    }
                    Mount {
                        host_path: text(&self.root.join(path)),
                        container_path: text(&Path::new("/").join(path)),
                        options,
                        ..Mount::default()
                    }
                })
                .collect(),
            ..ContainerEdits::default()
        }
    }
}

/// Minors of the capability nodes of an instance and its compute instance, by the driver's
/// `mig-minors` file. `None`: the file does not list them.
pub fn capabilities(
    file: &str,
    card: u32,
    gpu_instance: u32,
    compute_instance: u32,
) -> Option<[u32; 2]> {
    let minor = |name: String| {
        let mut lines = file.lines().filter_map(|line| line.split_once(' '));
        let (_, minor) = lines.find(|(known, _)| *known == name)?;
        minor.trim().parse().ok()
    };
    let instance = format!("gpu{card}/gi{gpu_instance}");
    Some([
        minor(format!("{instance}/access"))?,
        minor(format!("{instance}/ci{compute_instance}/access"))?,
    ])
}

/// The hook of NVIDIA's container toolkit that sets the driver's memory limit.
const LIMIT_HOOK: &str = "apply-cuda-memory-limits";

/// NVIDIA's own edits, less what a tenant must not have: the MPS programs, another daemon's pipe
/// directory that the toolkit mounts wherever it finds it, and the toolkit's hook that limits memory
/// by variables of the container, which its tenant sets.
pub fn trimmed(mut edits: ContainerEdits) -> ContainerEdits {
    edits.mounts.retain(|mount| {
        !mount.container_path.ends_with("/nvidia-cuda-mps-control")
            && !mount.container_path.ends_with("/nvidia-cuda-mps-server")
            && !mount.container_path.starts_with("/tmp/nvidia-mps")
    });
    edits
        .hooks
        .retain(|hook| !hook.args.iter().any(|word| word == LIMIT_HOOK));
    edits
}

/// The same without what draws, for shares: no limit of MPS counts what a graphics context
/// holds. A tenant that brings such libraries itself is the watchdog's.
pub fn without_graphics(mut edits: ContainerEdits) -> ContainerEdits {
    edits.mounts.retain(|mount| {
        let path = mount.container_path.as_str();
        let name = path.rsplit('/').next().unwrap_or_default();
        !GRAPHICS.iter().any(|prefix| name.starts_with(prefix))
            && !GRAPHICS_FOLDERS.iter().any(|part| path.contains(part))
    });
    edits
        .device_nodes
        .retain(|node| !node.path.starts_with("/dev/dri/") && node.path != "/dev/nvidia-modeset");
    edits
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cdi::Hook;

    #[test]
    fn what_is_there_is_mounted_without_the_roots_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        for file in [
            "usr/lib64/libcuda.so.570.1",
            "usr/lib64/libcuda.so.1",
            "usr/lib64/libcuda.so",
            "usr/lib64/libc.so.6",
            "usr/lib64/libnvidia-ml.so.1",
            "usr/bin/nvidia-smi",
            "usr/bin/nvidia-cuda-mps-control",
            "run/nvidia-persistenced/socket",
            "dev/nvidia0",
            "dev/nvidia1",
            "dev/nvidiactl",
            "dev/nvidia-uvm",
        ] {
            let path = here.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let files = DriverFiles::find(Path::new("/run/driver"), here).unwrap();
        let edits = files.edits(&BTreeSet::from([1]), &[]);
        let nodes: Vec<_> = edits
            .device_nodes
            .iter()
            .map(|node| (node.path.as_str(), node.host_path.as_str()))
            .collect();
        assert_eq!(
            nodes,
            [
                ("/dev/nvidia1", "/run/driver/dev/nvidia1"),
                ("/dev/nvidiactl", "/run/driver/dev/nvidiactl"),
                ("/dev/nvidia-uvm", "/run/driver/dev/nvidia-uvm"),
            ]
        );
        let mounts: Vec<_> = edits
            .mounts
            .iter()
            .map(|m| m.container_path.as_str())
            .collect();
        assert_eq!(
            mounts,
            [
                "/run/nvidia-persistenced/socket",
                "/usr/bin/nvidia-smi",
                "/usr/lib64/libcuda.so.1",
                "/usr/lib64/libcuda.so.570.1",
                "/usr/lib64/libnvidia-ml.so.1",
            ]
        );
        assert_eq!(edits.mounts[1].host_path, "/run/driver/usr/bin/nvidia-smi");
    }

    #[test]
    fn tenants_do_not_get_the_means_to_drive_mps() {
        let mount = |path: &str| Mount {
            container_path: path.to_owned(),
            ..Mount::default()
        };
        let edits = trimmed(ContainerEdits {
            mounts: vec![
                mount("/usr/bin/nvidia-cuda-mps-control"),
                mount("/usr/bin/nvidia-cuda-mps-server"),
                mount("/tmp/nvidia-mps"),
                mount("/usr/bin/nvidia-smi"),
            ],
            ..ContainerEdits::default()
        });
        assert_eq!(edits.mounts, [mount("/usr/bin/nvidia-smi")]);
    }

    #[test]
    fn a_tenants_variables_set_no_limit_through_nvidias_hook() {
        let hook = |name: &str| Hook {
            hook_name: "createContainer".to_owned(),
            path: "/usr/bin/nvidia-cdi-hook".to_owned(),
            args: ["nvidia-ctk", "hook", name, "--gpu-id", "GPU-0"]
                .map(str::to_owned)
                .into(),
            ..Hook::default()
        };
        let edits = trimmed(ContainerEdits {
            hooks: vec![hook("apply-cuda-memory-limits"), hook("update-ldcache")],
            ..ContainerEdits::default()
        });
        assert_eq!(edits.hooks, [hook("update-ldcache")]);
    }

    #[test]
    fn a_share_is_not_given_what_draws() {
        let mount = |path: &str| Mount {
            container_path: path.to_owned(),
            ..Mount::default()
        };
        let edits = without_graphics(ContainerEdits {
            mounts: vec![
                mount("/usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.570.1"),
                mount("/usr/lib/x86_64-linux-gnu/libcuda.so.570.1"),
                mount("/usr/share/vulkan/icd.d/nvidia_icd.json"),
                mount("/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
            ],
            device_nodes: ["/dev/nvidia0", "/dev/nvidia-modeset", "/dev/dri/card1"]
                .map(|path| DeviceNode {
                    path: path.to_owned(),
                    ..DeviceNode::default()
                })
                .into(),
            ..ContainerEdits::default()
        });
        let cuda = mount("/usr/lib/x86_64-linux-gnu/libcuda.so.570.1");
        assert_eq!(edits.mounts, [cuda]);
        assert_eq!(edits.device_nodes.len(), 1);
        assert_eq!(edits.device_nodes[0].path, "/dev/nvidia0");
    }
}
