//! Every path and flag of the agent and of its MPS supervisor.
//!
//! Flags are for wiring; policy is the admin's, in `GpuNode.spec`. Every path can be moved,
//! so that several agents fit into one process and none of them needs root.

use crate::gpu::MigStrategy;
use crate::nvml::settings::LONGEST_LOOK;
use api::Mib;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Wiring of one agent. Both subcommands read the same flags.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Config {
    /// Name of this node's Node object.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// OpenTelemetry collector that receives spans by OTLP over gRPC, such as
    /// `http://collector:4317`; no spans when unset.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
    /// Namespace of the trust `ConfigMap`.
    #[arg(long, default_value = proto::names::NAMESPACE)]
    pub namespace: String,

    /// The kubelet's root; holds `device-plugins/` and `pod-resources/`.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Directory of Aliquot's CDI files; the runtime must read it.
    #[arg(long, default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Directories with NVIDIA's own CDI spec, lowest priority first.
    #[arg(long, value_delimiter = ',', default_value = "/etc/cdi,/var/run/cdi")]
    pub nvidia_cdi_dirs: Vec<PathBuf>,
    /// Aliquot's own directory: MPS directories, share files, proofs, the MPS service's socket.
    #[arg(long, default_value = "/run/aliquot")]
    pub run_dir: PathBuf,
    /// `/proc` of the host's pid namespace.
    #[arg(long, default_value = "/proc")]
    pub proc_root: PathBuf,
    /// `/sys` of the host: which CPUs each NUMA zone has.
    #[arg(long, default_value = "/sys")]
    pub sys_root: PathBuf,

    /// The driver's files, as the runtime sees them: device nodes, libraries, binaries.
    #[arg(long, default_value = "/")]
    pub driver_root: PathBuf,
    /// Path of the driver root in this process, if it differs.
    #[arg(long)]
    pub driver_root_here: Option<PathBuf>,
    /// The NVML library: a path in this process, or a file name that is looked for in the library
    /// folders of the driver root.
    #[arg(long, default_value = "libnvidia-ml.so.1")]
    pub nvml: PathBuf,
    /// Time between two full readings of all cards, milliseconds; at most 1000.
    #[arg(long, default_value_t = 1000)]
    pub nvml_interval_ms: u64,

    /// Time between two samples of the processes on cards that have shares, milliseconds.
    #[arg(long, default_value_t = 100)]
    pub watchdog_interval_ms: u64,
    /// MiB by which the driver's figure for a process may exceed what its limit counts.
    #[arg(long, default_value_t = 16)]
    pub watchdog_slack_mib: u64,

    /// The hook's binary in the agent's image, copied to `--hook-path` at start. Not copied when unset.
    #[arg(long)]
    pub hook_binary: Option<PathBuf>,
    /// Where the runtime finds the hook on the host.
    #[arg(long, default_value = "/var/lib/aliquot/bin/aliquot-hook")]
    pub hook_path: PathBuf,

    /// Socket of the MPS supervisor; `<run-dir>/mps.sock` when unset.
    #[arg(long)]
    pub mps_socket: Option<PathBuf>,
    /// `nvidia-cuda-mps-control`; that of the driver root when unset.
    #[arg(long)]
    pub mps_control: Option<PathBuf>,
    /// Environment added to NVIDIA's programs, `KEY=VALUE`; may be given several times.
    #[arg(long)]
    pub mps_env: Vec<String>,
    /// Size limit in MiB of the shared memory of one MPS server and its tenants, for drivers before
    /// r580; what a tenant writes there is charged to its own memory.
    #[arg(long, default_value_t = 1024)]
    pub mps_shm_mib: u64,
    /// Off for tests without the right to mount: tenants then share plain directories of the node
    /// and its `/dev/shm`.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub mps_mounts: bool,
    /// MiB of every card kept for an MPS server's own context, and for each further server in mode
    /// `mps-isolated`. One takes up to 74 MiB of an H200 with driver 580.
    #[arg(long, default_value_t = 80)]
    pub mps_reserve_mib: u64,
    /// Containers that may hold a share of one card: the number of clients that one MPS server
    /// accepts.
    #[arg(long, default_value_t = 48)]
    pub client_slots: u32,
    /// MiB that a fraction gets in addition, unless `GpuNode.spec` sets it.
    #[arg(long, default_value_t = 512)]
    pub context_allowance_mib: u64,

    /// Serve whole GPUs too; off where another plugin serves them.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub serve_whole: bool,
    /// A pod that requests whole GPUs and was placed by another scheduler gets free ones.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub allow_ungranted_whole: bool,
    /// How slices of cards in MIG mode are offered: `none`, `single` (as `nvidia.com/gpu`) or `mixed`
    /// (as `nvidia.com/mig-<profile>`), as in NVIDIA's device plugin.
    #[arg(long, env = "MIG_STRATEGY", value_enum, default_value_t = MigStrategy::None)]
    pub mig_strategy: MigStrategy,
    /// Also serve shares by `ResourceClaim`, as the DRA driver `aliquot.dev`.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub dra: bool,
    /// UID of the agent's own pod, if a new pod starts before the old one ends (`maxSurge` of its
    /// `DaemonSet`): the new agent then waits until it is the only one on its node.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// Time after which a container that holds devices without a grant is evicted, milliseconds.
    /// Three times the wait of `PreStartContainer` for a late grant.
    #[arg(long, default_value_t = 60_000)]
    pub ungranted_grace_ms: u64,
    /// How long `PreStartContainer` waits for a grant, memory or server that is late, milliseconds.
    /// The kubelet allows 30 s.
    #[arg(long, default_value_t = 20_000)]
    pub prestart_wait_ms: u64,
    /// Pause after the inotify event of a new CDI file, in which the runtime reads it,
    /// milliseconds.
    #[arg(long, default_value_t = 50)]
    pub cdi_settle_ms: u64,
    /// Time between two comparisons with checkpoint and `PodResources`, milliseconds.
    #[arg(long, default_value_t = 5000)]
    pub reconcile_interval_ms: u64,

    /// Host and port of the schedulers; the agent opens a stream to every address of the host. No
    /// telemetry when unset.
    #[arg(long)]
    pub telemetry_endpoint: Option<String>,
    /// Name in the schedulers' certificate, if it is not the endpoint's host.
    #[arg(long)]
    pub telemetry_server_name: Option<String>,
    /// Projected token with Aliquot's audience, read again before every connection.
    #[arg(long, default_value = "/var/run/secrets/aliquot/token")]
    pub telemetry_token_file: PathBuf,
    /// CA of the schedulers, PEM; that of the trust `ConfigMap` when unset.
    #[arg(long)]
    pub telemetry_ca_file: Option<PathBuf>,
    /// Listen address of metrics and health; not served when unset.
    #[arg(long)]
    pub listen: Option<SocketAddr>,

    /// Drop all capabilities except the needed ones at start.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub drop_capabilities: bool,
}

