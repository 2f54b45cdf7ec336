//! The command language of protocol 2: one line in, lines out.
//!
//! Owns the words. In: a command. Out: what the CLI prints; the CLI exits with 0 whatever it is.
//! Known texts are those of real machines; unknown ones (mostly refusals) name the error in one
//! line. `sim ...` is ours: it injects faults.

use std::sync::Arc;
use std::time::Duration;

use super::daemon::{Daemon, Inner, Server};
use super::limits::{commanded_mib, parse_percent, show_mib};
use super::pipe::ServerPipe;
use crate::client::Driver;
use crate::paths::Root;
use crate::wire::Message;

/// Runs one command.
#[allow(clippy::too_many_lines)]
pub(super) fn run(daemon: &Arc<Daemon>, command: &str) -> Vec<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let Some((verb, args)) = words.split_first() else {
        return Vec::new();
    };
    if daemon.inner().rejected.as_deref() == Some(verb) {
        return vec![format!("{verb} is not supported")];
    }
    match (*verb, args) {
        ("get_server_list", []) => server_list(&daemon.inner()),
        ("get_server_status", [pid]) => {
            with_server(daemon, pid, |server| vec![status(daemon, server)])
        }
        ("start_server", ["-uid", uid, ..]) => start_server(daemon, uid),
        ("shutdown_server", [pid, rest @ ..]) => shutdown(daemon, pid, rest.contains(&"-f")),
        ("get_client_list", [pid]) => {
            let mut lines = with_server(daemon, pid, |_| Vec::new());
            if lines.is_empty() {
                lines.extend(
                    living(daemon)
                        .into_iter()
                        .map(|client| client.pid.to_string()),
                );
            }
            lines
        }
        ("get_device_client_list", _) => device_clients(daemon),
        ("ps", _) => processes(daemon, args),
        ("get_default_active_thread_percentage", []) => {
            vec![format!("{:.1}", daemon.inner().defaults.percent)]
        }
        ("set_default_active_thread_percentage", [value]) => match parse_percent(value) {
            Some(percent) => {
                daemon.inner().defaults.percent = percent;
                vec![format!("{percent:.1}")]
            }
            None => vec![format!("{:.1}", daemon.inner().defaults.percent)],
        },
        ("get_active_thread_percentage", [pid]) => with_server(daemon, pid, |server| {
            vec![format!("{:.1}", server.limits.percent)]
        }),
        ("set_active_thread_percentage", [pid, value]) => match parse_percent(value) {
            Some(percent) => with_server(daemon, pid, |server| {
                server.limits.percent = percent;
                vec![format!("{percent:.1}")]
            }),
            None => vec!["Invalid active thread percentage".to_owned()],
        },
        ("get_default_device_pinned_mem_limit", device) => {
            // A device is optional and may be either spelling of the same card.
            let inner = daemon.inner();
            let devices = inner
                .server
                .as_ref()
                .and_then(|s| s.devices.clone())
                .unwrap_or_default();
            let device = device.first().copied().unwrap_or("0");
            let named = inner
                .defaults
                .memory
                .iter()
                .rev()
                .find(|(name, _)| name == device)
                .map(|(_, mib)| *mib);
            let limit = named.or_else(|| {
                super::limits::resolve(&devices, device)
                    .and_then(|at| inner.defaults.memory_of(&devices, at))
            });
            show(limit, daemon.habits.in_gib)
        }
        ("set_default_device_pinned_mem_limit", [device, value]) => {
            let mib = commanded_mib(value);
            if !daemon.inner().defaults.set_memory(device, mib) {
                daemon.log.control("Invalid device ordinal!");
            }
            Vec::new()
        }
        ("get_device_pinned_mem_limit", [pid, device]) => {
            let in_gib = daemon.habits.in_gib;
            with_server(daemon, pid, |server| {
                let devices = server.devices.clone().unwrap_or_default();
                let at = super::limits::resolve(&devices, device);
                show(
                    at.and_then(|at| server.limits.memory_of(&devices, at)),
                    in_gib,
                )
            })
        }
        ("set_device_pinned_mem_limit", [pid, device, value]) => {
            with_server(daemon, pid, |server| {
                server.limits.set_memory(device, commanded_mib(value));
                daemon.log_limits(server);
                Vec::new()
            })
        }
        ("get_default_client_priority", []) => vec![daemon.inner().defaults.priority.to_string()],
        ("set_default_client_priority", [value]) => match value.parse::<u32>() {
            Ok(priority @ 0..=1) => {
                daemon.inner().defaults.priority = priority;
                Vec::new()
            }
            _ => vec!["Invalid priority value - must be 0 or 1!".to_owned()],
        },
        ("terminate_client", [server, client]) => terminate(daemon, server, client),
        ("device_query", _) => device_query(daemon, args.contains(&"--csv")),
        ("quit", []) => {
            daemon.quit(None);
            Vec::new()
        }
        ("quit", ["-t", seconds]) => {
            daemon.quit(Some(Duration::from_secs(seconds.parse().unwrap_or(0))));
            Vec::new()
        }
        ("sim", injection) => inject(daemon, injection),
        _ => vec![format!("Unknown command {verb:?}")],
    }
}

