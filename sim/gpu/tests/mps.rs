//! The control daemon by its text protocol, as supervisors and clients meet it.
// Clippy takes helpers outside a test for no test.
#![allow(clippy::unwrap_used)]

mod bench;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use bench::{Machine, is_root, until};
use nix::sys::signal::Signal;

const ADA: [&str; 2] = ["--preset", "RTX-6000-Ada"];

#[test]
fn a_transcript_of_every_query_and_setting() {
    let machine = Machine::start(&ADA);
    let daemon = machine.daemon(&[]);
    let gpu = machine.cards[0].clone();
    assert_eq!(
        daemon.cli("get_server_list"),
        (0, vec![]),
        "no server before the first client"
    );
    let before = [
        ("get_default_active_thread_percentage", "100.0"),
        ("set_default_active_thread_percentage 33.3", "33.3"),
        ("get_default_active_thread_percentage", "33.3"),
        // What it makes nothing of changes nothing, or leaves a device without a limit.
        ("set_default_active_thread_percentage 0", "33.3"),
        ("set_default_active_thread_percentage 500", "33.3"),
        ("get_default_device_pinned_mem_limit 0", ""),
        ("set_default_device_pinned_mem_limit 0 5120M", ""),
        ("get_default_device_pinned_mem_limit 0", "5G"),
        ("get_default_device_pinned_mem_limit", "5G"),
        ("set_default_device_pinned_mem_limit 0 nonsense", ""),
        ("get_default_device_pinned_mem_limit 0", ""),
        ("set_default_device_pinned_mem_limit 0 5120M", ""),
        ("get_default_client_priority", "0"),
        ("set_default_client_priority 1", ""),
        (
            "set_default_client_priority 2",
            "Invalid priority value - must be 0 or 1!",
        ),
        ("get_server_status 1", "Server 1 not found"),
        (
            "terminate_client 1 2",
            "Server 1 not found\nServer 1 not found!\n1",
        ),
        ("dance", "Unknown command \"dance\""),
    ];
    for (command, answer) in before {
        let (code, lines) = daemon.cli(command);
        assert_eq!((code, lines.join("\n").as_str()), (0, answer), "{command}");
    }
    let server = daemon.warm();
    let after = [
        (format!("get_active_thread_percentage {server}"), "33.3"),
        (format!("get_device_pinned_mem_limit {server} 0"), "5G"),
        (format!("get_device_pinned_mem_limit {server} {gpu}"), "5G"),
        (format!("get_default_device_pinned_mem_limit {gpu}"), "5G"),
        // Defaults are for the next server, settings for the next clients of this one.
        ("set_default_device_pinned_mem_limit 0 512M".to_owned(), ""),
        (format!("get_device_pinned_mem_limit {server} 0"), "5G"),
        (
            format!("set_device_pinned_mem_limit {server} {gpu} 900M"),
            "",
        ),
        (format!("get_device_pinned_mem_limit {server} 0"), "900M"),
        (format!("set_active_thread_percentage {server} 20"), "20.0"),
        (format!("get_client_list {server}"), ""),
        (
            "ps".to_owned(),
            "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND",
        ),
    ];
    for (command, answer) in after {
        assert_eq!(daemon.ask(&command), answer, "{command}");
    }
    assert_eq!(
        daemon.cli("get_server_list\nget_default_client_priority").1,
        [server.clone(), "1".to_owned()],
        "several commands in one call"
    );
    let log = daemon.log();
    for line in [
        "] Startup",
        "Connecting to control daemon on socket: ",
        "Creating server context on device 0 (NVIDIA RTX 6000 Ada Generation)",
        "Active Threads Percentage set to 33.3",
        "Device pinned memory limit for device 0 set to 0x140000000 bytes",
        "Server has started",
    ] {
        assert!(log.contains(line), "{line} in {log}");
    }
    assert!(
        daemon
            .log()
            .contains(&format!("NEW SERVER {server}: Ready"))
    );
}

