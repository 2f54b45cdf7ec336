//! Every verb as a user types it: against a running demo, against files, and with errors.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod cluster;
mod pages;
mod terminal;
mod wrong;

use cluster::{Demo, until};
use serde_json::Value;
use std::collections::BTreeMap;

const READ: [&[&str]; 13] = [
    &["nodes"],
    &["nodes", "node-1"],
    &["cards"],
    &["shares"],
    &["shares", "-n", "demo"],
    &["queues"],
    &["top", "--once"],
    &["explain", "demo/later"],
    &["explain", "-n", "demo", "inference"],
    &["events"],
    &["fit", "--gpu-memory", "1Gi", "--count", "2"],
    &["doctor"],
    &["plan"],
];

#[test]
fn every_read_verb_answers_in_every_format() {
    let demo = Demo::start(&[]);
    for verb in READ {
        for format in ["table", "wide", "json", "yaml", "csv"] {
            let args = [verb, &["-o", format]].concat();
            // The demo keeps no admission policies and has no scheduler pod: the doctor
            // says so, and nothing is broken by it.
            let said = demo.told(&args);
            assert!(
                !said.out.contains('\x1b'),
                "{args:?}: colours without a terminal"
            );
            if format == "json" {
                let value = said.json();
                let empty = value.as_array().is_some_and(Vec::is_empty) || value.is_null();
                assert!(!empty, "{args:?}: {}", said.out);
            } else if !(format == "csv" && args[0] == "explain" && args.contains(&"inference")) {
                assert!(said.out.lines().count() >= 1, "{args:?}");
            }
        }
    }
    let cards = demo.told(&["cards", "-o", "json"]).json();
    // Either node may be the first that the scheduler hears of.
    let text = |card: &Value, key: &str| card[key].as_str().unwrap().to_owned();
    let cards = cards.as_array().unwrap().iter();
    assert_eq!(cards.len(), 2);
    let nodes: BTreeMap<String, String> = cards
        .map(|card| (text(card, "mode"), text(card, "node")))
        .collect();
    assert!(nodes.keys().eq(["exclusive", "mps"]), "{nodes:?}");
    let queues = demo.told(&["queues"]).out;
    assert!(queues.contains("\n  research  "), "{queues}");
    let events = demo.told(&["events", "demo/inference"]).out;
    assert!(
        events.contains(&format!(
            "Successfully assigned pod demo/inference to node {}",
            nodes["mps"]
        )),
        "{events}"
    );
    the_core_is_asked_offline_too(&demo);
    a_card_is_cordoned_and_opened_again(&demo);
    another_key_signs_and_the_former_one_is_revoked(&demo);
    terminal::verbs_are_live_on_a_terminal(&demo);
    what_was_granted_is_reported(&demo);
    pages::the_quickstart_does_what_it_says(&demo);
    pages::manifests_of_the_pages_can_be_applied(&demo);
}

/// The scheduler's memory, in every form.
fn what_was_granted_is_reported(demo: &Demo) {
    let targets = std::fs::read_to_string(demo.path("targets.json")).unwrap();
    let targets: Value = serde_json::from_str(&targets).unwrap();
    let scheduler = format!("http://{}", targets[0]["targets"][0].as_str().unwrap());
    let report =
        |args: &[&str]| demo.told(&[&["report", "--scheduler", &scheduler], args].concat());
    // It looks every 30 s.
    until("a sum", || {
        let said = report(&["-o", "json"]).json();
        let rows = said["rows"].as_array()?;
        let any = rows.iter().any(|row| row["gpuHours"].as_f64() > Some(0.0));
        // The last one to run.
        let all = report(&["--by", "owner"]).out.contains("Pod/notebook");
        (any && all).then_some(())
    });
    let prices = demo.write("prices.yaml", "currency: EUR\ngpuHour: 1000\n");
    let said = report(&["--prices", &prices, "-o", "json"]).json();
    let rows = said["rows"].as_array().unwrap();
    let queues: Vec<&str> = rows
        .iter()
        .map(|row| row["queue"].as_str().unwrap())
        .collect();
    assert!(
        queues.contains(&"research") && queues.contains(&"product"),
        "{said}"
    );
    for row in rows {
        let hours = row["gpuHours"].as_f64().unwrap();
        assert!(
            (row["cost"].as_f64().unwrap() - hours * 1000.0).abs() < 1.0,
            "{row}"
        );
    }
    let table = report(&["--by", "owner"]).out;
    assert!(
        table.contains("Pod/notebook") && table.contains("granted to no pod"),
        "{table}"
    );
    let csv = report(&["--by", "namespace", "-o", "csv"]).out;
    assert!(
        csv.starts_with("namespace,gpuHours,unusedGpuHours,"),
        "{csv}"
    );
    let opencost = report(&["--opencost", "--prices", &prices]).json();
    assert_eq!(
        (&opencost["domain"], &opencost["currency"]),
        (&Value::from("aliquot.dev"), &Value::from("EUR"))
    );
    assert!(!opencost["costs"].as_array().unwrap().is_empty());
    let none = demo.ask(&["report"]);
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.err.contains("give --scheduler URL"), "{none:?}");
}

