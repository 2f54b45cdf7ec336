//! Which fence catches which tenant. Every row is something that a container
//! can do to real MPS; where a row says that it helps, only the watchdog is left.
// Clippy takes helpers outside a test for no test.
#![allow(clippy::unwrap_used)]

mod bench;

use bench::Machine;

/// How the card is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// `mps`: `EXCLUSIVE_PROCESS` and one warm server without a default limit;
    /// limits come from the container's environment.
    Exclusive,
    /// The same, but no server was started before the tenant came.
    ExclusiveCold,
    /// `mps-isolated`: DEFAULT mode, the server has the share's limit.
    Isolated,
    /// `time-slicing`: DEFAULT mode and no server.
    Sliced,
}

/// What becomes of the tenant's appetite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Held at the share of 2000 MiB.
    Held,
    /// No memory at all: this error.
    Refused(u64),
    /// It gets past its share.
    Escapes,
}

use Guard::{Exclusive, ExclusiveCold, Isolated, Sliced};
use Outcome::{Escapes, Held, Refused};

const SHARE: u64 = 2000;
/// What a context takes of an RTX 6000 Ada, MiB.
const CONTEXT: u64 = 304;

/// Script before the appetite, and what comes of it behind each guard.
const TABLE: &[(&str, &[(Guard, Outcome)])] = &[
    (
        "",
        &[
            (Exclusive, Held),
            (ExclusiveCold, Held),
            (Isolated, Held),
            (Sliced, Escapes),
        ],
    ),
    // Not under MPS at all: the compute mode is what stops it, while a server holds the card.
    (
        "unset-mps",
        &[
            (Exclusive, Refused(46)),
            (ExclusiveCold, Escapes),
            (Isolated, Escapes),
            (Sliced, Escapes),
        ],
    ),
    (
        "direct",
        &[
            (Exclusive, Refused(46)),
            (ExclusiveCold, Escapes),
            (Isolated, Escapes),
            (Sliced, Escapes),
        ],
    ),
    // A directory without a daemon is as good as none.
    (
        "env CUDA_MPS_PIPE_DIRECTORY=/nowhere",
        &[
            (Exclusive, Refused(46)),
            (ExclusiveCold, Escapes),
            (Isolated, Escapes),
            (Sliced, Escapes),
        ],
    ),
    // The environment may only lower what the server says; where the server says nothing, it is all there is.
    ("raise 30000", &[(Exclusive, Escapes), (Isolated, Held)]),
    ("unset-limits", &[(Exclusive, Escapes), (Isolated, Held)]),
    // What the driver does not understand there lifts both.
    ("stray-limit", &[(Exclusive, Escapes), (Isolated, Escapes)]),
    // A tenant of the daemon's own user commands the daemon.
    (
        "drive-raise 30000 unset-limits",
        &[(Exclusive, Escapes), (Isolated, Escapes)],
    ),
    (
        "drive \"quit -t 0\" sleep 1 unset-mps",
        &[(Exclusive, Escapes), (Isolated, Escapes)],
    ),
];

fn outcome(guard: Guard, before: &str) -> Outcome {
    let machine = Machine::start(&["--preset", "RTX-6000-Ada"]);
    let gpu = machine.cards[0].clone();
    if matches!(guard, Exclusive | ExclusiveCold) {
        assert_eq!(machine.smi(&["-i", &gpu, "-c", "EXCLUSIVE_PROCESS"]).0, 0);
    }
    let script = format!("{before} grow 100");
    let line = if guard == Sliced {
        machine.tenant(&script).limit(SHARE).last()
    } else {
        let daemon = machine.daemon(&[]);
        if guard == Isolated {
            daemon.ask(&format!(
                "set_default_device_pinned_mem_limit {gpu} {SHARE}M"
            ));
        }
        if guard != ExclusiveCold {
            daemon.warm();
        }
        daemon.tenant(&script).limit(SHARE).last()
    };
    match (line["held_mib"].as_u64(), line["code"].as_u64()) {
        (Some(held), _) if held <= SHARE => Held,
        (Some(_), _) => Escapes,
        (None, Some(code)) => Refused(code),
        other => panic!("{guard:?} {before}: {other:?} in {line}"),
    }
}

