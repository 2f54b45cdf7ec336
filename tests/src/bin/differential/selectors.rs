//! CEL selectors of devices for Aliquot and for Kubernetes: what an expression says of a device,
//! yes, no or an error, however it is worded.
//!
//! First the cases of Kubernetes' own table (`cel/compile_test.go` of
//! `k8s.io/dynamic-resource-allocation`, Apache 2.0), whose facts are read from the pinned module;
//! then random expressions.

use super::program::{self, Program};
use super::seeds::Seeds;
use aliquot_tests::random_selectors;
use anyhow::{Context as _, Result, ensure};
use scheduler::selector::{Attribute, Selector, Subject, deep};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Functions of Kubernetes' environment that random expressions have no use for.
const SERVED: [&str; 28] = [
    "'%s-%d'.format(['a', 1]) == 'a-1'",
    "strings.quote('a') == '\"a\"'",
    "b'abc'.size() == 3",
    "type(1) == int",
    "dyn(1) == 1.0",
    "uint(1) == 1u",
    "double('1.5') == 1.5",
    "bool('true')",
    "optional.none().hasValue()",
    "optional.of(1).value() == 1",
    "optional.none().or(optional.of(2)).value() == 2",
    "optional.ofNonZeroValue(0).hasValue()",
    "{'a': 1}['a'] == 1",
    "'a' in {'a': 1}",
    "{'a': 1}.all(k, k == 'a')",
    "[1.5, 2.5].sum() == 4.0",
    "[1, 2].includes(2)",
    "['a', 'b'].max() == 'b'",
    "[2, 1].sort()[0] == 1",
    "[1, 2][5] == 1",
    "1 / 0 == 1",
    "9223372036854775807 + 1 > 0",
    "quantity('1Gi').asApproximateFloat() > 1e9",
    "quantity('9999999999999999999').asInteger() > 0",
    "quantity('10Ti').isInteger()",
    "quantity('100000000000E').isInteger()",
    "semver('1.2.3-a.1').compareTo(semver('1.2.3-a.b')) == -1",
    "semver('1.2.3+a') == semver('1.2.3+b')",
];

/// Those that Aliquot has no answer for, as `docs/claims.md` says.
const UNSERVED: [&str; 10] = [
    "duration('1h') > duration('1m')",
    "timestamp('2020-01-01T00:00:00Z').getFullYear() == 2020",
    "isIP('10.0.0.1')",
    "ip('10.0.0.1').family() == 4",
    "cidr('10.0.0.0/8').containsIP('10.0.0.1')",
    "isURL('http://a.example.com')",
    "url('http://a.example.com/x').getHost() == 'a.example.com'",
    "format.named('dns1123Label').hasValue()",
    "[1, 2].all(i, v, i < v)",
    "{'a': 1}.transformList(k, v, v) == [1]",
];

/// What Kubernetes says, or ought to.
#[derive(Debug, Deserialize)]
struct Said {
    matches: bool,
    #[serde(default)]
    compile: String,
    #[serde(default)]
    run: String,
}

impl Said {
    /// `None`: it is an error.
    fn answer(&self) -> Option<bool> {
        (self.compile.is_empty() && self.run.is_empty()).then_some(self.matches)
    }
}

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    #[serde(flatten)]
    expected: Said,
    /// It is about a feature that is off by default.
    #[serde(default)]
    apart: bool,
}

#[derive(Debug, Default)]
struct Tally {
    agreed: u64,
    selected: u64,
    errors: u64,
    unwritten: u64,
    other_type: u64,
    differed: u64,
}

impl Tally {
    fn count(&mut self, place: &str, asks: &Value, theirs: &Said) -> Result<()> {
        let text = asks["expression"].as_str().context("expression")?;
        let device = subject(&asks["device"]);
        let ours = deep(|stack| Selector::compile(text, stack)?.matches(&device, stack));
        if theirs.answer() == ours.clone().ok() {
            self.agreed += 1;
            self.selected += u64::from(theirs.matches);
            self.errors += u64::from(theirs.answer().is_none());
        } else if !theirs.compile.is_empty() {
            // Kubernetes knows types and constants before it evaluates: the API server lets no
            // such expression be written.
            self.unwritten += 1;
        } else if theirs.run == "no such overload" && ours.is_ok() && compares_versions(text) {
            self.other_type += 1;
        } else {
            self.differed += 1;
            if self.differed <= 20 {
                println!(
                    "{place}: {text}\n  Kubernetes {theirs:?}\n  Aliquot {ours:?}\n  {}",
                    asks["device"]
                );
            }
        }
        Ok(())
    }
}

