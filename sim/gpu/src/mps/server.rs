//! `nvidia-cuda-mps-server`: holds the contexts that make clients possible.
//!
//! Owns one connection to the driver. In: the daemon's requests on standard
//! input. Out: answers and log lines on standard output, as messages. When the
//! daemon dies it serves on for the clients that it has, takes no new ones, and
//! ends after the last. Must never: outlive both its daemon and its clients.

use std::io::{BufRead, Write};
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::log;
use crate::client::process::{Environment, visible};
use crate::client::{CallError, Driver};
use crate::paths::{self, Root};
use crate::wire::Message;

/// Interval at which an ending server checks for its last client.
const LAST_CLIENT_CHECK: Duration = Duration::from_millis(20);

/// Runs the program.
pub fn run() -> ExitCode {
    say("Other", "Startup");
    let pipe = super::cli::pipe_directory();
    match start(&pipe) {
        Ok((driver, devices)) => {
            let rows: Vec<Vec<String>> = devices.into_iter().map(|uuid| vec![uuid]).collect();
            emit(&Message::new("ready").with_rows("devices", &rows));
            let code = serve(driver);
            let own = nix::unistd::geteuid().as_raw();
            let _ = std::fs::remove_file(shared_memory(own, std::process::id()));
            code
        }
        Err(reason) => {
            say("Server", &format!("Failed to start : {reason}"));
            ExitCode::FAILURE
        }
    }
}

fn start(pipe: &Path) -> Result<(Driver, Vec<String>), String> {
    let socket = pipe.join("control");
    say(
        "Other",
        &format!(
            "Connecting to control daemon on socket: {}",
            socket.display()
        ),
    );
    // The server runs as its clients' user, which must be able to get here.
    let mut control = paths::connect(&socket).map_err(|e| e.to_string())?;
    control.write_all(b"SERVER\n").map_err(|e| e.to_string())?;
    say("Other", "Initializing server process");
    let root = Root::from_env();
    let mut driver = Driver::connect(&root).map_err(|e| e.to_string())?;
    let mut openable = Vec::new();
    let mut open = |name: &str| driver.open(&root.dev().join(name));
    open("nvidiactl").map_err(|e| e.to_string())?;
    open("nvidia-uvm").map_err(|e| e.to_string())?;
    for minor in root.card_minors() {
        if let Ok(answer) = open(&format!("nvidia{minor}")) {
            openable.extend(answer.get("gpu"));
        }
    }
    let env: Environment = std::env::vars().collect();
    let devices = visible(&openable, &env);
    if devices.is_empty() {
        return Err("no CUDA-capable device is detected".to_owned());
    }
    for (ordinal, uuid) in devices.iter().enumerate() {
        let name = driver
            .call(&Message::new("card").with("gpu", uuid))
            .map_err(|e| e.to_string())?
            .get("name")
            .unwrap_or_default();
        say(
            "Server",
            &format!("Creating server context on device {ordinal} ({name})"),
        );
        driver
            .call(&Message::new("server-context").with("gpu", uuid))
            .map_err(|e| match e {
                CallError::Refused { message, .. } => message,
                CallError::Gone(source) => source.to_string(),
            })?;
    }
    driver
        .call(&Message::new("server-ready"))
        .map_err(|e| e.to_string())?;
    Ok((driver, devices))
}

fn serve(mut driver: Driver) -> ExitCode {
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let mut ending = false;
    loop {
        let request = if ending {
            match requests.recv_timeout(LAST_CLIENT_CHECK) {
                Ok(line) => Some(line),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(LAST_CLIENT_CHECK);
                    None
                }
            }
        } else {
            let next = requests.recv().ok();
            // Nothing more comes from a daemon that has ended.
            ending = next.is_none();
            next
        };
        match request.as_deref().map(Message::parse) {
            Some(Ok(request)) if request.verb == "exit" => {
                driver.bye();
                return ExitCode::SUCCESS;
            }
            Some(Ok(request)) if request.verb == "drain" => {
                ending = true;
                emit(&Message::ok());
            }
            Some(Ok(request)) => match driver.call(&request) {
                Ok(answer) => emit(&answer),
                Err(CallError::Refused {
                    code,
                    name,
                    message,
                }) => emit(&Message::err(code, &name, &message)),
                Err(CallError::Gone(_)) => {
                    say(
                        "Server",
                        "Server encountered a fatal exception. Shutting down",
                    );
                    return ExitCode::FAILURE;
                }
            },
            Some(Err(error)) => emit(&Message::err(
                1,
                "CUDA_ERROR_INVALID_VALUE",
                &error.to_string(),
            )),
            None => {}
        }
        if ending {
            match driver.call(&Message::new("clients")) {
                Ok(answer) if answer.rows("clients").is_empty() => {
                    driver.bye();
                    return ExitCode::SUCCESS;
                }
                Ok(_) => {}
                Err(_) => return ExitCode::FAILURE,
            }
        }
    }
}

fn say(who: &str, text: &str) {
    emit(&Message::new("log").with("line", log::line(who, std::process::id(), text)));
}

fn emit(message: &Message) {
    let mut out = std::io::stdout().lock();
    // Without a daemon there is no receiver.
    let _ = writeln!(out, "{message}");
    let _ = out.flush();
}

/// Where drivers before r580 keep what a server shares with its clients.
pub(super) fn shared_memory(uid: u32, pid: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/cuda.shm.{uid:x}.{pid:x}.1"))
}
