//! The node as a machine of two sockets, whose kubelet aligns pods to NUMA zones.
//!
//! In: a running cluster. Out: its kubelet, restarted with the static CPU manager, the Static memory
//! manager and a topology manager that refuses, on 64 CPUs and eight cards in two zones; afterwards
//! the kubelet that it was. The CPUs are shown in sysfs alone: pods of such a kubelet run in
//! [`RUNTIME_CLASS`], whose runtime pins no container to CPUs that the test machine lacks. What is
//! tested is whom the kubelet admits.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::machine::tmpfs;
use crate::unpinned::RUNTIME_CLASS;

/// Processors of each socket.
pub const CPUS: u32 = 32;

const NODES: &str = "/sys/devices/system/node";
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// What the kubelet remembers of CPUs and memory; it ends when that is of another policy.
const CHECKPOINTS: [&str; 2] = [
    "/var/lib/kubelet/cpu_manager_state",
    "/var/lib/kubelet/memory_manager_state",
];

/// Restarts the kubelet as one that aligns, by a policy and scope of its topology manager.
pub async fn align(cluster: &mut Cluster, policy: &str, scope: &str) -> Result<()> {
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": { "name": RUNTIME_CLASS }, "handler": RUNTIME_CLASS,
    });
    cluster.apply_one(&class).await?;
    cluster.node.kubelet.kill().await?;
    show_two_sockets(&cluster.work.state())?;
    forget()?;
    let folder = cluster.work.state().join("kubelet");
    let mut config: Value = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
    let aligned = json!({
        "cpuManagerPolicy": "static",
        // Each reconciliation asks the runtime to pin.
        "cpuManagerReconcilePeriod": "1h",
        "reservedSystemCPUs": format!("0,{CPUS}"),
        "memoryManagerPolicy": "Static",
        "systemReserved": { "memory": "99Mi" },
        // With what evictionHard keeps free.
        "reservedMemory": [{ "numaNode": 0, "limits": { "memory": "100Mi" } }],
        "topologyManagerPolicy": policy,
        "topologyManagerScope": scope,
    });
    let fields = config.as_object_mut().context("no object")?;
    fields.extend(aligned.as_object().cloned().unwrap_or_default());
    let path = folder.join("aligned.json");
    fs::write(&path, serde_json::to_vec_pretty(&config)?)?;
    let kubelet = &mut cluster.node.kubelet;
    kubelet.start_again_with(|command| command.replace("--config", path))?;
    cluster.node_ready().await
}

/// Restarts the kubelet that [`crate::node`] started.
pub async fn leave(cluster: &mut Cluster) -> Result<()> {
    cluster.node.kubelet.kill().await?;
    for mounted in [NODES, ONLINE] {
        umount2(mounted, MntFlags::MNT_DETACH).context(mounted)?;
    }
    forget()?;
    let path = cluster.work.state().join("kubelet/config.json");
    let kubelet = &mut cluster.node.kubelet;
    kubelet.start_again_with(|command| command.replace("--config", path))?;
    cluster.node_ready().await
}

fn forget() -> Result<()> {
    for checkpoint in CHECKPOINTS {
        if Path::new(checkpoint).exists() {
            fs::remove_file(checkpoint)?;
        }
    }
    Ok(())
}

fn show_two_sockets(state: &Path) -> Result<()> {
    let nodes = Path::new(NODES);
    let memory_kib = memory_kib()? / 2;
    tmpfs(nodes)?;
    for socket in 0..2 {
        let node = nodes.join(format!("node{socket}"));
        let first = socket * CPUS;
        for cpu in first..first + CPUS {
            let topology = node.join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&topology)?;
            fs::write(topology.join("core_id"), format!("{}\n", cpu - first))?;
            fs::write(topology.join("physical_package_id"), format!("{socket}\n"))?;
        }
        fs::create_dir(node.join("hugepages"))?;
        let distance = ["10 20\n", "20 10\n"][socket as usize];
        let list = format!("{first}-{}\n", first + CPUS - 1);
        let memory = format!("Node {socket} MemTotal: {memory_kib} kB\n");
        for (file, content) in [
            ("distance", distance),
            ("cpulist", &list),
            ("meminfo", &memory),
        ] {
            fs::write(node.join(file), content)?;
        }
    }
    let online = state.join("online");
    fs::write(&online, format!("0-{}\n", 2 * CPUS - 1))?;
    mount(
        Some(&online),
        ONLINE,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .context(ONLINE)
}

/// The machine's memory, as the kubelet reads it.
fn memory_kib() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let total = text.lines().find_map(|line| {
        let number = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
        number.trim().parse().ok()
    });
    total.context("no MemTotal")
}