impl Config {
    /// Everything at its default, for an embedded agent; the caller sets its paths.
    ///
    /// # Panics
    /// Never: every flag but the name has a default.
    pub fn for_node(name: &str) -> Self {
        #[derive(clap::Parser)]
        struct Defaults {
            #[command(flatten)]
            config: Config,
        }
        let arguments = ["agent", "--node-name", name];
        <Defaults as clap::Parser>::try_parse_from(arguments)
            .expect("every other flag has a default")
            .config
    }

    /// Where the kubelet's and our plugin sockets are.
    pub fn plugin_dir(&self) -> PathBuf {
        self.kubelet_dir.join("device-plugins")
    }

    /// What the kubelet remembers of its allocations.
    pub fn checkpoint(&self) -> PathBuf {
        self.plugin_dir().join(proto::names::kubelet::CHECKPOINT)
    }

    /// Socket of `PodResources`.
    pub fn pod_resources(&self) -> PathBuf {
        self.kubelet_dir
            .join("pod-resources")
            .join(proto::names::kubelet::SOCKET)
    }

    /// Socket of the DRA driver; two agents of a node have two.
    pub fn dra_socket(&self) -> PathBuf {
        let plugins = self.kubelet_dir.join("plugins");
        let name = self.of_this_pod("dra");
        plugins
            .join(proto::names::dra::DRIVER)
            .join(format!("{name}.sock"))
    }

    /// Where the kubelet looks for it.
    pub fn dra_registration_socket(&self) -> PathBuf {
        let registry = self.kubelet_dir.join("plugins_registry");
        let name = self.of_this_pod(proto::names::dra::DRIVER);
        registry.join(format!("{name}-reg.sock"))
    }

    fn of_this_pod(&self, name: &str) -> String {
        match &self.pod_uid {
            None => name.to_owned(),
            Some(uid) => format!("{name}-{uid}"),
        }
    }

    /// What the hook leaves, a file per `alloc_id`.
    pub fn proof_dir(&self) -> PathBuf {
        self.run_dir.join("proof")
    }

