//! The driver's own memory limits (r615 and later, cgroup v2): a cgroup's limit on a card is set,
//! read back and cleared.
//!
//! In: the container's process, cards, MiB. Out: [`Limited`], for the proof. The driver is called
//! through `nvidia-smi memory-limits`, since a static program loads no NVML. Commands and answers
//! are those of NVIDIA's page "MPS memory partitioning"; no such driver was available, so an answer
//! that differs from that page is not reported as a limit. The agent's probe of a card sends the
//! same commands.

use crate::backend::Cgroup;
use cdi::hook::{Backend, Limit, Limited, LimitedCard};
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

/// The time for all commands together, which has to fit into the hook's own.
const LONGEST: Duration = Duration::from_secs(8);
/// Time between two runs of `nvidia-smi`.
const AGAIN: Duration = Duration::from_millis(5);
/// The most bytes of an answer that are read. A complete answer is a few lines.
const MAX_ANSWER: u64 = 64 << 10;

/// Sets the limit on every card and reads it back.
#[must_use]
pub fn set(limit: &Limit, pid: u32, host: &Host) -> Limited {
    match try_set(limit, pid, host) {
        Ok(backend) => Limited {
            mib: Some(limit.mib),
            backend: Some(backend),
            error: String::new(),
        },
        Err(error) => Limited {
            error,
            ..Limited::default()
        },
    }
}

fn try_set(limit: &Limit, pid: u32, host: &Host) -> Result<Backend, String> {
    let until = Instant::now() + LONGEST;
    let cgroup = cgroup(pid, host)?;
    let smi = &mut |arguments: &[&str]| run(&limit.smi, arguments, until);
    let mut backend = Backend::Dmem;
    let held = limit.cards.iter().try_for_each(|card| {
        // The weaker backend of several cards counts.
        if hold(smi, card, &cgroup, limit.mib)? == Backend::Misc {
            backend = Backend::Misc;
        }
        Ok(())
    });
    if held.is_err() && limit.needed {
        // The container is refused, and its cgroup goes.
        for card in &limit.cards {
            let _ = clear(smi, card, &cgroup);
        }
    }
    held.map(|()| backend)
}

/// Sends `nvidia-smi` these arguments. Returns its output, or why there is none.
pub type Smi<'a> = dyn FnMut(&[&str]) -> Result<String, String> + 'a;

/// Limits a cgroup to `mib` on one card, reads the limit back from the driver, and looks it up in
/// the kernel's own file.
///
/// # Errors
/// One sentence: the limit does not hold, as far as is known.
pub fn hold(
    smi: &mut Smi<'_>,
    card: &LimitedCard,
    cgroup: &Cgroup,
    mib: u64,
) -> Result<Backend, String> {
    let backend = cgroup.backend(&card.pci)?;
    let folder = cgroup.folder();
    let (uuid, path) = (card.uuid.as_str(), folder.to_string_lossy());
    set_limits(smi, card, cgroup, &mib.to_string())?;
    let answer = smi(&["memory-limits", "--get", "-n", &path, "-i", uuid])?;
    match read(&answer, &path) {
        Some(Limits { soft: 0, hard }) if hard == mib => {}
        Some(Limits { soft, hard }) => {
            return Err(format!(
                "set to {mib} MiB on {uuid}, reads back {hard} MiB, of which {soft} MiB are reserved"
            ));
        }
        None => {
            return Err(format!(
                "set to {mib} MiB on {uuid}, and does not read back"
            ));
        }
    }
    cgroup.witness(backend, &card.pci, mib)?;
    Ok(backend)
}

/// Lifts a cgroup's limit on one card. A limit that outlives its cgroup would hold the next cgroup
/// that the kernel makes in its place.
///
/// # Errors
/// One sentence: the driver did not accept the command.
pub fn clear(smi: &mut Smi<'_>, card: &LimitedCard, cgroup: &Cgroup) -> Result<(), String> {
    set_limits(smi, card, cgroup, "max")
}

/// The limit of a probe, MiB: no whole GiB, which an answer might have been rounded to.
const PROBED: u64 = 1234;

