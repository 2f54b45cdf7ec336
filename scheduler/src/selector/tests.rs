use super::*;

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
    Selector::compile(text)?.matches(&device())
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
    let said = Selector::compile("true").unwrap().matches(&unknown);
    assert_eq!(
        said.unwrap_err(),
        "attribute names: unsupported attribute value"
    );
}

#[test]
fn what_may_cost_too_much_is_not_evaluated() {
    let nested = (0..6).fold("true".to_owned(), |inner, depth| {
        format!("device.attributes.all(v{depth}, {inner})")
    });
    let said = Selector::compile(&nested).unwrap_err();
    assert_eq!(said, "its CEL expression may cost more than 1000000 steps");
    assert!(Selector::compile("device.attributes.all(a, device.capacity.all(b, a != b))").is_ok());
}
