use super::*;
use std::io::Write as _;

struct Fixture {
    _folder: tempfile::TempDir,
    path: PathBuf,
    log: DaemonLog,
}

impl Fixture {
    fn new() -> Self {
        Self::after("Cmd:quit\n")
    }

    /// A log that begins where this text ends.
    fn after(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        std::fs::write(&path, text).unwrap();
        Self {
            log: DaemonLog::begin(path.clone()),
            path,
            _folder: folder,
        }
    }

    fn heard(&mut self, text: &str) -> Heard {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&self.path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
        self.log.look()
    }

    fn foreign(&mut self, text: &str) -> Option<ForeignCommand> {
        self.heard(text).foreign
    }

    fn len(&self) -> u64 {
        std::fs::metadata(&self.path).unwrap().len()
    }
}

fn foreign(command: &str, sets: bool) -> ForeignCommand {
    let command = command.to_owned();
    ForeignCommand { command, sets }
}

fn limited(server: u32, device: usize, bytes: u64) -> String {
    format!(
        "[2026-11-27 11:33:57.500 Server {server:5}] Device pinned memory limit for device {device} set to 0x{bytes:x} bytes\n"
    )
}

#[test]
fn what_we_did_not_give_is_reported_and_what_only_asks_is_not() {
    let mut scene = Fixture::new();
    scene
        .log
        .given()
        .add("set_device_pinned_mem_limit 7 0 2000M");
    let line = |command: &str| format!("[2026-02-06 09:34:17.770 Control   261] Cmd:{command}\n");
    assert_eq!(scene.heard(&line("get_server_list")), Heard::default());
    assert!(!scene.log.hears());
    let ours = line("set_device_pinned_mem_limit 7 0 2000M");
    assert_eq!(scene.heard(&ours), Heard::default());
    assert!(scene.log.hears());
    // Given once.
    let again = foreign("set_device_pinned_mem_limit 7 0 2000M", true);
    assert_eq!(scene.foreign(&ours), Some(again));
    let raise = line("set_device_pinned_mem_limit  7 0 2040M");
    let told = foreign("set_device_pinned_mem_limit 7 0 2040M", true);
    assert_eq!(scene.foreign(&raise), Some(told));
    assert_eq!(
        scene.foreign(&line("terminate_client 7 9")),
        Some(foreign("terminate_client 7 9", false))
    );
    assert_eq!(scene.heard(""), Heard::default());
}

#[test]
fn a_setting_of_ours_that_came_to_nothing_is_nobodys_licence_to_give_it_later() {
    let mut scene = Fixture::new();
    let set = |mib: u32| format!("set_default_device_pinned_mem_limit 0 {mib}M");
    let issued = scene.log.given();
    // The daemon hung; by now another limit is wanted, which it was told twice.
    issued.add(&set(3900));
    issued.add("start_server -uid 0");
    for _ in 0..2 {
        issued.settings_are(&[set(3200)]);
        issued.add(&set(3200));
    }
    let late = format!("Cmd:{}\n", set(3200)).repeat(2);
    assert_eq!(scene.foreign(&late), None);
    assert_eq!(scene.foreign("Cmd:start_server -uid 0\n"), None);
    let raise = foreign(&set(3900), true);
    assert_eq!(scene.foreign(&format!("Cmd:{}\n", set(3900))), Some(raise));
}

#[test]
fn what_was_written_since_the_last_look_is_not_read() {
    let mut scene = Fixture::new();
    scene.heard("Cmd:get_server_list\n");
    assert!(scene.log.has_read(scene.len()));
    assert!(!scene.log.has_read(scene.len() + 1));
    scene.heard("Cmd:qu");
    assert!(!scene.log.has_read(scene.len()), "half a line");
}

#[test]
fn half_a_line_a_cut_log_and_a_flood_hide_nothing() {
    let mut scene = Fixture::new();
    assert_eq!(scene.foreign("x] Cmd:qu"), None);
    let quit = foreign("quit -t 0", false);
    assert_eq!(scene.foreign("it -t 0\n"), Some(quit));
    std::fs::write(&scene.path, "").unwrap();
    assert_eq!(scene.foreign("Cmd:quit\n"), Some(foreign("quit", false)));
    scene.heard(&limited(42, 0, 2000 << 20));
    let flood = "Cmd:get_server_list\n".repeat(100_000);
    assert!(scene.foreign(&flood).is_some_and(|told| told.sets));
    assert_eq!(scene.log.limit_of(42, 1), None, "it may be another by now");
    assert_eq!(scene.foreign("Cmd:quit\n"), Some(foreign("quit", false)));
}

