//! Values, keys and subtrees of JSON.

use super::corpus::Corpus;
use super::edge::edge;
use crate::random::Xoshiro256;
use serde_json::{Map, Number, Value, json};

/// One step somewhere in the tree.
pub(super) fn mutate(root: &mut Value, corpus: &Corpus, random: &mut Xoshiro256) {
    let mut at = root;
    // Down to a leaf half of the time, else to something on the way.
    loop {
        let children = match &*at {
            Value::Object(map) => map.len(),
            Value::Array(list) => list.len(),
            _ => 0,
        };
        if children == 0 || random.one_in(6) {
            break;
        }
        let which = random.below(children);
        at = match at {
            Value::Object(map) => map.values_mut().nth(which).expect("counted above"),
            Value::Array(list) => &mut list[which],
            _ => unreachable!("it has children"),
        };
    }
    if random.one_in(8) {
        *at = other(corpus, random);
        return;
    }
    match at {
        Value::Object(map) => object(map, corpus, random),
        Value::Array(list) => array(list, corpus, random),
        Value::String(text) => {
            *text = if random.one_in(4) {
                word(corpus, random)
            } else {
                corpus.string(text, random)
            }
        }
        Value::Number(number) => *number = near(number, random),
        Value::Bool(flag) => *flag = !*flag,
        Value::Null => *at = other(corpus, random),
    }
}

fn object(map: &mut Map<String, Value>, corpus: &Corpus, random: &mut Xoshiro256) {
    let which = random.below(map.len());
    let key = map.keys().nth(which).cloned();
    match (random.below(4), key) {
        (0, Some(key)) => {
            map.remove(&key);
        }
        (1, Some(key)) => {
            // Under another name.
            let value = map.remove(&key).unwrap_or_default();
            map.insert(corpus.string(&key, random), value);
        }
        (2, Some(key)) => {
            // Twice.
            let value = map[&key].clone();
            map.insert(word(corpus, random), value);
        }
        _ => {
            map.insert(word(corpus, random), other(corpus, random));
        }
    }
}

fn array(list: &mut Vec<Value>, corpus: &Corpus, random: &mut Xoshiro256) {
    let (one, to) = (random.below(list.len()), random.below(list.len() + 1));
    match random.below(4) {
        0 if !list.is_empty() => {
            list.remove(one);
        }
        1 | 2 if !list.is_empty() => list.insert(to, list[one].clone()),
        _ => list.insert(to, other(corpus, random)),
    }
}

fn word(corpus: &Corpus, random: &mut Xoshiro256) -> String {
    random
        .pick(&corpus.words)
        .copied()
        .unwrap_or_default()
        .to_owned()
}

fn near(number: &Number, random: &mut Xoshiro256) -> Number {
    let old = number.as_u64().unwrap_or(0);
    match random.below(6) {
        0 => old.wrapping_add(1).into(),
        1 => old.wrapping_sub(1).into(),
        2 => edge(random).cast_signed().into(),
        3 => Number::from_f64(1e308).unwrap_or(0.into()),
        4 => Number::from_f64(number.as_f64().unwrap_or(1.0) / 3.0).unwrap_or(0.into()),
        _ => edge(random).into(),
    }
}

/// Something of another kind, or a subtree of another seed.
fn other(corpus: &Corpus, random: &mut Xoshiro256) -> Value {
    match random.below(10) {
        0 => Value::Null,
        1 => random.one_in(2).into(),
        2 => edge(random).into(),
        3 => edge(random).cast_signed().into(),
        4 => json!(""),
        5 => json!([]),
        6 => json!({}),
        7 => word(corpus, random).into(),
        8 => edge(random).to_string().into(),
        _ => {
            let mut part = random.pick(&corpus.values).unwrap_or(&Value::Null);
            for _ in 0..random.below(6) {
                let next = match part {
                    Value::Object(map) => map.values().nth(random.below(map.len())),
                    Value::Array(list) => list.get(random.below(list.len())),
                    _ => None,
                };
                let Some(next) = next else { break };
                part = next;
            }
            part.clone()
        }
    }
}
