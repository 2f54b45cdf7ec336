//! Runs recorded decisions of KAI against the core.
//!
//! `vectors [--expected FILE] PATH...`: files or folders in the format of
//! `tests/conformance/README.md`. Prints each failing id with what was expected and what
//! came, and ends with `N passed, N failed`.
#![allow(clippy::cast_possible_truncation, clippy::assigning_clones)] // Counts of a recorded case are small.

mod case;
mod dra;
mod end;
mod judge;
mod recorded;
mod rules;
mod share;
mod task_state;
mod world;

use clap::Parser;
use end::{End, say};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs recorded decisions against the core.
#[derive(Parser)]
struct Args {
    /// Files or folders of JSON lines.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Only cases whose id contains this.
    #[arg(long)]
    only: Option<String>,
    /// Print what was decided in each round.
    #[arg(long)]
    trace: bool,
    /// Print how long each decision took.
    #[arg(long)]
    time: bool,
    /// Known exceptions: lines of `<id>: <reason>`. Default: `exceptions.txt` beside the
    /// vectors.
    #[arg(long)]
    exceptions: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let files = files(&args.paths)?;
    let exceptions = exceptions(args.exceptions.as_deref(), &files)?;
    let tell = world::Verbosity {
        trace: args.trace,
        time: args.time,
    };
    let tally = play_all(&files, &exceptions, args.only.as_deref(), tell)?;
    let mut total = [0; 3];
    for (kind, count) in &tally {
        say(&format!(
            "{kind}: {} passed, {} failed, {} known exceptions",
            count[0], count[1], count[2]
        ));
        for (sum, more) in total.iter_mut().zip(count) {
            *sum += more;
        }
    }
    say(&format!("{} passed, {} failed", total[0], total[1]));
    Ok(if total[1] == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// By file: how many passed, failed, and failed as listed.
type Tally = BTreeMap<String, [usize; 3]>;

/// Runs every case of the files, and says which fail and how.
fn play_all(
    files: &[PathBuf],
    exceptions: &BTreeMap<String, String>,
    only: Option<&str>,
    tell: world::Verbosity,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::new();
    for file in files {
        let kind = file
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        for (number, line) in std::fs::read_to_string(file)?.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let value: Value = serde_json::from_str(line)
                .map_err(|error| anyhow::anyhow!("{}:{}: {error}", file.display(), number + 1))?;
            let id = value["id"].as_str().unwrap_or("?").to_owned();
            if only.is_some_and(|only| !id.contains(only)) {
                continue;
            }
            let count = tally.entry(kind.clone()).or_default();
            match run(&value, tell) {
                End::Passed if exceptions.contains_key(&id) => {
                    count[1] += 1;
                    say(&format!(
                        "FAILED {id}\n  is listed as an exception and passes"
                    ));
                }
                End::Passed => count[0] += 1,
                End::Failed(_) if exceptions.contains_key(&id) => count[2] += 1,
                End::Failed(why) => {
                    count[1] += 1;
                    say(&format!("FAILED {id}\n{why}"));
                }
            }
        }
    }
    Ok(tally)
}

fn run(value: &Value, tell: world::Verbosity) -> End {
    if value.get("total_gpu").is_some() {
        return share::run(value);
    }
    let case = match case::read(value) {
        Ok(case) => case,
        Err(error) => return End::Failed(format!("  not understood: {error}")),
    };
    let rebuilt = world::play(&case, world::CoreLifecycle::Rebuilt, tell);
    let lived = world::play(&case, world::CoreLifecycle::Lived, tell);
    let restored = world::play(&case, world::CoreLifecycle::Restored, tell);
    let mut wrong = String::new();
    if restored != lived {
        wrong.push_str("  lived cores and those restored from snapshots disagree\n");
        wrong.push_str(&judge::difference(
            ("restored", &restored),
            ("lived", &lived),
        ));
    }
    if rebuilt != lived {
        wrong.push_str("  rebuilt and lived cores disagree\n");
        wrong.push_str(&judge::difference(("rebuilt", &rebuilt), ("lived", &lived)));
    }
    if let Some(difference) = judge::judge(&case, &rebuilt) {
        wrong.push_str(&difference);
    }
    if wrong.is_empty() {
        End::Passed
    } else {
        End::Failed(wrong)
    }
}

fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                let path = entry?.path();
                if path
                    .extension()
                    .is_some_and(|extension| extension == "jsonl")
                {
                    files.push(path);
                }
            }
        } else {
            files.push(path.clone());
        }
    }
    files.sort();
    Ok(files)
}

