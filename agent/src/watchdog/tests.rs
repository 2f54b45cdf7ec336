use super::*;
use crate::attribute::Origin;
use crate::ledger::AllocId;
use crate::nvml::CardSample;

const ALLOWED: Allowance = Allowance {
    slack: Mib(16),
    client_slots: 12,
};

fn share(pod: &str, container: &str, mode: &str, mib: u64) -> Share {
    let record = format!(
        r#"{{"version":1,"pod":{{"uid":"{pod}","namespace":"n","name":"{pod}"}},"container":"{container}",
           "gpus":["GPU-0"],"memoryMib":{mib},"computePercent":100,"mode":"{mode}","decision":"d"}}"#
    );
    let mut share = Share::from_record(AllocId::new(1), &record).unwrap();
    share.container_id = Some(format!("c-{container}"));
    share
}

fn process(pod: &str, container: &str, mib: u64, mps_client: bool) -> Process {
    Process {
        pid: u32::try_from(mib).unwrap(),
        memory: Some(Mib(mib)),
        mps_client,
        sm_percent: None,
        works: None,
        origin: Origin {
            pod_uid: Some(pod.into()),
            container_id: Some(format!("c-{container}")),
            command: "x".into(),
        }
        .into(),
    }
}

fn ledger(shares: &[Share]) -> Ledger {
    let mut ledger = Ledger::default();
    for share in shares {
        ledger.restore(share.clone());
    }
    ledger
}

fn sample(at: Instant, processes: &[Process]) -> Sample {
    Sample {
        cards: vec![CardSample {
            uuid: GpuUuid::from("GPU-0"),
            at,
            processes: processes.to_vec(),
        }],
    }
}

/// When it acts, in samples from the first, over a second of samples 100 ms apart.
fn acts(ledger: &Ledger, processes: &[Process]) -> Vec<(usize, ViolationKind)> {
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    let mut acts = Vec::new();
    for n in 0..10 {
        let now = start + Duration::from_millis(100 * n);
        let found = watchdog.judge(&sample(now, processes), ledger, &ALLOWED, now);
        let sure = found.into_iter().filter(|finding| finding.sure);
        acts.extend(sure.map(|finding| (usize::try_from(n).unwrap(), finding.wrong)));
    }
    acts
}

#[test]
fn the_second_sample_in_a_row_is_acted_on() {
    let ledger = ledger(&[share("a", "main", "time-slicing", 2000)]);
    let two = [
        process("a", "main", 1500, false),
        process("a", "main", 517, false),
    ];
    assert_eq!(acts(&ledger, &two), [(1, ViolationKind::Memory)]);
    let at_the_limit = [
        process("a", "main", 1500, false),
        process("a", "main", 516, false),
    ];
    assert_eq!(acts(&ledger, &at_the_limit), []);
}

/// Its limit counts the bytes that it asked for, NVML the pages that they take.
#[test]
fn a_program_that_a_limit_of_mps_refused_is_not_ended_for_rounding() {
    let behind = |level| {
        let mut share = share("a", "main", "mps-isolated", 6400);
        share.fence = Some(crate::fence::ActiveFence {
            backend: None,
            level,
            limit: Some(Mib(6400)),
            reach: Mib(81920),
        });
        ledger(&[share])
    };
    for level in [Fence::ServerLimit, Fence::ClientLimit] {
        let ledger = behind(level);
        assert_eq!(acts(&ledger, &[process("a", "main", 6500, true)]), []);
        let more = [process("a", "main", 6501, true)];
        assert_eq!(acts(&ledger, &more), [(1, ViolationKind::Memory)]);
    }
    // These limits count what NVML does, or there is none.
    for level in [Fence::DriverLimit, Fence::WatchdogOnly] {
        let more = [process("a", "main", 6417, true)];
        assert_eq!(acts(&behind(level), &more), [(1, ViolationKind::Memory)]);
    }
}

