//! Long inputs: a part of a seed as often as it fits, each time with another name, so that
//! what is quadratic in their number shows.

use crate::Shape;
use prost::encoding::encode_varint;
use serde_json::Value;

/// Largest number for one target: each costs as much as 256 KiB.
const MOST: usize = 60;

/// Inputs of about `size` bytes.
pub fn inputs(shape: Shape, seeds: &[Vec<u8>], size: usize) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = [
        &b"["[..],
        b"{\"a\":",
        b"0",
        b"/",
        b" ",
        b"\n",
        b"a=",
        b"\"",
        b"\\",
    ]
    .iter()
    .map(|piece| repeated(piece, size))
    .collect();
    for seed in seeds {
        match shape {
            Shape::Text => {
                out.push(counted(seed, size));
                for line in seed.split(|byte| *byte == b'\n').take(6) {
                    out.push(counted(&[line, b"\n"].concat(), size));
                    out.push(repeated(line, size));
                }
            }
            Shape::Json => {
                if let Ok(value) = serde_json::from_slice(seed) {
                    grown(&value, size, &mut out);
                }
            }
            Shape::Wire => {
                out.push(repeated(seed, size));
                // Empty messages of every field: the least that makes the most.
                for number in 1..16_u64 {
                    let mut piece = Vec::new();
                    encode_varint(number << 3 | 2, &mut piece);
                    piece.push(0);
                    let flat = repeated(&piece, size);
                    for above in 1..6_u64 {
                        let mut outer = Vec::new();
                        encode_varint(above << 3 | 2, &mut outer);
                        encode_varint(flat.len() as u64, &mut outer);
                        outer.extend_from_slice(&flat);
                        out.push(outer);
                    }
                    out.push(flat);
                }
            }
        }
    }
    let step = out.len().div_ceil(MOST).max(1);
    out.into_iter().step_by(step).collect()
}

/// The piece as often as it fits.
pub fn repeated(piece: &[u8], size: usize) -> Vec<u8> {
    let piece = if piece.is_empty() { b" " } else { piece };
    piece.iter().copied().cycle().take(size).collect()
}

/// The piece as often as it fits, each number in it counted up.
fn counted(piece: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(size + piece.len());
    let mut count = 0_u32;
    while out.len() < size {
        let mut in_number = false;
        for byte in piece {
            if !byte.is_ascii_digit() {
                out.push(*byte);
            } else if !in_number {
                out.extend_from_slice(count.to_string().as_bytes());
            }
            in_number = byte.is_ascii_digit();
        }
        count += 1;
        if piece.is_empty() {
            break;
        }
    }
    out
}

/// The document with each of its lists and maps, one at a time, as long as fits.
fn grown(value: &Value, size: usize, out: &mut Vec<Vec<u8>>) {
    let mut paths = Vec::new();
    walk(value, String::new(), &mut paths);
    for path in paths {
        let mut long = value.clone();
        let Some(at) = long.pointer_mut(&path) else {
            continue;
        };
        let before = at.clone();
        let each = serde_json::to_vec(&before).map_or(1, |text| text.len().max(8));
        match at {
            Value::Array(list) if !list.is_empty() => {
                let count = size / each * before.as_array().map_or(1, Vec::len).max(1);
                *list = (0..count)
                    .filter_map(|index| {
                        let old = before.as_array()?;
                        Some(renamed(old.get(index % old.len())?, index))
                    })
                    .collect();
            }
            Value::Object(map) => {
                for index in 0..size / each {
                    for (key, value) in before.as_object().into_iter().flatten() {
                        map.insert(format!("{key}-{index}"), value.clone());
                    }
                }
            }
            Value::String(text) => *text = text.repeat(size / text.len().max(1)),
            _ => continue,
        }
        out.push(serde_json::to_vec(&long).unwrap_or_default());
    }
}

fn walk(value: &Value, path: String, paths: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                walk(inner, format!("{path}/{}", escaped(key)), paths);
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                walk(inner, format!("{path}/{index}"), paths);
            }
        }
        Value::String(_) => {}
        _ => return,
    }
    paths.push(path);
}

/// With another name in each of its texts.
fn renamed(value: &Value, index: usize) -> Value {
    match value {
        Value::String(text) => format!("{text}-{index}").into(),
        Value::Array(list) => list.iter().map(|inner| renamed(inner, index)).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, inner)| {
                let inner = match inner {
                    // Of a map, one of its texts names it.
                    Value::String(_) if key != "name" && key != "uid" => inner.clone(),
                    _ => renamed(inner, index),
                };
                (key.clone(), inner)
            })
            .collect(),
        other => other.clone(),
    }
}
