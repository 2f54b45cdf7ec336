//! The node: driver, runtime and CDI, cgroup, MPS, kubelet, other plugins.
//!
//! Files alone, below a root, so that a container with the node's file system can ask and
//! a test can make one up.

use super::finding::Finding;
use agent::gpu::DriverBranch;
use std::path::{Path, PathBuf};

/// The first driver branch whose NVML has `nvmlDeviceGetComputeRunningProcesses_v3` and related
/// calls, by which the agent reads which processes hold memory. Limits for MPS clients are older.
const OLDEST_DRIVER: u32 = 510;
/// The first driver branch with which the agent offers the modes of MPS.
const OLDEST_MPS: u32 = DriverBranch::SEVERAL_USERS.0;

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    pub(super) root: &'a Path,
    pub(super) driver_root: &'a Path,
}

impl Node<'_> {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn driver(&self, path: &str) -> PathBuf {
        let below = self.driver_root.to_string_lossy();
        self.at(&below).join(path.trim_start_matches('/'))
    }

    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.at(path)).ok()
    }
}

/// Every check, in the order in which they build on each other.
pub(super) fn findings(node: &Node<'_>) -> Vec<Finding> {
    vec![
        driver(node),
        library(node),
        devices(node),
        mps(node),
        strange_mps(node),
        cgroup(node),
        kubelet(node),
        plugins(node),
        cdi(node),
        runtimes(node),
        hook(node),
        agent(node),
    ]
}

fn driver(node: &Node<'_>) -> Finding {
    let check = "driver";
    let Some(text) = node.text("proc/driver/nvidia/version") else {
        return Finding::broken(
            check,
            "no NVIDIA kernel module is loaded (/proc/driver/nvidia/version is not there)",
            "install the driver, or let the GPU operator do it, and load the module nvidia",
        );
    };
    let version = text
        .split_whitespace()
        .find(|word| word.split('.').count() >= 2 && word.starts_with(|c: char| c.is_ascii_digit()))
        .unwrap_or("of unknown version");
    let branch = version
        .split('.')
        .next()
        .and_then(|word| word.parse::<u32>().ok());
    match branch {
        Some(branch) if branch < OLDEST_DRIVER => Finding::broken(
            check,
            format!(
                "driver {version} does not tell the processes of a card as the agent asks for them"
            ),
            format!("use driver {OLDEST_DRIVER} or newer"),
        ),
        Some(branch) if branch < OLDEST_MPS => Finding::warning(
            check,
            format!(
                "the MPS server of driver {version} takes clients of one user only: modes mps and mps-isolated are not offered"
            ),
            format!("use driver {OLDEST_MPS} or newer, or share the cards in mode time-slicing"),
        ),
        Some(_) => Finding::fine(check, format!("driver {version}")),
        None => Finding::warning(check, format!("driver {version}"), "look at `nvidia-smi`"),
    }
}

fn library(node: &Node<'_>) -> Finding {
    let check = "NVML";
    let places = [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib64",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib",
    ];
    let found = places
        .iter()
        .map(|place| node.driver(place).join("libnvidia-ml.so.1"))
        .find(|path| path.exists());
    match found {
        Some(path) => Finding::fine(check, path.display().to_string()),
        None => Finding::broken(
            check,
            format!("no libnvidia-ml.so.1 below {}", node.driver("").display()),
            "set the driver's path: --driver-root here, --driver-root and --nvml of the agent (/run/nvidia/driver with the GPU operator)",
        ),
    }
}

fn devices(node: &Node<'_>) -> Finding {
    let missing: Vec<&str> = ["nvidiactl", "nvidia-uvm", "nvidia0"]
        .into_iter()
        .filter(|name| {
            !node.at("dev").join(name).exists() && !node.driver("dev").join(name).exists()
        })
        .collect();
    if missing.is_empty() {
        return Finding::fine("devices", "nvidiactl, nvidia-uvm and nvidia0 are there");
    }
    Finding::broken(
        "devices",
        format!("/dev lacks {}", missing.join(", ")),
        "run `nvidia-modprobe -u -c 0`, or `nvidia-smi` once",
    )
}