fn show(limit: Option<u64>, in_gib: bool) -> Vec<String> {
    limit.map(|mib| show_mib(mib, in_gib)).into_iter().collect()
}

fn server_list(inner: &Inner) -> Vec<String> {
    inner
        .server
        .iter()
        .map(|server| server.pipe.pid.to_string())
        .collect()
}

/// Runs on the server with this pid, or says that there is none.
fn with_server(
    daemon: &Daemon,
    pid: &str,
    run: impl FnOnce(&mut Server) -> Vec<String>,
) -> Vec<String> {
    let mut inner = daemon.inner();
    match inner
        .server
        .as_mut()
        .filter(|server| server.pipe.pid.to_string() == pid)
    {
        Some(server) => run(server),
        None => vec![format!("Server {pid} not found")],
    }
}

fn status(daemon: &Daemon, server: &mut Server) -> String {
    if server.devices.is_none() {
        return "INITIALIZING".to_owned();
    }
    let Ok(answer) = server.pipe.call(&Message::new("server-status")) else {
        return "FAULT".to_owned();
    };
    let status = answer.get("status").unwrap_or_else(|| "FAULT".to_owned());
    // A real server writes it when it happens.
    let faulted = status == "FAULT" && !server.faulted;
    server.faulted = status == "FAULT";
    if let Some(pid) = answer.get("faulter").filter(|_| faulted) {
        let said = format!("Client {{PID: {pid}, Context: 1}} encountered a fatal GPU error.");
        let line = super::log::line("Server", server.pipe.pid, &said);
        daemon.log.server(&line);
    }
    status
}

fn start_server(daemon: &Arc<Daemon>, uid: &str) -> Vec<String> {
    let Ok(uid) = uid.parse::<u32>() else {
        return vec!["A user id (UID) is required to start a new server".to_owned()];
    };
    let uid = daemon.shared_user().unwrap_or(uid);
    let mut inner = daemon.inner();
    match &inner.server {
        Some(server) if server.uid == uid => Vec::new(),
        Some(server) => vec![format!(
            "Server {} of user {} is running",
            server.pipe.pid, server.uid
        )],
        None => match daemon.spawn(&mut inner, uid, uid) {
            Ok(()) => Vec::new(),
            Err(error) => vec![error],
        },
    }
}

fn shutdown(daemon: &Daemon, pid: &str, force: bool) -> Vec<String> {
    let mut pipe = None;
    let refusal = with_server(daemon, pid, |server| {
        server.draining = true;
        pipe = Some(Arc::clone(&server.pipe));
        Vec::new()
    });
    if let Some(pipe) = pipe {
        if force {
            pipe.kill();
        } else {
            let _ = pipe.call(&Message::new("drain"));
        }
    }
    refusal
}

/// A client that lives: what the driver knows of it, and the pid that we know it by.
struct LiveClient {
    pid: i32,
    ticket: String,
    cards: Vec<String>,
    name: String,
    server: Arc<ServerPipe>,
}

/// The clients of the server that hold contexts.
fn living(daemon: &Daemon) -> Vec<LiveClient> {
    let (pipe, known) = {
        let inner = daemon.inner();
        let Some(server) = &inner.server else {
            return Vec::new();
        };
        let known: Vec<(String, i32)> = inner
            .clients
            .iter()
            .filter(|c| c.server == server.pipe.pid)
            .map(|c| (c.ticket.clone(), c.pid))
            .collect();
        (Arc::clone(&server.pipe), known)
    };
    let Ok(answer) = pipe.call(&Message::new("clients")) else {
        return Vec::new();
    };
    answer
        .rows("clients")
        .into_iter()
        .filter_map(|row| {
            let [ticket, _, cards, name] = <[String; 4]>::try_from(row).ok()?;
            // A client whose control connection has ended still counts
            let pid = known
                .iter()
                .find(|(t, _)| *t == ticket)
                .map_or(0, |(_, pid)| *pid);
            let cards = cards
                .split('+')
                .filter(|c| !c.is_empty())
                .map(str::to_owned)
                .collect();
            Some(LiveClient {
                pid,
                ticket,
                cards,
                name,
                server: Arc::clone(&pipe),
            })
        })
        .collect()
}

