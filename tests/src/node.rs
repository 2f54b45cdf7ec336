//! containerd and the kubelet.
//!
//! In: the built daemons, the registry, a kubeconfig. Out: a node named [`NAME`] that runs pods.
//! Must never use the host's runtime: every path and socket is on the cluster's own mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::net::UnixStream;

use crate::daemon::{Command, Daemon};
use crate::machine::Machine;
use crate::wait::{Seen, until};
use crate::{machine, registry, unpinned};

/// The node's name.
pub const NAME: &str = "n1";
/// The sandbox image; the registry serves it like any other.
pub const PAUSE: &str = "registry.local/pause:3";
/// The folder in which the kubelet looks for the files of static pods.
pub const STATIC_PODS: &str = "/var/lib/kubelet/static-pods";
/// The file in which the kubelet records its devices.
pub const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
/// Where containerd listens.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// Well above the second that it takes on a busy machine.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);

/// The running node.
#[derive(Debug)]
pub struct Node {
    pub containerd: Daemon,
    pub kubelet: Daemon,
}

/// What the node's daemons need to know.
#[derive(Debug)]
pub struct Place<'a> {
    pub bin: &'a Path,
    pub state: &'a Path,
    pub logs: &'a Path,
    /// Kubeconfig of the kubelet.
    pub kubeconfig: PathBuf,
    /// Name of this run's cgroup folder.
    pub cgroup: String,
}

impl Node {
    /// Starts both. A kubelet whose runtime does not listen yet ends.
    pub async fn start(place: &Place<'_>) -> Result<Self> {
        let containerd = start_containerd(place)?;
        until("containerd listens", LISTENS_WITHIN, || async {
            let tried = UnixStream::connect(SOCKET).await;
            Ok(Seen::when(tried.is_ok(), format!("{:?}", tried.err())))
        })
        .await?;
        let kubelet = start_kubelet(place)?;
        Ok(Self {
            containerd,
            kubelet,
        })
    }
}

impl Machine for Node {
    fn alive(&mut self) -> Result<()> {
        self.containerd.alive()?;
        self.kubelet.alive()
    }
}

fn start_containerd(place: &Place<'_>) -> Result<Daemon> {
    let folder = place.state.join("containerd");
    let (networks, mirrors) = (folder.join("networks"), folder.join("mirrors"));
    fs::create_dir_all(&networks)?;
    fs::create_dir_all(mirrors.join("_default"))?;
    fs::write(
        mirrors.join("_default/hosts.toml"),
        mirror_of_all(registry::ADDRESS),
    )?;
    let network = pod_network(&folder.join("addresses"))?;
    fs::write(networks.join("pods.conflist"), network)?;

    let unpinned = unpinned::write_runtime(&folder)?;
    let config = folder.join("config.toml");
    fs::write(
        &config,
        format!(
            r#"version = 3
root = "{root}"
state = "/run/containerd/state"

[grpc]
address = "{SOCKET}"

[plugins.'io.containerd.internal.v1.opt']
path = "{opt}"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "{mirrors}"

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE the sandbox's oom_score_adj cannot be lowered, and runc dies
# of it with a message about a pipe.
restrict_oom_score_adj = true
cdi_spec_dirs = ["/var/run/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{networks}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{unpinned}]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{unpinned}.options]
SystemdCgroup = false
BinaryName = "{unpinned_runtime}"
"#,
            unpinned = unpinned::RUNTIME_CLASS,
            unpinned_runtime = unpinned.display(),
            root = folder.join("root").display(),
            opt = folder.join("opt").display(),
            mirrors = mirrors.display(),
            networks = networks.display(),
        ),
    )?;
    Command::new("containerd", place.bin.join("containerd"))
        .arg("--config")
        .arg(config)
        // It finds its shim there.
        .env("PATH", path_with(place.bin))
        .start(place.logs)
}

/// containerd's word that this registry serves what any other would.
pub(crate) fn mirror_of_all(registry: &str) -> String {
    format!(
        "server = \"http://{registry}\"\n[host.\"http://{registry}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    )
}

/// The configuration of the pods' network, which keeps in `addresses` who has which address.
pub(crate) fn pod_network(addresses: &Path) -> Result<Vec<u8>> {
    let network = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": true,
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": addresses,
                "ranges": [[{ "subnet": machine::POD_NETWORK }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    });
    Ok(serde_json::to_vec(&network)?)
}

fn start_kubelet(place: &Place<'_>) -> Result<Daemon> {
    let folder = place.state.join("kubelet");
    fs::create_dir_all(&folder)?;
    fs::create_dir_all(STATIC_PODS)?;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", place.cgroup),
        "failSwapOn": false,
        "staticPodPath": STATIC_PODS,
        // 110 by default; one claim has more.
        "maxPods": 250,
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "resolvConf": "",
        "evictionHard": { "memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi" },
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
        // The time until a certificate that an operator has written is in its volume.
        "syncFrequency": "5s",
        "volumePluginDir": folder.join("plugins"),
        "registryPullQPS": 0,
        "serializeImagePulls": false,
        "shutdownGracePeriod": "0s",
    });
    let path = folder.join("config.json");
    fs::write(&path, serde_json::to_vec_pretty(&config)?)?;
    Command::new("kubelet", place.bin.join("kubelet"))
        .flag("--config", path)
        .flag("--kubeconfig", &place.kubeconfig)
        .flag("--hostname-override", NAME)
        .flag("--node-ip", machine::ADDRESS)
        .flag("--root-dir", "/var/lib/kubelet")
        .flag("--cert-dir", folder.join("certificates"))
        .env("PATH", path_with(place.bin))
        .start(place.logs)
}

fn path_with(bin: &Path) -> String {
    format!(
        "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        bin.display()
    )
}
