//! Gives the kubelet's registration calls an authority that HTTP/2 in Rust takes.
//!
//! The kubelet dials a plugin's registration socket by its path, and grpc-go then sends the
//! path, percent-encoded, as `:authority` (`pkg/kubelet/pluginmanager/operationexecutor`, up to
//! 1.36). That is no authority of RFC 3986: crate `http` refuses it, and `h2` ends the stream.
//! Here frames are read one by one, and in a header block (RFC 7541) the value of that one
//! field is replaced. Everything else passes as it came; nothing is decoded.

use std::io;
use std::ops::Range;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What each HTTP/2 connection begins with (RFC 9113, 3.4).
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// The longest frame that may be sent unless another length was agreed on.
const LONGEST: usize = 16_384;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
/// Neither padding nor priority is sent by grpc-go; such a block passes as it is.
const PADDED_OR_PRIORITY: u8 = 0x8 | 0x20;
/// `:authority` in the static table.
const AUTHORITY: usize = 1;
/// What stands there instead: nine bytes, not Huffman-coded.
const LOCALHOST: &[u8] = b"\x09localhost";

/// Copies one direction of a connection, client to server, until it ends.
///
/// # Errors Of the sockets, and for input that is not HTTP/2.
pub(super) async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    loop {
        let mut header = [0; FRAME_HEADER];
        if let Err(error) = from.read_exact(&mut header).await {
            let ended = error.kind() == io::ErrorKind::UnexpectedEof;
            return if ended {
                to.shutdown().await
            } else {
                Err(error)
            };
        }
        let [high, middle, low, kind, flags, ..] = header;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if length > LONGEST {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        let plain = flags & END_HEADERS != 0 && flags & PADDED_OR_PRIORITY == 0;
        if kind == HEADERS
            && plain
            && let Some(block) = with_localhost(&payload)
            && let Ok(length) = u16::try_from(block.len())
        {
            let [middle, low] = length.to_be_bytes();
            (header[0], header[1], header[2]) = (0, middle, low);
            payload = block;
        }
        to.write_all(&header).await?;
        to.write_all(&payload).await?;
        to.flush().await?;
    }
}

/// The block with another value where it spells `:authority` out; `None` where it does not,
/// or is no header block. The entry that this makes in the reader's table is shorter than the
/// writer believes, so the reader forgets none that the writer still names.
fn with_localhost(block: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        let bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, after) = integer(block, at, bits)?;
        if bits == 7 || bits == 5 {
            at = after;
            continue;
        }
        let value = if index == 0 {
            string(block, after)?.end
        } else {
            after
        };
        let end = string(block, value)?.end;
        if index == AUTHORITY {
            return Some([block.get(..value)?, LOCALHOST, block.get(end..)?].concat());
        }
        at = end;
    }
    None
}

/// A string with its length before it: the bytes of both.
fn string(block: &[u8], at: usize) -> Option<Range<usize>> {
    let (length, after) = integer(block, at, 7)?;
    let end = after.checked_add(length)?;
    (end <= block.len()).then_some(at..end)
}

/// RFC 7541, 5.1: the value, and where what follows it begins.
fn integer(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let mask = (1_usize << bits) - 1;
    let mut value = usize::from(*block.get(at)?) & mask;
    let mut at = at + 1;
    if value < mask {
        return Some((value, at));
    }
    let mut shift = 0;
    loop {
        let byte = usize::from(*block.get(at)?);
        at += 1;
        value = value.checked_add((byte & 0x7f) << shift)?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
        // No length of a frame has more.
        if shift > 21 {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As grpc-go sends a call: indexed fields, `:path` in full, the authority in full.
    fn block(authority: &[u8]) -> Vec<u8> {
        let path = b"/pluginregistration.Registration/GetInfo";
        let mut block = vec![0x83, 0x86, 0x44, u8::try_from(path.len()).unwrap()];
        block.extend(path);
        block.push(0x41);
        block.push(u8::try_from(authority.len()).unwrap());
        block.extend(authority);
        // A literal name and value, never indexed.
        block.extend(b"\x10\x02te\x08trailers");
        block
    }

    #[test]
    fn the_authority_alone_is_replaced() {
        let sent = block(b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Faliquot.dev-reg.sock");
        assert_eq!(with_localhost(&sent), Some(block(b"localhost")));
        // The second call names what the first one left in the table.
        assert_eq!(with_localhost(&[0x83, 0x86, 0xbf, 0xbe]), None);
    }

    #[test]
    fn what_is_no_header_block_passes_as_it_is() {
        let whole = block(b"%2Fvar");
        for length in 0..whole.len() {
            let _ = with_localhost(&whole[..length]);
        }
        for noise in [
            &[0x41, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..],
            &[0x41, 0x7f],
        ] {
            assert_eq!(with_localhost(noise), None);
        }
    }

    #[tokio::test]
    async fn frames_of_every_kind_arrive_whole() {
        let sent = block(b"%2Fvar");
        let frame = |kind: u8, flags: u8, payload: &[u8]| {
            let length = u8::try_from(payload.len()).unwrap();
            [&[0, 0, length, kind, flags, 0, 0, 0, 1][..], payload].concat()
        };
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let settings = frame(4, 0, &[0; 6]);
        let data = frame(0, 1, b"payload");
        let read = [
            &preface[..],
            &settings,
            &frame(HEADERS, END_HEADERS, &sent),
            &data,
        ]
        .concat();
        let mut out = Vec::new();
        forward(&read[..], &mut out).await.unwrap();
        let headers = frame(HEADERS, END_HEADERS, &block(b"localhost"));
        assert_eq!(out, [&preface[..], &settings, &headers, &data].concat());
    }
}