#[test]
fn a_process_past_its_server_is_wrong_whatever_it_holds() {
    for mode in ["mps", "mps-isolated"] {
        let ledger = ledger(&[share("a", "main", mode, 2000)]);
        let past = [process("a", "main", 1, false)];
        assert_eq!(
            acts(&ledger, &past),
            [(5, ViolationKind::PastServer)],
            "{mode}"
        );
        assert_eq!(acts(&ledger, &[process("a", "main", 1, true)]), []);
    }
    let whole = ledger(&[share("a", "main", "exclusive", 2000)]);
    assert_eq!(acts(&whole, &[process("a", "main", 9000, false)]), []);
}

#[test]
fn a_client_that_is_listed_late_is_left_alone_and_what_it_holds_is_not() {
    let ledger = ledger(&[share("a", "main", "mps", 2000)]);
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    for n in 0..20_u32 {
        let now = start + Duration::from_millis(100) * n;
        let late = [process("a", "main", 300, n >= 5)];
        let found = watchdog.judge(&sample(now, &late), &ledger, &ALLOWED, now);
        assert!(found.iter().all(|finding| !finding.sure), "{n}: {found:?}");
    }
    let over = [process("a", "main", 2017, false)];
    assert_eq!(acts(&ledger, &over)[0], (1, ViolationKind::Memory));
}

#[test]
fn looks_at_all_cards_alone_are_enough() {
    let ledger = ledger(&[share("a", "main", "time-slicing", 2000)]);
    let over = [process("a", "main", 3000, false)];
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    let sure = |watchdog: &mut Watchdog, millis| {
        let now = start + Duration::from_millis(millis);
        let found = watchdog.judge(&sample(now, &over), &ledger, &ALLOWED, now);
        found.iter().any(|finding| finding.sure)
    };
    assert!(!sure(&mut watchdog, 0));
    assert!(sure(&mut watchdog, 2100));
}

#[test]
fn who_leaves_no_client_to_the_others_of_its_card_has_more_than_its_part() {
    let shares = [
        share("a", "main", "mps", 2000),
        share("b", "main", "mps", 2000),
    ];
    let both = ledger(&shares);
    let own = |pod: &str, count: u64| -> Vec<Process> {
        (1..=count)
            .map(|mib| process(pod, "main", mib, true))
            .collect()
    };
    // Twelve for two: one is left for the next process of either.
    for (first, second, sure) in [
        (10, 1, false),
        (11, 1, true),
        (11, 0, false),
        (12, 0, true),
        (6, 6, false),
    ] {
        let all = [own("a", first), own("b", second)].concat();
        let expected: &[(usize, ViolationKind)] = if sure {
            &[(1, ViolationKind::Clients)]
        } else {
            &[]
        };
        assert_eq!(acts(&both, &all), expected, "{first} beside {second}");
    }
    let alone = ledger(&shares[..1]);
    assert_eq!(acts(&alone, &own("a", 12)), []);
    // What is no client takes no client's place.
    let past = [
        own("a", 6),
        own("b", 6),
        vec![process("a", "main", 7, false)],
    ]
    .concat();
    assert_eq!(acts(&both, &past), [(5, ViolationKind::PastServer)]);
}

#[test]
fn who_has_a_server_of_its_own_takes_no_client_from_others() {
    let mut shares = [
        share("a", "main", "mps-isolated", 2000),
        share("b", "main", "mps-isolated", 2000),
    ];
    shares[1].alloc_id = Some(AllocId::new(2));
    let own = |pod: &str, count: u64| -> Vec<Process> {
        (1..=count)
            .map(|mib| process(pod, "main", mib, true))
            .collect()
    };
    let all = [own("a", 12), own("b", 1)].concat();
    assert_eq!(acts(&ledger(&shares), &all), []);
}

