//! One connection's bytes: lines, descriptors and credentials.
//!
//! Owns the receive buffer. In: a connected socket. Out: [`Incoming`] lines,
//! each with the nodes presented along with it and the pid that really sent it.
//! Must never: keep a received descriptor open, or buffer without a bound.

use std::io::{self, IoSliceMut, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt,
};

use super::nodes::DeviceFileStat;
use super::peer::Peer;
use crate::wire::MAX_LINE;

/// One line from a client.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The line without its newline.
    pub(super) line: String,
    /// What `stat` says of the descriptors that came along.
    pub(super) presented: Vec<DeviceFileStat>,
    /// The sender; a child that inherited the connection is not its owner.
    pub(super) sender: Option<i32>,
}

/// The reading side of a connection.
#[derive(Debug)]
pub(super) struct LineSocket {
    stream: UnixStream,
    buffer: Vec<u8>,
    presented: Vec<DeviceFileStat>,
    sender: Option<i32>,
    control: Vec<u8>,
}

impl LineSocket {
    /// Accepts a connection and identifies its peer.
    pub(super) fn accept(stream: UnixStream) -> io::Result<(Self, Peer)> {
        setsockopt(&stream, sockopt::PassCred, &true)?;
        let credentials = nix::sys::socket::getsockopt(&stream, sockopt::PeerCredentials)?;
        let peer = Peer {
            pid: credentials.pid(),
            uid: credentials.uid(),
        };
        let control = nix::cmsg_space!([std::os::fd::RawFd; 16], UnixCredentials);
        Ok((
            Self {
                stream,
                buffer: Vec::new(),
                presented: Vec::new(),
                sender: None,
                control,
            },
            peer,
        ))
    }

    /// The next line, or `None` at the end of the connection.
    pub(super) fn next(&mut self) -> io::Result<Option<Incoming>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.truncate(end);
                return Ok(Some(Incoming {
                    line: String::from_utf8_lossy(&line).into_owned(),
                    presented: std::mem::take(&mut self.presented),
                    sender: self.sender,
                }));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "line too long"));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Writes one line.
    pub(super) fn answer(&mut self, line: &str) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        self.stream.write_all(&bytes)
    }

    fn fill(&mut self) -> io::Result<bool> {
        let mut chunk = [0_u8; 8192];
        let received = {
            let mut slices = [IoSliceMut::new(&mut chunk)];
            let message = loop {
                match recvmsg::<()>(
                    self.stream.as_raw_fd(),
                    &mut slices,
                    Some(&mut self.control),
                    MsgFlags::MSG_CMSG_CLOEXEC,
                ) {
                    Err(nix::errno::Errno::EINTR) => {}
                    other => break other?,
                }
            };
            if let Ok(parts) = message.cmsgs() {
                for part in parts {
                    match part {
                        ControlMessageOwned::ScmRights(descriptors) => {
                            for raw in descriptors {
                                self.presented.extend(DeviceFileStat::of(raw));
                                let _ = nix::unistd::close(raw);
                            }
                        }
                        ControlMessageOwned::ScmCredentials(credentials) => {
                            self.sender = Some(credentials.pid());
                        }
                        _ => {}
                    }
                }
            }
            message.bytes
        };
        self.buffer.extend_from_slice(&chunk[..received]);
        Ok(received > 0)
    }
}
