//! Selectors of devices: whatever the text, it compiles or is refused, and has an answer or none,
//! within the memory and time that the runner allows for its length.

use crate::{Shape, Target};
use scheduler::selector::{Attribute, Selector, Subject, stack};

pub(super) const TARGET: Target = Target {
    name: "selector",
    shape: Shape::Text,
    words: &[
        "device",
        ".attributes",
        ".capacity",
        "[\"dra.example.com\"]",
        ".model",
        ".driver",
        "cel.bind(",
        "v, ",
        "v + v",
        "[v, v, v, v, v, v, v, v]",
        "x.map(y, x)",
        ".map(x, ",
        ".filter(x, true)",
        ".all(x, ",
        ".exists(x, ",
        ".join(\",\")",
        ".split(\"\")",
        ".replace(\"\", \"abc\")",
        "\"%s%.100f\".format([",
        ".flatten()",
        ".distinct()",
        ".sort()",
        ".sortBy(x, x)",
        "lists.range(1000)",
        "sets.contains(",
        ".findAll(\".\")",
        ".matches(\"(a{9}){9}\")",
        "string(",
        "size(",
        "quantity(\"1Gi\")",
        "semver(\"1.2.3\")",
        "[1, 2, 3, 4]",
        "{\"a\": [1]}",
        "true ? ",
        " : ",
        " == ",
        " && ",
        " + ",
        "((((",
        "))))",
        ", ",
        ")",
        "]",
    ],
    seeds,
    large: crate::target::none,
    // A part of an expression, and what the parser keeps of it.
    heap: 1024,
    run,
};

fn seeds() -> Vec<Vec<u8>> {
    let double = (0..18).rev().fold("size(v18) > 0".to_owned(), |inner, at| {
        format!("cel.bind(v{}, v{at} + v{at}, {inner})", at + 1)
    });
    let loops = (0..4).fold("true".to_owned(), |inner, at| {
        format!("[1, 2, 3].all(x{at}, {inner})")
    });
    let texts = [
        r#"device.attributes["dra.example.com"].model == "T4" && device.driver == "dra.example.com""#,
        r#"device.capacity["dra.example.com"].memory.compareTo(quantity("16Gi")) >= 0"#,
        r#"device.attributes.all(domain, domain.endsWith("example.com"))"#,
        "cel.bind(v, [1, 2], cel.bind(w, v.map(x, v), size(w.flatten().distinct()) > 1))",
        r#""%s-%d".format(["a", 1]).replace("", "bc").split("").join("x").matches("^a+$")"#,
        r#"sets.contains(lists.range(9).map(x, string(x)), ["1"]) ? true : [1, 2].sum() > 2"#,
        &format!("cel.bind(v0, [1, 2], {double})"),
        &loops,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let mut device = Subject {
        driver: "dra.example.com".to_owned(),
        ..Subject::default()
    };
    for at in 0..8 {
        let value = Attribute::Text("x".repeat(64));
        device.attributes.insert(format!("name{at}"), value);
    }
    let model = Attribute::Text("T4".to_owned());
    device.attributes.insert("model".to_owned(), model);
    device.capacity.insert("memory".to_owned(), 1 << 60);
    stack::here(|stack| {
        if let Ok(selector) = Selector::compile(text, stack) {
            // Twice: an answer depends on nothing else.
            let first = selector.matches(&device, stack);
            assert_eq!(first, selector.matches(&device, stack), "{text}");
        }
    });
}