#[test]
fn limits_come_to_the_lesser_of_the_clients_and_the_servers() {
    let machine = Machine::start(&ADA);
    let daemon = machine.daemon(&[]);
    daemon.ask("set_default_device_pinned_mem_limit 0 4000M");
    daemon.ask("set_default_active_thread_percentage 50");
    let server = daemon.warm();
    for (own, expected) in [(None, 4000), (Some(2000), 2000), (Some(9000), 4000)] {
        let tenant = daemon.tenant("grow 1");
        let tenant = match own {
            Some(mib) => tenant.limit(mib),
            None => tenant,
        };
        let line = tenant.last();
        assert_eq!(line["held_mib"], expected, "{own:?}");
        assert_eq!(line["refused_at_mib"], expected + 1);
        assert_eq!(line["code"], 2);
        assert_eq!(line["free_mib"], 0);
        assert_eq!(line["total_mib"], 48640, "the total stays the card's");
        assert_eq!(line["percent"], 50);
    }
    // For the next clients only.
    let go = machine.path("go");
    let mut old = daemon
        .tenant(&format!("context await {} memory", go.display()))
        .spawn();
    assert_eq!(old.reach("context")["limit_mib"], 4000);
    daemon.ask(&format!("set_device_pinned_mem_limit {server} 0 1000M"));
    std::fs::write(&go, []).unwrap();
    assert_eq!(old.reach("memory")["limit_mib"], 4000);
    assert_eq!(daemon.tenant("context").last()["limit_mib"], 1000);
}

#[test]
fn clients_are_listed_terminated_and_counted() {
    let machine = Machine::start(&ADA);
    let daemon = machine.daemon(&[]);
    let go = machine.path("go");
    let mut tenant = daemon
        .tenant(&format!("alloc 100 await {} alloc 1", go.display()))
        .spawn();
    tenant.reach("alloc");
    let server = daemon.ask("get_server_list");
    let pid = tenant.process.pid().to_string();
    assert_eq!(daemon.ask(&format!("get_client_list {server}")), pid);
    assert_eq!(
        daemon.ask("get_device_client_list"),
        format!("{} {pid}", machine.cards[0])
    );
    let table = daemon.ask("ps");
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        row[..4],
        [pid.as_str(), "1", server.as_str(), &machine.cards[0][..22]]
    );
    assert_eq!(daemon.ask(&format!("terminate_client {server} 1")), "201");
    assert_eq!(daemon.ask(&format!("terminate_client {server} {pid}")), "0");
    std::fs::write(&go, []).unwrap();
    assert_eq!(tenant.reach("alloc")["code"], 810);
    assert_eq!(tenant.process.end(), Some(1));
    until("the list is empty", || {
        daemon.ask(&format!("get_client_list {server}")).is_empty()
    });
}

#[test]
fn a_fault_hits_all_clients_and_the_server_recovers_when_they_are_gone() {
    let machine = Machine::start(&ADA);
    let daemon = machine.daemon(&[]);
    let server = daemon.warm();
    let go = machine.path("go");
    let mut neighbour = daemon
        .tenant(&format!(
            "alloc 10 await {} keep-going alloc 1 hold",
            go.display()
        ))
        .spawn();
    neighbour.reach("alloc");
    let status = format!("get_server_status {server}");
    assert_eq!(daemon.tenant("alloc 10 fault").run().0, 0);
    assert_eq!(daemon.ask(&status), "FAULT", "while a broken client stays");
    std::fs::write(&go, []).unwrap();
    assert_eq!(neighbour.reach("alloc")["code"], 700);
    neighbour.reach("hold");
    assert_eq!(daemon.tenant("alloc 1").last()["code"], 807);
    neighbour.process.signal(Signal::SIGKILL);
    until("the server is active again", || {
        daemon.ask(&status) == "ACTIVE"
    });
    assert_eq!(daemon.tenant("alloc 1").run().0, 0);
}

#[test]
fn quit_waits_for_clients_and_forces_them_with_a_time() {
    let machine = Machine::start(&ADA);
    {
        let mut daemon = machine.daemon(&[]);
        let mut tenant = daemon.tenant("alloc 10 hold").spawn();
        tenant.reach("hold");
        std::thread::scope(|scope| {
            let quit = scope.spawn(|| daemon.cli("quit"));
            until("quit is under way", || daemon.log().contains("Cmd:quit"));
            assert!(!quit.is_finished());
            assert_eq!(
                daemon.tenant("alloc 1").last()["code"],
                805,
                "no new clients"
            );
            tenant.process.signal(Signal::SIGTERM);
            assert_eq!(quit.join().unwrap(), (0, vec![]));
        });
        assert_eq!(daemon.process.end(), Some(0));
        assert!(
            !daemon.pipe.join("control").exists(),
            "it takes its files along"
        );
        assert_eq!(
            daemon.cli("get_server_list"),
            // Why is on standard error.
            (1, vec![])
        );
    }
    let mut daemon = machine.daemon(&[]);
    assert_eq!(
        daemon.ask("get_default_device_pinned_mem_limit 0"),
        "",
        "nothing outlives a daemon"
    );
    let go = machine.path("go");
    let mut tenant = daemon
        .tenant(&format!("alloc 10 await {} alloc 1", go.display()))
        .spawn();
    tenant.reach("alloc");
    assert_eq!(daemon.cli("quit -t 0").0, 0);
    assert_eq!(daemon.process.end(), Some(0));
    std::fs::write(&go, []).unwrap();
    assert_eq!(tenant.reach("alloc")["code"], 806);
}

