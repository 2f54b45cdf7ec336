//! The node as a machine of its own: Debian with systemd as its first process and cgroup v2.
//!
//! In: the disk that `tests/vm/image` made, the daemons, this workspace's programs. Out: a machine
//! with a kubelet, containerd and the simulated driver as systemd's units, whose power can be cut
//! and which boots again from the disk as it was. Must never write to the kept disk: a run has a
//! layer of its own above it. What is no state of the machine is on a second disk, read-only, made
//! for each run.
//!
//! The control plane stays outside, in the namespaces of the run; the machine is on its bridge.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::daemon::{Command, Daemon};
use crate::gpu::{self, Hardware};
use crate::machine::{ADDRESS as CONTROL_PLANE, Machine, POD_NETWORK};
use crate::node::{self, Place};
use crate::programs::Programs;
use crate::wait::{Seen, until};

/// The IP address of the machine.
pub const ADDRESS: &str = "10.99.0.2";
/// The TCP port at which the machine takes commands.
const COMMANDS: u16 = 2222;
/// The name of the machine's tap device on the cluster's bridge.
const WIRE: &str = "vm0";
/// The number of processors: the MPS supervisor reserves one, and the other is for everything else.
const PROCESSORS: &str = "2";
/// The memory of the machine in MiB. The MPS supervisor reserves two thirds of it.
const MEMORY_MIB: &str = "3072";
/// The factor by which limits are longer if the machine is emulated.
const SLOWNESS: u32 = 10;
/// The kernel's command line. Warnings go to the console, which can be read when nothing in the machine
/// answers.
const KERNEL: &str = "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off systemd.show_status=0 \
                      systemd.journald.forward_to_console=1 systemd.journald.max_level_console=warning";
/// The line that the machine's first process prints once the kernel has found the disks.
const FIRST_WORD: &str = "machine: disks";
/// The time within which hardware acceleration must boot the kernel. Hardware that can boot it takes a
/// second or two.
const ACCELERATED_WITHIN: Duration = Duration::from_secs(15);

/// The folder that `tests/vm/image` prints. It is kept between runs.
#[derive(Debug, Clone)]
pub struct Disk(pub PathBuf);

impl Disk {
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// The OCI runtime that starts the machine's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Runc,
    /// crun, from Debian.
    Crun,
}

impl Runtime {
    /// Returns the name of the runtime in containerd's configuration.
    fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }
}

/// How QEMU runs the machine's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accelerator {
    Kvm,
    Emulation,
}

/// The running machine.
#[derive(Debug)]
pub struct VirtualMachine {
    qemu: Daemon,
    console: PathBuf,
}

impl VirtualMachine {
    /// Makes the disks and the tap device of the run, and switches the machine on. Nothing in the
    /// machine answers yet.
    pub async fn start(
        place: &Place<'_>,
        programs: &Programs,
        disk: &Disk,
        hardware: &Hardware,
        runtime: Runtime,
    ) -> Result<Self> {
        let folder = place.state.join("machine");
        let payload = folder.join("payload");
        lay_payload(&payload, place, programs, hardware, runtime)?;
        let second = folder.join("payload.img");
        pack(&payload, &second).await?;
        fs::remove_dir_all(&payload)?;
        let first = folder.join("disk.qcow2");
        let kept = disk.file("disk.img");
        tool("qemu-img", |command| {
            command
                .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
                .arg(&kept)
                .arg(&first)
        })
        .await?;
        wire().await?;
        let console = place.logs.join("console.log");
        let command = |accelerator| qemu(accelerator, disk, [&first, &second], &console);
        if let Some(qemu) = accelerated(disk, place.logs, &console, &command).await? {
            return Ok(Self { qemu, console });
        }
        crate::wait::patience(SLOWNESS);
        let qemu = command(Accelerator::Emulation).start(place.logs)?;
        Ok(Self { qemu, console })
    }

    /// Cuts the power. Nothing in the machine is told, and everything not yet written to disk is lost.
    pub async fn cut_power(&mut self) -> Result<()> {
        self.qemu.kill().await
    }

    /// Switches the machine on again, with the disk as the power cut left it.
    pub fn boot(&mut self) -> Result<()> {
        self.qemu.start_again()
    }

    /// Returns the output of the machine's console.
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// Waits until the machine takes commands.
    pub async fn answers(&mut self) -> Result<()> {
        until(
            "the machine takes commands",
            Duration::from_secs(30),
            || {
                let alive = self.qemu.alive();
                async move {
                    if let Err(dead) = alive {
                        return Ok(Seen::Never(dead));
                    }
                    command("true").await.map(|_| Seen::Done(()))
                }
            },
        )
        .await
    }

