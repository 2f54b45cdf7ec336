use super::*;

#[test]
fn presets_have_nvmls_totals() {
    let totals: Vec<u64> = Preset::ALL
        .iter()
        .map(|p| Hardware::of(*p, 1).cards().unwrap()[0].total_mib)
        .collect();
    assert_eq!(totals, [15360, 23034, 49140, 40960, 81920, 81559]);
}

#[test]
fn uuids_are_stable_and_differ_between_machines() {
    let mut a = Hardware::of(Preset::H100x80, 8);
    a.seed = "a".into();
    let mut b = a.clone();
    let uuids = |h: &Hardware| {
        h.cards()
            .unwrap()
            .into_iter()
            .map(|c| c.uuid)
            .collect::<Vec<_>>()
    };
    assert_eq!(uuids(&a), uuids(&b));
    b.seed = "b".into();
    assert!(uuids(&a).iter().all(|u| !uuids(&b).contains(u)));
    assert!(
        uuids(&a)
            .iter()
            .all(|u| u.len() == "GPU-afc3ccca-c336-5689-2ed8-f0e14233036f".len())
    );
}

#[test]
fn a_file_overrides_its_preset_and_unknown_keys_are_refused() {
    let text = r#"{"driver_version":"590.44.01","cards":[{"preset":"H100-80","count":4},{"preset":"T4","uuid":"GPU-x","numa_node":-1}]}"#;
    let hardware = Hardware::parse(text).unwrap();
    let cards = hardware.cards().unwrap();
    assert_eq!(hardware.max_clients(), 60);
    assert!(!hardware.needs_shm());
    assert_eq!(cards.len(), 5);
    assert_eq!(cards[0].links.len(), 18);
    assert_eq!(cards[0].links[0].1, 2);
    assert_eq!(
        (cards[4].uuid.as_str(), cards[4].numa_node),
        ("GPU-x", None)
    );
    assert!(cards[4].links.is_empty());
    for bad in [
        r#"{"cards":[{"preset":"T4","memory":1}]}"#,
        r#"{"cards":[{"preset":"T5"}]}"#,
        r#"{"cards":[{"preset":"T4","count":0}]}"#,
        r#"{"cards":[{"preset":"T4","uuid":"GPU-x","count":2}]}"#,
        r#"{"cards":[{"preset":"T4","uuid":"GPU-x"},{"preset":"T4","uuid":"GPU-x"}]}"#,
        r#"{"cards":[{"preset":"T4","mig":true}]}"#,
        r#"{"cards":[{"preset":"T4","reserved_mib":15360}]}"#,
    ] {
        assert!(Hardware::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn two_boards_link_to_each_other_and_one_to_nobody() {
    let pair = Hardware::of(Preset::A100x40, 2).cards().unwrap();
    assert!(
        pair[0]
            .links
            .iter()
            .all(|l| *l == (pair[1].pci_bus_id.clone(), 0))
    );
    assert!(
        Hardware::of(Preset::A100x40, 1).cards().unwrap()[0]
            .links
            .is_empty()
    );
}

#[test]
fn instances_are_placed_where_the_product_allows_it_and_refused_where_it_does_not() {
    let placed = |preset: &str, layout: &str| {
        let text = format!(
            r#"{{"cards":[{{"preset":"{preset}","mig":true,"mig_instances":[{layout}]}}]}}"#
        );
        Hardware::parse(&text)
            .map(|hardware| hardware.cards().unwrap()[0].instances.clone())
            .map(|all| all.iter().map(|i| (i.profile, i.id)).collect::<Vec<_>>())
            .map_err(|error| error.to_string())
    };
    let seven = [r#""1g.10gb""#; 7].join(",");
    let ids: Vec<u32> = placed("H100-80", &seven)
        .unwrap()
        .iter()
        .map(|(_, id)| *id)
        .collect();
    assert_eq!(ids, [7, 8, 9, 10, 11, 12, 13]);
    assert_eq!(
        placed("A100-40", r#""1g.5gb","3g.20gb","2g.10gb""#).unwrap(),
        [("3g.20gb", 2), ("2g.10gb", 4), ("1g.5gb", 7)]
    );
    for (preset, layout, why) in [
        ("A100-40", r#""1g.10gb+me""#, "no such MIG profile"),
        ("A100-80", r#""7g.80gb","1g.10gb""#, "no placement is left"),
        ("H100-80", r#""4g.40gb","4g.40gb""#, "no placement is left"),
        ("T4", r#""1g.10gb""#, "Tesla T4 has no MIG"),
    ] {
        let error = placed(preset, layout).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_capabilitys_minor_is_the_one_that_the_driver_lists() {
    let text = mig::minors_file(2);
    for line in [
        "gpu0/gi1/access 12",
        "gpu0/gi7/access 66",
        "gpu0/gi7/ci0/access 67",
        "gpu1/gi0/access 138",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}");
    }
}
