//! `aliquot lint -f FILE` finds mistakes in manifests, without a cluster.
//!
//! In: manifests. Out: the mistakes of each object that has pods, by file, object, field and fix. The
//! rules are those of [`scheduler::admission::lint`]. The exit code is 1 if anything was found,
//! so that a pipeline stops, and if no object has pods, because then nothing was looked at.

use crate::failure::{Failure, NO, Outcome};
use crate::manifest;
use crate::report::{Cell, Column, Format, Output, Report, Table, Tone, wrapped};
use api::lint::{Cluster, Finding};
use api::visible::line;
use scheduler::admission::lint;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `aliquot lint`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Manifests, or folders with files that end with .yaml, .yml or .json; may be given several
    /// times; `-` is standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The scheduler's name, as for the scheduler's own flag.
    #[arg(long, value_name = "NAME", default_value = proto::names::kai::SCHEDULER_NAME)]
    scheduler_name: String,
    #[command(flatten)]
    output: Output,
}

const COLUMNS: &[Column] = &[
    Column::text("file", "FILE"),
    Column::text("object", "OBJECT"),
    Column::text("field", "FIELD"),
    Column::text("problem", "PROBLEM"),
    Column::text("fix", "FIX"),
];
/// The most characters of a name that are printed. A name in Kubernetes has 253 at most.
const LONGEST_NAME: usize = 253;

/// An object that has pods, with its mistakes.
#[derive(Debug)]
struct Linted {
    file: String,
    /// The kind and the name, such as `Deployment team-a/web`.
    object: String,
    findings: Vec<Finding>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Outcome {
    let objects = manifest::of_files(&args.files)?;
    let all = linted(&objects, &args.scheduler_name);
    if all.is_empty() {
        return Err(Failure::no(
            "nothing was looked at: no object of these files has pods or a template of them",
        ));
    }
    let found = all.iter().any(|one| !one.findings.is_empty());
    args.output.print(&report(&all, args.output.format))?;
    Ok(ExitCode::from(if found { NO } else { 0 }))
}

/// Returns the objects that have pods, in the order of the files.
fn linted(objects: &[(String, Value)], scheduler: &str) -> Vec<Linted> {
    let mut cluster = Cluster::of_scheduler(scheduler);
    for (_, object) in objects {
        if object["kind"] == "PriorityClass"
            && let Some(name) = object["metadata"]["name"].as_str()
        {
            cluster.classes.insert(name.to_owned());
        }
    }
    let with_pods = objects
        .iter()
        .filter(|(_, object)| !api::lint::templates(object).is_empty());
    with_pods
        .map(|(file, object)| Linted {
            file: file.clone(),
            object: name(object),
            findings: lint::of(object, &cluster),
        })
        .collect()
}

fn name(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let name = text("/metadata/name").or_else(|| text("/metadata/generateName"));
    let name = line(name.unwrap_or_default(), LONGEST_NAME);
    let kind = line(text("/kind").unwrap_or_default(), LONGEST_NAME);
    match text("/metadata/namespace") {
        Some(namespace) => format!("{kind} {}/{name}", line(namespace, LONGEST_NAME)),
        None => format!("{kind} {name}"),
    }
}

/// Returns the answer: paragraphs for people, rows for programs.
fn report(all: &[Linted], format: Format) -> Report {
    if format != Format::Table {
        let mut table = Table::new(COLUMNS, "no mistakes");
        for one in all {
            for finding in &one.findings {
                table.row(vec![
                    one.file.clone().into(),
                    one.object.clone().into(),
                    finding.field.clone().into(),
                    finding.problem.clone().into(),
                    finding.fix.clone().into(),
                ]);
            }
        }
        return Report::from(table);
    }
    let mut report = Report::default();
    let (mut mistakes, mut wrong) = (0, 0);
    for one in all.iter().filter(|one| !one.findings.is_empty()) {
        mistakes += one.findings.len();
        wrong += 1;
        let title = wrapped(&format!("{}: {}", one.file, one.object), 0);
        report.above.extend(toned(title, Tone::Bad));
        for finding in &one.findings {
            let sentence = format!("{} {}", finding.field, finding.problem);
            report
                .above
                .extend(toned(wrapped(&sentence, 2), Tone::Plain));
            let fix = wrapped(&finding.fix, 6).into_iter().enumerate();
            let fix = fix.map(|(at, line)| match line.get(6..) {
                Some(rest) if at == 0 => format!("    > {rest}"),
                _ => line,
            });
            report.above.extend(toned(fix.collect(), Tone::Good));
        }
        report.above.push("".into());
    }
    let many = |count: usize, one: &str, several: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {several}"),
    };
    let pods = many(all.len(), "object with pods", "objects with pods");
    report.above.push(match mistakes {
        0 => Cell::from(format!("No mistakes in {pods}.")).tone(Tone::Good),
        _ => Cell::from(format!(
            "{} in {wrong} of {pods}.",
            many(mistakes, "mistake", "mistakes")
        ))
        .tone(Tone::Bad),
    });
    report
}

