//! Words, numbers, lines and bytes.

use super::edge::edge;
use crate::random::Xoshiro256;

/// One step.
pub(super) fn mutate(bytes: &mut Vec<u8>, words: &[&str], random: &mut Xoshiro256) {
    let at = random.below(bytes.len() + 1);
    match random.below(13) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => bytes.insert(at, random.byte()),
        2 => {
            let end = (at + 1 + random.below(8)).min(bytes.len());
            bytes.drain(at.min(end)..end);
        }
        3 => {
            // A stretch again, here or elsewhere.
            let end = (at + random.below(40)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        4 => {
            let length = random.below(bytes.len() + 1);
            bytes.truncate(length);
        }
        5 | 6 => {
            let word = random.pick(words).copied().unwrap_or("0");
            let end = (at + random.below(word.len() + 1)).min(bytes.len());
            bytes.splice(at..end, word.bytes());
        }
        7 | 8 => number(bytes, at, random),
        9 => words_of(bytes, at, words, random),
        10 | 11 => lines(bytes, random),
        _ => {
            let signs = b" \t\n\r\0:/=,.-_+\"'\\{}[]()#%@~\x7f\x80\xc3\xa9";
            bytes.insert(at, random.pick(signs).copied().unwrap_or(b' '));
        }
    }
}

/// The number at or after `at` becomes another.
fn number(bytes: &mut Vec<u8>, at: usize, random: &mut Xoshiro256) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit) else {
        return;
    };
    let start = at + start;
    let length = bytes[start..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let old = std::str::from_utf8(&bytes[start..start + length]).unwrap_or_default();
    let old: u64 = old.parse().unwrap_or(0);
    let text = match random.below(8) {
        0 => old.wrapping_add(1).to_string(),
        1 => old.wrapping_sub(1).to_string(),
        2 => format!("-{old}"),
        3 => format!("{old}.{}", random.below(1000)),
        4 => format!("{old}e{}", random.below(400)),
        5 => format!("0{old}"),
        6 => format!("{old}{}", edge(random)),
        _ => edge(random).to_string(),
    };
    bytes.splice(start..start + length, text.bytes());
}

/// The word around `at` becomes another, comes twice, or goes.
fn words_of(bytes: &mut Vec<u8>, at: usize, words: &[&str], random: &mut Xoshiro256) {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let start = bytes[..at].iter().rposition(|byte| !inside(byte));
    let start = start.map_or(0, |before| before + 1);
    let end = bytes[at..].iter().position(|byte| !inside(byte));
    let end = end.map_or(bytes.len(), |after| at + after);
    let word = match random.below(3) {
        0 => Vec::new(),
        1 => bytes[start..end].repeat(2),
        _ => random.pick(words).copied().unwrap_or_default().into(),
    };
    bytes.splice(start..end, word);
}

/// A line goes, comes again elsewhere, or changes places.
fn lines(bytes: &mut Vec<u8>, random: &mut Xoshiro256) {
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let (one, other) = (random.below(lines.len()), random.below(lines.len()));
    match random.below(3) {
        0 => {
            lines.remove(one);
        }
        1 => lines.insert(other, lines[one]),
        _ => lines.swap(one, other),
    }
    *bytes = lines.join(&b'\n');
}