fn exceptions(named: Option<&Path>, files: &[PathBuf]) -> anyhow::Result<BTreeMap<String, String>> {
    let beside = files
        .first()
        .and_then(|file| file.parent())
        .map(|folder| folder.join("exceptions.txt"));
    let path = named.map(Path::to_path_buf).or(beside);
    let Some(path) = path.filter(|path| Path::exists(path)) else {
        return Ok(BTreeMap::new());
    };
    Ok(std::fs::read_to_string(path)?
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .map(|(id, why)| (id.to_owned(), why.to_owned()))
        .collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn recorded() -> Vec<PathBuf> {
        files(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")]).unwrap()
    }

    #[test]
    fn every_recorded_decision_is_taken_or_listed_with_its_reason() {
        let files = recorded();
        let exceptions = exceptions(None, &files).unwrap();
        assert!(exceptions.len() <= 28, "{} exceptions", exceptions.len());
        let tally = play_all(&files, &exceptions, None, world::Verbosity::default()).unwrap();
        let total = tally.values().fold([0; 3], |mut total, count| {
            for (sum, more) in total.iter_mut().zip(count) {
                *sum += more;
            }
            total
        });
        assert_eq!(total[1], 0, "failed; {tally:?}");
        // Each line is one recorded decision, and none is lost on the way.
        let recorded: usize = files
            .iter()
            .map(|file| std::fs::read_to_string(file).unwrap().lines().count())
            .sum();
        assert!(recorded > 0);
        assert_eq!(total.iter().sum::<usize>(), recorded, "{tally:?}");
        assert_eq!(total[2], exceptions.len(), "listed, and not there");
    }

    #[test]
    fn another_outcome_than_the_recorded_one_fails() {
        let line = std::fs::read_to_string(recorded().last().unwrap()).unwrap();
        let mut value: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        let silent = world::Verbosity::default();
        assert!(matches!(run(&value, silent), End::Passed));
        for state in value["accepted"].as_array_mut().unwrap() {
            for task in state.as_object_mut().unwrap().values_mut() {
                task["status"] = Value::from("Succeeded");
            }
        }
        assert!(matches!(run(&value, silent), End::Failed(_)));
    }

    /// The status of the first task at the end of the recorded case of a claim in use by so many
    /// other pods, with so many pods of its own that need all of them.
    fn ends(others: usize, own: usize) -> String {
        let path = recorded()
            .into_iter()
            .find(|file| file.ends_with("rounds_allocate.jsonl"))
            .unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let is_full = |value: &Value| {
            let users = &value["dra"]["ResourceClaims"][0]["claimStatus"]["reservedFor"];
            users.as_array().is_some_and(|users| users.len() == 256)
        };
        let mut value = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .find(is_full)
            .unwrap();
        let job = &mut value["jobs"][0];
        job["groups"]["pod_sets"][0]["min"] = Value::from(own);
        let tasks = job["tasks"].as_array_mut().unwrap();
        for at in 1..own {
            let mut task = tasks[0].clone();
            task["uid"] = Value::from(format!("own-{at}"));
            tasks.push(task);
        }
        let first = tasks[0]["uid"].as_str().unwrap().to_owned();
        // As it is recorded if the first one has been bound.
        let users = &mut value["dra"]["ResourceClaims"][0]["claimStatus"]["reservedFor"];
        let users = users.as_array_mut().unwrap();
        users.truncate(others);
        users.push(serde_json::json!({ "resource": "pods", "name": first, "uid": first }));
        let case = case::read(&value).unwrap();
        let all = [
            world::CoreLifecycle::Rebuilt,
            world::CoreLifecycle::Lived,
            world::CoreLifecycle::Restored,
        ]
        .map(|way| world::play(&case, way, world::Verbosity::default())[&first].clone());
        assert!(all.iter().all(|state| *state == all[0]), "{all:?}");
        all[0].status.clone()
    }

    #[test]
    fn a_claim_has_room_beside_the_pods_that_are_not_of_the_case() {
        assert_eq!(ends(255, 1), "Running");
        assert_eq!(ends(256, 1), "Pending");
        assert_eq!(ends(253, 3), "Running");
        assert_eq!(ends(254, 3), "Pending");
    }

    /// The cases that are judged, with how they end.
    fn judged() -> impl Iterator<Item = (recorded::Case, BTreeMap<String, task_state::State>)> {
        let lines = recorded().into_iter().flat_map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        lines.filter_map(|line| {
            let value: Value = serde_json::from_str(&line).unwrap();
            if value.get("total_gpu").is_some() {
                return None;
            }
            let case = case::read(&value).unwrap();
            if case.tasks.iter().all(|task| task.shares == 0) {
                return None;
            }
            let states = world::play(
                &case,
                world::CoreLifecycle::Rebuilt,
                world::Verbosity::default(),
            );
            judge::judge(&case, &states)
                .is_none()
                .then_some((case, states))
        })
    }

    #[test]
    fn what_a_shared_gpu_is_called_does_not_matter_and_who_shares_it_does() {
        let (mut renamed, mut parted, mut joined) = (0, 0, 0);
        for (mut case, states) in judged() {
            let all = case.accepted.iter_mut().flat_map(BTreeMap::values_mut);
            for name in all.flat_map(|expected| expected.groups.iter_mut().flatten()) {
                *name = format!("other-{name}");
            }
            renamed += 1;
            assert_eq!(judge::judge(&case, &states), None);
            if case.accepted.len() > 1 {
                continue;
            }

            // A job beside another one is alone.
            let names: Vec<String> = groups(&mut case).map(|name| name.clone()).collect();
            let twice = names
                .iter()
                .position(|name| names.iter().filter(|other| *other == name).count() > 1);
            if let Some(at) = twice {
                let kept = std::mem::replace(groups(&mut case).nth(at).unwrap(), "alone".into());
                assert!(judge::judge(&case, &states).is_some(), "{names:?}");
                *groups(&mut case).nth(at).unwrap() = kept;
                parted += 1;
            }
            // Two that run on two GPUs run on one.
            let other = names.iter().position(|name| *name != names[0]);
            if let Some(at) = other {
                groups(&mut case).nth(at).unwrap().clone_from(&names[0]);
                assert!(judge::judge(&case, &states).is_some(), "{names:?}");
                joined += 1;
            }
        }
        assert!(
            renamed > 100 && parted > 20 && joined > 20,
            "{renamed} {parted} {joined}"
        );
    }

    /// The names of the shared GPUs on the first node that has any.
    fn groups(case: &mut recorded::Case) -> impl Iterator<Item = &mut String> {
        let shares: Vec<String> = case
            .tasks
            .iter()
            .filter(|task| task.shares > 0)
            .map(|task| task.pod.uid.to_string())
            .collect();
        let mut first = None;
        case.accepted
            .iter_mut()
            .flatten()
            .filter(move |(uid, expected)| {
                let runs = ["Running", "Binding"].contains(&expected.status.as_str());
                runs && shares.contains(uid)
                    && *first.get_or_insert_with(|| expected.node.clone()) == expected.node
            })
            .flat_map(|(_, expected)| expected.groups.iter_mut().flatten())
    }

    #[test]
    fn a_whole_card_is_held_alone_and_nobody_holds_more_than_asked() {
        let (mut twice, mut more) = (0, 0);
        for (case, mut states) in judged() {
            let at = |whole: bool| {
                let tasks = case
                    .tasks
                    .iter()
                    .filter(move |task| (task.whole > 0) == whole);
                let uids = tasks.map(|task| task.pod.uid.to_string());
                uids.filter(|uid| states[uid].status == "Running" && !states[uid].cards.is_empty())
                    .collect::<Vec<_>>()
            };
            let (whole, shares) = (at(true), at(false));
            let (Some(whole), Some(share)) = (whole.first(), shares.first()) else {
                continue;
            };
            let card = states[whole].cards[0].clone();
            let kept =
                std::mem::replace(&mut states.get_mut(share).unwrap().cards[0], card.clone());
            let wrong = judge::judge(&case, &states).unwrap();
            assert!(wrong.contains("whole, and so does"), "{wrong}");
            twice += 1;
            let cards = &mut states.get_mut(share).unwrap().cards;
            cards[0] = kept;
            cards.push(card);
            let wrong = judge::judge(&case, &states).unwrap();
            assert!(wrong.contains("cards and asks for"), "{wrong}");
            more += 1;
        }
        assert!(twice > 5 && more > 5, "{twice} {more}");
    }

    #[test]
    fn less_than_nothing_is_not_taken_for_nothing() {
        let line = std::fs::read_to_string(recorded().last().unwrap()).unwrap();
        let value: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        assert!(case::read(&value).is_ok());
        let mut negative = value.clone();
        negative["queues"][0]["gpu"]["quota"] = Value::from(-2);
        assert!(case::read(&negative).is_err());
        let mut negative = value.clone();
        negative["jobs"][0]["age_s"] = Value::from(-1);
        assert!(case::read(&negative).is_err());
        let mut never = value;
        never["jobs"][0]["staleness_grace_s"] = Value::from(-1);
        let case = case::read(&never).unwrap();
        assert!(case.facts.iter().any(|event| matches!(
            event,
            scheduler_core::Event::Group(group)
                if group.staleness_grace == Some(scheduler_core::model::Grace::Never)
        )));
    }
}