#[test]
fn every_fence_catches_what_it_says_and_no_more() {
    let mut wrong = Vec::new();
    for (before, rows) in TABLE {
        for (guard, expected) in *rows {
            let found = outcome(*guard, before);
            if found != *expected {
                wrong.push(format!(
                    "`{before}` behind {guard:?}: {found:?}, expected {expected:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_limit_of_a_process_does_not_bound_the_sum_of_a_container() {
    let machine = Machine::start(&["--preset", "RTX-6000-Ada"]);
    let daemon = machine.daemon(&[]);
    daemon.ask(&format!("set_default_device_pinned_mem_limit 0 {SHARE}M"));
    daemon.warm();
    let mut tenant = daemon.tenant("fork 3 1500 hold").spawn();
    let line = tenant.reach("fork");
    assert_eq!(
        line["held_mib"],
        3 * (1500 + 304),
        "only a watchdog sees this: {line}"
    );
    let children = line["children"].as_array().unwrap().len();
    assert_eq!(children, 3);
    let (_, apps) = machine.smi(&[
        "--query-compute-apps=pid,used_memory",
        "--format=csv,noheader,nounits",
    ]);
    assert_eq!(
        apps.lines().count(),
        1 + children,
        "each is a process of its own to NVML: {apps}"
    );
    // Where all of them were killed with their container, nothing is left.
    drop(tenant);
    bench::until("the children's memory is free", || machine.used() <= 30);
}

#[test]
fn the_limit_of_a_running_process_is_not_raised_by_its_own_commands() {
    let machine = Machine::start(&["--preset", "RTX-6000-Ada"]);
    let daemon = machine.daemon(&[]);
    daemon.ask(&format!("set_default_device_pinned_mem_limit 0 {SHARE}M"));
    daemon.warm();
    let line = daemon.tenant("context drive-raise 30000 grow 100").last();
    assert!(line["held_mib"].as_u64().unwrap() <= SHARE, "{line}");
    // The next one has it all: a forked child would do.
    assert!(
        daemon.tenant("grow 100").last()["held_mib"]
            .as_u64()
            .unwrap()
            > SHARE
    );
}

#[test]
fn a_tenant_of_another_user_cannot_command_a_multiuser_daemon() {
    if !bench::is_root() {
        return;
    }
    let machine = Machine::start(&["--preset", "RTX-6000-Ada"]);
    machine.smi(&["-c", "EXCLUSIVE_PROCESS"]);
    let daemon = machine.daemon(&["-multiuser-server"]);
    daemon.warm();
    let line = daemon.tenant("drive \"quit -t 0\"").uid(1000).last();
    let refused = line.to_string().contains("Insufficient privileges");
    assert!(refused, "{line}");
    assert_eq!(
        daemon.tenant("grow 100").limit(SHARE).uid(1000).last()["limit_mib"],
        SHARE
    );
    // Root in a container without a user namespace is the daemon's user.
    assert_eq!(daemon.tenant("drive-raise 30000").last()["ok"], true);
}

/// Measured on driver 580.159.04: a limit counts bytes, the card loses pages.
#[test]
fn buffers_of_an_odd_size_take_more_than_a_limit_counts() {
    let machine = Machine::start(&["--preset", "RTX-6000-Ada"]);
    let daemon = machine.daemon(&[]);
    daemon.ask(&format!("set_default_device_pinned_mem_limit 0 {SHARE}M"));
    daemon.warm();
    let before = machine.used();
    for (step, excess) in [(1, 0), (2, 0), (3, 1)] {
        let mut tenant = daemon.tenant(&format!("grow {step} hold")).spawn();
        let held = tenant.reach("grow")["held_mib"].as_u64().unwrap();
        assert!(
            held <= SHARE && held + step > SHARE,
            "{held} in steps of {step}"
        );
        let buffers = (held - CONTEXT) / step;
        assert_eq!(machine.used() - before, held + buffers * excess, "{step}");
        drop(tenant);
        bench::until("its memory is free", || machine.used() == before);
    }
}

#[test]
fn memory_past_cuda_is_bounded_by_nothing_but_the_card() {
    let machine = Machine::start(&["--preset", "RTX-6000-Ada"]);
    machine.smi(&["-c", "EXCLUSIVE_PROCESS"]);
    let daemon = machine.daemon(&[]);
    daemon.ask(&format!("set_default_device_pinned_mem_limit 0 {SHARE}M"));
    daemon.warm();
    for (verb, context) in [("graphics", 8), ("raw", 0)] {
        let mut tenant = daemon.tenant(&format!("{verb} 5000 hold")).spawn();
        assert_eq!(tenant.reach(verb)["held_mib"], 5000 + context);
        assert_eq!(machine.used(), 5000 + context + 30, "the server has 30");
        let rows = machine.ctl(&["status"]);
        assert!(rows.contains(&tenant.process.pid().to_string()), "{rows}");
        drop(tenant);
        bench::until("its memory is free", || machine.used() == 30);
    }
    assert_eq!(machine.tenant("raw 50000").last()["code"], 2);
    // Beside a context of its own it is the same process, with two entries.
    let mut both = daemon.tenant("alloc 100 graphics 200 hold").spawn();
    both.reach("graphics");
    assert_eq!(machine.used(), 30 + 304 + 100 + 208);
}

#[test]
fn small_clients_use_up_the_servers_slots() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let hardware = r#"{"mps":{"max_clients":5},"cards":[{"preset":"T4","context_mib":10}]}"#;
    std::fs::write(file.path(), hardware).unwrap();
    let machine = Machine::start(&["--hardware", file.path().to_str().unwrap()]);
    let daemon = machine.daemon(&[]);
    daemon.warm();
    let line = daemon.tenant("clients 7").last();
    assert_eq!(line["connected"], 5, "{line}");
    assert_eq!(line["codes"], serde_json::json!([808]));
}

#[test]
fn a_process_goes_by_the_name_that_it_takes() {
    let machine = Machine::start(&["--preset", "T4"]);
    let mut tenant = machine.tenant("set-name nvidia-cuda-mps-x hold").spawn();
    tenant.reach("set-name");
    let comm = format!("/proc/{}/comm", tenant.process.pid());
    // The kernel keeps 15 characters.
    assert_eq!(std::fs::read_to_string(comm).unwrap(), "nvidia-cuda-mps\n");
}

#[test]
fn a_client_may_be_on_the_mps_list_late() {
    let machine = Machine::start(&["--preset", "T4"]);
    machine.ctl(&["set", "mps-listed-late-ms", "600000"]);
    let daemon = machine.daemon(&[]);
    daemon.warm();
    let mut tenant = daemon.tenant("context hold").spawn();
    tenant.reach("context");
    assert!(!machine.smi(&[]).1.contains("M+C"));
    machine.ctl(&["set", "mps-listed-late-ms", "0"]);
    assert!(machine.smi(&[]).1.contains("M+C"));
}
