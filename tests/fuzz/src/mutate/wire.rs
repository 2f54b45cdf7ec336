//! Fields of a protobuf message, by its wire format alone.

use super::corpus::Corpus;
use super::edge::edge;
use crate::random::Xoshiro256;
use prost::bytes::{Buf as _, BufMut as _};
use prost::encoding::{decode_varint, encode_varint};

enum Body {
    Number(u64),
    Eight([u8; 8]),
    Four([u8; 4]),
    Bytes(Vec<u8>),
}

/// One step in the message or in a message within it.
pub(super) fn mutate(message: &mut Vec<u8>, corpus: &Corpus, random: &mut Xoshiro256) {
    let Some(mut fields) = fields(message) else {
        let text = corpus.string(&String::from_utf8_lossy(message), random);
        *message = text.into_bytes();
        return;
    };
    let (one, to) = (random.below(fields.len()), random.below(fields.len() + 1));
    match random.below(12) {
        0 if !fields.is_empty() => {
            fields.remove(one);
        }
        1 if !fields.is_empty() => {
            let field = &fields[one];
            let copy = (field.0, field.1.copy());
            fields.insert(to, copy);
        }
        2 if !fields.is_empty() => {
            let at = to.min(fields.len() - 1);
            fields.swap(one, at);
        }
        3 => {
            let number = 1 + random.below(28) as u64;
            let body = match random.below(3) {
                0 => Body::Number(edge(random)),
                1 => Body::Bytes(Vec::new()),
                _ => Body::Bytes(corpus.string("", random).into_bytes()),
            };
            fields.insert(to, (number, body));
        }
        4 if !fields.is_empty() => fields[one].0 = 1 + random.below(28) as u64,
        _ => {
            if let Some((_, body)) = fields.get_mut(one) {
                body.change(corpus, random);
            }
        }
    }
    message.clear();
    for (number, body) in fields {
        body.write(number, message);
    }
}

impl Body {
    fn copy(&self) -> Self {
        match self {
            Self::Number(number) => Self::Number(*number),
            Self::Eight(bytes) => Self::Eight(*bytes),
            Self::Four(bytes) => Self::Four(*bytes),
            Self::Bytes(bytes) => Self::Bytes(bytes.clone()),
        }
    }

    fn change(&mut self, corpus: &Corpus, random: &mut Xoshiro256) {
        match self {
            Self::Number(number) => {
                *number = match random.below(3) {
                    0 => number.wrapping_add(1),
                    1 => number.wrapping_sub(1),
                    _ => edge(random),
                }
            }
            Self::Eight(bytes) => *bytes = edge(random).to_le_bytes(),
            Self::Four(bytes) => bytes[random.below(4)] = random.byte(),
            // A text of plain letters may parse as a message by accident: no harm.
            Self::Bytes(bytes) => mutate(bytes, corpus, random),
        }
    }

    fn write(self, number: u64, out: &mut Vec<u8>) {
        let key = |kind: u64| number << 3 | kind;
        match self {
            Self::Number(value) => {
                encode_varint(key(0), out);
                encode_varint(value, out);
            }
            Self::Eight(bytes) => {
                encode_varint(key(1), out);
                out.put_slice(&bytes);
            }
            Self::Bytes(bytes) => {
                encode_varint(key(2), out);
                encode_varint(bytes.len() as u64, out);
                out.put_slice(&bytes);
            }
            Self::Four(bytes) => {
                encode_varint(key(5), out);
                out.put_slice(&bytes);
            }
        }
    }
}

/// `None`: no message.
fn fields(mut message: &[u8]) -> Option<Vec<(u64, Body)>> {
    let mut fields = Vec::new();
    while message.has_remaining() {
        let key = decode_varint(&mut message).ok()?;
        let body = match key & 7 {
            0 => Body::Number(decode_varint(&mut message).ok()?),
            1 => Body::Eight(take(&mut message, 8)?.try_into().ok()?),
            2 => {
                let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
                Body::Bytes(take(&mut message, length)?.to_vec())
            }
            5 => Body::Four(take(&mut message, 4)?.try_into().ok()?),
            _ => return None,
        };
        if key >> 3 == 0 {
            return None;
        }
        fields.push((key >> 3, body));
    }
    Some(fields)
}

fn take<'a>(from: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}