#[test]
fn a_second_daemon_in_one_directory_is_refused_and_a_dead_ones_leftovers_are_not() {
    let machine = Machine::start(&ADA);
    let mut daemon = machine.daemon(&[]);
    let server = daemon.warm();
    let second = machine
        .command("nvidia-cuda-mps-control")
        .arg("-d")
        .env("CUDA_MPS_PIPE_DIRECTORY", &daemon.pipe)
        .env("CUDA_MPS_LOG_DIRECTORY", &daemon.log)
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("already running"));
    // A crash leaves the files, and the server while it has clients.
    machine.smi(&["-c", "EXCLUSIVE_PROCESS"]);
    let mut tenant = daemon.tenant("alloc 10 hold").spawn();
    tenant.reach("hold");
    daemon.cli("sim die");
    daemon.process.end();
    assert!(daemon.pipe.join("control").exists());
    let next = machine.daemon(&[]);
    assert_eq!(
        next.ask("get_server_list"),
        "",
        "the old server is not adopted"
    );
    next.ask(&format!("start_server -uid {}", nix::unistd::geteuid()));
    until("a new server cannot have the card", || {
        next.log().contains("exited with status 1")
    });
    tenant.process.signal(Signal::SIGKILL);
    until("the old server ends after its last client", || {
        !std::path::Path::new(&format!("/proc/{server}/cmdline")).exists()
            || std::fs::read(format!("/proc/{server}/cmdline")).is_ok_and(|c| c.is_empty())
    });
    next.warm();
}

#[test]
fn the_daemon_detaches_with_d() {
    let machine = Machine::start(&ADA);
    let (pipe, log) = (machine.path("p"), machine.path("l"));
    let output = machine
        .command("nvidia-cuda-mps-control")
        .arg("-d")
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .env("CUDA_MPS_LOG_DIRECTORY", &log)
        .status()
        .unwrap();
    assert!(output.success());
    let pid = std::fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid")).unwrap();
    for name in ["control", "control_privileged", "control_lock", "log"] {
        assert!(pipe.join(name).exists(), "{name}");
    }
    let mut quit = machine
        .command("nvidia-cuda-mps-control")
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut quit.stdin.take().unwrap(), b"quit\n").unwrap();
    assert!(quit.wait().unwrap().success());
    let status = format!("/proc/{}/status", pid.trim());
    until("the daemon is gone", || {
        std::fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ"))
    });
}

#[test]
fn a_command_can_be_rejected_with_exit_zero_and_a_daemon_can_hang() {
    let machine = Machine::start(&ADA);
    let daemon = machine.daemon(&[]);
    daemon.ask("sim reject set_default_device_pinned_mem_limit");
    let (code, lines) = daemon.cli("set_default_device_pinned_mem_limit 0 100M");
    assert_eq!(code, 0);
    assert_eq!(
        lines,
        ["set_default_device_pinned_mem_limit is not supported"]
    );
    assert_eq!(daemon.ask("get_default_device_pinned_mem_limit 0"), "");
    daemon.ask("sim hang");
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| daemon.cli("get_server_list"));
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) {
            assert!(!stuck.is_finished(), "a hanging daemon answers nobody");
            std::thread::yield_now();
        }
        daemon.process.signal(Signal::SIGKILL);
        assert_eq!(stuck.join().unwrap().0, 1);
    });
}

#[test]
fn a_daemon_that_cannot_be_reached_leaves_the_program_without_mps() {
    let machine = Machine::start(&ADA);
    let report = machine
        .tenant("report")
        .env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
        .last();
    assert_eq!(report["mps_server"], serde_json::Value::Null);
    assert_eq!(report["devices"][0]["limit_mib"], serde_json::Value::Null);
    assert_eq!(report["devices"][0]["free_mib"], 48640 - 304);
}