fn mps(node: &Node<'_>) -> Finding {
    let path = node.driver("usr/bin/nvidia-cuda-mps-control");
    if path.exists() {
        return Finding::fine("MPS", path.display().to_string());
    }
    Finding::broken(
        "MPS",
        format!("{} is not there", path.display()),
        "install the driver's compute utilities (nvidia-compute-utils); until then this node can offer whole GPUs only",
    )
}

/// A control daemon that Aliquot did not start.
fn strange_mps(node: &Node<'_>) -> Finding {
    let pipe = node.at("tmp/nvidia-mps/control");
    if pipe.exists() {
        return Finding::broken(
            "other MPS",
            "another MPS daemon has its pipe in /tmp/nvidia-mps: it uses cards that Aliquot manages",
            "end it: `echo quit | nvidia-cuda-mps-control`, and remove it from this node's startup",
        );
    }
    Finding::fine("other MPS", "no other MPS daemon")
}

fn cgroup(node: &Node<'_>) -> Finding {
    if node.at("sys/fs/cgroup/cgroup.controllers").exists() {
        return Finding::fine("cgroup", "v2");
    }
    if node.at("sys/fs/cgroup/devices").exists() {
        return Finding::warning(
            "cgroup",
            "v1: the driver's own memory limits (from r615 on) need v2",
            "boot with systemd.unified_cgroup_hierarchy=1; shares work without",
        );
    }
    Finding::unknown(
        "cgroup",
        "no cgroup is mounted at /sys/fs/cgroup",
        "mount it below --root",
    )
}

fn kubelet(node: &Node<'_>) -> Finding {
    let check = "kubelet";
    let missing: Vec<&str> = [
        "var/lib/kubelet/device-plugins/kubelet.sock",
        "var/lib/kubelet/pod-resources/kubelet.sock",
    ]
    .into_iter()
    .filter(|path| !node.at(path).exists())
    .collect();
    if missing.is_empty() {
        return Finding::fine(check, "both of its sockets are there");
    }
    Finding::broken(
        check,
        format!("/{} is not there", missing.join(" and /")),
        "start the kubelet; if its directory is another one, give the agent --kubelet-dir",
    )
}

/// Plugins that serve the same resource replace each other.
fn plugins(node: &Node<'_>) -> Finding {
    let check = "other plugins";
    let folder = node.at("var/lib/kubelet/device-plugins");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return Finding::unknown(
            check,
            format!("{} cannot be read", folder.display()),
            "run as root",
        );
    };
    let mut others: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with("sock") && name.contains("nvidia") && !name.contains("mig"))
        .collect();
    others.sort();
    if others.is_empty() {
        return Finding::fine(check, "no other plugin for GPUs");
    }
    Finding::broken(
        check,
        format!(
            "another plugin for GPUs has left {} (it may be gone)",
            others.join(", ")
        ),
        "with the GPU operator: kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false --overwrite; else remove NVIDIA's DaemonSet from this node",
    )
}

fn cdi(node: &Node<'_>) -> Finding {
    let check = "runtime and CDI";
    if node.at("etc/crio").exists() {
        return Finding::fine(check, "CRI-O: CDI is always on");
    }
    let Some(text) = node.text("etc/containerd/config.toml") else {
        return Finding::unknown(
            check,
            "no /etc/containerd/config.toml: CDI is on by default in containerd 2, and off in 1.7",
            "look at `containerd --version`; on 1.7 set enable_cdi = true",
        );
    };
    let version = setting(&text, "version").and_then(|text| text.parse::<u32>().ok());
    match setting(&text, "enable_cdi").as_deref() {
        Some("false") => Finding::broken(
            check,
            "containerd ignores CDI: enable_cdi = false",
            "set enable_cdi = true in /etc/containerd/config.toml and restart containerd",
        ),
        Some(_) => Finding::fine(check, "containerd, enable_cdi = true"),
        None if version.is_some_and(|version| version >= 3) => {
            Finding::fine(check, "containerd 2, which has CDI on")
        }
        None => Finding::warning(
            check,
            "containerd's configuration has version 2 or older and does not mention CDI: it is off in 1.7",
            "set enable_cdi = true under [plugins.\"io.containerd.grpc.v1.cri\"] and restart containerd",
        ),
    }
}

