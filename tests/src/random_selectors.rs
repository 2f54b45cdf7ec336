//! Random CEL expressions about a device, of the functions that Kubernetes' environment for device
//! selectors has; and devices for them. Of the types that the functions take, but for attributes,
//! whose type no compiler knows.

use crate::random::SplitMix64;
use serde_json::{Map, Value, json};

const DRIVER: &str = "a.example.com";
const WORDS: [&str; 8] = ["", "L4", "A100", "a-b-c", "Übung", " 12 ", "1.2.3", "v1.4"];
const PATTERNS: [&str; 6] = ["[0-9]+", "^A", "b", "(a|L)", ".*", "[A-Z][0-9]"];
const AMOUNTS: [&str; 9] = [
    "1Gi", "1024Mi", "8Gi", "100m", "0", "-3", "1e3", "1.5k", "much",
];
const VERSIONS: [&str; 8] = [
    "1.2.3",
    "1.10.0",
    "2.0.0-rc.1",
    "2.0.0-rc.1+b5",
    "2.0.0",
    "1.2",
    "v3.0.0",
    "01.2.3",
];

/// Expressions, each with the device to which it is applied.
pub fn selections(seed: u64) -> Value {
    let random = &mut SplitMix64::new(seed);
    let device = device(random);
    let all: Vec<Value> = (0..4)
        .map(|_| json!({ "expression": yes_or_no(random, 3), "device": device }))
        .collect();
    json!(all)
}

fn pick<'a>(random: &mut SplitMix64, among: &[&'a str]) -> &'a str {
    among[random.below(among.len())]
}

fn device(random: &mut SplitMix64) -> Value {
    let mut attributes = Map::new();
    let mut set = |random: &mut SplitMix64, name: &str, value: Value| {
        if !random.one_in(5) {
            attributes.insert(name.to_owned(), value);
        }
    };
    let word = pick(random, &WORDS[..5]);
    set(random, "model", json!({ "string": word }));
    let number = random.below(4);
    set(random, "index", json!({ "int": number }));
    let yes = random.one_in(2);
    set(random, "exclusive", json!({ "bool": yes }));
    let version = pick(random, &VERSIONS[..5]);
    set(
        random,
        "a.example.com/version",
        json!({ "version": version }),
    );
    set(random, "b.example.com/model", json!({ "string": "other" }));
    let mut capacity = Map::new();
    if !random.one_in(5) {
        let value = pick(random, &AMOUNTS[..5]);
        capacity.insert("memory".to_owned(), json!({ "value": value }));
    }
    if random.one_in(3) {
        capacity.insert("b.example.com/slots".to_owned(), json!({ "value": "4" }));
    }
    json!({ "driver": DRIVER, "shared": random.one_in(2), "attributes": attributes,
        "capacity": capacity })
}

fn quoted(text: &str) -> String {
    format!("'{text}'")
}

fn domain(random: &mut SplitMix64) -> String {
    match random.below(8) {
        0 => "'no.example.com'".to_owned(),
        1 => "'b.example.com'".to_owned(),
        2 => "device.driver".to_owned(),
        _ => quoted(DRIVER),
    }
}

fn attributes(random: &mut SplitMix64) -> String {
    format!("device.attributes[{}]", domain(random))
}

/// An attribute of that name, or seldom of another one.
fn attribute(random: &mut SplitMix64, name: &str) -> String {
    let name = if random.one_in(8) {
        pick(
            random,
            &["model", "index", "exclusive", "version", "nothing"],
        )
    } else {
        name
    };
    if random.one_in(3) {
        format!("{}['{name}']", attributes(random))
    } else {
        format!("{}.{name}", attributes(random))
    }
}

