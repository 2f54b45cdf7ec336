//! The driver's own memory limits (r615 and later, cgroup v2), set on the container's cgroup
//! before its program starts, and read back.
//!
//! In: the container's process, cards, MiB. Out: [`Limited`], for the proof. The driver is called
//! through `nvidia-smi memory-limits`: a static program loads no NVML. The path is `nameSpace` of
//! NVML's `nvmlSetMemoryLimits_v1_t`, "full path to sysfs cgroup". The output format of
//! `nvidia-smi` for limits was not seen on hardware: output that cannot be parsed is not reported
//! as a limit.

use cdi::hook::{Limit, Limited};
use driver_root::{DriverRoot, Shared};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Where cgroup v2 is mounted, and where the kernel shows a process's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// `/proc` of the runtime's pid namespace.
    pub proc: PathBuf,
    /// The root of cgroup v2.
    pub cgroup: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            cgroup: "/sys/fs/cgroup".into(),
        }
    }
}

/// All of it has to fit into the hook's own time.
const LONGEST: Duration = Duration::from_secs(8);
/// Time between two runs of `nvidia-smi`.
const AGAIN: Duration = Duration::from_millis(5);
/// Its answer is a few lines.
const MAX_ANSWER: u64 = 64 << 10;

/// Sets the limit on every card and reads it back.
#[must_use]
pub fn set(limit: &Limit, pid: u32, host: &Host) -> Limited {
    match try_set(limit, pid, host) {
        Ok(()) => Limited {
            mib: Some(limit.mib),
            error: String::new(),
        },
        Err(error) => Limited { mib: None, error },
    }
}

fn try_set(limit: &Limit, pid: u32, host: &Host) -> Result<(), String> {
    let until = Instant::now() + LONGEST;
    let cgroup = cgroup(pid, host)?;
    let cgroup = cgroup.to_string_lossy();
    let mib = limit.mib.to_string();
    for gpu in &limit.gpus {
        let common = ["memory-limits", "-i", gpu, "-n", &cgroup];
        let mut set = common.to_vec();
        set.extend(["--hard-limit", &mib]);
        run(&limit.smi, &set, until)?;
        let said = run(&limit.smi, &common, until)?;
        match hard_limit(&said) {
            Some(read) if read == limit.mib => {}
            Some(read) => return Err(format!("set to {mib} MiB on {gpu}, reads back {read}")),
            None => return Err(format!("set to {mib} MiB on {gpu}, and does not read back")),
        }
    }
    Ok(())
}

/// The container's leaf in cgroup v2, as a path of this host.
fn cgroup(pid: u32, host: &Host) -> Result<PathBuf, String> {
    let file = host.proc.join(pid.to_string()).join("cgroup");
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let leaf = leaf(&text).ok_or("the container is in no cgroup v2 of its own")?;
    Ok(host.cgroup.join(leaf))
}

/// The path in cgroup v2 of a `/proc/<pid>/cgroup`, below its root; `None` for the root
/// itself and for what would lead out of it, which the kernel writes of another namespace's.
pub fn leaf(text: &str) -> Option<&str> {
    text.lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .filter(|path| !path.split('/').any(|part| part.is_empty() || part == ".."))
}

/// `nvidia-smi`, within the remaining time.
fn run(smi: &Path, arguments: &[&str], until: Instant) -> Result<String, String> {
    let failed = |why: String| format!("nvidia-smi {}: {why}", arguments.join(" "));
    // `<root>/usr/bin/nvidia-smi`.
    let root = smi.ancestors().nth(3).unwrap_or(Path::new("/"));
    let root = DriverRoot::at(root);
    let mut child = root
        .command(smi, Shared::default())
        .map_err(|error| failed(error.to_string()))?
        .args(arguments)
        .env_clear()
        .envs(root.environment(Vec::new()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(AGAIN),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed("it does not end in time".to_owned()));
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    };
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        // Text in another encoding has no number for us either.
        let _ = output.take(MAX_ANSWER).read_to_string(&mut said);
    }
    if status.success() {
        return Ok(said);
    }
    let first = said.lines().find(|line| !line.trim().is_empty());
    Err(failed(format!("{status}: {}", first.unwrap_or_default())))
}

