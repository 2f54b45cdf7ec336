//! Every form of KAI's, by the parser and by the webhook. What the policies on an API server
//! say to the same table is a claim of `tests/cluster/run forms`.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use aliquot_tests::forms::{Becomes, FORMS, Form, pod};
use api::request::{self, Admitted, GpuRequest};
use proto::names::resource;
use serde_json::{Value, json};

fn read(form: &Form) -> Result<Admitted, String> {
    let pod = serde_json::from_value(pod("ns", form.says)).unwrap();
    request::admitted(&pod).map_err(|error| error.to_string())
}

#[test]
fn the_parser_takes_and_refuses_each_form_as_the_table_says() {
    for form in FORMS {
        match (read(form), &form.becomes) {
            (Ok(admitted), Becomes::Taken(shares, warns)) => {
                let got = &admitted.request.containers;
                let same = got.len() == shares.len()
                    && got
                        .iter()
                        .zip(*shares)
                        .all(|(got, share)| share.is(&got.name, &got.gpus));
                assert!(same, "{form:?}: {got:?}");
                let named: Vec<&str> = admitted
                    .warnings
                    .iter()
                    .map(|warning| warning.split(' ').nth(1).unwrap())
                    .collect();
                assert_eq!(named, *warns, "{form:?}: {:?}", admitted.warnings);
            }
            (Err(why), Becomes::Refused(words) | Becomes::RefusedByPolicy(words)) => {
                assert!(why.contains(words), "{form:?}: {why}");
                assert!(why.lines().count() == 1, "{why}");
            }
            (got, _) => panic!("{form:?}: {got:?}"),
        }
    }
}

/// What KAI's binder wrote on a pod that it has bound takes nothing from what the pod asks for.
#[test]
fn a_pod_that_kai_has_bound_is_read_as_it_was_asked_for() {
    let mut bound = pod(
        "ns",
        &[
            ("gpu-fraction", "0.25"),
            ("gpu-fraction.limit", "0.5"),
            (
                "kai.scheduler/container.main.gpu-memory.portion.limit",
                "0.5",
            ),
            ("nvidia.com/container.main.gpu-memory.request", "3840Mi"),
            ("nvidia.com/container.main.gpu-memory.limit", "7680Mi"),
            ("nvidia.com/container.main.gpus.devices", "GPU-1"),
            ("nvidia.com/container.main.gpu-compute.portion", "0.25"),
        ],
    );
    bound["spec"]["nodeName"] = json!("n1");
    let asked = request::of(&serde_json::from_value(bound).unwrap()).unwrap();
    let GpuRequest::Share(share) = &asked.containers[0].gpus else {
        panic!("{asked:?}")
    };
    assert_eq!(share.amount, request::Amount::Memory(api::Mib(3840)));
    assert_eq!(share.limit, Some(request::Amount::Memory(api::Mib(7680))));
}

#[test]
fn the_webhook_gives_each_share_its_token_and_what_is_kept_for_it() {
    for form in FORMS {
        let amended = scheduler::admission::amended(&pod("ns", form.says));
        let Becomes::Taken(shares, warns) = &form.becomes else {
            let why = amended.expect_err("refused").to_string();
            assert_eq!(Err(why), read(form), "{form:?}");
            continue;
        };
        let amended = amended.unwrap_or_else(|why| panic!("{form:?}: {why}"));
        assert_eq!(amended.warnings.len(), warns.len(), "{form:?}");
        let containers = amended.pod["spec"]["containers"].as_array().unwrap();
        for container in containers {
            let share = shares.iter().find(|one| container["name"] == one.container);
            let limits = &container["resources"]["limits"];
            let Some(share) = share else {
                assert_eq!(*limits, Value::Null, "{form:?}");
                continue;
            };
            let devices = u64::from(share.devices);
            let (name, amount) = match share.amount {
                request::Amount::Memory(mib) => (resource::MEMORY_MIB, mib.0 * devices),
                request::Amount::Fraction(nano) => (resource::MILLI, nano * devices / 1_000_000),
            };
            let wanted = json!({ (resource::SHARE): "1", name: amount.to_string() });
            assert_eq!(*limits, wanted, "{form:?}");
        }
    }
}