#[test]
fn a_server_that_writes_is_heard_and_the_daemon_is_not() {
    let mut scene = Fixture::new();
    let wrote = |text: &str| Fixture::new().heard(text).server_wrote;
    assert!(wrote("[x Server   520] Client process 566 disconnected\n"));
    for other in [
        "[x Control   507] NEW CLIENT 530 from user 0: Server already exists\n",
        "[x Other   520] Startup\n",
        "Server 520] x\n",
        "[x Server] x\n",
    ] {
        assert!(!wrote(other), "{other:?}");
    }
    // A fault is all clients', and one client's doing.
    let fault = "[x Server  2485] Status of client {PID: 2513, Context ID: 1} is ACTIVE\n\
                 [x Server  2485] Client {PID: 2503, Context: 1} encountered a fatal GPU error.\n\
                 [x Server  2485] Client {PID: 2513, Context ID: 1} on device 0 to be torn down\n\
                 [x Server  2485] All clients belonging to error trigging process 2513 will be torn down\n";
    assert_eq!(scene.heard(fault).faulter, Some(2503));
    assert_eq!(scene.heard("").faulter, None);
    // A command that a tenant's program is named after is none.
    let named = "[x Server   520] Client {PID: 7} is Cmd:quit\n";
    assert_eq!(scene.foreign(named), None);
}

#[test]
fn a_server_says_its_limit_to_the_mib() {
    let mut scene = Fixture::after(&limited(42, 0, 900 << 20));
    assert_eq!(scene.log.limit_of(42, 1), None, "before we began");
    scene.heard(&(limited(42, 0, 2000 << 20) + &limited(43, 0, 1 << 30)));
    scene.heard("[x Server    44] Active Threads Percentage set to 50.0\nnoise\n[x] Device\n");
    assert_eq!(scene.log.limit_of(42, 1), Some(Mib(2000)));
    assert_eq!(scene.log.limit_of(43, 1), Some(Mib(1024)));
    for (server, devices) in [(4, 1), (44, 1), (42, 0), (42, 2)] {
        assert_eq!(scene.log.limit_of(server, devices), None);
    }
    // The last one counts, and all devices have it.
    scene.heard(&limited(42, 0, 3000 << 20));
    assert_eq!(scene.log.limit_of(42, 1), Some(Mib(3000)));
    scene.heard(&limited(42, 1, 3001 << 20));
    assert_eq!(scene.log.limit_of(42, 2), None);
    scene.log.forget_limits();
    assert_eq!(scene.log.limit_of(43, 1), None, "it is set again");
    // Half a line is no line.
    let line = limited(142, 0, 2000 << 20);
    scene.heard(&line[..line.len() - 3]);
    assert_eq!(scene.log.limit_of(142, 1), None);
    scene.heard(&line[line.len() - 3..]);
    assert_eq!(scene.log.limit_of(142, 1), Some(Mib(2000)));
}

#[test]
fn a_limit_in_other_words_is_unknown_until_it_is_set_again() {
    for odd in [
        "for device 0 set to 0x40000001 bytes",
        "for device 0 set to 2000 MiB",
        "for device GPU-0 set to 0x40000000 bytes",
        "for device 0 set to 0x+40000000 bytes",
        "for device 0 lifted",
        "",
    ] {
        let mut scene = Fixture::new();
        let odd = format!("[x Server    42] Device pinned memory limit {odd}\n");
        scene.heard(&(limited(42, 0, 1 << 30) + &limited(43, 0, 1 << 30) + &odd));
        scene.heard(&limited(42, 0, 1 << 30));
        assert_eq!(scene.log.limit_of(42, 1), None, "{odd}");
        assert_eq!(scene.log.limit_of(43, 1), Some(Mib(1024)), "another's");
    }
}

#[test]
fn servers_that_are_kept_are_few() {
    let mut scene = Fixture::new();
    let many: String = (0..1000).map(|pid| limited(pid, 0, 1 << 30)).collect();
    scene.heard(&many);
    assert_eq!(scene.log.limits.len(), MAX_SERVERS);
}