fn yes_or_no(random: &mut SplitMix64, deep: usize) -> String {
    if deep == 0 {
        return match random.below(6) {
            0 => "true".to_owned(),
            1 => "false".to_owned(),
            2 => "device.allowMultipleAllocations".to_owned(),
            3 => attribute(random, "exclusive"),
            4 => format!("{} in device.attributes", domain(random)),
            _ => format!("has({}.model)", attributes(random)),
        };
    }
    let less = deep - 1;
    match random.below(26) {
        0 => format!("!({})", yes_or_no(random, less)),
        1 | 2 => {
            let (a, b) = (yes_or_no(random, less), yes_or_no(random, less));
            format!("({a} && {b})")
        }
        3 | 4 => {
            let (a, b) = (yes_or_no(random, less), yes_or_no(random, less));
            format!("({a} || {b})")
        }
        5 => {
            let (a, b) = (yes_or_no(random, less), yes_or_no(random, less));
            format!("({} ? {a} : {b})", yes_or_no(random, less))
        }
        6 | 7 => {
            let by = pick(random, &["==", "!=", "<", "<=", ">", ">="]);
            let (a, b) = (number(random, less), number(random, less));
            format!("({a} {by} {b})")
        }
        8 | 9 => {
            let by = pick(random, &["==", "!=", "<", ">="]);
            let (a, b) = (words(random, less), words(random, less));
            format!("({a} {by} {b})")
        }
        10 => {
            let name = pick(random, &["isGreaterThan", "isLessThan"]);
            let (a, b) = (amount(random, less), amount(random, less));
            format!("{a}.{name}({b})")
        }
        11 => {
            let name = pick(random, &["isGreaterThan", "isLessThan"]);
            let (a, b) = (version(random), version(random));
            format!("{a}.{name}({b})")
        }
        12 => {
            let by = pick(random, &["==", "!="]);
            let (a, b) = (version(random), version(random));
            format!("({a} {by} {b})")
        }
        13 => {
            let by = pick(random, &["==", "!="]);
            // Kubernetes compares nothing with what `add` and `sub` give.
            let (a, b) = (amount(random, less), amount(random, 0));
            format!("({a} {by} {b})")
        }
        14 => {
            let name = pick(random, &["startsWith", "endsWith", "contains"]);
            let (a, b) = (words(random, less), words(random, less));
            format!("{a}.{name}({b})")
        }
        15 => {
            let pattern = pick(random, &PATTERNS);
            format!("{}.matches('{pattern}')", words(random, less))
        }
        16 => {
            let name = pick(random, &["exists", "all", "exists_one"]);
            let by = pick(random, &["==", "<", ">"]);
            let (of, than) = (numbers(random, less), number(random, 0));
            format!("{of}.{name}(x, x {by} {than})")
        }
        17 => {
            let name = pick(random, &["exists", "all", "exists_one"]);
            let of = match random.below(3) {
                0 => "device.attributes".to_owned(),
                1 => attributes(random),
                _ => texts(random, less),
            };
            let with = quoted(pick(random, &["a", "m", "L", "model", DRIVER]));
            format!("{of}.{name}(x, x.startsWith({with}))")
        }
        // Not in an empty literal: Kubernetes' compiler removes the operand there.
        18 => {
            let of = numbers(random, less).replace("[]", "[7]");
            format!("({} in {of})", number(random, less))
        }
        19 => {
            let of = texts(random, less).replace("[]", "['none']");
            format!("({} in {of})", words(random, less))
        }
        20 => {
            let name = pick(random, &["contains", "equivalent", "intersects"]);
            let (a, b) = (numbers(random, less), numbers(random, less));
            format!("sets.{name}({a}, {b})")
        }
        21 => {
            let name = pick(random, &["model", "index", "exclusive", "nothing"]);
            let of = attributes(random);
            match random.below(3) {
                0 => format!("{of}.?{name}.hasValue()"),
                1 => format!("{of}.?{name}.orValue('x') == {}", words(random, 0)),
                _ => format!(
                    "{of}[?'{name}'].optMap(v, v == {}).orValue(false)",
                    number(random, 0)
                ),
            }
        }
        22 => match random.below(4) {
            0 => format!("isQuantity('{}')", pick(random, &AMOUNTS)),
            1 => format!("isSemver('{}')", pick(random, &VERSIONS)),
            2 => format!("isSemver('{}', true)", pick(random, &VERSIONS)),
            _ => format!("{}.isInteger()", amount(random, 0)),
        },
        23 => {
            let of = attributes(random);
            format!(
                "cel.bind(d, {of}, has(d.model) && {} == d.model)",
                words(random, 0)
            )
        }
        24 => {
            let name = pick(random, &["model", "index", "exclusive"]);
            let with = match name {
                "index" => number(random, 0),
                "exclusive" => "true".to_owned(),
                _ => words(random, 0),
            };
            format!("{}.includes({with})", attribute(random, name))
        }
        _ => {
            let of = match random.below(2) {
                0 => numbers(random, less),
                _ => texts(random, less),
            };
            format!("{of}.isSorted()")
        }
    }
}

fn number(random: &mut SplitMix64, deep: usize) -> String {
    if deep == 0 {
        return match random.below(4) {
            0 => attribute(random, "index"),
            1 => pick(random, &["-1", "9223372036854775807", "1.5", "0"]).to_owned(),
            _ => random.below(5).to_string(),
        };
    }
    let less = deep - 1;
    match random.below(12) {
        0 => format!("size({})", words(random, less)),
        1 => format!("{}.size()", words(random, less)),
        2 => format!("{}.size()", numbers(random, less)),
        3 => {
            let by = pick(random, &["+", "-", "*", "/", "%"]);
            let whole = |random: &mut SplitMix64| match random.below(3) {
                0 => attribute(random, "index"),
                _ => random.below(4).to_string(),
            };
            let (a, b) = (whole(random), whole(random));
            format!("({a} {by} {b})")
        }
        4 => {
            let name = pick(random, &["indexOf", "lastIndexOf"]);
            let (a, b) = (words(random, less), words(random, 0));
            format!("{a}.{name}({b})")
        }
        5 => {
            let name = pick(random, &["min", "max", "sum"]);
            format!("{}.{name}()", numbers(random, less))
        }
        6 => {
            let name = pick(random, &["major", "minor", "patch"]);
            format!("{}.{name}()", version(random))
        }
        7 => format!("{}.compareTo({})", version(random), version(random)),
        8 => {
            let (a, b) = (amount(random, less), amount(random, less));
            format!("{a}.compareTo({b})")
        }
        9 => {
            let name = pick(random, &["asInteger", "sign", "asApproximateFloat"]);
            // Whether a sum is an integer is for Kubernetes a question of how it is stored.
            let deep = if name == "asInteger" { 0 } else { less };
            format!("{}.{name}()", amount(random, deep))
        }
        10 => format!("int({})", quoted(pick(random, &["12", "-4", "x", "1.5"]))),
        _ => {
            let name = pick(random, &["indexOf", "lastIndexOf"]);
            format!("{}.{name}({})", numbers(random, less), random.below(4))
        }
    }
}