fn device_clients(daemon: &Daemon) -> Vec<String> {
    let devices = daemon
        .inner()
        .server
        .as_ref()
        .and_then(|s| s.devices.clone())
        .unwrap_or_default();
    let clients = living(daemon);
    devices
        .iter()
        .map(|uuid| {
            let pids: Vec<String> = clients
                .iter()
                .filter(|c| c.cards.contains(uuid))
                .map(|c| c.pid.to_string())
                .collect();
            format!("{uuid} {}", pids.join(" ")).trim_end().to_owned()
        })
        .collect()
}

fn processes(daemon: &Daemon, args: &[&str]) -> Vec<String> {
    let wanted = match args {
        ["-p", pid] => Some((*pid).to_owned()),
        _ => None,
    };
    let mut lines = vec![row("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")];
    for client in living(daemon) {
        let pid = client.pid.to_string();
        if wanted.as_ref().is_some_and(|w| *w != pid) {
            continue;
        }
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/pid"))
            .map(|link| {
                link.to_string_lossy()
                    .chars()
                    .filter(char::is_ascii_digit)
                    .collect::<String>()
            })
            .unwrap_or_default();
        for card in &client.cards {
            // Real tables show a UUID's beginning.
            let short = card.get(..22).unwrap_or(card);
            lines.push(row(
                &pid,
                "1",
                &client.server.pid.to_string(),
                short,
                &namespace,
                &client.name,
            ));
        }
    }
    lines
}

fn row(pid: &str, id: &str, server: &str, device: &str, namespace: &str, command: &str) -> String {
    format!("{pid:<10}{id:<10}{server:<15}{device:<26}{namespace:<15}{command}")
}

fn terminate(daemon: &Daemon, server: &str, client: &str) -> Vec<String> {
    let mut refusal = with_server(daemon, server, |_| Vec::new());
    if !refusal.is_empty() {
        refusal.extend([format!("Server {server} not found!"), "1".to_owned()]);
        return refusal;
    }
    let found: Vec<LiveClient> = living(daemon)
        .into_iter()
        .filter(|c| c.pid.to_string() == client)
        .collect();
    if found.is_empty() {
        // CUDA_ERROR_INVALID_CONTEXT
        return vec!["201".to_owned()];
    }
    for client in found {
        if let Err(error) = client
            .server
            .call(&Message::new("terminate").with("ticket", &client.ticket))
        {
            return vec![error.to_string()];
        }
    }
    vec!["0".to_owned()]
}

fn device_query(daemon: &Daemon, csv: bool) -> Vec<String> {
    let devices = daemon
        .inner()
        .server
        .as_ref()
        .and_then(|s| s.devices.clone())
        .unwrap_or_default();
    let Ok(mut driver) = Driver::connect(&Root::from_env()) else {
        return Vec::new();
    };
    let mut lines = vec![if csv {
        "device,name,uuid,sm_count".to_owned()
    } else {
        format!("{:<8}{:<34}{:<42}SM COUNT", "DEVICE", "NAME", "UUID")
    }];
    for (ordinal, uuid) in devices.iter().enumerate() {
        let Ok(card) = driver.call(&Message::new("card").with("gpu", uuid)) else {
            continue;
        };
        let (name, sms) = (
            card.get("name").unwrap_or_default(),
            card.get("sms").unwrap_or_default(),
        );
        lines.push(if csv {
            format!("{ordinal},{name},{uuid},{sms}")
        } else {
            format!("{ordinal:<8}{name:<34}{uuid:<42}{sms}")
        });
    }
    lines
}

/// `sim hang`, `sim die`, `sim reject COMMAND`, `sim fault`.
fn inject(daemon: &Daemon, injection: &[&str]) -> Vec<String> {
    match injection {
        ["hang"] => {
            daemon.inner().hanging = true;
            Vec::new()
        }
        // As a crash would: files stay, the server is left alone.
        ["die"] => std::process::abort(),
        ["reject", command] => {
            daemon.inner().rejected = Some((*command).to_owned());
            Vec::new()
        }
        ["fault"] => {
            let pipe = daemon.inner().server.as_ref().map(|s| Arc::clone(&s.pipe));
            if let Some(pipe) = pipe {
                let _ = pipe.call(&Message::new("server-fault"));
            }
            Vec::new()
        }
        _ => vec!["sim hang | die | reject COMMAND | fault".to_owned()],
    }
}