    /// `share/<alloc_id>/share.json`.
    pub fn share_dir(&self) -> PathBuf {
        self.run_dir.join("share")
    }

    /// `mps/<server>/{pipe,tenant,shm,log}`; a server is named by its card or its share.
    pub fn mps_dir(&self) -> PathBuf {
        self.run_dir.join("mps")
    }

    /// Socket of the MPS supervisor.
    pub fn mps_socket(&self) -> PathBuf {
        self.mps_socket
            .clone()
            .unwrap_or_else(|| self.run_dir.join("mps.sock"))
    }

    /// The driver root as this process sees it.
    pub fn driver_root_here(&self) -> &Path {
        self.driver_root_here
            .as_deref()
            .unwrap_or(&self.driver_root)
    }

    /// The paths at which the NVML library may be, the preferred one first.
    pub fn nvml_libraries(&self) -> Vec<PathBuf> {
        let root = self.driver_root_here();
        let is_name = self.nvml.file_name() == Some(self.nvml.as_os_str());
        if !is_name || root == Path::new("/") {
            return vec![self.nvml.clone()];
        }
        let folders = driver_root::LIBRARIES.iter();
        folders
            .map(|folder| root.join(folder).join(&self.nvml))
            .collect()
    }

    /// The MPS control program as this process sees it.
    pub fn mps_control(&self) -> PathBuf {
        self.mps_control.clone().unwrap_or_else(|| {
            self.driver_root_here()
                .join("usr/bin/nvidia-cuda-mps-control")
        })
    }

    /// Time between two full readings of all cards. Bounded: reports on fences are as old as the
    /// last reading.
    pub fn nvml_interval(&self) -> Duration {
        Duration::from_millis(self.nvml_interval_ms).clamp(Duration::from_millis(10), LONGEST_LOOK)
    }

    /// Time between two samples of the cards that have shares.
    pub fn watchdog_interval(&self) -> Duration {
        Duration::from_millis(self.watchdog_interval_ms.max(10))
    }

    /// How long `PreStartContainer` waits for a grant, memory or server that is late.
    pub fn prestart_wait(&self) -> Duration {
        Duration::from_millis(self.prestart_wait_ms)
    }

    /// How long a container may hold devices without a grant.
    pub fn ungranted_grace(&self) -> Duration {
        Duration::from_millis(self.ungranted_grace_ms)
    }

    /// Time left to the runtime after our own inotify echo.
    pub fn cdi_settle(&self) -> Duration {
        Duration::from_millis(self.cdi_settle_ms)
    }

    /// Time between two comparisons with the kubelet.
    pub fn reconcile_interval(&self) -> Duration {
        Duration::from_millis(self.reconcile_interval_ms.max(10))
    }

    /// Kept of every card for the MPS server's own context.
    pub fn mps_reserve(&self) -> Mib {
        Mib(self.mps_reserve_mib)
    }

    /// Allowance of a fraction where `GpuNode.spec` says nothing.
    pub fn context_allowance(&self) -> Mib {
        Mib(self.context_allowance_mib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_a_node() {
        let config = Config::for_node("n1");
        assert_eq!(
            config.checkpoint(),
            Path::new("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
        );
        assert_eq!(config.mps_socket(), Path::new("/run/aliquot/mps.sock"));
        assert_eq!(
            config.mps_control(),
            Path::new("/usr/bin/nvidia-cuda-mps-control")
        );
        assert_eq!(config.client_slots, 48);
        let slow = Config {
            nvml_interval_ms: 2000,
            ..config.clone()
        };
        assert_eq!(slow.nvml_interval(), LONGEST_LOOK);
        assert!(config.serve_whole && !config.allow_ungranted_whole);
    }

    #[test]
    fn nvml_is_looked_for_in_the_library_folders_of_a_driver_root() {
        let mut config = Config::for_node("n1");
        assert_eq!(
            config.nvml_libraries(),
            [PathBuf::from("libnvidia-ml.so.1")],
            "this system's loader knows its own folders"
        );
        config.driver_root_here = Some("/driver".into());
        let found = config.nvml_libraries();
        for folder in ["lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"] {
            let library = format!("/driver/usr/{folder}/libnvidia-ml.so.1");
            assert!(found.contains(&library.into()), "{found:?}");
        }
        config.nvml = "/opt/libnvidia-ml.so.1".into();
        assert_eq!(config.nvml_libraries(), [config.nvml.clone()]);
    }
}
