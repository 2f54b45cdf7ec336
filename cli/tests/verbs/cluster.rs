//! A demo that runs while a test asks it, as a user would have it in another terminal.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A running demo.
pub(crate) struct Demo {
    child: Child,
    folder: tempfile::TempDir,
}

/// A verb's output.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// `aliquot` with nothing of this machine's configuration.
pub(crate) fn aliquot(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot"));
    command
        .args(args)
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null());
    command
}

/// Waits for something, with a deadline.
pub(crate) fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "never saw: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Demo {
    /// Starts one and waits until its walkthrough has ended: `demo/later` waits with a reason.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let mut builder = tempfile::Builder::new();
        let folder = builder
            .prefix("v")
            .rand_bytes(4)
            .tempdir_in("/tmp")
            .unwrap();
        let mut command = aliquot(&["demo", "--kubeconfig-out"]);
        let child = command
            .arg(folder.path().join("kubeconfig"))
            .arg("--prometheus-out")
            .arg(folder.path().join("targets.json"))
            .args(flags)
            .env("TMPDIR", folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let demo = Self { child, folder };
        until("a kubeconfig", || demo.kubeconfig().exists().then_some(()));
        until("the end of the demo", || {
            let said = demo.ask(&["explain", "demo/later", "-o", "json"]);
            (said.code == Some(0) && said.json()["waits"] == true).then_some(())
        });
        demo
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = aliquot(args);
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    pub(crate) fn ask(&self, args: &[&str]) -> Said {
        self.command(args).output().unwrap().into()
    }

    /// As [`Self::ask`], and it must go well.
    pub(crate) fn told(&self, args: &[&str]) -> Said {
        let said = self.ask(args);
        assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
        assert_eq!(said.err, "", "{args:?}");
        said
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-INT", &pid]).status();
        let _ = self.child.wait();
    }
}