    /// Runs a shell script as root and returns its output, or an error if the script failed.
    pub async fn run(&self, script: &str) -> Result<String> {
        command(script).await
    }

    /// Returns the CPU time of the machine's process on the host, in seconds.
    pub fn processor_seconds(&self) -> Result<f64> {
        let pid = self.qemu.pid().context("the machine is off")?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, rest) = stat.rsplit_once(')').context("stat")?;
        let mut fields = rest.split_whitespace().skip(11);
        let mut ticks = || -> Result<f64> { Ok(fields.next().context("stat")?.parse()?) };
        // The kernel counts in hundredths of a second on every architecture.
        Ok((ticks()? + ticks()?) / 100.0)
    }
}

impl Machine for VirtualMachine {
    fn alive(&mut self) -> Result<()> {
        self.qemu.alive()
    }
}

async fn command(script: &str) -> Result<String> {
    let mut stream = TcpStream::connect((ADDRESS, COMMANDS)).await?;
    let script = format!("(\n{script}\n) 2>&1 </dev/null\necho \"ended: $?\"\n");
    stream.write_all(script.as_bytes()).await?;
    stream.shutdown().await?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await?;
    let said = String::from_utf8_lossy(&said);
    let (output, status) = said
        .trim_end()
        .rsplit_once("ended: ")
        .with_context(|| format!("the command did not end: {said}"))?;
    ensure!(status == "0", "in the machine, {status}: {output}");
    Ok(output.to_owned())
}

/// Chooses hardware acceleration if the host has one that boots this kernel. The host is probed once,
/// and the result is kept beside the disk.
async fn accelerated(
    disk: &Disk,
    logs: &Path,
    console: &Path,
    command: &impl Fn(Accelerator) -> Command,
) -> Result<Option<Daemon>> {
    let refused = disk.file("boots-emulated-only");
    let device = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    if refused.exists() || device.is_err() {
        return Ok(None);
    }
    let mut qemu = command(Accelerator::Kvm).start(logs)?;
    let spoke = until("the accelerated machine", ACCELERATED_WITHIN, || {
        let alive = qemu.alive();
        async move {
            if let Err(dead) = alive {
                return Ok(Seen::Never(dead));
            }
            let said = fs::read(console)?;
            let said = String::from_utf8_lossy(&said);
            Ok(Seen::when(said.contains(FIRST_WORD), "silent"))
        }
    })
    .await;
    match spoke {
        Ok(()) => Ok(Some(qemu)),
        Err(why) => {
            if qemu.alive().is_ok() {
                qemu.kill().await?;
            }
            fs::write(refused, format!("{why:#}\n"))?;
            Ok(None)
        }
    }
}

fn qemu(
    accelerator: Accelerator,
    disk: &Disk,
    [first, second]: [&Path; 2],
    console: &Path,
) -> Command {
    let accelerator = match accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Emulation => "tcg,thread=multi",
    };
    let drive = |file: &Path, rest: &str| format!("file={},if=virtio,{rest}", file.display());
    Command::new("qemu", "qemu-system-x86_64")
        .args(["-accel", accelerator, "-cpu", "max"])
        .args(["-smp", PROCESSORS, "-m", MEMORY_MIB])
        .args(["-display", "none", "-monitor", "none", "-no-reboot"])
        .args(["-chardev"])
        .arg(format!(
            "file,id=console,append=on,path={}",
            console.display()
        ))
        .args(["-serial", "chardev:console"])
        .arg("-netdev")
        .arg(format!("tap,id=wire,ifname={WIRE},script=no,downscript=no"))
        .args(["-device", "virtio-net-pci,netdev=wire,romfile="])
        // Without this device the machine gathers randomness slowly.
        .args(["-device", "virtio-rng-pci"])
        .arg("-kernel")
        .arg(disk.file("vmlinuz"))
        .arg("-initrd")
        .arg(disk.file("initrd"))
        // Data that the machine has synced must be in the file when the power goes.
        .arg("-drive")
        .arg(drive(first, "format=qcow2,cache=writethrough"))
        .arg("-drive")
        .arg(drive(second, "format=raw,readonly=on"))
        .args(["-append", KERNEL])
}

