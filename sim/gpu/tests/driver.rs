//! The driver as a process, met by processes.
// Clippy takes helpers outside a test for no test.
#![allow(clippy::unwrap_used)]

mod bench;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bench::{Machine, until};
use nix::sys::signal::Signal;
use sim_gpu::client::Driver;
use sim_gpu::wire::Message;

const ADA: [&str; 4] = ["--preset", "RTX-6000-Ada", "--count", "2"];

#[test]
fn a_process_takes_memory_and_its_death_gives_it_back() {
    let machine = Machine::start(&ADA);
    let mut tenant = machine.tenant("alloc 1000 hold").spawn();
    let line = tenant.reach("alloc");
    assert_eq!(line["held_mib"], 1304);
    tenant.reach("hold");
    assert_eq!(machine.used(), 1304);
    tenant.process.signal(Signal::SIGKILL);
    until("a killed process's memory is free", || machine.used() == 0);
}

#[test]
fn a_holding_process_ends_at_once_when_told_to() {
    let machine = Machine::start(&ADA);
    let mut tenant = machine.tenant("alloc 10 hold").spawn();
    tenant.reach("hold");
    let start = Instant::now();
    tenant.process.signal(Signal::SIGTERM);
    assert_eq!(tenant.process.end(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2));
    until("its memory is free", || machine.used() == 0);
}

#[test]
fn a_report_names_what_reached_the_process() {
    let machine = Machine::start(&ADA);
    let report = machine
        .tenant("report")
        .env("CUDA_VISIBLE_DEVICES", "1")
        .last();
    assert_eq!(report["nodes"], serde_json::json!([0, 1]));
    assert_eq!(report["devices"].as_array().unwrap().len(), 1);
    assert_eq!(report["devices"][0]["uuid"], machine.cards[1].as_str());
    assert_eq!(report["devices"][0]["total_mib"], 48640);
    assert_eq!(report["mps_server"], serde_json::Value::Null);
    let (code, lines) = machine.tenant("vectoradd").run();
    assert_eq!((code, lines.len()), (0, 1));
}

