use super::*;
use std::collections::BTreeMap;

fn device() -> Subject {
    let text = |value: &str| Attribute::Text(value.to_owned());
    Subject {
        driver: "dra.example.com".to_owned(),
        shared: true,
        attributes: BTreeMap::from([
            ("model".to_owned(), text("T4")),
            ("cores".to_owned(), Attribute::Int(8)),
            ("healthy".to_owned(), Attribute::Bool(true)),
            (
                "driverVersion".to_owned(),
                Attribute::Version("12.4.1".to_owned()),
            ),
            ("other.example.com/model".to_owned(), text("other")),
        ]),
        capacity: BTreeMap::from([("memory".to_owned(), 16 * (1 << 30) * 1_000_000_000)]),
    }
}

/// What the expression says of it.
fn says(text: &str) -> Result<bool, String> {
    deep(|stack| Selector::compile(text, stack)?.matches(&device(), stack))
}

#[test]
fn what_kubernetes_has_for_devices_is_there() {
    for (text, matches) in [
        (r#"device.driver == "dra.example.com""#, true),
        ("device.allowMultipleAllocations", true),
        (
            r#"device.attributes["dra.example.com"].model == "T4""#,
            true,
        ),
        (
            r#"device.attributes["other.example.com"].model == "T4""#,
            false,
        ),
        (r#""dra.example.com" in device.attributes"#, true),
        (r#""no.example.com" in device.attributes"#, false),
        (r#"has(device.attributes["no.example.com"].model)"#, false),
        (r#"has(device.attributes["dra.example.com"].model)"#, true),
        (
            r#"device.attributes["dra.example.com"].driverVersion.isGreaterThan(semver("12.4.0"))"#,
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].driverVersion.compareTo(semver("v12.5", true)) < 0"#,
            true,
        ),
        (
            r#"device.capacity["dra.example.com"].memory.compareTo(quantity("16Gi")) == 0"#,
            true,
        ),
        (
            r#"device.capacity["dra.example.com"].memory.isLessThan(quantity("16Gi").sub(1))"#,
            false,
        ),
        (
            r#"cel.bind(dra, device.attributes["dra.example.com"], dra.healthy && dra.cores > 4)"#,
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].model.lowerAscii().startsWith("t")"#,
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].model.matches("^T[0-9]$")"#,
            true,
        ),
        (
            r#"["T4", "L4"].exists(m, m == device.attributes["dra.example.com"].model)"#,
            true,
        ),
        (r#""a1b22".findAll("[0-9]+") == ["1", "22"]"#, true),
        (
            "sets.contains([1, 2, 3], [3, 1]) && [1, 3].max() == 3",
            true,
        ),
        (
            r#"device.attributes["dra.example.com"].?missing.orValue("x") == "x""#,
            true,
        ),
    ] {
        assert_eq!(says(text), Ok(matches), "{text}");
    }
}

#[test]
fn what_has_no_answer_says_so_in_one_sentence() {
    for (text, words) in [
        ("?!", "CEL compile error"),
        ("1", "it evaluates to no bool"),
        (
            r#"device.attributes["dra.example.com"].missing == 1"#,
            "No such key: missing",
        ),
        (r#"quantity("much").isInteger()"#, "quantities must match"),
        (r#"authorizer.path("/")"#, "Undeclared reference"),
        (r#"semver("1.0").major() == 1"#, "no semantic version"),
    ] {
        let said = says(text).unwrap_err();
        assert!(
            said.contains(words) && !said.contains('\n'),
            "{text}: {said}"
        );
    }
    let mut unknown = device();
    let list = ("names".to_owned(), Attribute::Unknown);
    unknown.attributes.extend([list]);
    let said = deep(|stack| {
        let selector = Selector::compile("true", stack).unwrap();
        selector.matches(&unknown, stack)
    });
    assert_eq!(
        said.unwrap_err(),
        "attribute names: unsupported attribute value"
    );
}

/// Expressions of the kinds that grow, so many steps deep.
fn growing(kind: &str, depth: usize) -> String {
    let bind =
        |inner: String, at: usize, value: String| format!("cel.bind(v{at}, {value}, {inner})");
    match kind {
        "list" => (0..depth)
            .rev()
            .fold(format!("size(v{depth}) > 0"), |inner, at| {
                bind(inner, at + 1, format!("v{at} + v{at}"))
            }),
        "eight" => (0..depth)
            .rev()
            .fold(format!("size(v{depth}) > 0"), |inner, at| {
                let eight = format!("[{}]", vec![format!("v{at}"); 8].join(","));
                bind(inner, at + 1, eight)
            }),
        "map" => (0..depth)
            .rev()
            .fold(format!("size(v{depth}) > 0"), |inner, at| {
                bind(inner, at + 1, format!("v{at}.map(x, v{at})"))
            }),
        "join" => (0..depth)
            .rev()
            .fold(format!("size(v{depth}) > 0"), |inner, at| {
                bind(
                    inner,
                    at + 1,
                    format!("[v{at}, v{at}].map(x, string(x)).join(v{at})"),
                )
            }),
        "replace" => (0..depth)
            .rev()
            .fold(format!("size(v{depth}) > 0"), |inner, at| {
                bind(inner, at + 1, format!("v{at}.replace(\"\", v{at})"))
            }),
        "format" => (0..depth)
            .rev()
            .fold(format!("size(v{depth}) > 0"), |inner, at| {
                bind(inner, at + 1, format!("\"%s%s\".format([v{at}, v{at}])"))
            }),
        "split" => (0..depth)
            .rev()
            .fold(format!("size(v{depth}) > 0"), |inner, at| {
                bind(inner, at + 1, format!("[v{at}].map(x, x + x)"))
            }),
        "loop" => (0..depth).fold("true".to_owned(), |inner, at| {
            format!("[1,2,3,4,5,6,7,8].all(x{at}, {inner})")
        }),
        "range" => format!(
            "lists.range({}).all(x, x >= 0)",
            10_usize.pow(u32::try_from(depth % 7).unwrap())
        ),
        "distinct" => format!(
            "lists.range({}).map(x, string(x)).distinct().size() > 0",
            depth * 20
        ),
        _ => unreachable!(),
    }
}

const KINDS: [&str; 10] = [
    "list", "eight", "map", "join", "replace", "format", "split", "loop", "range", "distinct",
];

/// The start of what grows.
fn start(kind: &str, text: String) -> String {
    let value = match kind {
        "list" | "map" | "eight" | "split" => "[1, 2, 3, 4]",
        _ => "\"abcd\"",
    };
    format!("cel.bind(v0, {value}, {text})")
}

/// An expression takes ten times as long in a debug build. Another program may delay one evaluation,
/// but not each of several.
fn is_quick(text: &str) -> bool {
    (0..5).any(|_| {
        let begin = std::time::Instant::now();
        let _ = says(text);
        begin.elapsed().as_millis() < 300
    })
}

#[test]
fn what_grows_without_bound_is_refused_and_the_rest_is_quick() {
    for kind in KINDS {
        let mut refused = 0;
        for depth in 1..=18 {
            let text = start(kind, growing(kind, depth));
            match says(&text) {
                Ok(_) => {}
                Err(why) if why.contains("CEL expression") => refused += 1,
                Err(why) => panic!("{kind} {depth}: {why}"),
            }
            assert!(is_quick(&text), "{kind} {depth}");
        }
        assert!(refused > 0, "{kind} is never refused");
    }
}

#[test]
fn an_ordinary_expression_costs_a_fraction_of_what_it_may() {
    let mut large = device();
    for at in 0..32 {
        let value = Attribute::Text("x".repeat(64));
        large
            .attributes
            .insert(format!("name{at}.example.com/attribute{at}"), value);
    }
    for text in [
        r#"device.attributes["dra.example.com"].model == "T4" && device.driver == "dra.example.com""#,
        r#"device.attributes["dra.example.com"].model.matches("^T[0-9]+$")"#,
        r#"["T4", "L4", "A100"].exists(m, device.attributes["dra.example.com"].model.contains(m))"#,
        r#"device.capacity["dra.example.com"].memory.compareTo(quantity("16Gi")) >= 0"#,
        r#"device.attributes.all(domain, domain.endsWith("example.com"))"#,
    ] {
        let program = ENVIRONMENT.compile(text).unwrap();
        let cost = cost::of(program.expression(), Some(&large)).unwrap();
        assert!(cost.steps < cost::MOST_STEPS / 4, "{text}: {cost:?}");
    }
}

#[test]
fn what_may_cost_too_much_is_not_evaluated() {
    let nested = (0..6).fold("true".to_owned(), |inner, depth| {
        format!("[1, 2, 3, 4, 5].all(v{depth}, {inner})")
    });
    let said = says(&nested).unwrap_err();
    assert_eq!(
        said,
        "its CEL expression may cost more than 5000 steps for a device"
    );
    assert!(says("device.attributes.all(a, device.capacity.all(b, a != b))").is_ok());
    let chain = format!("{} > 0", vec!["1"; 400].join("+"));
    assert!(says(&chain).unwrap_err().contains("nested too deeply"));
    let pattern = r#""a".matches("((a{9}){99}){99}")"#;
    assert!(says(pattern).unwrap_err().contains("too large"));
    assert!(
        says(r#""a".matches("a" + "b")"#)
            .unwrap_err()
            .contains("no literal text")
    );
    let long = format!("\"{}\" == \"\"", "x".repeat(11_000));
    assert!(says(&long).unwrap_err().contains("longer than"));
}