/// Runtimes that give GPUs to any container that sets a variable: a pod names any of them by
/// its class.
fn runtimes(node: &Node<'_>) -> Finding {
    let check = "runtimes";
    let nvidias: Vec<String> = runtime_names(node)
        .into_iter()
        .filter(|(_, program)| program.contains("nvidia-container-runtime"))
        .map(|(name, _)| name)
        .collect();
    if nvidias.is_empty() {
        return Finding::fine(check, "none of them is NVIDIA's");
    }
    let names = nvidias.join(", ");
    let toolkit = [
        "etc/nvidia-container-runtime/config.toml",
        "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
    ];
    let accepts = toolkit
        .iter()
        .filter_map(|path| node.text(path))
        .find_map(|text| {
            setting(
                &text,
                "accept-nvidia-visible-devices-envvar-when-unprivileged",
            )
        });
    // In every mode, `cdi` too, the toolkit takes the variable unless this says no.
    if accepts.as_deref() == Some("false") {
        return Finding::fine(
            check,
            format!("{names}: NVIDIA's, which does not read the variable"),
        );
    }
    let default = default_runtime(node).filter(|name| nvidias.contains(name));
    Finding::warning(
        check,
        match default {
            Some(default) => format!(
                "{default} is the default runtime and gives every GPU to a container whose image sets NVIDIA_VISIBLE_DEVICES"
            ),
            None => format!(
                "{names}: a container of that runtime class whose image sets NVIDIA_VISIBLE_DEVICES gets every GPU"
            ),
        },
        "set accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml; meanwhile list the classes of these runtimes in the policy aliquot-runtime-classes",
    )
}

/// The files of containerd or CRI-O, with the files that they import, in their order.
fn runtime_configurations(node: &Node<'_>) -> Vec<String> {
    let folder = |path: &str| {
        let mut files: Vec<PathBuf> = std::fs::read_dir(node.at(path))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|kind| kind == "toml" || kind == "conf")
            })
            .collect();
        files.sort();
        files
    };
    let mut files = vec![
        node.at("etc/containerd/config.toml"),
        node.at("etc/crio/crio.conf"),
    ];
    files.extend(folder("etc/containerd/conf.d"));
    files.extend(folder("etc/crio/crio.conf.d"));
    files
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .collect()
}

/// What runs where no class is named; a later file wins.
fn default_runtime(node: &Node<'_>) -> Option<String> {
    runtime_configurations(node)
        .iter()
        .filter_map(|text| {
            setting(text, "default_runtime_name").or_else(|| setting(text, "default_runtime"))
        })
        .next_back()
}