/// Makes the tap device between the cluster's bridge and the machine, and the route to its pods.
async fn wire() -> Result<()> {
    for line in [
        format!("tuntap add dev {WIRE} mode tap"),
        format!("link set {WIRE} master {}", node::NAME),
        format!("link set {WIRE} up"),
        format!("route add {POD_NETWORK} via {ADDRESS}"),
    ] {
        tool("ip", |command| command.args(line.split(' '))).await?;
    }
    Ok(())
}

/// Writes the files of the second disk.
fn lay_payload(
    payload: &Path,
    place: &Place<'_>,
    programs: &Programs,
    hardware: &Hardware,
    runtime: Runtime,
) -> Result<()> {
    let bin = payload.join("bin");
    fs::create_dir_all(&bin)?;
    let copy = |from: PathBuf, name: &str| {
        fs::copy(&from, bin.join(name)).with_context(|| from.display().to_string())
    };
    for name in [
        "kubelet",
        "containerd",
        "containerd-shim-runc-v2",
        "ctr",
        "runc",
    ] {
        copy(place.bin.join(name), name)?;
    }
    copy(programs.ours_static.join("sim-gpu"), "sim-gpu")?;
    copy(programs.ours.join("libnvidia_ml.so"), "libnvidia_ml.so")?;
    fs::write(payload.join("hardware.json"), hardware.json()?)?;
    let driver = payload.join("driver");
    fs::create_dir_all(&driver)?;
    gpu::lay_out_programs(programs, &driver)?;

    let sources = programs.tree.join("tests/vm/machine");
    let etc = payload.join("etc");
    lay_units(&sources.join("system"), &etc.join("systemd/system"))?;
    let containerd = etc.join("containerd");
    let mirror = containerd.join("mirrors/_default");
    fs::create_dir_all(&mirror)?;
    let config = fs::read_to_string(sources.join("containerd.toml"))?;
    fs::write(
        containerd.join("config.toml"),
        config.replace("@RUNTIME@", runtime.name()),
    )?;
    fs::write(
        mirror.join("hosts.toml"),
        node::mirror_of_all(&format!("{CONTROL_PLANE}:5000")),
    )?;
    let networks = etc.join("cni/net.d");
    fs::create_dir_all(&networks)?;
    let network = node::pod_network(Path::new("/var/lib/cni/networks"))?;
    fs::write(networks.join("pods.conflist"), network)?;

    let kubernetes = etc.join("kubernetes");
    fs::create_dir_all(&kubernetes)?;
    fs::copy(
        sources.join("kubelet.json"),
        kubernetes.join("kubelet.json"),
    )?;
    let mut config: Value = serde_json::from_slice(&fs::read(&place.kubeconfig)?)?;
    let authority = &mut config["clusters"][0]["cluster"]["certificate-authority"];
    let file = authority.as_str().context("no authority")?;
    fs::copy(file, kubernetes.join("ca.crt"))?;
    *authority = "/etc/kubernetes/ca.crt".into();
    fs::write(kubernetes.join("kubeconfig"), serde_json::to_vec(&config)?)?;
    Ok(())
}

/// Installs the systemd units, each enabled in the targets that its `WantedBy=` names.
fn lay_units(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let text = fs::read_to_string(&path)?;
        fs::write(to.join(&name), &text)?;
        for wanting in text
            .lines()
            .filter_map(|line| line.strip_prefix("WantedBy="))
        {
            let wants = to.join(format!("{wanting}.wants"));
            fs::create_dir_all(&wants)?;
            symlink(Path::new("..").join(&name), wants.join(&name))?;
        }
    }
    Ok(())
}

/// Makes a file system from a folder, with some spare room.
async fn pack(folder: &Path, file: &Path) -> Result<()> {
    let bytes = size(folder)?;
    let image = fs::File::create(file)?;
    image.set_len(bytes + bytes / 8 + (32 << 20))?;
    tool("mkfs.ext4", |command| {
        command.args(["-q", "-F", "-d"]).arg(folder).arg(file)
    })
    .await
}

fn size(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        sum += if about.is_dir() {
            size(&entry.path())?
        } else {
            about.len()
        };
    }
    Ok(sum)
}

async fn tool(
    program: &str,
    with: impl FnOnce(&mut tokio::process::Command) -> &mut tokio::process::Command,
) -> Result<()> {
    let mut command = tokio::process::Command::new(program);
    let output = with(command.stdin(Stdio::null()))
        .output()
        .await
        .with_context(|| program.to_owned())?;
    if !output.status.success() {
        bail!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