fn words(random: &mut SplitMix64, deep: usize) -> String {
    if deep == 0 {
        return match random.below(5) {
            0 | 1 => attribute(random, "model"),
            2 => "device.driver".to_owned(),
            _ => quoted(pick(random, &WORDS)),
        };
    }
    let less = deep - 1;
    let of = words(random, less);
    match random.below(12) {
        0 => format!("({of} + {})", words(random, less)),
        1 => format!("{of}.lowerAscii()"),
        2 => format!("{of}.upperAscii()"),
        3 => format!("{of}.trim()"),
        4 => format!("{of}.replace({}, '_')", quoted(pick(random, &WORDS))),
        5 => format!("{of}.replace('a', 'bb', {})", random.below(3)),
        6 => format!("{of}.substring({})", random.below(4)),
        7 => format!("{of}.substring({}, {})", random.below(3), random.below(5)),
        8 => format!("{of}.charAt({})", random.below(4)),
        9 => format!("{of}.find('{}')", pick(random, &PATTERNS)),
        10 => {
            let with = pick(random, &["", "-", ", "]);
            format!("{}.join('{with}')", texts(random, less))
        }
        _ => format!("string({})", number(random, less)),
    }
}

fn numbers(random: &mut SplitMix64, deep: usize) -> String {
    if deep == 0 {
        let all: Vec<String> = (0..random.below(4))
            .map(|_| random.below(4).to_string())
            .collect();
        return format!("[{}]", all.join(", "));
    }
    let of = numbers(random, deep - 1);
    match random.below(11) {
        0 => format!("{of}.map(x, x * 2)"),
        1 => format!("{of}.filter(x, x > 1)"),
        2 => format!("{of}.sort()"),
        3 => format!("{of}.distinct()"),
        4 => format!("{of}.reverse()"),
        5 => format!("{of}.slice({}, {})", random.below(2), random.below(4)),
        6 => format!("lists.range({})", random.below(5)),
        7 => format!("({of} + {})", numbers(random, deep - 1)),
        8 => format!("[{of}, [{}]].flatten()", random.below(4)),
        9 => format!("{of}.map(x, x > 0, x - 1)"),
        _ => format!("{of}.sortBy(x, -x)"),
    }
}

fn texts(random: &mut SplitMix64, deep: usize) -> String {
    if deep == 0 {
        let all: Vec<String> = (0..random.below(4))
            .map(|_| quoted(pick(random, &WORDS)))
            .collect();
        return format!("[{}]", all.join(", "));
    }
    let less = deep - 1;
    match random.below(6) {
        0 => format!(
            "{}.split('{}')",
            words(random, less),
            pick(random, &["-", "", "."])
        ),
        1 => format!("{}.split('-', {})", words(random, less), random.below(3)),
        2 => format!(
            "{}.findAll('{}')",
            words(random, less),
            pick(random, &PATTERNS)
        ),
        3 => format!(
            "{}.findAll('{}', {})",
            words(random, less),
            pick(random, &PATTERNS),
            random.below(3)
        ),
        4 => format!("{}.sort()", texts(random, less)),
        _ => format!("{}.map(x, x + 'z')", texts(random, less)),
    }
}

fn amount(random: &mut SplitMix64, deep: usize) -> String {
    if deep == 0 || random.one_in(2) {
        return match random.below(3) {
            0 => format!("device.capacity[{}].memory", domain(random)),
            _ => format!("quantity('{}')", pick(random, &AMOUNTS)),
        };
    }
    let name = pick(random, &["add", "sub"]);
    let of = amount(random, deep - 1);
    if random.one_in(2) {
        format!("{of}.{name}({})", random.below(5))
    } else {
        format!("{of}.{name}({})", amount(random, deep - 1))
    }
}

fn version(random: &mut SplitMix64) -> String {
    match random.below(4) {
        0 | 1 => attribute(random, "version"),
        2 => format!("semver('{}', true)", pick(random, &VERSIONS)),
        _ => format!("semver('{}')", pick(random, &VERSIONS)),
    }
}