/// A version is compared, perhaps with a value of another type.
fn compares_versions(text: &str) -> bool {
    let has = |part: &str| text.contains(part);
    (has("version") || has("semver(")) && (has("==") || has("!=") || has(" in "))
}

/// Whether all agree.
pub(crate) fn compare(seeds: &Seeds) -> Result<bool> {
    let mut tally = Tally::default();
    let mut kube = Program::start("devices", &["select"])?;
    let cases = cases()?;
    let (mut own, mut apart) = (0_u64, 0_u64);
    for asks in &cases {
        let case: Case = serde_json::from_value(asks.clone())?;
        // With what is on by default, Kubernetes may answer another thing than its table has.
        let [said]: [Said; 1] = kube.ask(&Value::from(vec![asks.clone()]))?;
        tally.count(&case.name, asks, &said)?;
        if case.apart {
            apart += 1;
        } else {
            own += 1;
            let is_so = said.answer() == case.expected.answer();
            ensure!(is_so, "{}: read wrongly, or not as built", case.name);
        }
    }
    ensure!(own >= 30, "only {own} cases of Kubernetes' own were read");
    println!("{own} cases of Kubernetes' own, and {apart} about what is off by default");
    let device = json!({ "driver": "a.example.com" });
    let ask = |text: &str| json!([{ "expression": text, "device": device }]);
    for text in SERVED {
        let asks = ask(text);
        let [said]: [Said; 1] = kube.ask(&asks)?;
        ensure!(said.compile.is_empty(), "{text}: {}", said.compile);
        tally.count("of the environment", &asks[0], &said)?;
    }
    for text in UNSERVED {
        let [said]: [Said; 1] = kube.ask(&ask(text))?;
        let device = subject(&device);
        let ours = deep(|stack| Selector::compile(text, stack)?.matches(&device, stack));
        ensure!(said.answer().is_some(), "{text}: {said:?}");
        ensure!(
            ours.is_err(),
            "{text} is served by now: take it off the page"
        );
    }
    for seed in seeds.all() {
        let selections = random_selectors::selections(seed);
        let theirs: Vec<Said> = kube.ask(&selections)?;
        let asks = selections.as_array().context("selections")?;
        for (asks, theirs) in asks.iter().zip(&theirs) {
            tally.count(&format!("seed {seed}"), asks, theirs)?;
        }
    }
    kube.end()?;
    let Tally {
        agreed,
        selected,
        errors,
        unwritten,
        other_type,
        differed,
    } = tally;
    println!("of them {selected} that select the device, and {errors} without an answer");
    println!("{unwritten:>8}  that Kubernetes' compiler refuses, by types or constants");
    println!("{other_type:>8}  that compare a version with a value of another type");
    let exceptions = unwritten + other_type;
    println!("{agreed} agreed, {exceptions} counted apart, {differed} differed");
    ensure!(exceptions * 20 <= agreed, "too many were counted apart");
    Ok(differed == 0)
}

/// The facts of Kubernetes' table, each as JSON.
fn cases() -> Result<Vec<Value>> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/tools/kubernetes");
    let listed = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}"])
        .arg("k8s.io/dynamic-resource-allocation")
        .current_dir(module)
        .output()?;
    let folder = String::from_utf8(listed.stdout)?;
    let table = Path::new(folder.trim()).join("cel/compile_test.go");
    let printed = Command::new(program::build("devices")?)
        .arg("cases")
        .arg(&table)
        .output()?;
    ensure!(printed.status.success(), "{} is not read", table.display());
    let lines = String::from_utf8(printed.stdout)?;
    lines
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn subject(device: &Value) -> Subject {
    let entries = |field: &str| device[field].as_object().into_iter().flatten();
    let attributes = entries("attributes").map(|(name, value)| {
        let text = |kind: &str| value[kind].as_str().map(str::to_owned);
        let int = value["int"].as_i64().map(Attribute::Int);
        let value = int
            .or_else(|| value["bool"].as_bool().map(Attribute::Bool))
            .or_else(|| text("string").map(Attribute::Text))
            .or_else(|| text("version").map(Attribute::Version));
        (name.clone(), value.unwrap_or(Attribute::Unknown))
    });
    let capacity = entries("capacity").map(|(name, value)| {
        let value = value["value"].as_str().and_then(api::quantity::nano);
        (name.clone(), value.unwrap_or_default())
    });
    Subject {
        driver: device["driver"].as_str().unwrap_or_default().to_owned(),
        shared: device["shared"] == true,
        attributes: attributes.collect(),
        capacity: capacity.collect::<BTreeMap<_, _>>(),
    }
}
