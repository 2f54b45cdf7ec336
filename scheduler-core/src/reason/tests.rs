//! Each sentence is said in a golden scenario.

use super::*;
use crate::model::Effect;
use std::path::Path;

/// One of each kind. The match makes the compiler point here when a kind is added.
fn nodes() -> Vec<NodeReason> {
    use NodeReason::*;
    let all = vec![
        Unschedulable,
        NotReady("node(s) were not ready".into()),
        Taint(crate::model::Taint {
            key: "KEY".into(),
            value: "VALUE".into(),
            effect: Effect::NoSchedule,
        }),
        Selector,
        NoGpuWorker("LABEL".into()),
        NoCpuWorker("LABEL".into()),
        Pods,
        Cpu,
        Memory,
        Extended(ResourceName::new("NAME")),
        Extended(ResourceName::new("nvidia.com/mig-1g.10gb")),
        NoVolume(vec!["CLAIM".into()]),
        ClaimElsewhere,
        VolumeLimit,
        ClaimInUse,
        Ports,
        Affinity,
        AntiAffinity,
        AvoidedBy,
        Spread,
        SpreadLabel,
        Gpus,
        GpuMemory,
        NoGpus,
        AgentSilent,
        NotOffering("WHY".into()),
        NumaAlignment,
        NotMig,
        LegacyMig,
        MigSingle,
        MigMixed,
        Devices(ClaimsReason::TooMany("REQUEST".into())),
        Devices(ClaimsReason::Request("REQUEST".into())),
        Devices(ClaimsReason::Pool {
            request: "REQUEST".into(),
            pool: "POOL".into(),
            why: "WHY".into(),
        }),
        Devices(ClaimsReason::Unanswered("WHY".into())),
        Devices(ClaimsReason::CutShort(1)),
        Devices(ClaimsReason::Full),
        Devices(ClaimsReason::Elsewhere),
    ];
    for one in &all {
        match one {
            Unschedulable | NotReady(_) | Taint(_) | Selector | NoGpuWorker(_) | NoCpuWorker(_)
            | Pods | Cpu | Memory | Extended(_) | NoVolume(_) | ClaimElsewhere | VolumeLimit
            | ClaimInUse | Ports | Affinity | AntiAffinity | AvoidedBy | Spread | SpreadLabel
            | Gpus | GpuMemory | NoGpus | AgentSilent | NotOffering(_) | NumaAlignment | NotMig
            | LegacyMig | MigSingle | MigMixed => {}
            Devices(
                ClaimsReason::TooMany(_)
                | ClaimsReason::Request(_)
                | ClaimsReason::Pool { .. }
                | ClaimsReason::Unanswered(_)
                | ClaimsReason::CutShort(_)
                | ClaimsReason::Full
                | ClaimsReason::Elsewhere,
            ) => {}
        }
    }
    all
}

fn cards() -> Vec<CardReason> {
    use CardReason::*;
    let (is, wanted) = (Mode::Mps, Mode::TimeSlicing);
    let short = Short {
        free: Mib(1),
        needed: Mib(2),
    };
    let (fence, least) = (
        crate::model::Fence::ClientLimit,
        crate::model::Fence::ServerLimit,
    );
    let all = vec![
        Unknown,
        Mig,
        Slice,
        Unhealthy("".into()),
        Unhealthy("WHY".into()),
        Cordoned,
        Paused {
            reason: "WHY".into(),
        },
        HeldWhole { elsewhere: 0 },
        HeldWhole { elsewhere: 1 },
        Shared { shares: 1 },
        Shared { shares: 2 },
        Strangers(Mib(7)),
        InMode { is, wanted },
        NoMode(is),
        SeveralOnMps,
        NotReady,
        Slots { slots: 48 },
        Memory { short, cap: Mib(3) },
        Fence {
            fence,
            least,
            mode: Mode::Mps,
        },
        Fence {
            fence: crate::model::Fence::WatchdogOnly,
            least,
            mode: Mode::TimeSlicing,
        },
        PoolShared,
        PoolWhole,
        PoolNone,
        Claimed,
        Elsewhere(NodeName::new("old")),
        NotMig,
        Device(DeviceReason::InUse),
    ];
    for one in &all {
        match one {
            Unknown
            | Mig
            | Slice
            | Unhealthy(_)
            | Cordoned
            | Paused { .. }
            | HeldWhole { .. }
            | Shared { .. }
            | Strangers(_)
            | InMode { .. }
            | NoMode(_)
            | SeveralOnMps
            | NotReady
            | Slots { .. }
            | Memory { .. }
            | Fence { .. }
            | PoolShared
            | PoolWhole
            | NotMig
            | Device(_)
            | PoolNone
            | Claimed
            | Elsewhere(_) => {}
        }
    }
    all
}

/// Every scenario's text.
fn goldens() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = std::fs::read_dir(folder).unwrap();
    let interner = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    interner.collect()
}

/// The fixed words of a sentence: what differs is in capitals, or a number.
fn fixed(sentence: &str) -> Vec<String> {
    let is_fixed = |word: &&str| {
        let differs = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
        !word.chars().all(|c| differs(c) || !c.is_alphabetic())
    };
    let mut runs = vec![Vec::new()];
    for word in sentence.split(' ') {
        if is_fixed(&word) {
            runs.last_mut().into_iter().for_each(|run| run.push(word));
        } else {
            runs.push(Vec::new());
        }
    }
    let runs = runs.into_iter().filter(|run| !run.is_empty());
    runs.map(|run| run.join(" ")).collect()
}

#[test]
fn each_sentence_of_a_node_and_of_a_card_is_said_in_a_scenario() {
    let goldens = goldens();
    let nodes = nodes();
    let cards = cards();
    let all = nodes.iter().map(ToString::to_string);
    let all = all.chain(cards.iter().map(ToString::to_string));
    let unsaid = all.filter(|sentence| {
        let runs = fixed(sentence);
        !goldens
            .lines()
            .any(|line| runs.iter().all(|run| line.contains(run)))
    });
    let unsaid: Vec<String> = unsaid.collect();
    assert!(unsaid.is_empty(), "{unsaid:#?}");
}