/// A snapshot answers as the cluster did.
fn the_core_is_asked_offline_too(demo: &Demo) {
    let snapshot = demo.told(&["snapshot"]).out;
    let file = demo.write("cluster.txt", &snapshot);
    let here = ["--snapshot", &file];
    for verb in [
        &["explain", "demo/later"][..],
        &["queues"],
        &["fit", "--gpu-memory", "9000"],
    ] {
        let live = demo.told(verb).out;
        assert_eq!(demo.told(&[verb, &here].concat()).out, live, "{verb:?}");
    }
    let again = demo.told(&[&["snapshot"][..], &here].concat()).out;
    assert_eq!(again, snapshot);
    let replayed = demo.told(&["replay", &file, "--text"]).out;
    assert!(
        replayed.contains("Unschedulable: no nodes with enough resources"),
        "{replayed}"
    );

    // Of 80 GB, a fraction of a half and 2000 MiB are gone: 30 GB once more, not twice.
    let pod = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, annotations: {{gpu-memory: \"30000\"}}, labels: {{kai.scheduler/queue: product}}}}\nspec:\n  schedulerName: kai-scheduler\n  containers: [{{name: main, image: any}}]\n---\n"
        )
    };
    let one = demo.write("one.yaml", &pod("a"));
    let two = demo.write("two.yaml", &[pod("a"), pod("b")].concat());
    let said = demo.told(&["simulate", "-f", &one]);
    assert!(
        said.out.contains("1 of 1 pod gets a place."),
        "{}",
        said.out
    );
    let said = demo.ask(&["simulate", "-f", &two]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.out.contains("1 of 2 pods get a place."),
        "{}",
        said.out
    );
}

fn another_key_signs_and_the_former_one_is_revoked(demo: &Demo) {
    let keys = |args: &[&str]| {
        let said = demo
            .told(&[&["keys"], args, &["-o", "json"]].concat())
            .json();
        let rows = said.as_array().unwrap().clone();
        let of = |state: &str| {
            let mut rows = rows.iter().filter(|row| row["state"] == state);
            rows.next()
                .map(|row| row["key"].as_str().unwrap().to_owned())
        };
        (rows.len(), of("signs"), of("believed"))
    };
    let (count, old, _) = keys(&["list"]);
    assert_eq!(count, 1);
    let old = old.unwrap();
    let (count, new, former) = keys(&["rotate"]);
    assert_eq!((count, former.as_ref()), (2, Some(&old)));
    let new = new.unwrap();
    let said = demo.ask(&["keys", "revoke", &new]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!(demo.ask(&["keys", "revoke", "none"]).code, Some(2));
    assert_eq!(keys(&["revoke", &old]), (1, Some(new), None));
}

fn a_card_is_cordoned_and_opened_again(demo: &Demo) {
    let state = || {
        let cards = demo.told(&["cards", "node-2", "-o", "json"]).json();
        cards[0]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(), "ready");
    demo.told(&["cordon", "node-2/0", "--dry-run"]);
    assert_eq!(state(), "ready");
    let said = demo.told(&["cordon", "node-2/0", "-o", "json"]).json();
    assert_eq!(
        (&said[0]["was"], &said[0]["now"]),
        (&Value::from("open"), &Value::from("cordoned"))
    );
    until("a cordoned card", || (state() == "cordoned").then_some(()));
    let said = demo.ask(&["fit", "--gpu-memory", "1000"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let doctor = demo.told(&["doctor"]).out;
    assert!(doctor.contains("aliquot uncordon node-2/0"), "{doctor}");
    demo.told(&["uncordon", "node-2"]);
    until("an open card", || (state() == "ready").then_some(()));
    demo.told(&["fit", "--gpu-memory", "1000"]);
}