#[test]
fn each_card_is_judged_by_its_own_time_and_one_that_never_can_be_is_reported() {
    let mut shares = [
        share("a", "main", "time-slicing", 2000),
        share("b", "main", "time-slicing", 2000),
    ];
    shares[1].gpus = vec![GpuUuid::from("GPU-1")];
    let ledger = ledger(&shares);
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    watchdog.watch(&ledger.watched(), start);
    let mut judged = Vec::new();
    for n in 0..60_u32 {
        let now = start + Duration::from_millis(100) * n;
        // The first card took its time to answer, the second one did not.
        let cards = [
            ("GPU-0", "a", STALE + Duration::from_millis(1)),
            ("GPU-1", "b", Duration::ZERO),
        ];
        let cards = cards.map(|(uuid, pod, age)| CardSample {
            uuid: GpuUuid::from(uuid),
            at: now.checked_sub(age).unwrap(),
            processes: vec![process(pod, "main", 3000, false)],
        });
        let sample = Sample {
            cards: cards.into(),
        };
        judged.extend(watchdog.judge(&sample, &ledger, &ALLOWED, now));
        let blind: Vec<&str> = watchdog.unjudged(now).map(GpuUuid::as_str).collect();
        let expected: &[&str] = if n >= 50 { &["GPU-0"] } else { &[] };
        assert_eq!(blind, expected, "{n}");
    }
    assert!(
        judged
            .iter()
            .all(|finding| finding.hold == shares[1].limit_scope())
    );
    assert!(judged.iter().any(|finding| finding.sure));
    assert_eq!(watchdog.stale(), 60);
    // No share has a limit to keep there any more.
    let now = start + Duration::from_mins(1);
    watchdog.watch(&BTreeSet::new(), now);
    assert_eq!(watchdog.unjudged(now).count(), 0);
}

#[test]
fn what_others_hold_is_not_held_against_it() {
    let shares = [
        share("a", "main", "time-slicing", 2000),
        share("b", "one", "time-slicing", 1000),
        share("b", "two", "time-slicing", 500),
    ];
    let ledger = ledger(&shares);
    let processes = [
        process("a", "main", 1900, false),
        process("b", "one", 900, false),
        process("b", "two", 600, false),
        process("c", "main", 9000, false),
        // Not told apart by its pod alone: of no share that is known.
        process("b", "new", 3000, false),
    ];
    let mut watchdog = Watchdog::default();
    let mut now = Instant::now();
    let mut found = Vec::new();
    for _ in 0..2 {
        found = watchdog.judge(&sample(now, &processes), &ledger, &ALLOWED, now);
        now += Duration::from_millis(100);
    }
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].hold, shares[2].limit_scope());
    assert_eq!(
        found[0].text(),
        "holds 600 MiB of card GPU-0, 500 MiB were granted"
    );
    assert_eq!(
        watchdog
            .complaints(&shares[2].limit_scope())
            .next()
            .map(|(_, text)| text),
        Some(&*found[0].text())
    );
    assert_eq!(watchdog.complaints(&shares[1].limit_scope()).next(), None);
}

#[test]
fn the_only_share_of_a_pod_answers_for_a_container_that_started_again() {
    let ledger = ledger(&[share("a", "main", "time-slicing", 2000)]);
    let again = [process("a", "later", 2500, false)];
    assert_eq!(acts(&ledger, &again), [(1, ViolationKind::Memory)]);
}

#[test]
fn a_tenant_that_takes_and_frees_between_samples_is_found_all_the_same() {
    let ledger = ledger(&[share("a", "main", "time-slicing", 2000)]);
    let (over, under) = (
        [process("a", "main", 3000, false)],
        [process("a", "main", 10, false)],
    );
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    let mut sure = 0;
    for n in 0..10_u32 {
        let now = start + Duration::from_millis(100) * n;
        let processes = if n % 3 == 0 { &over } else { &under };
        let found = watchdog.judge(&sample(now, processes), &ledger, &ALLOWED, now);
        sure += found.iter().filter(|finding| finding.sure).count();
    }
    assert_eq!(sure, 1);
}

