//! Random CEL expressions about a device, of the functions that Kubernetes' environment for device
//! selectors has; and devices for them. Of the types that the functions take, but for attributes,
//! whose type no compiler knows.

use crate::chance::Chance;
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

/// Expressions, each with the device that it is asked about.
pub fn selections(seed: u64) -> Value {
    let chance = &mut Chance::new(seed);
    let device = device(chance);
    let all: Vec<Value> = (0..4)
        .map(|_| json!({ "expression": yes_or_no(chance, 3), "device": device }))
        .collect();
    json!(all)
}

fn pick<'a>(chance: &mut Chance, among: &[&'a str]) -> &'a str {
    among[chance.below(among.len())]
}

fn device(chance: &mut Chance) -> Value {
    let mut attributes = Map::new();
    let mut set = |chance: &mut Chance, name: &str, value: Value| {
        if !chance.one_in(5) {
            attributes.insert(name.to_owned(), value);
        }
    };
    let word = pick(chance, &WORDS[..5]);
    set(chance, "model", json!({ "string": word }));
    let number = chance.below(4);
    set(chance, "index", json!({ "int": number }));
    let yes = chance.one_in(2);
    set(chance, "exclusive", json!({ "bool": yes }));
    let version = pick(chance, &VERSIONS[..5]);
    set(
        chance,
        "a.example.com/version",
        json!({ "version": version }),
    );
    set(chance, "b.example.com/model", json!({ "string": "other" }));
    let mut capacity = Map::new();
    if !chance.one_in(5) {
        let value = pick(chance, &AMOUNTS[..5]);
        capacity.insert("memory".to_owned(), json!({ "value": value }));
    }
    if chance.one_in(3) {
        capacity.insert("b.example.com/slots".to_owned(), json!({ "value": "4" }));
    }
    json!({ "driver": DRIVER, "shared": chance.one_in(2), "attributes": attributes,
        "capacity": capacity })
}

fn quoted(text: &str) -> String {
    format!("'{text}'")
}

fn domain(chance: &mut Chance) -> String {
    match chance.below(8) {
        0 => "'no.example.com'".to_owned(),
        1 => "'b.example.com'".to_owned(),
        2 => "device.driver".to_owned(),
        _ => quoted(DRIVER),
    }
}

fn attributes(chance: &mut Chance) -> String {
    format!("device.attributes[{}]", domain(chance))
}

/// An attribute of that name, or seldom of another one.
fn attribute(chance: &mut Chance, name: &str) -> String {
    let name = if chance.one_in(8) {
        pick(
            chance,
            &["model", "index", "exclusive", "version", "nothing"],
        )
    } else {
        name
    };
    if chance.one_in(3) {
        format!("{}['{name}']", attributes(chance))
    } else {
        format!("{}.{name}", attributes(chance))
    }
}

