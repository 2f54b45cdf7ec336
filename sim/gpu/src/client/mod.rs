//! Talking to the driver from a process of its own.
//!
//! Owns one connection. In: a driver root. Out: answers, or [`CallError`].
//! [`process`] puts libcuda's behaviour on top. Must never: retry by itself; a
//! dead driver is the caller's news.

pub mod process;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::cuda::CudaError;
use crate::paths::{self, Root};
use crate::wire::{MAX_LINE, Message};

/// A connection to the driver.
#[derive(Debug)]
pub struct Driver {
    reader: BufReader<UnixStream>,
}

/// Why a call has no answer to use.
#[derive(Debug)]
pub enum CallError {
    /// The driver refused: a code of CUDA's or NVML's, its name, and a sentence.
    Refused {
        /// Numeric code.
        code: u32,
        /// `CUDA_ERROR_...` or `NVML_ERROR_...`.
        name: String,
        /// What stood in the way.
        message: String,
    },
    /// There is no driver, or it went away.
    Gone(io::Error),
}

impl CallError {
    /// A refusal that this side decides by itself, as libcuda does.
    pub fn refused(error: CudaError, message: impl Into<String>) -> Self {
        Self::Refused {
            code: error.code(),
            name: error.name().to_owned(),
            message: message.into(),
        }
    }

    /// The numeric code; a dead driver is `CUDA_ERROR_UNKNOWN`.
    pub fn code(&self) -> u32 {
        match self {
            Self::Refused { code, .. } => *code,
            Self::Gone(_) => CudaError::Unknown.code(),
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused {
                code,
                name,
                message,
            } => write!(f, "{name} ({code}): {message}"),
            Self::Gone(source) => write!(f, "the driver is gone: {source}"),
        }
    }
}

impl std::error::Error for CallError {}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl Driver {
    /// Connects to the driver of this root.
    pub fn connect(root: &Root) -> Result<Self, CallError> {
        Ok(Self {
            reader: BufReader::new(paths::connect(&root.socket())?),
        })
    }

    /// Asks, and waits for the answer.
    pub fn call(&mut self, request: &Message) -> Result<Message, CallError> {
        let line = format!("{request}\n");
        self.reader.get_mut().write_all(line.as_bytes())?;
        self.answer()
    }

    /// Opens a device node and shows it to the driver.
    pub fn open(&mut self, node: &Path) -> Result<Message, CallError> {
        let file = open_path(node).map_err(|e| {
            CallError::refused(CudaError::NoDevice, format!("{}: {e}", node.display()))
        })?;
        let descriptors = [file.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&descriptors)];
        let line = [IoSlice::new(b"open\n")];
        sendmsg::<()>(
            self.reader.get_ref().as_raw_fd(),
            &line,
            &control,
            MsgFlags::empty(),
            None,
        )
        .map_err(io::Error::from)?;
        self.answer()
    }

    /// Says goodbye and closes: a clean end, not a killed process.
    pub fn bye(mut self) {
        let _ = self.call(&Message::new("bye"));
    }

    /// A second handle that only notices the driver's end.
    pub fn watch(&self) -> io::Result<UnixStream> {
        self.reader.get_ref().try_clone()
    }

    fn answer(&mut self) -> Result<Message, CallError> {
        let answer = read_message(&mut self.reader)?;
        if answer.is_ok() {
            return Ok(answer);
        }
        Err(CallError::Refused {
            code: answer.parsed("code").unwrap_or(CudaError::Unknown.code()),
            name: answer.get("name").unwrap_or_default(),
            message: answer.get("message").unwrap_or_default(),
        })
    }
}

/// Reads one message line.
pub fn read_message(reader: &mut impl BufRead) -> io::Result<Message> {
    let mut line = String::new();
    let limit = MAX_LINE as u64 * 8;
    if reader.by_ref().take(limit).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Message::parse(line.trim_end()).map_err(io::Error::other)
}

/// Opens without touching the device behind: there is no kernel module to answer.
fn open_path(node: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_PATH.bits())
        .open(node)
}