#[test]
fn old_samples_and_single_ones_do_nothing() {
    let ledger = ledger(&[share("a", "main", "time-slicing", 2000)]);
    let over = [process("a", "main", 3000, false)];
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    let late = start + STALE + Duration::from_millis(1);
    for _ in 0..3 {
        assert!(
            watchdog
                .judge(&sample(start, &over), &ledger, &ALLOWED, late)
                .is_empty()
        );
    }
    let found = watchdog.judge(&sample(late, &over), &ledger, &ALLOWED, late);
    assert!(found.iter().all(|finding| !finding.sure) && found.len() == 1);
    let later = late + Duration::from_secs(3);
    let found = watchdog.judge(&sample(later, &over), &ledger, &ALLOWED, later);
    assert!(found.iter().all(|finding| !finding.sure));
}

/// 86,400 seconds of samples of tenants that use all of their shares, start and end:
/// nothing is ever done about any of them.
#[test]
fn a_simulated_day_of_busy_tenants_has_no_false_positive() {
    let shares: Vec<Share> = (0..3)
        .map(|n| {
            let mode = ["mps", "mps-isolated", "time-slicing"][n];
            share(&format!("p{n}"), "main", mode, 2000)
        })
        .collect();
    let ledger = ledger(&shares);
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    let mut chance = 7_u64;
    let mut next = || {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        chance >> 33
    };
    for n in 0..864_000_u64 {
        let now = start + Duration::from_millis(100 * n);
        let processes: Vec<Process> = shares
            .iter()
            .flat_map(|share| {
                let mps = share.mode != Mode::TimeSlicing;
                let first = next() % 2001;
                let second = next() % (2001 - first);
                // A client that ends while the lists are read is in one of them only.
                let torn = mps && next() % 5000 == 0;
                [
                    process(&share.pod.uid, "main", first, mps && !torn),
                    process(&share.pod.uid, "main", second, mps),
                ]
            })
            .collect();
        let found = watchdog.judge(&sample(now, &processes), &ledger, &ALLOWED, now);
        assert!(found.iter().all(|finding| !finding.sure), "{found:?}");
    }
}

/// A share of which `kept` MiB are kept and that may use `limit`.
fn bursting(pod: &str, kept: u64, limit: u64) -> Share {
    Share {
        kept: Mib(kept),
        ..share(pod, "main", "mps-isolated", limit)
    }
}

/// The shares that are stopped, in order, on a card that has `room` beside what is kept on it.
fn pressed(shares: &[Share], held: &[(&str, u64)], room: u64) -> Vec<String> {
    let ledger = ledger(shares);
    let processes: Vec<Process> = held
        .iter()
        .map(|(pod, mib)| process(pod, "main", *mib, true))
        .collect();
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    let mut stopped = Vec::new();
    for n in 0..3 {
        let now = start + Duration::from_millis(100 * n);
        let sample = sample(now, &processes);
        let room = |_: &GpuUuid| Some(Mib(room));
        let found = watchdog.press(&sample, &ledger, Mib(16), room, now);
        assert!(
            found
                .iter()
                .all(|finding| finding.wrong == ViolationKind::Pressure)
        );
        let sure = found.into_iter().filter(|finding| finding.sure);
        stopped.extend(sure.map(|finding| finding.own[0].pod_uid.clone()));
    }
    stopped
}

#[test]
fn who_holds_most_above_what_is_kept_gives_back_first_and_only_while_others_come_short() {
    let shares = [
        bursting("a", 2000, 9000),
        bursting("b", 1000, 9000),
        bursting("c", 4000, 9000),
        share("d", "main", "mps-isolated", 3000),
    ];
    // a has 1000 above, b has 3000, c nothing, d cannot have.
    let held = [("a", 3000), ("b", 4000), ("c", 4000), ("d", 3000)];
    let none: [&str; 0] = [];
    assert_eq!(pressed(&shares, &held, 4000), none);
    assert_eq!(pressed(&shares, &held, 3999), ["b"]);
    assert_eq!(pressed(&shares, &held, 1000), ["b"]);
    assert_eq!(pressed(&shares, &held, 999), ["b", "a"]);
    assert_eq!(pressed(&shares, &held, 0), ["b", "a"]);
}