fn toned(lines: Vec<String>, tone: Tone) -> impl Iterator<Item = Cell> {
    lines
        .into_iter()
        .map(move |line| Cell::from(line).tone(tone))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(text: &str) -> Vec<(String, Value)> {
        let all = manifest::parse(text).unwrap();
        all.into_iter()
            .map(|object| ("app.yaml".to_owned(), object))
            .collect()
    }

    fn printed(text: &str, format: Format) -> String {
        let all = linted(&objects(text), "kai-scheduler");
        let output = Output {
            format,
            no_headers: false,
        };
        output.render(&report(&all, format), false)
    }

    const WRONG: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: team-a, annotations: {gpu-memory: \"2000\"}}
spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: x}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: right, annotations: {gpu-memory: \"2000\"}, labels: {priorityClassName: inferences}}
spec: {schedulerName: kai-scheduler, containers: [{name: main, image: x}]}
---
apiVersion: v1
kind: Pod
metadata: {name: train, annotations: {gpu-memory: 2GB}, labels: {priorityClassName: trian}}
spec: {containers: [{name: main, image: x}]}
";

    #[test]
    fn file_object_field_and_fix_are_named_in_eighty_columns() {
        assert_eq!(
            printed(WRONG, Format::Table),
            "\
app.yaml: Deployment team-a/web
  metadata.annotations[gpu-memory] is on the Deployment, and counts on its pods
  alone
    > move it to spec.template.metadata.annotations
  spec.template.spec.schedulerName is not set, so that Kubernetes' own scheduler
  places the pod without a GPU
    > set it to kai-scheduler

app.yaml: Pod train
  spec.schedulerName is not set, so that Kubernetes' own scheduler places the
  pod without a GPU
    > set it to kai-scheduler
  metadata.labels[priorityClassName] names the priority class trian, which does
  not come with Aliquot
    > write train, or create the class
  the pod would be rejected: gpu-memory annotation value must be a positive
  integer greater than 0; it is \"2GB\": write \"1908\" for 1908 MiB

5 mistakes in 2 of 3 objects with pods.
"
        );
        let rows: Value = serde_json::from_str(&printed(WRONG, Format::Json)).unwrap();
        assert_eq!(rows.as_array().map(Vec::len), Some(5));
        assert_eq!(rows[0]["object"], "Deployment team-a/web");
        assert_eq!(rows[2]["field"], "spec.schedulerName");
        // The same files create the class.
        let class = "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: trian}\nvalue: 1\n";
        let text = printed(&format!("{WRONG}{class}"), Format::Table);
        assert!(
            text.ends_with("4 mistakes in 2 of 3 objects with pods.\n"),
            "{text}"
        );
    }

    #[test]
    fn hostile_text_moves_no_cursor_and_fills_no_screen() {
        // A key of more than 1,024 characters needs the long form.
        let sly = format!("gpu-memroy\\e[2J\\u202e{}", "x".repeat(1 << 20));
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"{sly}\"\n  annotations:\n    gpu-memroy: \"1\"\n    ? \"{sly}\"\n    : \"1\"\n    ? \"gpu-{sly}\"\n    : \"2\"\nspec: {{schedulerName: \"{sly}\", containers: []}}\n"
        );
        let text = printed(&text, Format::Table);
        assert!(text.contains("write gpu-memory"), "{text}");
        assert!(text.len() < 8000, "{}", text.len());
        assert!(text.lines().all(|line| line.chars().count() <= 80));
        let shown = |c: char| c == '\n' || api::visible::is_visible(c);
        assert!(text.chars().all(shown));
    }

    #[test]
    fn nothing_wrong_is_said_too() {
        let right = WRONG.split("---\n").nth(2).unwrap();
        assert_eq!(
            printed(right, Format::Table),
            "No mistakes in 1 object with pods.\n"
        );
        assert_eq!(printed(right, Format::Json), "[]\n");
        // A folder is read in order of name, and nothing else in it.
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("b.yaml", WRONG),
            (
                "a.json",
                "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"j\"}}",
            ),
            ("c.txt", "no manifest"),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let read = manifest::of_files(&[folder.path().to_owned()]).unwrap();
        let kinds: Vec<&str> = read
            .iter()
            .filter_map(|(_, object)| object["kind"].as_str())
            .collect();
        assert_eq!(kinds, ["Pod", "Service", "Deployment", "Pod", "Pod"]);
        assert!(read[0].0.ends_with("a.json"), "{}", read[0].0);
        let empty = folder.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let failure = manifest::of_files(&[empty]).unwrap_err();
        assert!(
            failure.sentence.contains("no file that ends with .yaml"),
            "{failure:?}"
        );
    }
}