#[test]
fn the_servers_shared_memory_is_needed_by_old_drivers_only() {
    let hardware =
        |version: &str| format!(r#"{{"driver_version":"{version}","cards":[{{"preset":"T4"}}]}}"#);
    for (version, region) in [
        ("570.172.08", "Created shared memory region"),
        ("580.95.05", "Created anonymous"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hardware.json");
        std::fs::write(&file, hardware(version)).unwrap();
        let machine = Machine::start(&["--hardware", file.to_str().unwrap()]);
        let daemon = machine.daemon(&[]);
        let server = daemon.warm();
        assert!(daemon.log().contains(region), "{version}");
        assert_eq!(daemon.tenant("alloc 1").run().0, 0);
        // Another /dev/shm than the server's: its region is not there.
        let shm = format!(
            "/dev/shm/cuda.shm.{:x}.{:x}.1",
            nix::unistd::geteuid().as_raw(),
            server.parse::<u32>().unwrap()
        );
        assert_eq!(std::path::Path::new(&shm).exists(), version < "580");
        let _ = std::fs::remove_file(&shm);
        let expected = if version < "580" { Some(805) } else { None };
        assert_eq!(
            daemon.tenant("alloc 1").last()["code"].as_u64(),
            expected,
            "{version}"
        );
    }
}

#[test]
fn another_users_client_waits_until_the_present_server_has_nobody() {
    if !is_root() {
        return; // A daemon without root serves its own user alone.
    }
    let machine = Machine::start(&ADA);
    let daemon = machine.daemon(&[]);
    let mut first = daemon.tenant("alloc 10 hold").uid(1000).spawn();
    first.reach("hold");
    let server = daemon.ask("get_server_list");
    assert_eq!(
        uid_of(&server),
        1000,
        "the server runs as its clients' user"
    );
    let mut second = daemon.tenant("alloc 20 hold").uid(2000).spawn();
    let pending = format!(
        "NEW CLIENT {} from user 2000: Server is not ready",
        second.process.pid()
    );
    until("the second waits", || daemon.log().contains(&pending));
    first.process.signal(Signal::SIGTERM);
    second.reach("hold");
    let next = daemon.ask("get_server_list");
    assert_ne!(next, server);
    assert_eq!(uid_of(&next), 2000);
}

#[test]
fn a_multiuser_server_takes_all_users_and_obeys_root_alone() {
    if !is_root() {
        return;
    }
    let machine = Machine::start(&ADA);
    machine.smi(&["-c", "EXCLUSIVE_PROCESS"]);
    let daemon = machine.daemon(&["-multiuser-server"]);
    let server = daemon.warm();
    let mut tenants: Vec<_> = [1000, 2000, 0]
        .into_iter()
        .map(|uid| daemon.tenant("alloc 10 hold").limit(1000).uid(uid).spawn())
        .collect();
    for tenant in &mut tenants {
        tenant.reach("hold");
    }
    assert_eq!(
        daemon
            .ask(&format!("get_client_list {server}"))
            .lines()
            .count(),
        3
    );
    assert_eq!(uid_of(&server), 0);
    let (code, lines) = daemon.cli_as(Some(1000), "get_server_list");
    assert_eq!(code, 0, "{lines:?}");
    let refused = "Insufficient privileges for UID 1000.";
    assert!(lines.concat().contains(refused), "{lines:?}");
    assert!(daemon.log().contains(refused));
}

#[test]
fn a_server_that_cannot_come_to_its_pipe_does_not_start() {
    if !is_root() {
        return;
    }
    let machine = Machine::start(&ADA);
    let daemon = machine.daemon(&[]);
    std::fs::set_permissions(&daemon.pipe, std::fs::Permissions::from_mode(0o700)).unwrap();
    daemon.ask("start_server -uid 1000");
    until("the server has given up", || {
        daemon.log().contains("exited with status 1")
    });
    assert!(daemon.log().contains("Failed to start"));
}

fn uid_of(pid: &str) -> u32 {
    std::fs::metadata(format!("/proc/{pid}")).unwrap().uid()
}

#[test]
fn a_container_that_is_only_a_folder_names_its_paths_as_if_it_were_not() {
    let machine = Machine::start(&ADA);
    let daemon = machine.daemon(&[]);
    let container = sim_gpu::paths::Root::new(machine.path("container"));
    let inside = |path: &str| container.path().join(path);
    for folder in ["dev", "run/nvidia-persistenced", "run/aliquot/mps"] {
        std::fs::create_dir_all(inside(folder)).unwrap();
    }
    let put =
        |from: &std::path::Path, to: &str| std::os::unix::fs::symlink(from, inside(to)).unwrap();
    for node in ["nvidia0", "nvidiactl", "nvidia-uvm"] {
        put(&machine.root.dev().join(node), &format!("dev/{node}"));
    }
    put(&machine.root.socket(), "run/nvidia-persistenced/socket");
    put(&daemon.pipe, "run/aliquot/mps/pipe");
    let line = machine
        .tenant("grow 1")
        .env("SIM_ROOT", container.path().to_str().unwrap())
        .env("CUDA_MPS_PIPE_DIRECTORY", "/run/aliquot/mps/pipe")
        .limit(700)
        .last();
    assert_eq!(line["held_mib"], 700, "{line}");
}
