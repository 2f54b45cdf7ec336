//! A daemon's hold on one server process.
//!
//! Owns the child: its standard input for requests, its standard output for
//! answers and log lines. One request is under way at a time.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::CallError;
use crate::cuda::CudaError;
use crate::wire::Message;

/// A running server.
#[derive(Debug)]
pub(super) struct ServerPipe {
    pub(super) pid: u32,
    io: Mutex<(ChildStdin, Receiver<Message>)>,
    answers: Mutex<Option<Sender<Message>>>,
    child: Mutex<Child>,
}

impl ServerPipe {
    /// Starts the server program as a user. Answers its output too, to be read by [`ServerPipe::read`].
    pub(super) fn spawn(
        uid: u32,
        gid: u32,
        pipe: &Path,
    ) -> Result<(Arc<Self>, Lines<BufReader<ChildStdout>>), String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command
            .arg0("nvidia-cuda-mps-server")
            .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let own = nix::unistd::geteuid();
        if uid != own.as_raw() {
            if !own.is_root() {
                return Err(format!(
                    "a daemon of user {own} cannot start a server for user {uid}"
                ));
            }
            command.uid(uid).gid(gid);
        }
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the server has no pipes".to_owned());
        };
        let (sender, answers) = mpsc::channel();
        let pipe = Arc::new(Self {
            pid: child.id(),
            io: Mutex::new((stdin, answers)),
            answers: Mutex::new(Some(sender)),
            child: Mutex::new(child),
        });
        Ok((pipe, BufReader::new(stdout).lines()))
    }

    /// Reads the server's output to its end.
    pub(super) fn read(
        &self,
        lines: Lines<BufReader<ChildStdout>>,
        log: impl Fn(&str),
        ready: impl Fn(Vec<String>),
    ) {
        let answers = self
            .answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        for message in lines
            .map_while(Result::ok)
            .filter_map(|line| Message::parse(&line).ok())
        {
            match message.verb.as_str() {
                "log" => log(&message.get("line").unwrap_or_default()),
                "ready" => {
                    ready(
                        message
                            .rows("devices")
                            .into_iter()
                            .filter_map(|r| r.into_iter().next())
                            .collect(),
                    );
                }
                _ => {
                    let _ = answers.as_ref().map(|a| a.send(message));
                }
            }
        }
    }

    /// Asks the server, which asks the driver.
    pub(super) fn call(&self, request: &Message) -> Result<Message, CallError> {
        let dead = || CallError::refused(CudaError::MpsRpcFailure, "the server died");
        let mut io = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        io.0.write_all(format!("{request}\n").as_bytes())
            .map_err(|_| dead())?;
        // A server that is slow is not dead: its end closes the channel.
        let answer = io.1.recv().map_err(|_| dead())?;
        if answer.is_ok() {
            return Ok(answer);
        }
        Err(CallError::Refused {
            code: answer.parsed("code").unwrap_or(CudaError::Unknown.code()),
            name: answer.get("name").unwrap_or_default(),
            message: answer.get("message").unwrap_or_default(),
        })
    }

    /// Ends the server at once.
    pub(super) fn kill(&self) {
        let _ = self
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .kill();
    }

    /// Waits for the end; the exit status, or 128 and the signal.
    pub(super) fn reap(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        match self
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .wait()
        {
            Ok(status) => status
                .code()
                .or(status.signal().map(|s| 128 + s))
                .unwrap_or(1),
            Err(_) => 1,
        }
    }
}
