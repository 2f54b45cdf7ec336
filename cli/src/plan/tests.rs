use super::*;
use serde_json::Value;

fn node(name: &str, units: u64, more: Value) -> Node {
    let mut labels = json!({"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.memory": "81559"});
    labels
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": {"nvidia.com/gpu": units.to_string()}},
    }))
    .unwrap()
}

fn pod(name: &str, node: Option<&str>, gpus: u64, phase: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"nodeName": node, "containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}},
            {"name": "beside"}]},
        "status": {"phase": phase},
    }))
    .unwrap()
}

fn args(more: &[&str]) -> Args {
    #[derive(clap::Parser)]
    struct Verb {
        #[command(flatten)]
        args: Args,
    }
    let words = ["plan"].iter().chain(more);
    <Verb as clap::Parser>::try_parse_from(words).unwrap().args
}

fn cluster(used: &[(&str, u64)]) -> Fleet {
    let nodes = [
        node("a", 8, json!({})),
        node(
            "sliced",
            8,
            json!({"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}),
        ),
        node(
            "mig",
            7,
            json!({"nvidia.com/gpu.product": "H100-MIG-1g.10gb"}),
        ),
        serde_json::from_value(json!({"metadata": {"name": "cpu"}, "status": {}})).unwrap(),
    ];
    let mut share = pod("share", Some("a"), 0, "Running");
    share.metadata.annotations = Some([("gpu-fraction".to_owned(), "0.5".to_owned())].into());
    let mut reservation = pod("reservation", Some("a"), 1, "Running");
    reservation.metadata.namespace = Some("kai-resource-reservation".to_owned());
    let pods = vec![
        pod("small", Some("a"), 1, "Running"),
        pod("middle", Some("a"), 1, "Running"),
        pod("large", Some("a"), 1, "Running"),
        pod("two", Some("a"), 2, "Running"),
        pod("slice", Some("sliced"), 1, "Running"),
        pod("of-mig", Some("mig"), 1, "Running"),
        share,
        reservation,
        pod("ended", Some("a"), 1, "Succeeded"),
        pod("waits", None, 1, "Pending"),
        pod("without", Some("a"), 0, "Running"),
    ];
    let used = used.iter();
    let used: Used = used
        .map(|(pod, mib)| (("team".to_owned(), (*pod).to_owned()), *mib))
        .collect();
    Fleet::of(&nodes, &pods, (!used.is_empty()).then_some(&used))
}

fn text(report: &Report) -> String {
    args(&[]).output.render(report, false)
}

#[test]
fn pods_that_use_little_of_a_gpu_of_their_own_fit_on_fewer_as_shares() {
    let used = [
        ("small", 6_000),
        ("middle", 30_000),
        ("large", 60_000),
        ("two", 5_000),
        ("slice", 3_000),
    ];
    let fleet = cluster(&used);
    let with = args(&["--prometheus", "http://p"]);
    let told = text(&report(&with, &fleet, &Refused::new()));
    for part in [
        "1 node on which pods get GPUs of their own, with 8 GPUs; 4 pods hold 5 of them",
        "1 node not counted: several pods get the same GPU there",
        "1 node not counted: the GPUs there are MIG slices",
        "1 pod with a share already",
        "2 pods used at most half of their GPU's memory in the last 24 h; with shares of that and 25 % more, they fit on 1 GPU in place of 2, by GPU memory alone",
        "none would refuse an existing pod",
        "docs/evaluate.md",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // 6,000 and a quarter is 7,500 MiB, in steps of 512.
    let row = told.lines().find(|line| line.contains("small")).unwrap();
    assert!(row.ends_with("7680"), "{row}");
    let rows: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("team"))
        .collect();
    assert!(
        rows[0].contains("small") && rows[1].contains("middle"),
        "{told}"
    );
    assert!(rows[2..].iter().all(|row| row.ends_with('-')), "{told}");
}

#[test]
fn shares_of_which_two_do_not_fit_on_a_card_free_none() {
    let fleet = cluster(&[("small", 39_000), ("middle", 39_000)]);
    let packing = Packing::of(&fleet.holders, 25);
    assert_eq!((packing.shares, packing.cards, packing.unknown), (2, 2, 2));
    let packing = Packing::of(&fleet.holders, 0);
    assert_eq!((packing.shares, packing.cards), (2, 1));
    // A card has no more than 48 shares, however small they are.
    let small = Holder {
        used_mib: Some(1),
        ..fleet.holders[0].clone()
    };
    let packing = Packing::of(&vec![small; 49], 0);
    assert_eq!((packing.shares, packing.cards), (49, 2));
}

#[test]
fn unknown_use_is_told_and_no_share_is_made_up() {
    let fleet = cluster(&[]);
    let told = text(&report(&args(&[]), &fleet, &Refused::new()));
    assert!(told.contains("give --prometheus URL"), "{told}");
    assert!(!told.contains("in place of"), "{told}");
    let fleet = cluster(&[("small", 60_000)]);
    let told = text(&report(
        &args(&["--prometheus", "http://p"]),
        &fleet,
        &Refused::new(),
    ));
    assert!(told.contains("shares would free no GPU"), "{told}");
    assert!(told.contains("the use of 3 pods is unknown"), "{told}");
}

#[test]
fn pods_that_the_policies_would_refuse_are_named_outside_exempt_namespaces() {
    let thief = |namespace: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "thief", "namespace": namespace},
            "spec": {"containers": [{"name": "main",
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]},
        }))
        .unwrap()
    };
    let exempt = BTreeSet::from(["gpu-operator".to_owned()]);
    // KAI writes that variable into a pod with a share.
    let mut kai = thief("team");
    kai.metadata.annotations = Some([("gpu-memory".to_owned(), "2000".to_owned())].into());
    let mut owned = serde_json::to_value(thief("team")).unwrap();
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet",
        "name": "exporter", "uid": "1", "controller": true}]);
    let owned: Pod = serde_json::from_value(owned).unwrap();
    let pods = [
        thief("team"),
        thief("gpu-operator"),
        kai,
        owned.clone(),
        owned,
    ];
    let refused = refused(&pods, &exempt);
    let of: Vec<_> = refused
        .iter()
        .map(|((name, _), pods)| (&**name, *pods))
        .collect();
    assert_eq!(of, [("team/exporter (DaemonSet)", 2), ("team/thief", 1)]);
    let mut reasons = refused.keys();
    assert!(reasons.all(|(_, why)| why.contains("NVIDIA_VISIBLE_DEVICES")));
    let told = text(&report(&args(&[]), &cluster(&[]), &refused));
    assert!(told.contains("would refuse 3 existing pods"), "{told}");
    let many = (0..12)
        .map(|at| ((at.to_string(), "why".to_owned()), 1))
        .collect();
    let told = text(&report(&args(&[]), &cluster(&[]), &many));
    assert!(told.contains("and 2 more"), "{told}");
}

#[test]
fn a_sample_is_its_pods_whether_prometheus_renames_the_exporters_labels_or_not() {
    let sample = |labels: Value| {
        let sample = json!({"metric": labels, "value": [0.0, "1000.5"]});
        of_sample(serde_json::from_value(sample).unwrap())
    };
    let of = |name: &str| Some((("team".to_owned(), name.to_owned()), 1001));
    assert_eq!(sample(json!({"namespace": "team", "pod": "p"})), of("p"));
    let renamed = json!({"namespace": "dcgm", "pod": "exporter",
        "exported_namespace": "team", "exported_pod": "q"});
    assert_eq!(sample(renamed), of("q"));
    assert_eq!(sample(json!({})), None);
}
