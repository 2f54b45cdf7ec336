//! A CUDA program that is controlled word by word
//!
//! Owns the child; dropping it ends it. In: words. Out: its JSON lines.

use crate::machine::Machine;
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// A kernel is compiled and a server started within this, on a slow machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running program.
#[derive(Debug)]
pub(crate) struct Tenant<'a> {
    machine: &'a Machine,
    name: String,
    child: Child,
    lines: Receiver<String>,
}

/// The surroundings of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramEnv {
    /// Over the machine's own.
    pub(crate) env: Vec<(String, String)>,
    /// Of `gpu cuda`.
    pub(crate) options: Vec<String>,
}

impl ProgramEnv {
    /// Sees this card alone.
    pub(crate) fn card(uuid: &str) -> Self {
        Self::default().with("CUDA_VISIBLE_DEVICES", uuid)
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn option(mut self, words: &[&str]) -> Self {
        self.options.extend(words.iter().map(ToString::to_string));
        self
    }
}

impl<'a> Tenant<'a> {
    pub(crate) fn start(
        machine: &'a Machine,
        name: &str,
        around: &ProgramEnv,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("cuda").arg("--library").arg(machine.cuda()?);
        for (name, path) in [("--control", machine.control()), ("--egl", machine.egl())] {
            if let Ok(path) = path {
                command.arg(name).arg(path);
            }
        }
        let mut child = command
            .args(&around.options)
            .arg("ask")
            .envs(machine.env())
            .envs(around.env.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let output = child.stdout.take().context("no output")?;
        let (tell, lines) = channel();
        // Ends with the child.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let shown: Vec<String> = around.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let options = around.options.join(" ");
        machine.transcript.note(format!(
            "# program {name}, pid {}: {} {options}",
            child.id(),
            shown.join(" ")
        ));
        Ok(Self {
            machine,
            name: name.to_owned(),
            child,
            lines,
        })
    }

    /// One with a context; its answer.
    pub(crate) fn begun(
        machine: &'a Machine,
        name: &str,
        around: &ProgramEnv,
    ) -> anyhow::Result<(Self, Value)> {
        let mut tenant = Self::start(machine, name, around)?;
        let answer = tenant.ask("context")?;
        Ok((tenant, answer))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says a word and waits for its line.
    pub(crate) fn ask(&mut self, word: &str) -> anyhow::Result<Value> {
        self.ask_within(word, PATIENCE)?
            .with_context(|| format!("{}: no answer to {word:?} within {PATIENCE:?}", self.name))
    }

    /// `None`: no answer in that time.
    pub(crate) fn ask_within(
        &mut self,
        word: &str,
        limit: Duration,
    ) -> anyhow::Result<Option<Value>> {
        let input = self.child.stdin.as_mut().context("no input")?;
        writeln!(input, "{word}")?;
        match self.lines.recv_timeout(self.machine.left(limit)) {
            Ok(line) => {
                self.machine
                    .transcript
                    .note(format!("{}: {line}", self.name));
                Ok(Some(serde_json::from_str(&line)?))
            }
            Err(RecvTimeoutError::Timeout) => {
                let text = format!("{}: {word}: no answer within {limit:?}", self.name);
                self.machine.transcript.note(text);
                Ok(None)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("{} ended at {word:?}: {status}", self.name)
            }
        }
    }

    /// Its `code` for a word.
    pub(crate) fn code(&mut self, word: &str) -> anyhow::Result<u64> {
        self.ask(word)?["code"].as_u64().context("no code")
    }

    /// SIGKILL, without a word.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.machine
            .transcript
            .note(format!("# SIGKILL to {}", self.name));
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// A clean end.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        // It may be gone.
        let _ = self
            .child
            .stdin
            .as_mut()
            .map(|input| writeln!(input, "end"));
        drop(self.child.stdin.take());
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Tenant<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
