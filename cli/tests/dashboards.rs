//! `deploy/grafana` against what the programs export: the demo is scraped, every expression
//! is parsed, and each metric and label in it must be there.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use promql_parser::label::{MatchOp, Matchers};
use promql_parser::parser::{Expr, LabelModifier, VectorMatchCardinality, parse};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What Prometheus adds to every sample.
const OF_TARGETS: [&str; 2] = ["instance", "job"];
/// The page that has a section for each alert.
const RUNBOOKS: &str = "https://github.com/aliquot/aliquot/blob/main/docs/runbooks.md";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/grafana")
}

/// Families with labels in their samples; without samples, `None`.
type Families = BTreeMap<String, Option<BTreeSet<String>>>;

struct Demo {
    child: Child,
    place: tempfile::TempDir,
}

impl Demo {
    fn start() -> Self {
        let place = tempfile::Builder::new()
            .prefix("d")
            .tempdir_in("/tmp")
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_aliquot"))
            .args(["demo", "--prometheus-out"])
            .arg(place.path().join("targets.json"))
            .env("TMPDIR", place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, place }
    }

    /// Has the driver of the first node report a fault, so that it is counted.
    fn fault(&self) {
        let entries = std::fs::read_dir(self.place.path()).unwrap().flatten();
        let driver = entries
            .map(|entry| entry.path().join("n1/d"))
            .find(|path| path.is_dir())
            .unwrap();
        let status = Command::new(env!("CARGO_BIN_EXE_aliquot"))
            .args(["sim-gpu", "ctl", "--root"])
            .arg(driver)
            .args(["xid", "13", "--gpu", "0"])
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Every page, once the pod with a whole card and the three shares run.
    fn scrape(&self) -> String {
        let deadline = Instant::now() + Duration::from_mins(1);
        let (mut seen, mut faulted) = (String::new(), false);
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            let Ok(text) = std::fs::read(self.place.path().join("targets.json")) else {
                continue;
            };
            let Ok(targets) = serde_json::from_slice::<Value>(&text) else {
                continue;
            };
            let targets = targets[0]["targets"].as_array().unwrap().clone();
            assert_eq!(targets.len(), 3, "a scheduler and two agents");
            let pages = targets.iter().map(|target| page(target.as_str().unwrap()));
            seen = pages.flatten().collect();
            let count = |needle: &str| seen.matches(needle).count();
            if count("aliquot_share_running{") == 4
                && count("aliquot_share_fence{") >= 2
                && seen.contains("kai_queue_fair_share_gpu{")
                && seen.contains("aliquot_scheduler_reasons_total{")
            {
                if seen.contains("aliquot_xid_errors_total{") {
                    return seen;
                }
                if !faulted {
                    self.fault();
                    faulted = true;
                }
            }
        }
        panic!("the demo never exports its four pods:\n{seen}");
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

fn page(target: &str) -> Option<String> {
    let mut stream = TcpStream::connect(target).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// As Prometheus stores it: `_total`, `_bucket`, `_sum`, `_count` are names of their own.
fn families(text: &str) -> Families {
    let mut families = Families::new();
    for line in text.lines() {
        if let Some(about) = line.strip_prefix("# TYPE ") {
            let (name, kind) = about.split_once(' ').unwrap();
            let names: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            for suffix in names {
                families.entry(format!("{name}{suffix}")).or_default();
            }
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap_or_default();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            if let Some(known) = families.get_mut(name) {
                let known = known.get_or_insert_default();
                for pair in labels.trim_end_matches('}').split("\",") {
                    known.extend(pair.split_once('=').map(|(label, _)| label.to_owned()));
                }
            }
        }
    }
    families
}

/// What an expression reads: metric and the labels that it must have.
#[derive(Debug, Default)]
struct Reads {
    metrics: BTreeSet<String>,
    labels: BTreeSet<(String, String)>,
}

impl Reads {
    fn of(expression: &Expr) -> Self {
        let mut reads = Self::default();
        reads.walk(expression);
        reads
    }

    /// Everything below must have these labels.
    fn all(&mut self, below: &Expr, labels: &[String]) {
        let inner = Self::of(below);
        for metric in &inner.metrics {
            let pairs = labels.iter().map(|label| (metric.clone(), label.clone()));
            self.labels.extend(pairs);
        }
        self.metrics.extend(inner.metrics);
        self.labels.extend(inner.labels);
    }

    fn selector(&mut self, name: Option<&String>, matchers: &Matchers) {
        assert!(matchers.or_matchers.is_empty());
        let metric = name.expect("every selector names its metric");
        self.metrics.insert(metric.clone());
        for matcher in &matchers.matchers {
            assert!(
                matcher.op != MatchOp::Equal || !matcher.value.is_empty(),
                "{metric}: {} may be anything",
                matcher.name
            );
            self.labels.insert((metric.clone(), matcher.name.clone()));
        }
    }

    fn walk(&mut self, expression: &Expr) {
        match expression {
            Expr::Aggregate(of) => match &of.modifier {
                Some(LabelModifier::Include(labels) | LabelModifier::Exclude(labels)) => {
                    self.all(&of.expr, &labels.labels);
                }
                None => self.walk(&of.expr),
            },
            Expr::Unary(of) => self.walk(&of.expr),
            Expr::Binary(of) => {
                let modifier = of.modifier.as_ref();
                let on = modifier.and_then(|modifier| modifier.matching.as_ref());
                let labels = on.map_or(Vec::new(), |on| on.labels().labels.clone());
                if let Some(modifier) = modifier {
                    assert!(
                        matches!(
                            modifier.card,
                            VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany
                        ),
                        "group_left and group_right are not looked at here"
                    );
                }
                self.all(&of.lhs, &labels);
                self.all(&of.rhs, &labels);
            }
            Expr::Paren(of) => self.walk(&of.expr),
            Expr::Subquery(of) => self.walk(&of.expr),
            Expr::VectorSelector(of) => self.selector(of.name.as_ref(), &of.matchers),
            Expr::MatrixSelector(of) => self.selector(of.vs.name.as_ref(), &of.vs.matchers),
            Expr::Call(of) => of.args.args.iter().for_each(|argument| self.walk(argument)),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
            Expr::Extension(_) => panic!("an extension"),
        }
    }
}

/// Where it is, and the expression; Grafana's own variables filled in.
fn expressions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for name in ["fleet", "card", "tenant"] {
        let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
        let board: Value = serde_json::from_str(&text).unwrap();
        let variables: BTreeSet<String> = board["templating"]["list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|variable| variable["name"].as_str().unwrap().to_owned())
            .collect();
        let mut ids = BTreeSet::new();
        for panel in board["panels"].as_array().unwrap() {
            assert!(
                ids.insert(panel["id"].as_u64().unwrap()),
                "two panels of one id"
            );
            for target in panel["targets"].as_array().unwrap() {
                let text = target["expr"].as_str().unwrap();
                found.push((
                    format!("{name}: {}", panel["title"]),
                    fill(text, &variables),
                ));
            }
        }
        for variable in board["templating"]["list"].as_array().unwrap() {
            let Some(query) = variable["query"]["query"].as_str() else {
                continue;
            };
            let inner = query.strip_prefix("label_values(").unwrap();
            let (series, label) = inner.trim_end_matches(')').rsplit_once(", ").unwrap();
            let text = format!("count by ({label}) ({series})");
            found.push((
                format!("{name}: ${}", variable["name"]),
                fill(&text, &variables),
            ));
        }
    }
    let text = std::fs::read_to_string(folder().join("alerts.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let runbooks = std::fs::read_to_string(folder().join("../../docs/runbooks.md")).unwrap();
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let name = rule["alert"].as_str().unwrap();
        assert!(rule["annotations"]["summary"].is_string(), "{name}");
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap();
        let page = format!("{RUNBOOKS}#{}", name.to_lowercase());
        assert_eq!(runbook, page, "{name}");
        let heading = format!("\n## {name}\n");
        assert!(runbooks.contains(&heading), "{name} has no runbook");
        assert!(
            ["info", "warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()),
            "{name}"
        );
        found.push((name.to_owned(), rule["expr"].as_str().unwrap().to_owned()));
    }
    assert!(found.len() > 50, "{}", found.len());
    found
}

fn fill(text: &str, variables: &BTreeSet<String>) -> String {
    let mut text = text.replace("$__rate_interval", "5m");
    for name in variables {
        text = text.replace(&format!("${name}"), "x");
    }
    assert!(
        !text.contains('$'),
        "{text}: a variable that the board has not"
    );
    text
}

#[test]
fn every_expression_reads_what_the_programs_export() {
    let demo = Demo::start();
    let families = families(&demo.scrape());
    assert!(families.len() > 40, "{families:#?}");
    let mut unread = Vec::new();
    for (at, text) in expressions() {
        let parsed = parse(&text).unwrap_or_else(|error| panic!("{at}: {text}: {error}"));
        let reads = Reads::of(&parsed);
        assert!(!reads.metrics.is_empty(), "{at}: {text} reads nothing");
        for metric in &reads.metrics {
            if !families.contains_key(metric) {
                unread.push(format!("{at}: there is no metric {metric}"));
            }
        }
        for (metric, label) in &reads.labels {
            let known = families.get(metric).and_then(Option::as_ref);
            // A metric without a sample is one of trouble: by its target alone.
            let has = known.is_some_and(|labels| labels.contains(label));
            if !has && !OF_TARGETS.contains(&label.as_str()) {
                unread.push(format!("{at}: {metric} has no label {label}: {known:?}"));
            }
        }
    }
    assert!(unread.is_empty(), "{}", unread.join("\n"));
}

#[test]
fn what_an_alert_says_is_filled_in_from_labels_that_its_result_keeps() {
    let text = std::fs::read_to_string(folder().join("alerts.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let expression = rule["expr"].as_str().unwrap();
        let summary = rule["annotations"]["summary"].as_str().unwrap();
        let by = expression.split_once("by (").map(|(_, rest)| {
            let (labels, _) = rest.split_once(')').unwrap();
            labels.split(", ").collect::<Vec<_>>()
        });
        for (_, rest) in summary
            .match_indices("$labels.")
            .map(|(at, mark)| (at, &summary[at + mark.len()..]))
        {
            let label = rest.split_whitespace().next().unwrap();
            let label = label.trim_end_matches("}})").trim_end_matches("}}");
            if let Some(by) = &by {
                assert!(
                    by.contains(&label),
                    "{}: {label} is summed away",
                    rule["alert"]
                );
            }
        }
    }
}
