//! `aliquot demo`, as a user runs it.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A place of its own for each test, so that what is left behind is seen.
struct TempFolder(tempfile::TempDir);

impl TempFolder {
    fn new() -> Self {
        let mut builder = tempfile::Builder::new();
        Self(
            builder
                .prefix("d")
                .rand_bytes(4)
                .tempdir_in("/tmp")
                .unwrap(),
        )
    }

    fn demo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot"));
        command
            .arg("demo")
            .args(args)
            .env("TMPDIR", self.0.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.demo(args).output().unwrap()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Directories of demos that are still there.
    fn left(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn until(what: &str, mut probe: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !probe() {
        assert!(Instant::now() < deadline, "never saw: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processes that know a directory, as the demo's all do.
fn processes_of(directory: &Path) -> usize {
    let needle = directory.display().to_string();
    let knows = |process: &Path| {
        ["cmdline", "environ"].iter().any(|file| {
            std::fs::read(process.join(file)).is_ok_and(|bytes| text(&bytes).contains(&needle))
        })
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| knows(&entry.path()))
        .count()
}

#[test]
fn what_cannot_be_read_is_refused_in_one_line_before_anything_starts() {
    let folder = TempFolder::new();
    let broken = folder.write("broken.yaml", "kind: [");
    let nameless = folder.write("nameless.yaml", "apiVersion: v1\nkind: Pod\n");
    for (args, word) in [
        (
            vec!["-f", "/does/not/exist.yaml"],
            "/does/not/exist.yaml cannot be read",
        ),
        (vec!["-f", broken.as_str()], "this is not YAML"),
        (
            vec!["-f", nameless.as_str()],
            "document 1 has no metadata.name",
        ),
        (vec!["--gpu", "H200"], "unknown preset `H200`"),
        (vec!["--gpu", "T4:99"], "1 to 16"),
        (vec!["--nodes", "0"], "1..=16"),
        (vec!["--nonsense"], "--nonsense"),
        (
            vec!["--scenario", "sleep"],
            "limit, card, preemption, consolidation",
        ),
        (vec!["--scenario", "card", "--once"], "cannot be used with"),
    ] {
        let output = folder.run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(word), "{args:?}: {errors}");
        assert!(output.stdout.is_empty());
        assert!(folder.left().is_empty(), "{args:?}");
    }
}

#[test]
fn once_tells_the_story_and_leaves_nothing_behind() {
    let folder = TempFolder::new();
    let output = folder.run(&["--once"]);
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{told}\n{errors}");
    for line in [
        "demo/training-1",
        "demo/inference  2000 MiB",
        "demo/notebook",
        "demo/greedy  4000 MiB",
        "the next 250 were refused: out of memory.",
        "WAITING\n  demo/later\n",
        "Everything is as expected, after ",
    ] {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }
    assert!(folder.left().is_empty());
}

/// A pod as a user of KAI writes it.
fn pod(name: &str, mib: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: mine
  annotations: {{gpu-memory: \"{mib}\"}}
spec:
  schedulerName: kai-scheduler
  containers:
  - {{name: c, image: any, args: [workload, alloc, \"100\", hold]}}
"
    )
}

#[test]
fn your_own_manifest_runs_and_one_that_fits_nowhere_is_missing_with_its_reason() {
    let folder = TempFolder::new();
    let fits = folder.write("fits.yaml", &pod("fits", "2000"));
    let small = ["--once", "--nodes", "1", "--gpu", "L4", "-f"];
    let output = folder.run(&[&small[..], &[&fits]].concat());
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{told}{errors}");
    assert!(told.contains("mine/fits  2000 MiB"), "{told}");

    let large = folder.write("large.yaml", &pod("large", "99999999"));
    let output = folder.run(&[&small[..], &[&large, "--deadline", "4"]].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("missing: mine/large: is Pending: "),
        "{errors}"
    );
    assert!(!errors.contains("has not tried it"), "{errors}");
    assert!(folder.left().is_empty());
}

/// The demo's kubelet restarts containers that have ended, even while the demo ends.
#[test]
fn a_demo_of_several_containers_ends_by_itself_and_by_a_signal() {
    let folder = TempFolder::new();
    let two = pod("two", "1000").replace(
        "  containers:\n",
        "  initContainers:\n  - {name: prepare, image: any, args: [--model, x]}\n  containers:\n  - {name: side, image: any}\n",
    );
    let two = folder.write(
        "two.yaml",
        &two.replace("any, args: [workload", "x, args: [workload"),
    );
    let small = ["--nodes", "1", "--gpu", "L4", "-f", two.as_str()];
    let ends = |child: &mut Child| {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("it does not end");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let once = folder.demo(&[&["--once", "--deadline", "30"][..], &small].concat());
    let mut once = { once }.stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(ends(&mut once), Some(0));
    let mut runs = folder.demo(&small);
    let mut runs = runs.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(runs.stdout.take().unwrap()).lines();
    let (said, shown) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = said.send(line);
        }
    });
    let is_there = |line: String| line.contains("mine/two runs with 1000 MiB");
    until("the share", || shown.try_iter().any(is_there));
    let sent = Command::new("kill")
        .args(["-TERM", &runs.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    assert_eq!(ends(&mut runs), Some(0));
    assert!(folder.left().is_empty());
}

#[test]
fn files_without_a_pod_are_no_success() {
    let folder = TempFolder::new();
    let deployment = folder.write(
        "web.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {selector: {}, template: {}}\n",
    );
    let output = folder.run(&["--once", "--nodes", "1", "--gpu", "L4", "-f", &deployment]);
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{told}{errors}");
    assert!(errors.contains("missing: a pod: "), "{errors}");
    assert!(!told.contains("as expected"), "{told}");
}

/// A pod that its queue's quota keeps waiting after an installation waits in the demo too.
#[test]
fn the_demo_has_the_queues_of_an_install() {
    let folder = TempFolder::new();
    let serving = pod("serving", "2000").replace(
        "metadata:\n",
        "metadata:\n  labels: {priorityClassName: inference}\n",
    );
    let serving = folder.write("serving.yaml", &serving);
    let args = [
        "--once",
        "--nodes",
        "1",
        "--gpu",
        "L4",
        "--deadline",
        "6",
        "-f",
        &serving,
    ];
    let errors = text(&folder.run(&args).stderr);
    for words in [
        "default-queue quota is 0",
        "raise the quota of the queue",
        "kai.scheduler/preemptibility",
    ] {
        assert!(errors.contains(words), "{errors}");
    }
}

#[test]
fn scenarios_run_to_their_end() {
    let folder = TempFolder::new();
    for (name, lines) in [
        (
            "limit",
            &[
                "the next 250 were refused: out of memory.",
                "is not affected.",
            ][..],
        ),
        (
            "card",
            &[
                "of node-1 is unhealthy: ",
                "second runs on GPU 1.",
                "Both cards are healthy.",
            ],
        ),
        ("preemption", &["training is evicted.", "urgent runs."]),
        (
            "consolidation",
            &["small runs beside big-2.", "whole runs."],
        ),
    ] {
        let output = folder.run(&["--scenario", name]);
        let (told, errors) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{told}\n{errors}");
        for line in lines {
            assert!(told.contains(line), "{line} is not in\n{told}");
        }
        assert!(told.ends_with("The end.\n"), "{told}");
        assert!(folder.left().is_empty());
    }
}

fn started(folder: &TempFolder) -> (Child, PathBuf) {
    let mut child = folder
        .demo(&["--nodes", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("A cluster of 1 node "), "{first}");
    let directory = folder.left().remove(0);
    until("a driver", || processes_of(&directory) >= 2);
    // A server has to listen.
    std::thread::spawn(move || lines.for_each(drop));
    (child, directory)
}

#[test]
fn nothing_is_left_when_it_is_interrupted_or_killed() {
    let folder = TempFolder::new();
    for (signal, code) in [("-INT", Some(0)), ("-TERM", Some(0)), ("-KILL", None)] {
        let (mut child, directory) = started(&folder);
        let sent = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        until("everything gone", || {
            !directory.exists() && processes_of(&directory) == 0
        });
        assert!(folder.left().is_empty(), "{signal}");
    }
}