fn yes_or_no(chance: &mut Chance, deep: usize) -> String {
    if deep == 0 {
        return match chance.below(6) {
            0 => "true".to_owned(),
            1 => "false".to_owned(),
            2 => "device.allowMultipleAllocations".to_owned(),
            3 => attribute(chance, "exclusive"),
            4 => format!("{} in device.attributes", domain(chance)),
            _ => format!("has({}.model)", attributes(chance)),
        };
    }
    let less = deep - 1;
    match chance.below(26) {
        0 => format!("!({})", yes_or_no(chance, less)),
        1 | 2 => {
            let (a, b) = (yes_or_no(chance, less), yes_or_no(chance, less));
            format!("({a} && {b})")
        }
        3 | 4 => {
            let (a, b) = (yes_or_no(chance, less), yes_or_no(chance, less));
            format!("({a} || {b})")
        }
        5 => {
            let (a, b) = (yes_or_no(chance, less), yes_or_no(chance, less));
            format!("({} ? {a} : {b})", yes_or_no(chance, less))
        }
        6 | 7 => {
            let by = pick(chance, &["==", "!=", "<", "<=", ">", ">="]);
            let (a, b) = (number(chance, less), number(chance, less));
            format!("({a} {by} {b})")
        }
        8 | 9 => {
            let by = pick(chance, &["==", "!=", "<", ">="]);
            let (a, b) = (words(chance, less), words(chance, less));
            format!("({a} {by} {b})")
        }
        10 => {
            let name = pick(chance, &["isGreaterThan", "isLessThan"]);
            let (a, b) = (amount(chance, less), amount(chance, less));
            format!("{a}.{name}({b})")
        }
        11 => {
            let name = pick(chance, &["isGreaterThan", "isLessThan"]);
            let (a, b) = (version(chance), version(chance));
            format!("{a}.{name}({b})")
        }
        12 => {
            let by = pick(chance, &["==", "!="]);
            let (a, b) = (version(chance), version(chance));
            format!("({a} {by} {b})")
        }
        13 => {
            let by = pick(chance, &["==", "!="]);
            // Kubernetes compares nothing with what `add` and `sub` give.
            let (a, b) = (amount(chance, less), amount(chance, 0));
            format!("({a} {by} {b})")
        }
        14 => {
            let name = pick(chance, &["startsWith", "endsWith", "contains"]);
            let (a, b) = (words(chance, less), words(chance, less));
            format!("{a}.{name}({b})")
        }
        15 => {
            let pattern = pick(chance, &PATTERNS);
            format!("{}.matches('{pattern}')", words(chance, less))
        }
        16 => {
            let name = pick(chance, &["exists", "all", "exists_one"]);
            let by = pick(chance, &["==", "<", ">"]);
            let (of, than) = (numbers(chance, less), number(chance, 0));
            format!("{of}.{name}(x, x {by} {than})")
        }
        17 => {
            let name = pick(chance, &["exists", "all", "exists_one"]);
            let of = match chance.below(3) {
                0 => "device.attributes".to_owned(),
                1 => attributes(chance),
                _ => texts(chance, less),
            };
            let with = quoted(pick(chance, &["a", "m", "L", "model", DRIVER]));
            format!("{of}.{name}(x, x.startsWith({with}))")
        }
        // Not in an empty literal: Kubernetes' compiler leaves out what is looked for there.
        18 => {
            let of = numbers(chance, less).replace("[]", "[7]");
            format!("({} in {of})", number(chance, less))
        }
        19 => {
            let of = texts(chance, less).replace("[]", "['none']");
            format!("({} in {of})", words(chance, less))
        }
        20 => {
            let name = pick(chance, &["contains", "equivalent", "intersects"]);
            let (a, b) = (numbers(chance, less), numbers(chance, less));
            format!("sets.{name}({a}, {b})")
        }
        21 => {
            let name = pick(chance, &["model", "index", "exclusive", "nothing"]);
            let of = attributes(chance);
            match chance.below(3) {
                0 => format!("{of}.?{name}.hasValue()"),
                1 => format!("{of}.?{name}.orValue('x') == {}", words(chance, 0)),
                _ => format!(
                    "{of}[?'{name}'].optMap(v, v == {}).orValue(false)",
                    number(chance, 0)
                ),
            }
        }
        22 => match chance.below(4) {
            0 => format!("isQuantity('{}')", pick(chance, &AMOUNTS)),
            1 => format!("isSemver('{}')", pick(chance, &VERSIONS)),
            2 => format!("isSemver('{}', true)", pick(chance, &VERSIONS)),
            _ => format!("{}.isInteger()", amount(chance, 0)),
        },
        23 => {
            let of = attributes(chance);
            format!(
                "cel.bind(d, {of}, has(d.model) && {} == d.model)",
                words(chance, 0)
            )
        }
        24 => {
            let name = pick(chance, &["model", "index", "exclusive"]);
            let with = match name {
                "index" => number(chance, 0),
                "exclusive" => "true".to_owned(),
                _ => words(chance, 0),
            };
            format!("{}.includes({with})", attribute(chance, name))
        }
        _ => {
            let of = match chance.below(2) {
                0 => numbers(chance, less),
                _ => texts(chance, less),
            };
            format!("{of}.isSorted()")
        }
    }
}

fn number(chance: &mut Chance, deep: usize) -> String {
    if deep == 0 {
        return match chance.below(4) {
            0 => attribute(chance, "index"),
            1 => pick(chance, &["-1", "9223372036854775807", "1.5", "0"]).to_owned(),
            _ => chance.below(5).to_string(),
        };
    }
    let less = deep - 1;
    match chance.below(12) {
        0 => format!("size({})", words(chance, less)),
        1 => format!("{}.size()", words(chance, less)),
        2 => format!("{}.size()", numbers(chance, less)),
        3 => {
            let by = pick(chance, &["+", "-", "*", "/", "%"]);
            let whole = |chance: &mut Chance| match chance.below(3) {
                0 => attribute(chance, "index"),
                _ => chance.below(4).to_string(),
            };
            let (a, b) = (whole(chance), whole(chance));
            format!("({a} {by} {b})")
        }
        4 => {
            let name = pick(chance, &["indexOf", "lastIndexOf"]);
            let (a, b) = (words(chance, less), words(chance, 0));
            format!("{a}.{name}({b})")
        }
        5 => {
            let name = pick(chance, &["min", "max", "sum"]);
            format!("{}.{name}()", numbers(chance, less))
        }
        6 => {
            let name = pick(chance, &["major", "minor", "patch"]);
            format!("{}.{name}()", version(chance))
        }
        7 => format!("{}.compareTo({})", version(chance), version(chance)),
        8 => {
            let (a, b) = (amount(chance, less), amount(chance, less));
            format!("{a}.compareTo({b})")
        }
        9 => {
            let name = pick(chance, &["asInteger", "sign", "asApproximateFloat"]);
            // Whether a sum is an integer is for Kubernetes a question of how it is stored.
            let deep = if name == "asInteger" { 0 } else { less };
            format!("{}.{name}()", amount(chance, deep))
        }
        10 => format!("int({})", quoted(pick(chance, &["12", "-4", "x", "1.5"]))),
        _ => {
            let name = pick(chance, &["indexOf", "lastIndexOf"]);
            format!("{}.{name}({})", numbers(chance, less), chance.below(4))
        }
    }
}