/// Tries what a share's container would get: makes the cgroup, limits it on one card, reads the
/// limit back from the driver and the kernel, clears it and removes the cgroup.
///
/// # Errors
/// One sentence that names what the card, its driver or the kernel lacks.
pub fn probe(smi: &mut Smi<'_>, card: &LimitedCard, cgroup: &Cgroup) -> Result<Backend, String> {
    let folder = cgroup.folder();
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    match std::fs::create_dir(&folder) {
        // A probe that was cut short left it.
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(failed(error));
        }
        _ => {}
    }
    let held = hold(smi, card, cgroup, PROBED);
    let cleared = clear(smi, card, cgroup);
    let removed = std::fs::remove_dir(&folder).map_err(failed);
    let backend = held?;
    cleared.map_err(|error| format!("a limit cannot be cleared: {error}"))?;
    removed.map(|()| backend)
}

/// Sets both limits, as each of NVIDIA's examples does. The soft limit is a reservation: the driver
/// adds it to every cgroup above, where it stays when this one goes. It is therefore always 0.
fn set_limits(
    smi: &mut Smi<'_>,
    card: &LimitedCard,
    cgroup: &Cgroup,
    hard: &str,
) -> Result<(), String> {
    let folder = cgroup.folder();
    let path = folder.to_string_lossy();
    let limits = ["--soft-limit", "0", "--hard-limit", hard];
    let mut arguments = vec!["memory-limits", "--set", "-n", &path];
    arguments.extend(limits.iter().chain(&["-i", &card.uuid]));
    smi(&arguments).map(|_| ())
}

/// Returns the container's leaf in cgroup v2.
fn cgroup(pid: u32, host: &Host) -> Result<Cgroup, String> {
    let file = host.proc.join(pid.to_string()).join("cgroup");
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let leaf = leaf(&text).ok_or("the container is in no cgroup v2 of its own")?;
    Ok(Cgroup {
        root: host.cgroup.clone(),
        path: leaf.into(),
    })
}

/// The path in cgroup v2 of a `/proc/<pid>/cgroup`, below its root; `None` for the root
/// itself and for what would lead out of it, which the kernel writes of another namespace's.
pub fn leaf(text: &str) -> Option<&str> {
    text.lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .filter(|path| !path.split('/').any(|part| part.is_empty() || part == ".."))
}

/// Runs `nvidia-smi` within the remaining time.
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
        .stderr(Stdio::piped())
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
    // Text in another encoding has no number that could be read.
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        let _ = output.take(MAX_ANSWER).read_to_string(&mut said);
    }
    if status.success() {
        return Ok(said);
    }
    if let Some(complaint) = child.stderr.take() {
        let _ = complaint.take(MAX_ANSWER).read_to_string(&mut said);
    }
    let first = said.lines().find(|line| !line.trim().is_empty());
    Err(failed(format!("{status}: {}", first.unwrap_or_default())))
}

/// The limits of a cgroup on one card, in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The memory that is reserved for the cgroup.
    pub soft: u64,
    /// The most that it may hold.
    pub hard: u64,
}