/// Every runtime of containerd's and CRI-O's tables, with its program.
fn runtime_names(node: &Node<'_>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for text in runtime_configurations(node) {
        let mut table = None;
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(header) = line.strip_prefix('[') {
                table = runtime_of(header.trim_end_matches(']'));
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            if let Some(name) = &table
                && ["BinaryName", "runtime_path"].contains(&key.trim())
            {
                let program = value.trim().trim_matches(['"', '\'']).to_owned();
                found.push((name.clone(), program));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The runtime that a table is of: `[...runtimes.NAME]` or `[...runtimes.NAME.options]`.
fn runtime_of(header: &str) -> Option<String> {
    let (_, rest) = header.rsplit_once("runtimes.")?;
    let name = rest.strip_suffix(".options").unwrap_or(rest);
    Some(name.trim_matches(['"', '\'']).to_owned())
}

fn hook(node: &Node<'_>) -> Finding {
    let path = node.at("var/lib/aliquot/bin/aliquot-hook");
    if path.exists() {
        return Finding::fine("hook", path.display().to_string());
    }
    Finding::warning(
        "hook",
        format!(
            "{} is not there: no agent has started here yet",
            path.display()
        ),
        "look at the agent's pod on this node; without the hook no share starts",
    )
}

fn agent(node: &Node<'_>) -> Finding {
    let offered = node
        .at("var/lib/kubelet/device-plugins/aliquot-share.sock")
        .exists();
    let mps = node.at("run/aliquot/mps.sock").exists();
    match (offered, mps) {
        (true, true) => Finding::fine("agent", "agent and MPS supervisor have their sockets"),
        (false, true) => Finding::warning(
            "agent",
            "the agent does not serve shares",
            "look at the log of the aliquot-agent pod on this node, and at `aliquot nodes -o wide`",
        ),
        (true, false) => Finding::broken(
            "agent",
            "the MPS supervisor does not answer",
            "look at the log of the aliquot-mps pod on this node",
        ),
        (false, false) => Finding::broken(
            "agent",
            "neither agent nor MPS supervisor runs here",
            "apply deploy/daemonset.yaml; the node needs the label aliquot.dev/agent=true",
        ),
    }
}

/// The value of the first `key = value` of a TOML text, without quotes. Tables are ignored: the
/// keys that are looked up have the same meaning in every table.
fn setting(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split('#').next()?.split_once('=')?;
        (name.trim() == key).then(|| value.trim().trim_matches(['"', '\'']).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    type Files<'a> = &'a [(&'a str, &'a str)];

    /// A node as it should be, with these files on top; a text of `-` takes a file away.
    fn states(files: &[(&str, &str)]) -> Vec<(&'static str, State)> {
        let root = tempfile::tempdir().unwrap();
        let good = [
            (
                "proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.44.01  Mon",
            ),
            ("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", ""),
            ("run/nvidia/driver/usr/bin/nvidia-cuda-mps-control", ""),
            ("dev/nvidiactl", ""),
            ("dev/nvidia-uvm", ""),
            ("dev/nvidia0", ""),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory"),
            ("var/lib/kubelet/device-plugins/kubelet.sock", ""),
            ("var/lib/kubelet/device-plugins/aliquot-share.sock", ""),
            ("var/lib/kubelet/pod-resources/kubelet.sock", ""),
            ("etc/containerd/config.toml", "version = 3\n"),
            ("var/lib/aliquot/bin/aliquot-hook", ""),
            ("run/aliquot/mps.sock", ""),
        ];
        for (path, text) in good.iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            if *text == "-" {
                std::fs::remove_file(path).unwrap();
            } else {
                std::fs::write(path, text).unwrap();
            }
        }
        let node = Node {
            root: root.path(),
            driver_root: Path::new("/run/nvidia/driver"),
        };
        let found = findings(&node);
        assert!(
            found
                .iter()
                .all(|finding| (finding.state == State::Fine) == finding.fix.is_empty())
        );
        let bad = found.iter().filter(|finding| finding.state != State::Fine);
        bad.map(|finding| (finding.check, finding.state)).collect()
    }

    #[test]
    fn a_node_as_it_should_be_has_no_finding() {
        assert_eq!(states(&[]), []);
    }

    #[test]
    fn each_fault_is_found_and_nothing_else() {
        use State::{Broken, Unknown, Warning};
        let old = "version = 2\n";
        let off = "[plugins.\"x\"]\n  enable_cdi = false # why\n";
        let table = "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.nvidia.options]\n  BinaryName = \"/usr/bin/nvidia-container-runtime\"\n";
        let nvidia = &format!("version = 3\ndefault_runtime_name = \"nvidia\"\n{table}");
        let beside = &format!("version = 3\ndefault_runtime_name = \"runc\"\n{table}");
        let runc =
            "version = 3\n[x.containerd.runtimes.runc.options]\nBinaryName = \"/usr/bin/runc\"\n";
        let crio = "[crio.runtime.runtimes.nvidia-cdi]\nruntime_path = \"/usr/bin/nvidia-container-runtime.cdi\"\n";
        let toolkit = "etc/nvidia-container-runtime/config.toml";
        let cdi = "mode = \"cdi\"\n";
        let strict = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n";
        let containerd = "etc/containerd/config.toml";
        let cases: &[(Files<'_>, &[(&str, State)])] = &[
            (
                &[("proc/driver/nvidia/version", "-")],
                &[("driver", Broken)],
            ),
            (
                &[("proc/driver/nvidia/version", "Kernel Module  495.29.05  x")],
                &[("driver", Broken)],
            ),
            (
                &[("proc/driver/nvidia/version", "Kernel Module  510.39.01  x")],
                &[("driver", Warning)],
            ),
            (
                &[("proc/driver/nvidia/version", "Kernel Module  550.163.01  x")],
                &[("driver", Warning)],
            ),
            (
                &[("proc/driver/nvidia/version", "Kernel Module  555.58.02  x")],
                &[],
            ),
            (
                &[("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", "-")],
                &[("NVML", Broken)],
            ),
            (&[("dev/nvidia-uvm", "-")], &[("devices", Broken)]),
            (
                &[("run/nvidia/driver/usr/bin/nvidia-cuda-mps-control", "-")],
                &[("MPS", Broken)],
            ),
            (&[("tmp/nvidia-mps/control", "")], &[("other MPS", Broken)]),
            (
                &[
                    ("sys/fs/cgroup/cgroup.controllers", "-"),
                    ("sys/fs/cgroup/devices/tasks", ""),
                ],
                &[("cgroup", Warning)],
            ),
            (
                &[("sys/fs/cgroup/cgroup.controllers", "-")],
                &[("cgroup", Unknown)],
            ),
            (
                &[("var/lib/kubelet/pod-resources/kubelet.sock", "-")],
                &[("kubelet", Broken)],
            ),
            (
                &[("var/lib/kubelet/device-plugins/nvidia-gpu.sock", "")],
                &[("other plugins", Broken)],
            ),
            (&[(containerd, "-")], &[("runtime and CDI", Unknown)]),
            (&[(containerd, old)], &[("runtime and CDI", Warning)]),
            (&[(containerd, off)], &[("runtime and CDI", Broken)]),
            (&[(containerd, runc)], &[]),
            (&[(containerd, nvidia)], &[("runtimes", Warning)]),
            (&[(containerd, beside)], &[("runtimes", Warning)]),
            (
                &[("etc/containerd/conf.d/99-nvidia.toml", table)],
                &[("runtimes", Warning)],
            ),
            // The toolkit's mode cdi takes the variable as well.
            (
                &[(containerd, beside), (toolkit, cdi)],
                &[("runtimes", Warning)],
            ),
            (&[(containerd, beside), (toolkit, strict)], &[]),
            (
                &[
                    (containerd, "-"),
                    ("etc/crio/crio.conf.d/99-nvidia.conf", crio),
                ],
                &[("runtimes", Warning)],
            ),
            (&[(containerd, "-"), ("etc/crio/crio.conf", "")], &[]),
            (
                &[("var/lib/aliquot/bin/aliquot-hook", "-")],
                &[("hook", Warning)],
            ),
            (&[("run/aliquot/mps.sock", "-")], &[("agent", Broken)]),
            (
                &[("var/lib/kubelet/device-plugins/aliquot-share.sock", "-")],
                &[("agent", Warning)],
            ),
        ];
        for (files, expected) in cases {
            assert_eq!(states(files), *expected, "{files:?}");
        }
    }
}