fn words(chance: &mut Chance, deep: usize) -> String {
    if deep == 0 {
        return match chance.below(5) {
            0 | 1 => attribute(chance, "model"),
            2 => "device.driver".to_owned(),
            _ => quoted(pick(chance, &WORDS)),
        };
    }
    let less = deep - 1;
    let of = words(chance, less);
    match chance.below(12) {
        0 => format!("({of} + {})", words(chance, less)),
        1 => format!("{of}.lowerAscii()"),
        2 => format!("{of}.upperAscii()"),
        3 => format!("{of}.trim()"),
        4 => format!("{of}.replace({}, '_')", quoted(pick(chance, &WORDS))),
        5 => format!("{of}.replace('a', 'bb', {})", chance.below(3)),
        6 => format!("{of}.substring({})", chance.below(4)),
        7 => format!("{of}.substring({}, {})", chance.below(3), chance.below(5)),
        8 => format!("{of}.charAt({})", chance.below(4)),
        9 => format!("{of}.find('{}')", pick(chance, &PATTERNS)),
        10 => {
            let with = pick(chance, &["", "-", ", "]);
            format!("{}.join('{with}')", texts(chance, less))
        }
        _ => format!("string({})", number(chance, less)),
    }
}

fn numbers(chance: &mut Chance, deep: usize) -> String {
    if deep == 0 {
        let all: Vec<String> = (0..chance.below(4))
            .map(|_| chance.below(4).to_string())
            .collect();
        return format!("[{}]", all.join(", "));
    }
    let of = numbers(chance, deep - 1);
    match chance.below(11) {
        0 => format!("{of}.map(x, x * 2)"),
        1 => format!("{of}.filter(x, x > 1)"),
        2 => format!("{of}.sort()"),
        3 => format!("{of}.distinct()"),
        4 => format!("{of}.reverse()"),
        5 => format!("{of}.slice({}, {})", chance.below(2), chance.below(4)),
        6 => format!("lists.range({})", chance.below(5)),
        7 => format!("({of} + {})", numbers(chance, deep - 1)),
        8 => format!("[{of}, [{}]].flatten()", chance.below(4)),
        9 => format!("{of}.map(x, x > 0, x - 1)"),
        _ => format!("{of}.sortBy(x, -x)"),
    }
}

fn texts(chance: &mut Chance, deep: usize) -> String {
    if deep == 0 {
        let all: Vec<String> = (0..chance.below(4))
            .map(|_| quoted(pick(chance, &WORDS)))
            .collect();
        return format!("[{}]", all.join(", "));
    }
    let less = deep - 1;
    match chance.below(6) {
        0 => format!(
            "{}.split('{}')",
            words(chance, less),
            pick(chance, &["-", "", "."])
        ),
        1 => format!("{}.split('-', {})", words(chance, less), chance.below(3)),
        2 => format!(
            "{}.findAll('{}')",
            words(chance, less),
            pick(chance, &PATTERNS)
        ),
        3 => format!(
            "{}.findAll('{}', {})",
            words(chance, less),
            pick(chance, &PATTERNS),
            chance.below(3)
        ),
        4 => format!("{}.sort()", texts(chance, less)),
        _ => format!("{}.map(x, x + 'z')", texts(chance, less)),
    }
}

fn amount(chance: &mut Chance, deep: usize) -> String {
    if deep == 0 || chance.one_in(2) {
        return match chance.below(3) {
            0 => format!("device.capacity[{}].memory", domain(chance)),
            _ => format!("quantity('{}')", pick(chance, &AMOUNTS)),
        };
    }
    let name = pick(chance, &["add", "sub"]);
    let of = amount(chance, deep - 1);
    if chance.one_in(2) {
        format!("{of}.{name}({})", chance.below(5))
    } else {
        format!("{of}.{name}({})", amount(chance, deep - 1))
    }
}

fn version(chance: &mut Chance) -> String {
    match chance.below(4) {
        0 | 1 => attribute(chance, "version"),
        2 => format!("semver('{}', true)", pick(chance, &VERSIONS)),
        _ => format!("semver('{}')", pick(chance, &VERSIONS)),
    }
}