/// Reads the answer to `--get`, in the lines of NVIDIA's page:
///
/// ```text
/// namespace: /sys/fs/cgroup/mygroup
/// soft limit: 4096 MiB
/// hard limit: 8192 MiB
/// current used: 512 MiB
/// ```
///
/// Warnings may stand around them. `None` for another namespace, a missing or a repeated line, a
/// limit of `max`, another unit, and anything else that the page does not have.
pub fn read(answer: &str, namespace: &str) -> Option<Limits> {
    let value = |name: &str| {
        let values = |line| str::strip_prefix(line, name)?.strip_prefix(": ");
        let mut values = answer.lines().filter_map(values);
        let first = values.next()?;
        values.next().is_none().then_some(first)
    };
    let mib = |name: &str| {
        let digits = value(name)?.strip_suffix(" MiB")?;
        let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| all_digits)
    };
    mib("current used").filter(|_: &u64| value("namespace") == Some(namespace))?;
    Some(Limits {
        soft: mib("soft limit")?,
        hard: mib("hard limit")?,
    })
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
            let card = |uuid: &str, pci: &str| LimitedCard {
                uuid: uuid.to_owned(),
                pci: pci.to_owned(),
            };
            let limit = Limit {
                mib: 2000,
                cards: vec![
                    card("GPU-a", "00000000:01:00.0"),
                    card("GPU-b", "00000000:02:00.0"),
                ],
                smi,
                needed: false,
            };
            let levels = LEAF.split('/').scan(String::new(), |below, part| {
                let level = below.clone();
                *below = format!("{below}/{part}");
                Some(level)
            });
            for level in levels {
                let level = path("cgroup").join(level.trim_start_matches('/'));
                std::fs::create_dir_all(&level).unwrap();
                std::fs::write(level.join("cgroup.subtree_control"), "misc\n").unwrap();
            }
            std::fs::create_dir(path("cgroup").join(LEAF)).unwrap();
            std::fs::write(path("cgroup/cgroup.controllers"), "misc\n").unwrap();
            let host = Host {
                proc: path("proc"),
                cgroup: path("cgroup"),
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

        fn leaf(&self) -> String {
            self.host.cgroup.join(LEAF).display().to_string()
        }

        fn log(&self) -> String {
            std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
        }
    }

    const V2: &str = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope\n";

    const LEAF: &str = "kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope";

    /// An `nvidia-smi` that answers a question in the documented lines, with these limits.
    fn answers(soft: &str, hard: &str) -> String {
        format!(
            r#"[ "$2" = --set ] || printf 'namespace: %s\nsoft limit: {soft}\nhard limit: {hard}\ncurrent used: 0 MiB\n' "$4""#
        )
    }

    #[test]
    fn every_card_gets_both_limits_on_the_containers_leaf_and_is_read_back() {
        let scene = TestHost::new(V2, &answers("0 MiB", "2000 MiB"));
        let limited = scene.set();
        assert_eq!((limited.mib, limited.error.as_str()), (Some(2000), ""));
        assert_eq!(limited.backend, Some(Backend::Misc));
        let leaf = scene.leaf();
        let lines = |gpu: &str| {
            format!(
                "memory-limits --set -n {leaf} --soft-limit 0 --hard-limit 2000 -i {gpu}\n\
                 memory-limits --get -n {leaf} -i {gpu}\n"
            )
        };
        assert_eq!(scene.log(), lines("GPU-a") + &lines("GPU-b"));
    }

    #[test]
    fn the_drivers_word_alone_is_no_limit() {
        let lines = |value: &str| {
            format!(
                "nvidia/00000000:01:00.0/vidmem {value}\nnvidia/00000000:02:00.0/vidmem {value}\n"
            )
        };
        for (kernel, why) in [
            (Some("2097152000"), ""),
            (
                Some("max"),
                "dmem.max says max for the card at 00000000:01:00.0",
            ),
            (None, "No such file"),
        ] {
            let scene = TestHost::new(V2, &answers("0 MiB", "2000 MiB"));
            let at = |file: &str| scene.host.cgroup.join(file);
            std::fs::write(at("dmem.capacity"), lines("9")).unwrap();
            std::fs::write(at("cgroup.controllers"), "dmem misc\n").unwrap();
            let missing = scene.set().error;
            assert!(missing.contains("echo +dmem > "), "{missing}");
            assert_eq!(scene.log(), "", "nothing is set where nothing would hold");
            for level in ["", "kubepods.slice", "kubepods.slice/kubepods-pod1.slice"] {
                let control = at(level).join("cgroup.subtree_control");
                std::fs::write(control, "dmem misc\n").unwrap();
            }
            if let Some(value) = kernel {
                std::fs::write(at(LEAF).join("dmem.max"), lines(value)).unwrap();
            }
            let limited = scene.set();
            assert_eq!(limited.mib, why.is_empty().then_some(2000), "{kernel:?}");
            assert_eq!(limited.backend, why.is_empty().then_some(Backend::Dmem));
            assert!(limited.error.contains(why), "{kernel:?}: {}", limited.error);
        }
    }

    #[test]
    fn a_probe_leaves_neither_a_limit_nor_a_cgroup() {
        let card = LimitedCard {
            uuid: "GPU-a".into(),
            pci: "00000000:01:00.0".into(),
        };
        for (answer, expected) in [
            ("1234 MiB", Ok(Backend::Misc)),
            ("1 GiB", Err("does not read back")),
        ] {
            let scene = TestHost::new(V2, "true");
            let cgroup = Cgroup {
                root: scene.host.cgroup.clone(),
                path: "kubepods.slice/kubepods-pod1.slice/probe".into(),
            };
            let folder = cgroup.folder();
            // An earlier probe has left the cgroup.
            std::fs::create_dir(&folder).unwrap();
            let mut asked = Vec::new();
            let smi = &mut |arguments: &[&str]| {
                asked.push(arguments.join(" "));
                assert!(folder.is_dir(), "the cgroup goes last");
                Ok(format!(
                    "namespace: {}\nsoft limit: 0 MiB\nhard limit: {answer}\ncurrent used: 0 MiB\n",
                    folder.display()
                ))
            };
            let seen = probe(smi, &card, &cgroup);
            match (&seen, expected) {
                (Ok(seen), Ok(expected)) => assert_eq!(*seen, expected),
                (Err(seen), Err(expected)) => assert!(seen.contains(expected), "{seen}"),
                other => panic!("{other:?}"),
            }
            assert!(asked.last().unwrap().contains("--hard-limit max"));
            assert!(!folder.exists());
        }
    }

    #[test]
    fn what_is_not_read_back_is_not_claimed() {
        for (script, why) in [
            (
                answers("0 MiB", "48000 MiB"),
                "reads back 48000 MiB, of which 0 MiB are reserved",
            ),
            (
                answers("2000 MiB", "2000 MiB"),
                "reads back 2000 MiB, of which 2000 MiB are reserved",
            ),
            (answers("0 MiB", "max"), "does not read back"),
            ("echo 'All done.'".to_owned(), "does not read back"),
            (
                "echo 'Invalid option'; exit 2".to_owned(),
                "exit status: 2: Invalid option",
            ),
            (
                "echo 'Unable to get memory limit: Not Supported' >&2; exit 3".to_owned(),
                "exit status: 3: Unable to get memory limit: Not Supported",
            ),
        ] {
            let limited = TestHost::new(V2, &script).set();
            assert_eq!(limited.mib, None, "{script}");
            assert!(limited.error.contains(why), "{script}: {}", limited.error);
        }
    }

    #[test]
    fn the_limits_of_a_container_that_is_refused_are_cleared_before_its_cgroup_goes() {
        for needed in [true, false] {
            let mut scene = TestHost::new(V2, &answers("0 MiB", "max"));
            scene.limit.needed = needed;
            scene.set();
            let leaf = scene.leaf();
            let clears = |gpu: &str| {
                format!("memory-limits --set -n {leaf} --soft-limit 0 --hard-limit max -i {gpu}\n")
            };
            let end = clears("GPU-a") + &clears("GPU-b");
            assert_eq!(scene.log().ends_with(&end), needed, "{}", scene.log());
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
            let scene = TestHost::new(cgroup, &answers("0 MiB", "2000 MiB"));
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
    fn an_answer_is_read_in_the_documented_lines_and_never_guessed() {
        const DOCUMENTED: &str = "namespace: /sys/fs/cgroup/mygroup\nsoft limit: 4096 MiB\n\
             hard limit: 8192 MiB\ncurrent used: 512 MiB\n";
        let limits = |text: &str| read(text, "/sys/fs/cgroup/mygroup");
        let both = Limits {
            soft: 4096,
            hard: 8192,
        };
        assert_eq!(limits(DOCUMENTED), Some(both));
        let warned = format!("WARNING: infoROM is corrupted\n{DOCUMENTED}");
        assert_eq!(limits(&warned), Some(both));
        for (documented, other) in [
            ("mygroup", "mygroup/below"),
            ("namespace: /sys/fs/cgroup/mygroup\n", ""),
            ("soft limit: 4096 MiB\n", ""),
            ("hard limit: 8192 MiB\n", ""),
            ("current used: 512 MiB\n", ""),
            ("hard limit", "Hard Limit"),
            ("hard limit: 8192", "hard limit : 8192"),
            ("hard limit", "  hard limit"),
            ("8192 MiB", "8192"),
            ("8192 MiB", "8 GiB"),
            ("8192 MiB", "8589934592 bytes"),
            ("8192 MiB", "+8192 MiB"),
            ("8192 MiB", "99999999999999999999 MiB"),
            ("8192 MiB", "8192 MiB of 48000 MiB"),
            ("8192 MiB", "max"),
            ("4096 MiB", "default"),
            (
                "hard limit: 8192 MiB\n",
                "hard limit: 8192 MiB\nhard limit: 48000 MiB\n",
            ),
        ] {
            let text = DOCUMENTED.replace(documented, other);
            assert_ne!(text, DOCUMENTED, "{documented:?}");
            assert_eq!(limits(&text), None, "{text:?}");
        }
        assert_eq!(limits(""), None);
    }
}