/// MiB of the line `Hard Limit : <number> <unit>`; `None` for `max`, for several such lines, and
/// for anything else: a number without a unit, one that is no whole MiB, words behind it.
pub fn hard_limit(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let mut lines = lower.lines().filter(|line| line.contains("hard"));
    let (line, None) = (lines.next()?, lines.next()) else {
        return None;
    };
    let (name, value) = line.split_once([':', '='])?;
    let name = name.trim().replace(['_', '-'], " ");
    let (number, unit) = value.trim().split_once(' ')?;
    let bytes = match unit.trim() {
        "gib" => 1 << 30,
        "mib" => 1 << 20,
        "kib" => 1 << 10,
        "b" | "bytes" => 1,
        _ => return None,
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = number.parse::<u64>().ok()?.checked_mul(bytes)?;
    (name == "hard limit" && digits && bytes % (1 << 20) == 0).then_some(bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    struct TestHost {
        folder: tempfile::TempDir,
        host: Host,
        limit: Limit,
    }

    impl TestHost {
        /// A process in a cgroup, and an `nvidia-smi` of this script.
        fn new(cgroup: &str, script: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = |part: &str| folder.path().join(part);
            std::fs::create_dir_all(path("proc/7")).unwrap();
            std::fs::write(path("proc/7/cgroup"), cgroup).unwrap();
            let smi = path("root/usr/bin/nvidia-smi");
            std::fs::create_dir_all(smi.parent().unwrap()).unwrap();
            let log = path("log").display().to_string();
            let text = format!("#!/bin/sh\necho \"$*\" >> {log}\n{script}\n");
            std::fs::write(&smi, text).unwrap();
            std::fs::set_permissions(&smi, std::fs::Permissions::from_mode(0o755)).unwrap();
            let limit = Limit {
                mib: 2000,
                gpus: vec!["GPU-a".into(), "GPU-b".into()],
                smi,
                needed: false,
            };
            let host = Host {
                proc: path("proc"),
                cgroup: "/sys/fs/cgroup".into(),
            };
            Self {
                folder,
                host,
                limit,
            }
        }

        fn set(&self) -> Limited {
            set(&self.limit, 7, &self.host)
        }

        fn log(&self) -> String {
            std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
        }
    }

    const V2: &str = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope\n";

    #[test]
    fn every_card_is_limited_on_the_containers_leaf_and_read_back() {
        let scene = TestHost::new(V2, "echo 'Hard Limit : 2000 MiB'");
        let limited = scene.set();
        assert_eq!((limited.mib, limited.error.as_str()), (Some(2000), ""));
        let leaf = "/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope";
        let lines = |gpu: &str| {
            format!(
                "memory-limits -i {gpu} -n {leaf} --hard-limit 2000\nmemory-limits -i {gpu} -n {leaf}\n"
            )
        };
        assert_eq!(scene.log(), lines("GPU-a") + &lines("GPU-b"));
    }

    #[test]
    fn what_is_not_read_back_is_not_claimed() {
        for (script, why) in [
            ("echo 'Hard Limit : 48000 MiB'", "reads back 48000"),
            ("echo 'Hard Limit : max'", "does not read back"),
            ("echo 'All done.'", "does not read back"),
            (
                "echo 'Invalid option'; exit 2",
                "exit status: 2: Invalid option",
            ),
        ] {
            let limited = TestHost::new(V2, script).set();
            assert_eq!(limited.mib, None, "{script}");
            assert!(limited.error.contains(why), "{script}: {}", limited.error);
        }
    }

    #[test]
    fn a_container_without_a_leaf_in_cgroup_v2_is_told_so_and_nothing_is_set() {
        for cgroup in [
            "12:devices:/kubepods/pod1/ab\n0::/\n",
            "4:memory:/kubepods/pod1/ab\n",
            "0::/../../etc\n",
            "0::///etc\n",
            "",
        ] {
            let scene = TestHost::new(cgroup, "echo 'Hard Limit : 2000 MiB'");
            let limited = scene.set();
            assert!(
                limited.error.contains("no cgroup v2"),
                "{cgroup:?}: {}",
                limited.error
            );
            assert_eq!(scene.log(), "");
        }
    }

    #[test]
    fn limits_are_read_in_any_unit_and_never_guessed() {
        for (text, expected) in [
            (
                "GPU 0\n  Soft Limit : 0 MiB\n  Hard Limit : 2000 MiB\n",
                Some(2000),
            ),
            ("hard_limit=2000 MiB", Some(2000)),
            ("Hard limit: 2097152000 bytes", Some(2000)),
            ("Hard limit: 2 GiB", Some(2048)),
            ("Hard limit: 2048000 KiB", Some(2000)),
            ("Hard limit: 2000", None),
            ("Hard limit: +2000 MiB", None),
            ("Hard limit: 2000 MB", None),
            ("Hard limit: 2048001 KiB", None),
            ("Hard limit: 2097152001 bytes", None),
            ("Hard limit: 99999999999999999999 MiB", None),
            ("Hard limit: 2000 MiB of 48000 MiB", None),
            ("Hard limit: 2000 MiB (pending)", None),
            ("Soft/hard limit: 2000 MiB", None),
            ("Hardware limit: 2000 MiB", None),
            ("Hard limit: max", None),
            ("Hard limit: 2000 parsecs", None),
            ("Soft limit: 2000 MiB", None),
            ("Hard limit 2000", None),
            ("Hard limit: 2000 MiB\nHard limit: 48000 MiB", None),
            ("", None),
        ] {
            assert_eq!(hard_limit(text), expected, "{text:?}");
        }
    }
}