#[test]
fn nobody_who_holds_no_more_than_is_kept_for_it_gives_back() {
    let shares = [bursting("a", 2000, 9000), bursting("b", 2000, 9000)];
    let none: [&str; 0] = [];
    // 16 MiB are what a driver's figure may differ by.
    assert_eq!(pressed(&shares, &[("a", 2016), ("b", 2000)], 0), none);
    assert_eq!(pressed(&shares, &[("a", 2017), ("b", 2000)], 0), ["a"]);
}

#[test]
fn an_old_sample_takes_nothing_from_anybody() {
    let ledger = ledger(&[bursting("a", 1000, 9000)]);
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    let late = start + STALE + Duration::from_millis(1);
    for _ in 0..3 {
        let old = sample(start, &[process("a", "main", 8000, true)]);
        let found = watchdog.press(&old, &ledger, Mib(16), |_| Some(Mib(0)), late);
        assert_eq!(found, []);
    }
}

/// One container of a claim of 2000 MiB.
fn of_claim(pod: &str, container: &str) -> Share {
    let claimed = crate::ledger::Claimed {
        uid: "c".into(),
        name: "claim".into(),
        requests: ["gpu".to_owned()].into(),
    };
    let mut share = Share {
        claimed: Some(claimed),
        ..share(pod, container, "mps-isolated", 2000)
    };
    share.container_id = Some(format!("c-{container}"));
    share
}

#[test]
fn the_containers_of_a_claim_are_held_to_its_limit_together() {
    let shares = [
        of_claim("a", "main"),
        of_claim("a", "side"),
        of_claim("b", "other"),
    ];
    let ledger = ledger(&shares);
    let each = |mib: [u64; 3]| {
        let names = [("a", "main"), ("a", "side"), ("b", "other")];
        names
            .iter()
            .zip(mib)
            .map(|((pod, container), mib)| process(pod, container, mib, true))
            .collect::<Vec<_>>()
    };
    assert_eq!(acts(&ledger, &each([700, 701, 599])), []);
    let together = each([700, 701, 700]);
    let acted = acts(&ledger, &together);
    assert!(
        matches!(acted[..], [(1, ViolationKind::Memory), ..]),
        "{acted:?}"
    );
    // Once, with all that it is held by.
    let mut watchdog = Watchdog::default();
    let start = Instant::now();
    let late = start + Duration::from_millis(100);
    watchdog.judge(&sample(start, &together), &ledger, &ALLOWED, start);
    let found = watchdog.judge(&sample(late, &together), &ledger, &ALLOWED, late);
    let [finding] = &found[..] else {
        panic!("{found:?}");
    };
    let pods: Vec<&str> = finding.own.iter().map(|own| own.pod_uid.as_str()).collect();
    assert_eq!((finding.held, pods), (Mib(2101), vec!["a", "a", "b"]));
    assert!(
        finding
            .text()
            .contains("claim n/claim, which hold 2101 MiB")
    );
    for share in &shares {
        assert!(watchdog.complaints(&share.limit_scope()).next().is_some());
    }
}

#[test]
fn a_claims_containers_count_as_one_share_of_their_servers_clients() {
    let mut isolated = [of_claim("a", "main"), of_claim("a", "side")];
    for share in &mut isolated {
        share.mode = Mode::Mps;
    }
    let other = share("z", "main", "mps", 100);
    let ledger = ledger(&[isolated[0].clone(), isolated[1].clone(), other]);
    // Twelve clients for two shares: six each, whatever containers they are of.
    let clients = |mine: u64| {
        let own = (1..=mine).map(|n| {
            let container = if n % 2 == 0 { "main" } else { "side" };
            process("a", container, n, true)
        });
        own.chain((1..=12 - mine).map(|n| process("z", "main", n, true)))
            .collect::<Vec<_>>()
    };
    let kinds = |found: Vec<(usize, ViolationKind)>| found.first().map(|(_, wrong)| *wrong);
    assert_eq!(kinds(acts(&ledger, &clients(6))), None);
    assert_eq!(
        kinds(acts(&ledger, &clients(7))),
        Some(ViolationKind::Clients)
    );
}
