//! A program of `tests/cluster/tools/kubernetes` that runs beside: a question a line, an answer a
//! line.

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(crate) struct Program {
    child: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Built from the pinned module, where it is not built yet.
    pub(crate) fn start(name: &str, args: &[&str]) -> Result<Self> {
        let mut child = Command::new(build(name)?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| name.to_owned())?;
        let asks = child.stdin.take().context("stdin")?;
        let answers = BufReader::new(child.stdout.take().context("stdout")?).lines();
        Ok(Self {
            child,
            asks,
            answers,
        })
    }

    /// # Errors
    /// The program has ended, or says something else.
    pub(crate) fn ask<Answer: DeserializeOwned>(&mut self, question: &Value) -> Result<Answer> {
        writeln!(self.asks, "{question}")?;
        self.asks.flush()?;
        let line = self.answers.next().context("no answer")??;
        Ok(serde_json::from_str(&line)?)
    }

    /// # Errors
    /// It fails.
    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.asks);
        let ended = self.child.wait()?;
        if !ended.success() {
            bail!("Kubernetes' side ended with {ended}");
        }
        Ok(())
    }
}

/// The program's path.
pub(crate) fn build(name: &str) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/tools/ask");
    let built = Command::new(&script)
        .arg(name)
        .stderr(Stdio::inherit())
        .output()?;
    if !built.status.success() {
        bail!("{} {name} ended with {}", script.display(), built.status);
    }
    Ok(PathBuf::from(String::from_utf8(built.stdout)?.trim()))
}