#[test]
fn a_missing_node_hides_a_card() {
    for nodes in ["device", "plain"] {
        let machine = Machine::start(&["--preset", "T4", "--count", "2", "--nodes", nodes]);
        // What a runtime does: a folder of its own with the nodes that were injected.
        let container = sim_gpu::paths::Root::new(machine.path("container"));
        std::fs::create_dir_all(container.dev()).unwrap();
        std::fs::create_dir_all(container.socket().parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(machine.root.socket(), container.socket()).unwrap();
        let given = |name: &str| {
            std::os::unix::fs::symlink(machine.root.dev().join(name), container.dev().join(name))
                .unwrap();
        };
        let report = || {
            machine
                .tenant("report")
                .env("SIM_ROOT", container.path().to_str().unwrap())
                .last()
        };
        assert_eq!(report()["error"], "CUDA_ERROR_NO_DEVICE");
        given("nvidiactl");
        given("nvidia1");
        assert_eq!(
            report()["devices"][0]["error"],
            "CUDA_ERROR_UNKNOWN",
            "no uvm"
        );
        given("nvidia-uvm");
        let seen = report();
        assert_eq!(seen["devices"].as_array().unwrap().len(), 1);
        assert_eq!(seen["devices"][0]["uuid"], machine.cards[1].as_str());
        // A node of one's own making is none of the driver's.
        std::fs::write(container.dev().join("nvidia0"), []).unwrap();
        assert_eq!(report()["devices"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_stranger_is_a_process_of_its_own() {
    let machine = Machine::start(&ADA);
    let pid = machine.ctl(&["stranger", "--gpu", "0", "--mib", "2000"]);
    assert_eq!(machine.used(), 2304);
    let (_, apps) = machine.smi(&[
        "--query-compute-apps=pid,used_memory",
        "--format=csv,noheader",
    ]);
    assert_eq!(apps.trim(), format!("{pid}, 2304 MiB"));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.parse().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    until("the stranger's memory is free", || machine.used() == 0);
}

#[test]
fn a_lost_card_breaks_those_on_it_and_nobody_else() {
    let machine = Machine::start(&ADA);
    let go = machine.path("go");
    let script = format!("alloc 10 await {} alloc 1", go.display());
    let mut hit = machine
        .tenant(&script)
        .env("CUDA_VISIBLE_DEVICES", "0")
        .spawn();
    let mut spared = machine
        .tenant(&script)
        .env("CUDA_VISIBLE_DEVICES", "1")
        .spawn();
    hit.reach("alloc");
    spared.reach("alloc");
    machine.ctl(&["lost", &machine.cards[0]]);
    std::fs::write(&go, []).unwrap();
    assert_eq!(hit.reach("alloc")["error"], "CUDA_ERROR_UNKNOWN");
    assert_eq!(spared.reach("alloc")["ok"], true);
    assert_eq!(machine.smi(&["-L"]).0, 15);
    machine.ctl(&["restore", "0"]);
    assert_eq!(machine.smi(&["-L"]).0, 0);
}

#[test]
fn nonsense_gets_an_error_line_and_the_driver_lives_on() {
    let machine = Machine::start(&ADA);
    let mut stream = UnixStream::connect(machine.root.socket()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let gpu = &machine.cards[0];
    let lines: Vec<Vec<u8>> = [
        String::new(),
        "dance".into(),
        "alloc".into(),
        "open".into(),
        "alloc gpu".into(),
        format!("alloc gpu={gpu} mib=-1"),
        format!("alloc gpu={gpu} mib=99999999999999999999"),
        "context gpu=GPU-nobody".into(),
        "attach limits=a|b percent=x".into(),
        "terminate ticket=%zz".into(),
        "ctl-set index=0 key=reserved-mib value=99999999".into(),
        "card index=4294967296".into(),
        "set-mode index=0 mode=7".into(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .chain([vec![0xff, 0xfe, 0x00]])
    .collect();
    for line in lines {
        stream.write_all(&line).unwrap();
        stream.write_all(b"\n").unwrap();
        let mut answer = String::new();
        reader.read_line(&mut answer).unwrap();
        assert!(answer.starts_with("err code="), "{line:?}: {answer}");
    }
    drop(stream);
    // A line without an end is cut off, not buffered without end.
    let mut endless = UnixStream::connect(machine.root.socket()).unwrap();
    let chunk = vec![b'x'; 1 << 16];
    until("the driver hangs up", || endless.write_all(&chunk).is_err());
    assert_eq!(machine.smi(&["-L"]).0, 0);
}

#[test]
fn a_forked_child_cannot_use_its_parents_connection() {
    let machine = Machine::start(&ADA);
    let stream = UnixStream::connect(machine.root.socket()).unwrap();
    let mut mine = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut ask = |answer: &mut String| {
        answer.clear();
        reader.read_line(answer).unwrap();
    };
    let mut answer = String::new();
    mine.write_all(b"machine\n").unwrap();
    ask(&mut answer);
    assert!(answer.starts_with("ok "), "{answer}");
    let status = std::process::Command::new("sh")
        .args(["-c", "echo machine"])
        .stdout(std::os::fd::OwnedFd::from(stream))
        .status()
        .unwrap();
    assert!(status.success());
    ask(&mut answer);
    assert!(answer.contains("CUDA_ERROR_NOT_INITIALIZED"), "{answer}");
}

#[test]
fn the_driver_answers_thousands_of_requests_a_second() {
    let machine = Machine::start(&ADA);
    let mut driver = Driver::connect(&machine.root).unwrap();
    let request = Message::new("card").with("index", 0);
    let start = Instant::now();
    for _ in 0..2000 {
        driver.call(&request).unwrap();
    }
    // Ten times slower than what an idle machine does.
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?} for 2000",
        start.elapsed()
    );
}

#[test]
fn a_driver_that_ends_takes_its_processes_along_and_a_new_one_starts_empty() {
    let mut machine = Machine::start(&ADA);
    let mut tenant = machine.tenant("alloc 10 hold").spawn();
    tenant.reach("hold");
    let cards = machine.cards.clone();
    machine.stop();
    assert_eq!(tenant.process.end(), Some(1));
    machine.restart(&ADA);
    assert_eq!(machine.cards, cards, "the same root has the same cards");
    assert_eq!(machine.used(), 0);
}

#[test]
fn smi_prints_what_the_driver_says() {
    let machine = Machine::start(&["--preset", "H100-80", "--count", "2"]);
    let uuid = machine.cards[1].clone();
    assert_eq!(
        machine.smi(&["-L"]).1.lines().nth(1).unwrap(),
        format!("GPU 1: NVIDIA H100 80GB HBM3 (UUID: {uuid})")
    );
    let query = "--query-gpu=index,uuid,name,memory.total,memory.used,memory.free,compute_mode";
    let (code, text) = machine.smi(&[query, "--format=csv"]);
    assert_eq!(code, 0);
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "index, uuid, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], compute_mode"
    );
    assert_eq!(
        lines.nth(1).unwrap(),
        format!("1, {uuid}, NVIDIA H100 80GB HBM3, 81559 MiB, 0 MiB, 81008 MiB, Default")
    );
    assert!(
        machine
            .smi(&["-i", &uuid, "-c", "EXCLUSIVE_PROCESS"])
            .1
            .starts_with("Set compute mode to EXCLUSIVE_PROCESS")
    );
    let (_, text) = machine.smi(&["--query-gpu=compute_mode", "--format=csv,noheader"]);
    assert_eq!(text, "Default\nExclusive_Process\n");
    assert_eq!(
        machine
            .smi(&["compute-policy", "-i", &uuid, "--set-timeslice", "2"])
            .0,
        0
    );
    assert!(
        machine
            .smi(&["compute-policy", "-i", &uuid, "-l"])
            .1
            .contains("MEDIUM")
    );
    assert_eq!(machine.smi(&["--query-gpu=charm", "--format=csv"]).0, 2);
    assert_eq!(machine.smi(&["-i", "9", "-L"]).0, 6);
    let (_, table) = machine.smi(&[]);
    assert!(
        table.contains("81559MiB")
            && table.contains("E. Process")
            && table.contains("No running processes found")
    );
    let widths: std::collections::BTreeSet<usize> = table
        .lines()
        .filter(|l| !l.is_empty())
        .map(|l| l.chars().count())
        .collect();
    assert_eq!(widths.len(), 1, "{table}");
}

#[test]
fn only_an_administrator_changes_the_machine() {
    if !bench::is_root() {
        return; // Without root there is no other user.
    }
    let machine = Machine::start(&ADA);
    let line = machine.tenant("set-mode PROHIBITED").uid(65534).last();
    assert_eq!(line["error"], "NVML_ERROR_NO_PERMISSION");
    assert_eq!(machine.tenant("set-mode PROHIBITED").last()["ok"], true);
}

/// A machine whose driver has memory limits, and a cgroup v2 of files with the dmem controller.
fn limited_machine(folder: &std::path::Path) -> (Machine, String) {
    let cgroup = folder.join("cgroup");
    let leaf = cgroup.join("pod/main");
    std::fs::create_dir_all(&leaf).unwrap();
    let hardware = serde_json::json!({
        "driver_version": "615.71.09",
        "cards": [{ "preset": "T4" }],
        "memory_accounting": { "cgroup": cgroup },
    });
    let file = folder.join("hardware.json");
    std::fs::write(&file, hardware.to_string()).unwrap();
    let machine = Machine::start(&["--hardware", file.to_str().unwrap()]);
    let (_, pci) = machine.smi(&["--query-gpu=pci.bus_id", "--format=csv,noheader"]);
    let region = format!("nvidia/{}/vidmem", pci.trim());
    std::fs::write(cgroup.join("dmem.capacity"), format!("{region} 1000\n")).unwrap();
    std::fs::write(leaf.join("dmem.max"), format!("{region} max\n")).unwrap();
    (machine, leaf.display().to_string())
}

#[test]
fn memory_limits_are_set_and_read_in_the_documented_words_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (machine, leaf) = limited_machine(folder.path());
    let said = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        machine.smi(&words)
    };
    let set = format!("memory-limits --set -n {leaf} --soft-limit 0 --hard-limit 2000 -i 0");
    assert_eq!(said(&set), (0, String::new()));
    let answer = format!(
        "namespace: {leaf}\nsoft limit: 0 MiB\nhard limit: 2000 MiB\ncurrent used: 0 MiB\n"
    );
    let get = format!(
        "memory-limits --get --namespace {leaf} -i {}",
        machine.cards[0]
    );
    assert_eq!(said(&get), (0, answer));
    let kernel = std::fs::read_to_string(format!("{leaf}/dmem.max")).unwrap();
    assert!(kernel.ends_with(" 2097152000\n"), "{kernel}");
    for (words, code, why) in [
        // This program once took these words, by a guess.
        (format!("memory-limits -i 0 -n {leaf}"), 2, "--get"),
        (
            format!("memory-limits -i 0 -n {leaf} --hard-limit 9"),
            2,
            "both limits",
        ),
        (
            format!("memory-limits --set -i 0 -n {leaf} --hard-limit 9"),
            2,
            "both limits",
        ),
        (
            format!("-i 0 memory-limits --get -n {leaf}"),
            2,
            "Option memory-limits is not recognized",
        ),
        (
            set.replace("2000", "40G"),
            2,
            "--hard-limit must be a non-negative MebiByte value",
        ),
        (
            set.replace("--soft-limit 0", "--soft-limit 3000"),
            255,
            "Invalid Argument",
        ),
        (
            get.replace("/main", ""),
            3,
            "Unable to get memory limit: Not Supported",
        ),
        (set.replace("/main", ""), 6, "Not Found"),
        (get.replace("/main", "/other"), 255, "cannot be opened"),
    ] {
        let (seen, text) = said(&words);
        assert!(seen == code && text.contains(why), "{words}: {seen} {text}");
    }
    let clear = set.replace("2000", "max");
    assert_eq!(said(&clear).0, 0);
    let older = Machine::start(&["--preset", "T4"]);
    let (code, text) = older.smi(&["memory-limits", "-h"]);
    assert_eq!(code, 2);
    assert!(text.starts_with("ERROR: Option memory-limits is not valid for this command."));
}
